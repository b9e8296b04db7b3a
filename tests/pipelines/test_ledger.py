"""The ledger: every run is written down before it publishes anything, and nothing in it is ever passed over."""

import json
import os
import stat
from dataclasses import replace
from functools import reduce
from pathlib import Path

import apache_beam as beam
import pytest
from privstream.mechanisms.histograms.mechanism import HistogramMechanism
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from privstream.pipelines import cli
from privstream.pipelines.accounts.entries import BEFORE_ALL, Entry, head_after, to_line
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.runners import launch

GUARANTEE = PrivacyGuarantee(
    unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=PureDp(0.5), limits=("One.",), horizon=7
)
ENTRY = Entry(
    time="2030-01-01T00:00:00+00:00",
    run_id="run",
    digest="0e1f",
    name="run",
    dataset="default",
    command="histogram",
    version="0.1.0",
    data="cd34",
    key="0123456789abcdef",
    guarantee=GUARANTEE,
    output="rows.jsonl",
)
LINE = "histogram --input a.jsonl --output {} --window 3600 --start 2024-01-01 --end 2024-01-01T03:00:00Z --epsilon 1"
SECRET = "somebody"


def line_of(entry: Entry, *before: bytes) -> bytes:
    return to_line(entry.to_record(), reduce(head_after, before, BEFORE_ALL))


