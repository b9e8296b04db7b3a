"""The ledger: every run is written down before it publishes anything, and nothing in it is ever passed over."""

import json
import multiprocessing
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines import cli
from privstream.pipelines.accounts import ledger as of_ledgers
from privstream.pipelines.accounts.entries import BudgetLimit, Entry
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.runners import launch
from questions import overridden

LINE = "histogram --input a.jsonl --output {} --window 3600 --start 2024-01-01 --end 2024-01-01T03:00:00Z --epsilon 1"
SECRET = "somebody"


def pure(epsilon: float) -> PrivacyGuarantee:
    return PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=0.0, curve=PureDp(epsilon))


def entry(label: str, epsilon: float = 1.0, **changed: str) -> Entry:
    texts = {
        **dict.fromkeys(("digest", "name"), label),
        **dict.fromkeys(("command", "version", "data", "output"), "counts"),
        "dataset": "shop",
        "key": "0123456789abcdef",
    }
    return Entry.of(pure(epsilon), label=label, **(texts | changed))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("domain").write_text("wish\nother\n")
    Path("a.jsonl").write_text(json.dumps({"user": SECRET, "item": "wish", "time": "2024-01-01T00:00:01Z"}))
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("key.ledger.jsonl")


def run(output: str, *options: str) -> int:
    return cli.main(overridden([*LINE.format(output).split(), "--domain", "domain", "--key", "key", *options]))


def budget(*options: str) -> int:
    return cli.main(["budget", *options])


def test_an_entry_comes_back_as_it_was_and_its_file_is_of_its_owner(ledger: Ledger) -> None:
    ledger.append(entry("one"))
    (found,) = ledger.contents().entries
    assert (found.unit, found.epsilon, found.mu) == (PERSON, 1.0, pytest.approx(1.232, abs=1e-3))
    assert found.release == entry("one").release
    assert stat.S_IMODE(os.stat(ledger.path).st_mode) == 0o600


def test_what_repeats_a_run_and_what_does_not(ledger: Ledger) -> None:
    ledger.set_limit("shop", BudgetLimit(2.0, 0.0))
    ledger.set_limit("other", BudgetLimit(9.0, 0.0))
    assert not ledger.append(entry("one")).repeats
    assert ledger.append(entry("one", output="other", version="2")).repeats
    assert not ledger.append(entry("one", key="fedcba9876543210")).repeats, "another key is another release"
    assert ledger.append(entry("one")).repeats, "the limit is reached, and a repetition is free"
    with pytest.raises(ValueError, match=r"dataset must be 'shop', .* --other-people .* budget rename"):
        ledger.append(entry("one", dataset="other"))
    ledger.set_limit("other", BudgetLimit(9.0, 0.0), other_people=True)
    assert not ledger.append(entry("one", dataset="other")).repeats, "it is about other people"
    with pytest.raises(ValueError, match="the limit of data set 'shop' must not be exceeded"):
        ledger.append(entry("two", 0.1))
    with pytest.raises(ValueError, match=r"run_id must be another one: .* both would get the same noise"):
        ledger.append(entry("one", digest="two", dataset="other"))
    assert len(ledger.contents().entries) == 5
    for wrong in ("shop ", " ", "un\nknown"):
        with pytest.raises(ValueError, match="must be a name of printable letters"):
            ledger.set_limit(wrong, BudgetLimit(1.0, 0.0))
    with pytest.raises(ValueError, match="change must not be given"):
        ledger.set_limit("shpo", BudgetLimit(9.0, 0.0), change=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-1],
        lambda line: line[: len(line) // 2] + b"\n",
        lambda line: b"\xff\xfe\n",
        lambda line: line.replace(b'"ledger":1', b'"ledger":2'),
        lambda line: line.replace(b'"epsilon":1.0', b'"epsilon":NaN'),
        lambda line: line.replace(b'"mu":', b'"more":'),
        lambda line: line.replace(b'"epsilon":1.0', b'"epsilon":0.1'),  # its shift is that of 1
        lambda line: line.replace(b'"what":"person"', b'"what":"nobody"'),
        lambda line: b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_refused_by_its_number(ledger: Ledger, damage) -> None:
    ledger.append(entry("one"))
    ledger.append(entry("two"))
    first, second = Path(ledger.path).read_bytes().splitlines(keepends=True)
    assert damage(second) != second
    Path(ledger.path).write_bytes(first + damage(second))
    for use in (ledger.contents, lambda: ledger.append(entry("one"))):
        with pytest.raises(ValueError, match="line 2 must be as privstream writes it"):
            use()


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (3, lambda lines: [lines[0], lines[1].replace(b'"output":"counts"', b'"output":"more"'), *lines[2:]]),
        (2, lambda lines: [lines[0], *lines[2:]]),
        (1, lambda lines: lines[1:]),
        (1, lambda lines: [lines[1], lines[0], *lines[2:]]),
        (4, lambda lines: [*lines[:3], lines[1], lines[3]]),
    ],
)
def test_a_changed_or_deleted_line_is_found_by_the_next_one(ledger: Ledger, number, change) -> None:
    for label in "abcd":
        ledger.append(entry(label))
    assert budget("verify", "--ledger", ledger.path) == 0
    Path(ledger.path).write_bytes(b"".join(change(Path(ledger.path).read_bytes().splitlines(keepends=True))))
    for use in (
        ledger.contents,
        lambda: ledger.append(entry("new")),
        lambda: ledger.set_limit("a", BudgetLimit(1.0, 0.0)),
    ):
        with pytest.raises(ValueError, match=f"line {number} must follow the lines before it"):
            use()
    assert budget("verify", "--ledger", ledger.path) == 1


