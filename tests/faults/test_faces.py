"""Faults of pages, monitors and audits, by their numbers."""

import re
from pathlib import Path

import pytest
from example_results import write
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import WORDS


@pytest.mark.parametrize("word", WORDS)
def test_e5_a_page_explains_itself_without_options(word: str, tmp_path: Path) -> None:
    assert cli.main(["report", str(write(tmp_path, word)), "--output", f"{tmp_path}/page.html"]) == 0
    text = (tmp_path / "page.html").read_text().partition("<main>")[2].partition("<script>")[0]
    assert "--" not in re.sub(r"<[^>]*>", " ", text)


MONITOR = """\
data: {input: events.csv}
windows: {window: 1d, start: 2024-01-01, end: 2024-01-03}
privacy: {epsilon: 40, delta: 1e-6}
questions:
  pages: {question: counts, max_contributions: 20}
  listed: {question: counts, domain: [a, b], max_contributions: 20}
account: {key: key}
output: {path: out}
"""


def test_e1_a_monitor_shows_the_head_of_each_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"u{n},{item},2024-01-0{day}T12:00:00Z" for n in range(300) for item in "abcdefgh" for day in (1, 2)]
    Path("events.csv").write_text("\n".join(["user,item,time", *rows]))
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    Path("monitor.yaml").write_text(MONITOR)
    assert cli.main(["run", "monitor.yaml"]) == 0
    shown = capsys.readouterr().out
    first, second = shown.index("pages"), shown.index("listed")
    assert "5 of 8 items" in shown[first:second] and len(shown.splitlines()) < 40
    assert len(re.findall(r"\b(29\d|30\d)\b", shown[second:])) >= 2, "of both items, in the last window"
