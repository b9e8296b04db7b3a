"""Limits of a monitor that follow from what an earlier period has published."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.monitor.earlier_period import limit_from

MONTH = """\
data: {{input: clicks.csv, user: customer, item: page, time: ts}}
window: 1d
start: {start}
windows: 4
max_contributions: {limit}
privacy: {{epsilon: 4, delta: 1e-6}}
questions:
  pages: {{question: counts, full_share: 0.2}}
output: {{folder: {folder}}}
noise_key_file: noise.key
"""
FIRST = MONTH.format(start="2026-01-01", limit=1, folder="out/first")
SECOND = MONTH.format(start="2026-01-05", limit="{from: out/first}", folder="out/second")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a key and events of two periods, in which everybody has eight contributions in each."""
    monkeypatch.chdir(tmp_path)
    draw, lines = random.Random(1), ["customer,page,ts"]
    for person in range(400):
        for day in range(8):
            at = datetime(2026, 1, 1 + day, tzinfo=UTC) + timedelta(hours=draw.random() * 24)
            lines += [f"c{person},/{page},{at.isoformat()}" for page in draw.sample("abcd", 2)]
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "noise.key").write_bytes(bytes(range(32)))
    (tmp_path / "noise.key").chmod(0o600)
    return tmp_path


def command(word: str, text: str) -> int:
    Path("monitor.yaml").write_text(text)
    return cli.main([word, "monitor.yaml"])


@pytest.mark.slow
def test_the_limit_of_a_period_follows_from_the_one_before(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a number like any other then, and a function of published rows alone: also when the events are gone."""
    assert command("run", FIRST) == 0
    assert command("run", SECOND) == 0
    promised = json.loads(Path("out/second/pages.csv.guarantee.json").read_text())
    assert promised["parameters"]["max_contributions"] == 2 == limit_from("out/first", "pages")
    first, second = Ledger("noise.key.ledger.jsonl").read()
    assert second.parameters["questions.pages.max_contributions"] == 2 and first.run_id != second.run_id
    capsys.readouterr()
    Path("clicks.csv").unlink()
    assert command("plan", SECOND) == 0
    assert "at most 2 contributions" in " ".join(capsys.readouterr().out.split())

    rows = Path("out/first/pages.csv")
    rows.write_text(rows.read_text().replace(",400,", ",401,", 1) + "\n")
    assert command("plan", SECOND) == 2
    assert "monitor.yaml, line 5: max_contributions.from: RESULT must be as its run wrote it" in capsys.readouterr().err


@pytest.mark.slow
def test_a_period_that_does_not_tell_is_refused(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a share that tells what limits leave out there is nothing that a limit could follow from."""
    assert command("run", FIRST.replace(", full_share: 0.2", "")) == 0
    capsys.readouterr()
    assert command("plan", SECOND) == 2
    assert "line 5: max_contributions.from: pages must have been published with full_share" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("auto", "max_contributions: must be a whole number, or {from: FOLDER} of the output of an earlier period"),
        ("{from: none}", "max_contributions.from: must be the folder of the output of an earlier run, got none"),
        ("{form: out}", "max_contributions.form: unknown key; did you mean `from`?"),
        ("{}", "max_contributions: must be a whole number, but for counts a folder from which it follows (for pages)"),
        ("{from: 3}", "max_contributions.from: must be a text, got int"),
        ("{from: .}", "max_contributions.from: RESULT must be a file or a folder that exists, got ./pages (for pages)"),
    ],
)
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("plan", SECOND.replace("{from: out/first}", limit)) == 2
    assert f"monitor.yaml, line 5: {message}" in capsys.readouterr().err


def test_other_questions_have_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they publish does not tell what their limits leave out."""
    monkeypatch.chdir(tmp_path)
    text = SECOND.replace("counts, full_share: 0.2", "quantiles, value: ms, low: 1, high: 9")
    assert command("plan", text) == 2
    assert "line 5: max_contributions: must be a whole number, but for counts" in capsys.readouterr().err
