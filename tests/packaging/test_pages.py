"""Who does what the tutorial and the how-to pages say, line by line, gets what they show."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import runner_harness
from documents import PAGES, ROOT, blocks, follow, lines

SERVERS = {
    "flink.md",
    "go.md",
    "java.md",
    "kafka.md",
}  # what starts servers has tests of its own, and each word is checked here
GUIDES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how_to").glob("*.md"))]
PROGRAMS = re.compile(r"python (deploy/[\w/]+\.py) ([^&|)#\n]*)")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if page.name not in SERVERS], ids=lambda page: page.stem)
def test_a_page_can_be_followed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "get_prism.sh" in page.read_text("utf-8"):
        runner_harness.require("prism")
    monkeypatch.chdir(tmp_path)
    follow(page, lambda: capfd.readouterr().out)


def test_what_is_shown_must_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    shown = "```python\n# say.py\nprint('head', 3.5, 1e-6)\nprint('end')\n```\n```sh\npython say.py\n```\n"
    page.write_text(shown + "```text\nhead 4 0.01\n...\nend\n```\n")
    follow(page, lambda: capfd.readouterr().out)
    page.write_text(shown + "```text\nhead 4 5 6\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md shows what is not printed"):
        follow(page, lambda: capfd.readouterr().out)
    page.write_text("```sh\npython missing.py\n```\n")
    with pytest.raises(subprocess.CalledProcessError):
        follow(page, lambda: capfd.readouterr().out)


def test_programs_in_pages_compile() -> None:
    for page in PAGES:
        for _, block in blocks(page.read_text("utf-8"), "python"):
            compile(block, page.name, "exec")


@pytest.mark.slow
def test_programs_of_deploy_are_called_as_they_can_be() -> None:
    calls = {
        (script, *shlex.split(words.replace("...", "")))
        for page in PAGES
        for _, block in blocks(page.read_text("utf-8"), "sh", "")
        for line in lines(block)
        for script, words in PROGRAMS.findall(line)
    }
    assert len(calls) > 5
    for script, *words in calls:
        done = subprocess.run([sys.executable, ROOT / script, *words, "--help"], capture_output=True, check=False)
        assert done.returncode == 0, (script, words, done.stderr)
