"""`--dry_run`: what a run would use, without anything that is published, recorded or spent."""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli
from questions import run_line, write_folder

START = 1_704_067_200  # 2024-01-01


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with events in both hours of a run, before them, and without a time."""
    monkeypatch.chdir(tmp_path)
    times = [START + 300 * number for number in range(24)] + [START - 5, START - 4, None]
    columns = {"user": [f"u{number}" for number in range(27)], "item": ["a"] * 27, "time": times}
    table = pa.table(columns | {"time": pa.array(times, pa.timestamp("s", tz="UTC"))})
    pq.write_table(table, tmp_path / "events.parquet")
    return write_folder(tmp_path)


def run(name: str, *more: str) -> int:
    return cli.main([*shlex.split(run_line(name)), "--input=events.parquet", *more, "--runner=FnApiRunner"])


@pytest.mark.parametrize("name", ["top-k", "histogram"])
def test_input_is_counted_and_nothing_is_written(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(file.name for file in folder.iterdir())
    assert run(name, "--dry_run") == 0
    told = capsys.readouterr().err
    assert "24 of 27 events usable\n" in told
    assert "2 events outside of the windows of the run" in told
    assert "1 record could not be used, --dead_letter PATH keeps them: 1 record without a time in --time_field" in told
    assert "dry run: nothing was published, recorded or spent." in told
    assert "ledger: key.ledger.jsonl: a release about data set 'default' (foreseen, not recorded)\n" in told
    assert "this ledger is new" in told
    assert "rows.jsonl" not in told
    assert sorted(file.name for file in folder.iterdir()) == before


def test_the_run_itself_is_as_if_there_had_been_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("histogram", "--dry_run", "--dead_letter=letters.jsonl") == 0
    assert len((folder / "letters.jsonl").read_text().splitlines()) == 1
    assert run("histogram") == 0
    rows = (folder / "rows.jsonl").read_bytes()
    assert "1 release" not in capsys.readouterr().err
    assert len((folder / "key.ledger.jsonl").read_text().splitlines()) == 1
    assert "dry_run" not in (folder / "rows.jsonl.guarantee.json").read_text()
    assert run("histogram", "--overwrite") == 0
    assert (folder / "rows.jsonl").read_bytes() == rows


def test_what_the_limit_would_refuse_is_refused_and_nothing_is_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ["--budget_limit=1.5,0"]
    assert run("histogram", "--dry_run", *limit) == 0
    assert run("histogram", *limit) == 0
    assert run("histogram", "--dry_run", "--overwrite", *limit) == 0
    assert "a repetition, which costs nothing more (foreseen, not recorded)" in capsys.readouterr().err
    before = (folder / "key.ledger.jsonl").read_bytes()
    assert run("top-k", "--dry_run", "--overwrite", *limit) == 2
    assert "budget_limit" in capsys.readouterr().err
    assert run("top-k", "--dry_run", "--overwrite") == 0
    assert (folder / "key.ledger.jsonl").read_bytes() == before


def test_a_damaged_ledger_is_refused_as_by_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "key.ledger.jsonl").write_text("{}\n")
    assert run("histogram", "--dry_run") == 2
    assert "ledger key.ledger.jsonl: line 1 must be an entry as privstream writes it" in capsys.readouterr().err


def test_input_of_which_nothing_can_be_used_ends_with_status_3(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("top-k", "--dry_run", "--start=2031-01-01", "--end=2031-01-01T02:00") == 3
    assert "no event could be used" in capsys.readouterr().err
    assert not (folder / "key.ledger.jsonl").exists()


def test_dead_letters_of_another_form_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("top-k", "--dry_run", "--dead_letter=letters.txt") == 2
    assert "--dead_letter must end in" in capsys.readouterr().err


def test_input_without_an_end_cannot_be_tried(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    watch = ["--input=in", "--output=out", "--watch=1", "--run_id=a", "--input_format=parquet"]
    assert run("top-k", *watch, "--dry_run") == 2
    assert "--dry_run must not be given when the input has no end" in capsys.readouterr().err