def accept(earlier: object) -> None:
    """Take everything."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("domain").write_text("wish\nother\n")
    Path("a.jsonl").write_text(json.dumps({"user": SECRET, "item": "wish", "time": "2024-01-01T00:00:01Z"}))
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


def run(output: str, *options: str) -> int:
    return cli.main([*LINE.format(output).split(), "--domain", "domain", "--key", "key", *options])


def test_an_entry_comes_back_as_it_was() -> None:
    ledger = Ledger("ledger")
    assert not ledger.append(ENTRY, accept).repeats
    (found,) = ledger.read()
    assert found == ENTRY
    assert found.guarantee.curve == PureDp(0.5)
    assert stat.S_IMODE(os.stat("ledger").st_mode) == 0o600


def test_what_repeats_a_run_and_what_does_not() -> None:
    ledger = Ledger("ledger")
    assert not ledger.append(ENTRY, accept).repeats
    assert ledger.append(replace(ENTRY, time="later", output="other", version="0.2.0"), accept).repeats
    assert not ledger.append(replace(ENTRY, key="fedcba9876543210"), accept).repeats, "another key is another release"
    assert not ledger.append(replace(ENTRY, run_id="run 2", digest="aa"), accept).repeats
    ledger.set_limit("other", Limit(9.0))
    assert not ledger.append(replace(ENTRY, dataset="other"), accept).repeats, (
        "another data set has an account of its own"
    )
    assert len(ledger.read()) == 5


def test_one_noise_is_for_one_release() -> None:
    """Only pipelines of one's own can have two releases under one label: commands have the digest in it."""
    ledger = Ledger("ledger")
    ledger.append(ENTRY, accept)
    before = Path("ledger").read_bytes()
    with pytest.raises(ValueError, match=r"run_id must be another one: the run run of 2030.* both would get the same"):
        ledger.append(replace(ENTRY, digest="ffff", dataset="other"), accept)
    assert Path("ledger").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-1],
        lambda line: line[: len(line) // 2] + b"\n",
        lambda line: b"\n",
        lambda line: b'{"ledger": 4}\n',
        lambda line: b"[]\n",
        lambda line: b"\xff\xfe\n",
        lambda line: line.replace(b'"ledger": 4', b'"ledger": 3'),
        lambda line: line.replace(b'"epsilon": 0.5, "delta"', b'"epsilon": NaN, "delta"'),
        lambda line: line.replace(b'"run_id": "run"', b'"run_id": 7'),
        lambda line: line.replace(b"PureDp", b"dict"),
        lambda line: line.replace(b'"at_epsilon": 0.5', b'"at_epsilon": "0.5"'),
        lambda line: b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_refused_by_its_number(damage) -> None:
    first = line_of(ENTRY)
    Path("ledger").write_bytes(first + damage(line_of(ENTRY, first)))
    for use in (Ledger("ledger").read, lambda: Ledger("ledger").append(ENTRY, accept)):
        with pytest.raises(ValueError, match="ledger ledger: line 2 must be an entry as privstream writes it"):
            use()


def test_a_run_is_written_down_without_persons_items_or_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1.jsonl") == 0
    assert run("2.jsonl") == 0
    begun, _, repeated = capsys.readouterr().err.partition("key.ledger.jsonl: a repetition, which costs nothing more")
    assert "this ledger is new: earlier releases are not in its totals" in begun
    assert repeated and "this ledger is new" not in repeated
    text = Path("key.ledger.jsonl").read_text()
    assert not any(word in text for word in (SECRET, "wish", bytes(range(32)).hex()))
    first, second = Ledger("key.ledger.jsonl").read()
    assert first.release == second.release
    assert first.output == "1.jsonl"
    promised = json.loads(Path("1.jsonl.guarantee.json").read_text())
    assert promised["parameters"]["run_id"] == first.name
    assert stat.S_IMODE(os.stat("key.ledger.jsonl").st_mode) == 0o600


def test_without_a_key_in_a_file_there_is_none_and_that_is_said(monkeypatch, capsys):
    line = LINE.format("1.jsonl").split()
    assert cli.main([*line, "--domain", "domain"]) == 0
    assert "ledger: none (the noise key is in no file; --ledger PATH keeps one)" in capsys.readouterr().err
    assert run("2.jsonl", "--ledger", "none") == 0
    said = capsys.readouterr().err
    assert "ledger: none (--ledger none)" in said
    assert run("named.jsonl", "--ledger", "none", "--run_id", "mine") == 0
    assert not list(Path().glob("*ledger*"))
    assert cli.main([*LINE.format("3.jsonl").split(), "--domain", "domain", "--ledger", "mine"]) == 0
    assert len(Ledger("mine").read()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--ledger none/ledger",
            "ledger must be a file that can be written, got none/ledger (No such file or directory)",
        ),
        ("--ledger .", "ledger must be a file that can be used, got . (Is a directory)"),
        ("--ledger /dev/null", "ledger must be a file that keeps its lines, got /dev/null"),
        (
            "--ledger gs://a/b",
            "ledger must be a file of this machine, postgresql://user@host:port/database/table, or none, got 'gs://a/b'",
        ),
        ("--ledger a.jsonl", "--ledger must not be written over --input"),
        ("--ledger key", "--ledger must not be written over --key"),
        ("--ledger rows.jsonl", "--output must not be written over --ledger"),
        ("--ledger domain", "--ledger must not be written over --domain"),
        ("--ledger bad", "ledger bad: line 1 must be an entry"),
        (
            "--ledger none --budget_limit 5",
            "budget_limit must be given with a ledger, and there is none: --ledger none",
        ),
        ("--dataset ''", "dataset must be a name of printable letters, got"),
        (
            "--budget_limit 0.5",
            "budget_limit must not be exceeded: data set 'default' has spent epsilon 0 for one",
        ),
    ],
)
def test_what_cannot_be_written_down_is_not_run(options, message, monkeypatch, capsys):
    Path("bad").write_text("no entry\n")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert run("rows.jsonl", *[word.strip("'") for word in options.split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    after = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert {name for name in after if name not in before} <= {"key.ledger.jsonl"}
    assert not after.get("key.ledger.jsonl")


def test_the_entry_is_written_before_anything_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(result: object, end: object) -> None:
        assert len(Ledger("key.ledger.jsonl").read()) == 1
        raise RuntimeError("the machine is lost")

    monkeypatch.setattr(launch, "_wait", fail)
    assert run("rows.jsonl") == 1
    assert len(Ledger("key.ledger.jsonl").read()) == 1


def test_another_budget_on_the_same_run_id_is_another_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1.jsonl", "--run_id", "mine") == 0
    assert run("2.jsonl", "--run_id", "mine", "--end", "2024-01-01T04:00:00Z") == 0
    assert capsys.readouterr().err.count("run id: mine; ledger: key.ledger.jsonl: a release") == 2
    assert run("3.jsonl", "--run_id", "mine") == 0
    assert "a repetition" in capsys.readouterr().err
    first, second, third = Ledger("key.ledger.jsonl").read()
    assert first.run_id == third.run_id != second.run_id, "their noise is independent"


def test_results_are_not_replaced_unless_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rows.jsonl") == 0
    before = Path("rows.jsonl").read_bytes()
    assert run("rows.jsonl", "--epsilon", "2") == 2
    assert "--output must be a new file, but rows.jsonl exists; --overwrite replaces it" in capsys.readouterr().err
    Path("rows.jsonl").unlink()
    assert run("rows.jsonl", "--epsilon", "2") == 2
    assert "the guarantee must be a new file, but rows.jsonl.guarantee.json exists" in capsys.readouterr().err
    assert len(Ledger("key.ledger.jsonl").read()) == 1
    assert run("rows.jsonl", "--epsilon", "2", "--overwrite") == 0
    assert Path("rows.jsonl").read_bytes() != before
    assert json.loads(Path("rows.jsonl.guarantee.json").read_text())["guarantee"]["epsilon"] == 2


def watched_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make folders, and let a run without an end be taken as soon as its pipeline is built."""
    run_to_the_end = launch.run

    def taken(options: object, build, end: object, accepted) -> dict[str, int]:
        if accepted is None:  # the input ends
            return run_to_the_end(options, build, end, accepted)
        build(beam.Pipeline(runner="FnApiRunner"))
        accepted()
        return {}

    monkeypatch.setattr(launch, "run", taken)
    for name in ("in", "out", "other", "elsewhere"):
        Path(name).mkdir()


@pytest.mark.slow
def test_a_folder_of_another_promise_is_refused_and_a_restart_is_not(monkeypatch, capsys):
    watched_folders(monkeypatch)
    watch = ["--input", "in", "--watch", "1", "--run_id", "watched", "--input_format", "jsonl"]
    assert run("out", *watch) == 0
    assert run("out", *watch, "--watch", "2") == 0
    capsys.readouterr()
    assert run("out", *watch, "--epsilon", "2") == 2
    told = capsys.readouterr().err
    assert "out/_guarantee.json is of another one, which differs in" in told and "epsilon" in told
    promised = json.loads(Path("out/_guarantee.json").read_text())
    assert promised["guarantee"]["epsilon"] == 1
    promised["made_by"]["version"], promised["guarantee"]["paragraph"] = "0.0.9", "in the words of another version"
    Path("out/_guarantee.json").write_text(json.dumps(promised))
    assert run("out", *watch) == 0
    for damaged in ("{}", "[]", "no JSON", '{"parameters": 5}'):
        Path("out/_guarantee.json").write_text(damaged)
        assert run("out", *watch) == 2


@pytest.mark.slow
def test_a_run_without_an_end_that_begins_again_with_other_noise_is_another_release(monkeypatch, capsys):
    watched_folders(monkeypatch)
    watch = ["--input", "in", "--watch", "1", "--run_id", "watched", "--input_format", "jsonl"]

    def repeats(folder: str) -> bool:
        assert run(folder, *watch) == 0
        return "a repetition" in capsys.readouterr().err

    assert not repeats("out") and repeats("out")
    assert not repeats("other"), "it would publish other answers about the same windows"
    monkeypatch.setattr(HistogramMechanism, "NOISE_VERSION", 2)
    assert run("out", *watch) == 2
    Path("out/_guarantee.json").unlink()
    assert not repeats("out") and repeats("out")
    first, second = [entry.run_id for entry in Ledger("key.ledger.jsonl").read()][1::3]
    assert first != second
