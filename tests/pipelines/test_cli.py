"""The command line: what starts, what is refused, what an error says, and what `--dry_run` tells."""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.mechanisms import checks
from privstream.pipelines import cli
from privstream.pipelines.command import Command, NothingUsableError, RunError, UsageError
from privstream.pipelines.runners import launch
from questions import overridden, run_line, write_folder

SECRET = "u000042"
ENTRY = Path(sys.executable).with_name("privstream")


def test_the_installed_command_starts_and_lists_all_commands_without_loading_beam() -> None:
    shown = subprocess.run([ENTRY, "--help"], capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in cli.COMMANDS)
    assert shown.stderr == ""
    loaded = "import sys, privstream.pipelines.cli; sys.exit('apache_beam' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)


def test_a_reader_of_a_table_that_has_gone_is_not_called_an_interruption():
    line = [ENTRY, "plan", "counts", "--epsilon", "1", "--delta", "1e-6", "--max_contributions", "2"]
    line += ["--window", "1", "--start", "0", "--end", "2"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None and ran.stderr is not None
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 0


PLAN = "privstream plan heavy-hitters: error:"
ERRORS = [
    (UsageError("max_hits must be >= 1, got max_hits 0"), 2, f"{PLAN} --max-hits must be >= 1, got max_hits 0"),
    (UsageError("'max_hits' is a name"), 2, f"{PLAN} 'max_hits' is a name"),
    (RunError("it broke"), 1, f"{PLAN} it broke"),
    (NothingUsableError("no event"), 3, f"{PLAN} no event"),
    (OSError(28, "No space left", "rows"), 1, f"{PLAN} [Errno 28] No space left: 'rows'"),
    (MemoryError("1 TiB"), 1, f"{PLAN} there is not enough memory for numbers of this size: 1 TiB"),
    (KeyboardInterrupt(), 130, "privstream: interrupted; no file is half-written"),
    (SystemExit(143), 143, "privstream: interrupted; no file is half-written"),
]


@pytest.mark.parametrize(("error", "status", "message"), ERRORS)
@pytest.mark.parametrize("traceback", [False, True])
def test_errors_are_one_line_and_a_status(error, status, message, traceback, monkeypatch, capsys):
    def fail(**given: object) -> None:
        raise error

    command = Command(description="fails", options={"--max-hits": {}, "--windows": {}}, run=fail)
    monkeypatch.setattr(cli, "load", lambda module: command)
    assert cli.main(["plan", "heavy-hitters", *(["--traceback"] if traceback else [])]) == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == message
    shows = traceback and isinstance(error, Exception)
    assert (len(lines) > 1 and lines[0].startswith("Traceback")) == shows


class LookUp(beam.DoFn):
    """Fails as a bug would: the message is the record."""

    def process(self, element: str) -> None:
        {}[element]


class Convert(beam.DoFn):
    """Fails as a library would: the message quotes the record."""

    def process(self, element: str) -> None:
        int(element)


class Refuse(beam.DoFn):
    """Fails by a check of ours, whose messages never quote a record."""

    def process(self, element: str) -> None:
        checks.positive("scale", -1.0)


@pytest.mark.parametrize(("stage", "kind"), [(LookUp, "KeyError"), (Convert, "ValueError")])
def test_the_error_of_a_failed_run_quotes_no_record(stage, kind, capfd, caplog):
    with pytest.raises(RunError, match=f"the run failed with {kind} at `") as raised:
        launch.run(launch.parse_beam_options([]), lambda p: p | beam.Create([SECRET]) | beam.ParDo(stage()))
    shown = capfd.readouterr()
    for text in (str(raised.value), shown.out, shown.err, caplog.text):
        assert SECRET not in text


class TakeMemory(beam.DoFn):
    """Asks for more memory than any machine has."""

    def process(self, element: str) -> None:
        np.empty(1 << 58)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (TakeMemory, "ran out of memory, and no file is half-written"),
        (Refuse, "^scale must be finite and > 0, got -1.0$"),
    ],
)
def test_what_is_known_to_quote_no_record_is_said(stage, said):
    with pytest.raises(RunError, match=said):
        launch.run(launch.parse_beam_options([]), lambda p: p | beam.Create([SECRET]) | beam.ParDo(stage()))


def test_a_run_leaves_no_temporary_folder_whether_it_succeeds_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launch.run(launch.parse_beam_options([]), lambda p: p | beam.Create([SECRET]))
    with pytest.raises(RunError):
        launch.run(launch.parse_beam_options([]), lambda p: p | beam.Create([SECRET]) | 1)
    assert list(tmp_path.iterdir()) == []


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
    words = [*shlex.split(run_line(name)), "--input=events.parquet", *more, "--runner=FnApiRunner"]
    return cli.main(overridden(words))


def test_an_option_that_is_given_twice_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([*shlex.split(run_line("top-k")), "--input=other.parquet"])
    assert "--input must not be given twice" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["top-k", "histogram"])
def test_input_is_counted_and_nothing_is_written(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(file.name for file in folder.iterdir())
    assert run(name, "--dry_run") == 0
    told = capsys.readouterr().err
    assert "24 of 27 rows used (1 unusable: --dead-letter FILE keeps them; 2 outside of --start to --end)\n" in told
    assert told.startswith("dry run: ") and "the only run on 'default'" in told
    assert "rows.jsonl" not in told
    assert sorted(file.name for file in folder.iterdir()) == before


@pytest.mark.slow
def test_what_the_limit_would_refuse_is_refused_and_nothing_is_recorded(folder, capsys):
    ledger = ["--ledger", str(folder / "key.ledger.jsonl"), "--dataset", "default"]
    assert cli.main(["budget", "set", *ledger, "--limit", "1.5,0"]) == 0
    assert run("histogram", "--dry_run") == 0
    assert run("histogram") == 0
    assert run("histogram", "--dry_run", "--overwrite") == 0
    assert "a repetition" in capsys.readouterr().err
    before = (folder / "key.ledger.jsonl").read_bytes()
    assert run("top-k", "--dry_run", "--overwrite") == 2
    assert "the limit of data set 'default' must not be exceeded" in capsys.readouterr().err
    assert (folder / "key.ledger.jsonl").read_bytes() == before
