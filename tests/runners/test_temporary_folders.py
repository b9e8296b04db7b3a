"""What tests, and the programs that they start, leave in their temporary folder goes with it when the tests end."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LEAVES_FOLDERS = """
import subprocess, sys, tempfile

def test_that_fails():
    tempfile.mkdtemp()
    subprocess.run([sys.executable, "-c", "import tempfile; tempfile.mkdtemp()"], check=True)
    assert False, tempfile.gettempdir()
"""


def test_these_tests_have_a_temporary_folder_of_their_own() -> None:
    folder = Path(tempfile.gettempdir())
    assert folder.name.startswith("privstream-tests-")
    assert os.environ["TMPDIR"] == str(folder)
    assert f"-Djava.io.tmpdir={folder}" in os.environ["JAVA_TOOL_OPTIONS"]
    assert len(str(folder)) < 60, "paths of sockets have at most 107 bytes"


@pytest.mark.slow
def test_nothing_is_left_by_tests_that_fail_in_a_worker(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "test_inner.py").write_text(LEAVES_FOLDERS)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    inside = {"TMPDIR": str(temporary), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-n", "1", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [*command, "test_inner.py"], cwd=tmp_path, env=outside | inside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"AssertionError: {temporary}/privstream-tests-" in done.stdout, done.stdout
    assert list(temporary.iterdir()) == []
