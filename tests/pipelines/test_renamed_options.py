"""--horizon is a deprecated name of --windows or, without a start, of --participation_cap; nothing else differs."""

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from privstream.pipelines import cli

COUNTS = "counts --window 1h --epsilon 50 --delta 1e-3 --max_contributions 9"
HITTERS = "heavy-hitters --window 1h --epsilon 50 --delta 1e-3 --max_hits 9"
SINCE = "--start 2024-01-01"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with events of 60 people in 4 hours, and a key."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    lines = [
        f'{{"user": "u{user}", "item": "i", "time": "{(begin + timedelta(hours=hour)).isoformat()}"}}'
        for hour in range(4)
        for user in range(60)
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    (tmp_path / "key").write_text("a key of this test alone")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)


def rows(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, bytes]:
    """Return the run id and the rows of a run."""
    given = f"{line} --input events.jsonl --output rows.jsonl --overwrite --noise_key_file key"
    assert cli.main(shlex.split(given)) == 0
    (run_id,) = re.findall(r"run id: (\S+);", capsys.readouterr().err)
    found = Path("rows.jsonl").read_bytes()
    assert found
    return run_id, found


@pytest.mark.parametrize("question", [COUNTS, pytest.param(HITTERS, marks=pytest.mark.slow)])
def test_a_number_of_windows_is_the_same_run_by_both_names(question, folder, capsys):
    found = [rows(f"{question} {SINCE} --{name} 3", capsys) for name in ("windows", "horizon")]
    assert found[0] == found[1]
    assert found[0][0] != rows(f"{question} {SINCE} --windows 4", capsys)[0]


@pytest.mark.slow
def test_without_a_start_it_is_the_number_of_windows_of_a_person(folder, capsys):
    ids = "--run_id {} --ledger none"
    found = [rows(f"{HITTERS} --{name} 2 {ids.format('same')}", capsys) for name in ("participation_cap", "horizon")]
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_limit_of_a_person_is_called_by_its_name(folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{HITTERS} --horizon 2 --input events.jsonl --output rows.jsonl --noise_key_file key"
    assert cli.main(shlex.split(line)) == 0
    said = capsys.readouterr().err
    assert "(participation_cap)" in said
    assert "(horizon)" not in said
