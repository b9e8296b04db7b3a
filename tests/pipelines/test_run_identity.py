"""Over files the noise is bound to the data and to all that shapes answers: nothing can be learned from two runs."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from privstream.pipelines import cli
from privstream.pipelines.accounts.run_identity import RunIdentity, content_digest, data_digest, identify
from privstream.pipelines.model.monitor import Data, Output
from privstream.pipelines.sources.files import EventFile, check_unchanged, match_files
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.sources.readers import ReadEvents
from questions import overridden

CATEGORIES = ("a", "b")
HOURS = 24
OPTIONS = "--window 3600 --start 2024-01-01 --end 2024-01-02 --epsilon 1 --domain domain --key key"
Counts = dict[tuple[str, str], int]


def events(people: int, letter: str) -> list[dict[str, str]]:
    """Return one event of each person, spread over hours and categories."""
    return [
        {"user": f"{letter}{n}", "item": CATEGORIES[n * 7 % 2], "time": f"2024-01-01T{n * 5 % HOURS:02}:00:01Z"}
        for n in range(people)
    ]


def write(path: str, rows: list[dict[str, str]]) -> None:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def truth(rows: list[dict[str, str]]) -> Counts:
    return {
        (f"{hour:02}", category): sum(row["item"] == category and int(row["time"][11:13]) <= hour for row in rows)
        for hour in range(HOURS)
        for category in CATEGORIES
    }


def histogram(source: str, output: str, *options: str) -> Counts:
    assert cli.main(overridden(["histogram", "--input", source, "--output", output, *OPTIONS.split(), *options])) == 0
    rows = [json.loads(line) for line in Path(output).read_text().splitlines()]
    return {(row["window_start"][11:13], row["category"]): row["estimate"] for row in rows}


def exact(first: Counts, second: Counts, one: list[dict[str, str]], other: list[dict[str, str]]) -> int:
    true_first, true_second = truth(one), truth(other)
    return sum(first[key] - second[key] == true_first[key] - true_second[key] for key in true_first)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("domain").write_text("a\nb\n")
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


def test_one_person_deleted_gives_other_noise() -> None:
    """Without an identity of its own each run got the same noise, also under one name: all differences were exact."""
    people = events(400, "u")
    write("all.jsonl", people)
    write("less.jsonl", people[:-1])
    for number, named in enumerate(((), ("--run_id", "same", "--ledger", "none"))):
        first, second = (histogram(f"{name}.jsonl", f"{name}{number}.jsonl", *named) for name in ("all", "less"))
        assert len(first) == 48 and exact(first, second, people, people[:-1]) < 24


def test_the_same_data_give_the_same_rows_whatever_files_are_called() -> None:
    people = events(300, "u")
    write("a1.jsonl", people[:100])
    write("a2.jsonl", people[100:])
    write("z1.jsonl", people[100:])
    write("z2.jsonl", people[:100])
    assert histogram("a*.jsonl", "1.jsonl") == histogram("z*.jsonl", "2.jsonl")
    said = json.loads(Path("1.jsonl.guarantee.json").read_text())["parameters"]["run_id"]
    assert said == json.loads(Path("2.jsonl.guarantee.json").read_text())["parameters"]["run_id"]
    assert said.startswith("run-")


def test_what_is_published_of_a_run_id_depends_on_the_key() -> None:
    """A digest of the data would let anybody test guesses of them."""
    write("a.jsonl", events(30, "u"))
    Path("other").touch(mode=0o600)
    Path("other").write_bytes(bytes(range(100, 132)))
    histogram("a.jsonl", "1.jsonl")
    histogram("a.jsonl", "2.jsonl", "--key", "other")
    names, ids = set(), set()
    for number, ledger in ((1, "key.ledger.jsonl"), (2, "other.ledger.jsonl")):
        promised = Path(f"{number}.jsonl.guarantee.json").read_text()
        entry = json.loads(Path(ledger).read_text())
        assert entry["name"] == json.loads(promised)["parameters"]["run_id"]
        assert entry["digest"] not in promised and entry["data"] not in promised
        names.add(entry["name"])
        ids.add(entry["digest"])
    assert len(names) == 2 and len(ids) == 1


def test_data_are_the_multiset_of_contents_and_how_they_are_read() -> None:
    for name, text in {"a.jsonl": "1", "b.jsonl": "1", "c.jsonl": "2", "a.csv": "1"}.items():
        Path(name).write_text(text)
    one, same, other, csv = (EventFile(name, 1, name[2:]) for name in ("a.jsonl", "b.jsonl", "c.jsonl", "a.csv"))
    assert data_digest([one, other]) == data_digest([other, same])
    different = [[one], [other], [one, same], [one, other], [csv], []]
    assert len({data_digest(files) for files in different}) == len(different)
    Path("a.jsonl.gz").write_bytes(gzip.compress(b"1"))
    Path("gz.jsonl").write_bytes(Path("a.jsonl.gz").read_bytes())
    assert content_digest("a.jsonl.gz") != content_digest("gz.jsonl"), "one is unpacked, the other is not"
    with pytest.raises(InputFileError, match="cannot read none: No such file"):
        content_digest("none")


def test_what_has_other_data_or_goes_elsewhere_is_another_run_whatever_it_is_called() -> None:
    one, other = (RunIdentity(releases={}, readings={}, data=data).label("mine") for data in "ab")
    assert one != other
    labels = set()
    for output in ("here", "there"):
        for watch in (None, 1.0):
            asked: Any = SimpleNamespace(
                data=Data(input="watched", watch=watch), output=Output(path=output), questions={}
            )
            labels.add(identify(asked, {}, {}, []).label("mine"))
    assert len(labels) == 3, "a run without an end is bound to its place, others are not"


@pytest.mark.parametrize("change", ["longer", "touched", "same time", "another file", "gone"])
def test_a_file_that_changes_after_its_fingerprint_ends_the_run(change, monkeypatch, capsys):
    people = events(30, "u")
    write("a.jsonl", people)
    before = os.stat("a.jsonl")
    expand = ReadEvents.expand
    monkeypatch.setattr(os, "major", lambda device: 1)

    def expand_and_change(self: ReadEvents, pbegin: beam.Pipeline) -> Any:
        found = expand(self, pbegin)
        if change == "longer":
            write("a.jsonl", events(31, "u"))
        elif change == "touched":
            os.utime("a.jsonl", (1, 1))
        elif change == "gone":
            os.remove("a.jsonl")
        else:  # of the same size and time
            name = "a.jsonl" if change == "same time" else "b.jsonl"
            write(name, events(30, "v"))
            os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
            os.replace(name, "a.jsonl")
        return found

    monkeypatch.setattr(ReadEvents, "expand", expand_and_change)
    assert cli.main(["histogram", "--input", "a.jsonl", "--output", "r.jsonl", *OPTIONS.split()]) == 1
    rule = "must stay until it has been read" if change == "gone" else "must not change while a run reads it"
    assert capsys.readouterr().err.endswith(f"privstream histogram: error: a.jsonl {rule}\n")
    assert not Path("r.jsonl").exists()


def test_what_only_one_machine_knows_of_a_file_is_not_compared(monkeypatch) -> None:
    """One has the file on a disk, another one has it from a server."""
    write("a.jsonl", events(1, "u"))
    os.utime("a.jsonl", (5, 7))
    monkeypatch.setattr(os, "major", lambda device: 1)
    (disk,) = match_files("a.jsonl")
    assert disk == match_files("*.jsonl")[0]._replace(path="a.jsonl")
    check_unchanged(disk)
    monkeypatch.setattr(os, "major", lambda device: 0)
    (server,) = match_files("a.jsonl")
    assert server.marks == disk.marks[:1] == (7 * 10**9,)
    os.link("a.jsonl", "backup")  # which is a change of the description
    check_unchanged(disk)
    monkeypatch.setattr(os, "major", lambda device: 1)
    check_unchanged(server)
    with pytest.raises(InputFileError, match="must not change"):
        check_unchanged(disk)
    os.utime("a.jsonl", (5, 8))
    with pytest.raises(InputFileError, match="must not change"):
        check_unchanged(server)


PROCESSORS = ("", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR")
"""What numpy does without: nothing, and all that it has for some processors alone."""

ANSWERED = (
    ("counts", "--delta=1e-6", "--over=start"),
    ("heavy-hitters", "--delta=1e-6"),
    ("alerts", "--delta=1e-6", "--method=status", "--rules=rules.jsonl"),
    ("quantiles", "--low=0", "--high=100", "--value=value"),
    ("cardinality", "--delta=1e-6", "--timeout=2h"),
)


@pytest.mark.slow
def test_rows_do_not_depend_on_the_processor(tmp_path: Path) -> None:
    """Numpy computes exponentials by other instructions on each, which have other last bits."""
    write(str(tmp_path / "events.jsonl"), [row | {"value": len(row["user"])} for row in events(2000, "u")])
    (tmp_path / "rules.jsonl").write_text('{"name": "busy", "at_least": 20, "items": ["a"]}\n')
    whole = ["--window=7200", "--start=2024-01-01", "--end=2024-01-02", "--epsilon=20", "--input=events.jsonl"]
    whole += ["--key=key", "--workers=1", "--overwrite", "--ledger=none"]
    program = (
        "import json, sys; from privstream.pipelines.cli import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"
    )
    commands = [[*words, f"--output={words[0]}.csv", *whole] for words in ANSWERED]
    found = []
    for features in PROCESSORS:
        environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": features}
        command = [sys.executable, "-c", program, json.dumps(commands)]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        found.append([(tmp_path / f"{words[0]}.csv").read_text() for words in ANSWERED])
    assert min(text.count(",") for text in found[0]) > 50
    assert found[0] == found[1]
