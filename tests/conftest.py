"""Settings shared by all tests."""

import atexit
import gc
import importlib
import multiprocessing.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SLOW_TIMEOUT_SECONDS = 1200

FOLDERS_OF_HELPERS = ("", "audits", "fuzz", "mechanisms", "packaging", "runners", "transforms")
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in FOLDERS_OF_HELPERS]

# CI draws the same examples each time, so that a change is never blamed for what another one broke. Developers draw
# few, and others each time.
settings.register_profile(
    "ci",
    max_examples=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=20)
settings.load_profile("ci" if os.environ.get("CI") else "explore")


FOLDERS = "privstream-tests-"
"""How the temporary folders of runs begin; the number of the process follows."""


def pytest_configure(config: pytest.Config) -> None:
    """Give this run, with its workers and all programs that it starts, a temporary folder that goes when it ends.

    Beam and Java leave files behind in theirs. Folders of `tmp_path` stay where they are kept for three runs. The path
    is short, for sockets, and other users may enter: PostgreSQL does not run as root.
    """
    if hasattr(config, "workerinput"):
        return  # it has the folder of the process that started it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    _remove_folders_of_ended_runs()
    folder = tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-")
    os.chmod(folder, 0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    java = [os.environ.get("JAVA_TOOL_OPTIONS", ""), f"-Djava.io.tmpdir={folder}", "-XX:-UsePerfData"]
    java += ["-XX:TieredStopAtLevel=1"]  # programs end before better machine code has paid for its making
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(filter(None, java))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after all that tests have put off until the end
    atexit.unregister(multiprocessing.util._exit_function)
    atexit.register(multiprocessing.util._exit_function)  # removes what it has in this folder, and so comes first


def _remove_folders_of_ended_runs() -> None:
    """Remove what runs have left that were killed, or that pytest-timeout has ended: nothing is done at their end."""
    hour_ago = time.time() - 3600
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*-*"):
        process = Path("/proc", folder.name.removeprefix(FOLDERS).partition("-")[0])
        if Path("/proc/self").exists() and not process.exists() and folder.stat().st_mtime < hour_ago:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count runners of their own, and most cases of a test with many, as slow. Give slow tests more time."""
    for item in items:
        if item.get_closest_marker("prism") or item.get_closest_marker("flink"):
            item.add_marker(pytest.mark.slow)
    for item in _beyond_quick_cases(items):
        item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))


def _beyond_quick_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the cases of each test, all but the first and the last."""
    cases = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        yield from found[1:-1]


def pytest_collection_finish() -> None:
    """Make pipelines cheap, and forget garbage of imports."""
    if "apache_beam" in sys.modules:
        importlib.import_module("light_beam").install()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test that leaves a job running on Flink, where it takes processor time from all others."""
    job_server = sys.modules.get("flink_job_server")
    left = job_server.end_jobs() if job_server else []
    assert not left, f"jobs were left running on Flink: {left}"


@pytest.fixture
def check_proof() -> Callable[[str], None]:
    """Return what checks that a guarantee's proof is there: every page, theorem and section that it names."""

    def check(proof: str) -> None:
        for part in proof.split("; "):
            page, _, places = part.partition(", ")
            assert page.startswith("docs/proofs/")
            text = (Path(__file__).parents[1] / page).read_text()
            for kind, name in re.findall(r"(Theorem|section) (.+?)(?=(?:,| and|, and) (?:Theorem|section)|$)", places):
                start = rf"\*\*Theorem {re.escape(name)}\b" if kind == "Theorem" else rf"## {re.escape(name)}(\.|$)"
                assert re.search(rf"^{start}", text, re.MULTILINE), f"{page} has no {kind} {name}"

    return check