def test_a_guarantee_file_finds_a_last_line_that_is_missing_or_changed(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        assert run(f"{number}.jsonl", "--epsilon", str(number)) == 0
    verify = ["verify", "--ledger", "key.ledger.jsonl", "--guarantee", "1.jsonl", "2.jsonl.guarantee.json"]
    assert budget(*verify) == 0
    assert budget("verify", "--ledger", "none.jsonl") == 1, "there is no ledger"
    whole = Path("key.ledger.jsonl").read_bytes()
    first, last = whole.splitlines(keepends=True)
    for text in (first, first + last.replace(b'"output":"2', b'"output":"3')):
        Path("key.ledger.jsonl").write_bytes(text)
        assert budget(*verify[:3]) == 0, "without the guarantee file nobody knows"
        assert budget(*verify) == 1
        assert "lines were changed or deleted" in capsys.readouterr().err
    Path("key.ledger.jsonl").write_bytes(whole)
    rows = Path("1.jsonl").read_text()
    Path("1.jsonl").write_text(f"{rows}\n")
    assert budget(*verify) == 1 and "rows were changed" in capsys.readouterr().err
    Path("1.jsonl").write_text(rows)
    promised = json.loads(Path("2.jsonl.guarantee.json").read_text())
    promised["guarantee"]["epsilon"] = 0.2
    for text in (json.dumps(promised), "no JSON", "[]", '{"ledger": {"line": -1, "head": ""}}'):
        Path("2.jsonl.guarantee.json").write_text(text)
        assert budget(*verify) == 1
    assert run("2.jsonl", "--ledger", "none", "--overwrite") == 0
    assert budget(*verify) == 1 and "this one kept no account" in capsys.readouterr().err


def test_a_head_shows_nothing_of_its_line() -> None:
    """Who guesses the data of a line cannot test the guess by the head in a guarantee file."""
    heads = {Ledger(name).append(entry("same")).head for name in "abcd"}
    assert len(heads) == 4


def test_nothing_is_half_written_when_the_disk_is_full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.append(entry("one"))
    before, write = Path(ledger.path).read_bytes(), os.write
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="No space left on device"):
        patch.setattr(of_ledgers.os, "write", lambda file, line: write(file, line[: len(line) // 2]))
        ledger.append(entry("two"))
    assert Path(ledger.path).read_bytes() == before
    assert ledger.append(entry("two")).line == 2


def _append_many(path, barrier, name) -> None:
    barrier.wait()
    for number in range(15):
        with suppress(ValueError):
            Ledger(path).append(entry(f"{name} {number}"))


def test_two_launches_at_once_do_not_pass_the_limit(ledger: Ledger) -> None:
    context = multiprocessing.get_context("fork")
    ledger.set_limit("shop", BudgetLimit(12.0, 0.0))
    barrier = context.Barrier(2)
    processes = [context.Process(target=_append_many, args=(ledger.path, barrier, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len({one.label for one in ledger.contents().entries}) == len(ledger.contents().lines) - 1 == 12


def test_a_run_is_written_down_without_persons_items_or_keys() -> None:
    assert run("1.jsonl") == 0
    assert run("2.jsonl") == 0
    text = Path("key.ledger.jsonl").read_text()
    assert not any(word in text for word in (SECRET, "wish", bytes(range(32)).hex()))
    first, second = Ledger("key.ledger.jsonl").contents().entries
    assert first.release == second.release and first.output == "1.jsonl"
    assert json.loads(Path("1.jsonl.guarantee.json").read_text())["parameters"]["run_id"] == first.name


def test_the_entry_is_written_before_anything_is_published(monkeypatch, ledger: Ledger, capsys) -> None:
    def fail(result: object, end: object) -> None:
        assert len(ledger.contents().entries) == 1
        raise RuntimeError("the machine is lost")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "_wait", fail)
        assert run("rows.jsonl") == 1
    assert len(ledger.contents().entries) == 1
    assert "the same command over the same input costs nothing more" in capsys.readouterr().err
    other = ["--ledger", ledger.path, "--run-id", "other"]
    assert run("rows.jsonl", *other) == 0 and "with another key or run id, costs again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ledger none/ledger", "ledger must be a file that can be written"),
        ("--ledger .", "(Is a directory)"),
        ("--ledger /dev/null", "ledger must be a file that keeps its lines, got /dev/null"),
        ("--ledger gs://a/b", "ledger must be a file of this machine"),
        ("--ledger key", "--ledger must not be written over --key"),
        ("--ledger bad", "ledger bad: line 1 must be as"),
        ("--dataset ''", "--dataset must have at least 1 character, got"),
    ],
)
def test_what_cannot_be_written_down_is_not_run(options, message, capsys) -> None:
    Path("bad").write_text("no entry\n")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert run("rows.jsonl", *[word.strip("'") for word in options.split()]) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_a_limit_is_set_once_and_every_later_run_must_keep_it(ledger: Ledger, capsys) -> None:
    setting = ["set", "--ledger", "key.ledger.jsonl", "--dataset", "shop"]
    assert budget(*setting, "--limit", "1.5,1e-6") == 0
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop") == 0
    assert "the only run on 'shop', for one event: epsilon 1 of 1.5 at delta 1e-06" in capsys.readouterr().err
    assert run("2.jsonl", "--epsilon", "0.7", "--dataset", "shop") == 2
    assert not Path("2.jsonl").exists()
    assert run("3.jsonl", "--epsilon", "0.5", "--dataset", "shop", "--dry_run") == 0
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop", "--overwrite") == 0, "a repetition costs nothing"
    for name in ("default", "Shop"):
        assert run("4.jsonl", "--epsilon", "0.1", "--dataset", name) == 2, "a mistyped name opens no account"
    before = Path(ledger.path).read_bytes()
    assert budget(*setting, "--limit", "3,1e-6") == 2 and Path(ledger.path).read_bytes() == before
    assert budget(*setting, "--limit", "3,1e-6", "--change") == 0
    assert run("2.jsonl", "--epsilon", "0.7", "--dataset", "shop") == 0
    assert "2 runs on 'shop', for one event: epsilon 1.7 of 3" in capsys.readouterr().err


def test_show_says_what_is_spent_left_and_how_many_more_fit(ledger: Ledger, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    ledger.set_limit("shop", BudgetLimit(3.25, 0.0))
    for label in ("one", "one", "two"):
        ledger.append(entry(label, 1.015625))
    assert budget("show", "--ledger", ledger.path) == 0
    shown = capsys.readouterr().out
    assert "2.031" in shown and "1.21875" in shown and "1 more run like" in shown and "…" not in shown
    assert budget("show", "--ledger", ledger.path, "--json") == 0
    (account,) = json.loads(capsys.readouterr().out)["datasets"]
    (found,) = account["totals"]
    assert (found["epsilon"], found["left"], account["more"]) == (2.03125, 1.21875, 1)
    assert [one["repeats"] for one in account["runs"]] == [1, 0]
    ledger.set_limit("small", BudgetLimit(9.0, 1e-9))
    slack = replace(pure(1.0), delta=1e-10, curve=None)
    ledger.record(slack, noise=KeyedNoise(bytes(range(32)), "visits"), run_id="visits", data="visits", dataset="small")
    ledger.set_limit("small", BudgetLimit(9.0, 1e-11), change=True)
    assert budget("show", "--ledger", ledger.path, "--json") == 0
    (_, small) = json.loads(capsys.readouterr().out)["datasets"]
    assert small["totals"][0]["epsilon"] is None, "its delta is spent"


def test_fit_counts_by_the_same_filter(capsys) -> None:
    fit = ["fit", "--limit", "3.55,1.2e-5", "--epsilon", "1", "--delta", "1e-6"]
    counted = []
    for more in ([], ["--gaussian"]):
        assert budget(*fit, *more) == 0
        counted.append(capsys.readouterr().out.split()[0])
    assert counted == ["3", "12"]
    assert budget("fit", "--epsilon", "1") == 2, "no limit is known"


def test_rename_takes_runs_and_limit_along_and_never_brings_runs_under_a_limit(ledger: Ledger) -> None:
    ledger.append(entry("one", dataset="default"))
    assert budget("rename", "--ledger", ledger.path, "--to", "shop") == 0
    ledger.set_limit("shop", BudgetLimit(2.5, 0.0))
    ledger.rename("shop", "store")
    assert [one.dataset for one in ledger.contents().entries] == ["store"]
    for use in (
        lambda: ledger.set_limit("shop", BudgetLimit(9.0, 0.0)),
        lambda: ledger.append(entry("two", data="more", dataset="default")),
        lambda: (ledger.set_limit("more", BudgetLimit(9.0, 0.0)), ledger.rename("more", "shop")),
    ):
        with pytest.raises(ValueError, match=r"dataset must be 'store', as '(shop|default)' is called now"):
            use()
    ledger.rename("store", "shop")
    ledger.rename("shop", "store")
    with pytest.raises(ValueError, match="must not be exceeded"):
        ledger.append(entry("two", 2.0, dataset="store"))
    ledger.set_limit("other", BudgetLimit(1.0, 0.0))
    for old, new in (("other", "store"), ("none", "new"), ("store", "store")):
        with pytest.raises(ValueError, match=r"must be"):
            ledger.rename(old, new)
    assert budget("verify", "--ledger", ledger.path) == 0


def test_a_pipeline_of_ones_own_has_an_account(ledger: Ledger) -> None:
    noise = KeyedNoise(bytes(range(32)), "visits")
    given = {"noise": noise, "run_id": "visits", "data": "visits of 2026", "dataset": "shop"}
    assert not ledger.record(pure(0.75), **given).repeats
    assert ledger.record(pure(0.75), **given).repeats
    for wrong, message in (
        ({"data": "visits of 2027"}, "run_id must be another one"),
        ({"run_id": "January"}, "run_id must be that of the noise"),
        ({"data": " "}, "data must say what is read"),
    ):
        with pytest.raises(ValueError, match=message):
            ledger.record(pure(0.75), **(given | wrong))
