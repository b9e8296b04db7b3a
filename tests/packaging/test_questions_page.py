"""What docs/questions.md shows runs as it stands there, and every command line in the documentation is one."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from documents import PAGES, ROOT, command_lines, options
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import WORDS
from privstream.pipelines.runners import launch

PAGE = (ROOT / "docs" / "questions.md").read_text()
SECTIONS = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^##? |\Z)", PAGE, re.MULTILINE | re.DOTALL))
MOST_PEOPLE = 1000


DOCUMENTED = [(page.name, words) for page in PAGES for words in command_lines(page.read_text())]


@pytest.mark.parametrize(
    ("page", "words"), DOCUMENTED, ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60]
)
def test_a_documented_command_line_is_one(page: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[list[str]] = []
    monkeypatch.setattr(cli, "_run", lambda command, known, beam, options: others.append(beam) or 0)
    assert cli.main(words) == 0
    if not any("Flink" in word for word in others[0]):
        launch.parse_beam_options(others[0])


def test_every_command_has_its_section() -> None:
    assert SECTIONS.keys() == {*WORDS}


def smaller(words: list[str]) -> list[str]:
    """Return a command line of the page with fewer people where it simulates many, which changes numbers alone."""
    people = words.index("--users") + 1 if "--users" in words else len(words)
    return [str(min(int(word), MOST_PEOPLE)) if place == people else word for place, word in enumerate(words)]


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    lines = command_lines(SECTIONS[section])
    (watch,) = [words for words in lines if words[0] == section]
    asked = options(watch)
    for line in re.findall(r"^(?:echo|printf) .*$", PAGE, re.MULTILINE):
        subprocess.run(["bash", "-c", line], check=True)
    simulate = [words for words in command_lines(PAGE) if words[0] == "simulate"]
    for words in map(smaller, [*simulate, *lines]):
        assert cli.main(words) == 0
    promised = json.loads((tmp_path / f"{asked['output']}.guarantee.json").read_text())
    assert promised["guarantee"]["epsilon"] == float(asked["epsilon"])
    (picture,) = [options(words)["output"] for words in lines if words[0] == "plot"]
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
