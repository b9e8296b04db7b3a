"""Limits in the ledger, and the chain of its lines: what is refused, what is found, and how many runs fit."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON
from privstream.pipelines import cli
from privstream.pipelines.accounts import ledger as ledger_module
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.spending import Limit, most_runs

LINE = "histogram --input a.jsonl --domain domain --window 1h --start 2024-01-01 --end 2024-01-01T03:00:00Z"
DAY = 86_400 * 1_000_000


def pure(epsilon: float) -> PrivacyGuarantee:
    return PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=epsilon, delta=0.0, curve=PureDp(epsilon))


def gaussian(epsilon: float, delta: float) -> PrivacyGuarantee:
    curve = GaussianCurve(shift=largest_shift(epsilon, delta))
    return PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=epsilon, delta=delta, curve=curve)


def micros(*day: int) -> int:
    return round(datetime(*day, tzinfo=UTC).timestamp() * 1e6)


def entry(run_id: str, epsilon: float = 1.0, dataset: str = "shop", days: tuple | None = None, **changed) -> Entry:
    begin, end = (None, None) if days is None else [None if day is None else micros(*day) for day in days]
    made = Entry(
        time="2030-01-01T00:00:00+00:00",
        run_id=run_id,
        digest=run_id,
        name=run_id,
        dataset=dataset,
        command="counts",
        version="0.1.0",
        data="ab",
        key="0123456789abcdef",
        guarantee=pure(epsilon),
        output="rows",
        begin=begin,
        end=end,
    )
    return replace(made, **changed)


def accept(earlier: object) -> None:
    """Take everything."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("domain").write_text("wish\nother\n")
    Path("a.jsonl").write_text(json.dumps({"user": "somebody", "item": "wish", "time": "2024-01-01T00:00:01Z"}))
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("key.ledger.jsonl")


def run(output: str, *options: str) -> int:
    return cli.main([*LINE.split(), "--output", output, "--key", "key", *options])


def budget(*options: str) -> int:
    return cli.main(["budget", *options])


def test_a_limit_is_set_once_and_every_later_run_must_keep_it(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["set", "--key", "key", "--dataset", "shop"]
    assert budget(*setting, "--limit", "1.5,1e-6") == 0
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop") == 0
    assert run("2.jsonl", "--epsilon", "0.7", "--dataset", "shop") == 2
    told = capsys.readouterr().err
    assert "the limit in the ledger must not be exceeded: data set 'shop' has spent epsilon 0.9999" in told
    assert not Path("2.jsonl").exists()
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop", "--overwrite") == 0, "a repetition costs nothing"
    before = Path("key.ledger.jsonl").read_bytes()
    assert budget(*setting, "--limit", "1.5,1e-6") == 0
    assert budget(*setting, "--limit", "3") == 2
    assert "--change must be given to change the limit of data set 'shop'" in capsys.readouterr().err
    assert Path("key.ledger.jsonl").read_bytes() == before
    assert budget(*setting, "--limit", "3", "--change") == 0
    assert run("2.jsonl", "--epsilon", "0.7", "--dataset", "shop") == 0
    kept = list(map(json.loads, Path("key.ledger.jsonl").read_text().splitlines()))
    assert [record["epsilon"] for record in kept if record["kind"] == "limit"] == [1.5, 3.0], "what was is still there"


def test_a_mistyped_data_set_opens_no_account_once_there_is_a_limit(ledger: Ledger) -> None:
    ledger.append(entry("old", dataset="old"), accept)
    ledger.append(entry("before", dataset="shpo", data="cd"), accept)
    ledger.set_limit("shop", Limit(9.0))
    ledger.append(entry("known", dataset="old"), accept)
    for name in ("default", "Shop"):
        with pytest.raises(ValueError, match="dataset must be one of 'shop', 'old', 'shpo', which the ledger has, got"):
            ledger.append(entry("new", dataset=name), accept)
    assert len(ledger.read()) == 3


@pytest.mark.slow
def test_a_run_that_names_no_data_set_is_told_that_it_has_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    told = (
        "note: the data set is 'default', which has no limit in this ledger; --dataset names another one, "
        "and limits are set for 'shop'"
    )
    assert run("1.jsonl", "--epsilon", "1", "--dry_run") == 0
    assert "has no limit" not in capsys.readouterr().err, "nor has any other"
    assert run("1.jsonl", "--epsilon", "1") == 0
    assert budget("set", "--key", "key", "--dataset", "shop", "--limit", "5") == 0
    for options, said in {(): 1, ("--dataset", "shop"): 0, ("--budget_limit", "9"): 0}.items():
        capsys.readouterr()
        assert run("2.jsonl", "--epsilon", "2", "--dry_run", *options) == 0
        assert capsys.readouterr().err.lower().count(told) == said
    assert budget("set", "--key", "key", "--dataset", "default", "--limit", "9") == 0
    assert run("2.jsonl", "--epsilon", "2", "--dry_run") == 0
    assert "has no limit" not in capsys.readouterr().err


def test_the_smaller_one_of_two_limits_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget("set", "--key", "key", "--dataset", "default", "--limit", "5") == 0
    assert run("1.jsonl", "--epsilon", "2", "--budget_limit", "1") == 2
    assert "--budget_limit must not be exceeded" in capsys.readouterr().err
    assert run("1.jsonl", "--epsilon", "2", "--budget_limit", "9") == 0
    assert run("2.jsonl", "--epsilon", "4", "--budget_limit", "9") == 2
    assert "the limit in the ledger must not be exceeded" in capsys.readouterr().err


JANUARY, FEBRUARY, MARCH = (((2026, month, 1), (2026, month + 1, 1)) for month in (1, 2, 3))
WINTER = (JANUARY[0], MARCH[1])


@pytest.mark.parametrize(
    ("earlier", "new", "refused_in"),
    [
        ([JANUARY, FEBRUARY], MARCH, None),
        ([JANUARY, FEBRUARY], JANUARY, "2026-01"),
        ([FEBRUARY], WINTER, "2026-02"),
        ([WINTER], MARCH, "2026-03"),
        ([WINTER], ((2026, 4, 1), None), None),
        ([((2026, 2, 1), None)], ((2030, 5, 3), (2030, 5, 4)), "2030-05"),
        ([((2026, 2, 1), None)], JANUARY, None),
        ([JANUARY], None, "2026-01"),
        ([None], MARCH, "2026-03"),
        ([None], None, "any time"),
        ([((2026, 1, 31), (2026, 2, 2))], ((2026, 2, 28), (2026, 3, 1)), "2026-02"),
    ],
)
def test_runs_count_in_all_periods_that_their_data_are_about(ledger: Ledger, earlier, new, refused_in) -> None:
    """Whichever day it is: two runs about the same month share its limit, one about three months counts in each."""
    ledger.set_limit("shop", Limit(1.5, None, "month"))
    for number, days in enumerate(earlier):
        ledger.append(entry(f"earlier {number}", days=days), accept)
    if refused_in is None:
        ledger.append(entry("new", days=new), accept)
    else:
        with pytest.raises(ValueError, match=f"data set 'shop' has in {refused_in} spent epsilon 1 for one person"):
            ledger.append(entry("new", days=new), accept)


@pytest.mark.parametrize(
    ("period", "same", "other"),
    [
        ("year", (2026, 12, 31), (2027, 1, 1)),
        ("30d", (2026, 2, 5), (2026, 2, 6)),  # 682 times 30 days after 1970 is 7 January 2026
        ("1d", (2026, 1, 7), (2026, 1, 8)),
    ],
)
def test_periods_end_where_they_should(ledger: Ledger, period, same, other) -> None:
    ledger.set_limit("shop", Limit(1.5, None, period))
    ledger.append(entry("first", days=((2026, 1, 7), (2026, 1, 8))), accept)
    for name, day in (("same", same), ("other", other)):
        one = replace(entry(name), begin=micros(*day), end=micros(*day) + DAY)
        if name == "same":
            with pytest.raises(ValueError, match="must not be exceeded"):
                ledger.append(one, accept)
        else:
            ledger.append(one, accept)


def test_a_run_says_which_time_its_data_are_of(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["set", "--ledger", ledger.path, "--dataset", "default"]
    assert budget(*setting, "--limit", "1.5,1e-6", "--period", "year") == 0
    assert run("1.jsonl", "--epsilon", "1") == 0
    (found,) = ledger.read()
    assert (found.begin, found.end) == (micros(2024, 1, 1), micros(2024, 1, 1) + DAY // 8)
    assert run("2.jsonl", "--epsilon", "1.1") == 2
    assert "the limit in the ledger must not be exceeded: data set 'default' has in 2024 spent epsilon 0.9999" in (
        capsys.readouterr().err
    )
    assert budget("--ledger", ledger.path) == 0
    shown = capsys.readouterr().out
    assert "data set default: limit epsilon 1.5, delta 1e-06 for each year" in shown
    assert "left: epsilon 0.500001 for one event, 2024, neighbours by add_remove" in " ".join(shown.split())
    for wrong in ("week", "0d", "1.5d", "12h", ""):
        with pytest.raises(SystemExit):
            budget(*setting, "--limit", "1", "--period", wrong)
    assert "must be year, month, or whole days such as 30d" in capsys.readouterr().err


def changed(lines: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Give what somebody could do with the lines of a ledger, and what is said of it."""
    follow = "must follow the lines before it as they were when it was written"
    yield f"line 3 {follow}", [lines[0], lines[1].replace(b'"output": "rows"', b'"output": "more"'), *lines[2:]]
    yield f"line 2 {follow}", [lines[0], *lines[2:]]
    yield f"line 1 {follow}", lines[1:]
    yield f"line 1 {follow}", [lines[1], lines[0], *lines[2:]]
    yield f"line 4 {follow}", [*lines[:3], lines[1], lines[3]]


@pytest.mark.parametrize("which", range(5))
def test_a_changed_or_deleted_line_is_found_by_the_next_one(ledger: Ledger, which: int) -> None:
    for number in range(4):
        ledger.append(entry(str(number)), accept)
    assert budget("verify", "--ledger", ledger.path) == 0
    message, after = list(changed(Path(ledger.path).read_bytes().splitlines(keepends=True)))[which]
    Path(ledger.path).write_bytes(b"".join(after))
    for use in (ledger.read, lambda: ledger.append(entry("new"), accept), lambda: ledger.set_limit("a", Limit(1.0))):
        with pytest.raises(ValueError, match=message):
            use()
    assert budget("verify", "--ledger", ledger.path) == 1


def test_a_guarantee_file_finds_a_last_line_that_is_missing_or_changed(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        assert run(f"{number}.jsonl", "--epsilon", str(number)) == 0
    verify = ["verify", "--key", "key", "--guarantee", "1.jsonl", "2.jsonl.guarantee.json"]
    assert budget(*verify) == 0
    assert "2 guarantee files agree" in capsys.readouterr().out
    whole = Path("key.ledger.jsonl").read_bytes()
    first, last = whole.splitlines(keepends=True)
    for text, message in (
        (first, "line 2 must be there, since 2.jsonl.guarantee.json names it: lines were deleted"),
        (first + last.replace(b'"output": "2', b'"output": "3'), "line 2 must be the one that 2.jsonl.guarantee.json"),
    ):
        Path("key.ledger.jsonl").write_bytes(text)
        assert budget(*verify[:3]) == 0, "without the guarantee file nobody knows"
        assert "lines that were deleted at its end leave no trace in it" in capsys.readouterr().out
        assert budget(*verify) == 1
        assert message in capsys.readouterr().err
    Path("key.ledger.jsonl").write_bytes(whole)
    promised = json.loads(Path("2.jsonl.guarantee.json").read_text())
    promised["guarantee"]["epsilon"] = 0.2
    Path("2.jsonl.guarantee.json").write_text(json.dumps(promised))
    assert budget(*verify) == 1
    assert "2.jsonl.guarantee.json must promise what line 2 of the ledger does" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "guarantee must be files that can be read, got other.json (No such file or directory)"),
        ("no JSON", "guarantee must be files that privstream has written, got other.json"),
        ("[]", "other.json must name a line of a ledger: its run had none"),
        ('{"ledger": {"line": "1"}}', "guarantee must be files that privstream has written, got other.json"),
        ('{"ledger": {"line": -1, "head": ""}}', "guarantee must be files that privstream has written, got other.json"),
    ],
)
def test_what_is_no_guarantee_file_is_said(ledger: Ledger, text, message, capsys) -> None:
    ledger.append(entry("one"), accept)
    if text is not None:
        Path("other.json").write_text(text)
    assert budget("verify", "--ledger", ledger.path, "--guarantee", "other.json") == 1
    assert f"privstream budget verify: error: {message}" in capsys.readouterr().err


def test_a_head_shows_nothing_of_its_line() -> None:
    """Equal entries have different heads: who guesses the data of a line cannot test the guess by the head."""
    heads = {Ledger(name).append(entry("same"), accept).head for name in "abcd"}
    assert len(heads) == 4
    lines = {Path(name).read_bytes() for name in "abcd"}
    assert {len(json.loads(line)["salt"]) for line in lines} == {64}


def other_data(user: str) -> None:
    Path("a.jsonl").write_text(json.dumps({"user": user, "item": "wish", "time": "2024-01-01T00:00:01Z"}))


@pytest.mark.slow
def test_the_first_limit_of_a_run_is_kept_for_all_later_ones(
    capsys: pytest.CaptureFixture[str], ledger: Ledger
) -> None:
    limit = ["--dataset", "shop", "--budget_limit", "2,1e-6"]
    assert run("1.jsonl", "--epsilon", "1", "--dry_run", *limit) == 0
    assert not ledger.exists()
    assert run("1.jsonl", "--epsilon", "1", *limit) == 0
    told = "the limit of data set 'shop' is in the ledger from now on, and every later run must keep it: epsilon 2"
    assert capsys.readouterr().err.count(told) == 1
    assert budget("verify", "--key", "key", "--guarantee", "1.jsonl") == 0
    assert budget("--key", "key") == 0
    shown = capsys.readouterr().out
    (limited,) = [line.split() for line in shown.splitlines() if line.startswith("all, as limited")]
    assert 0.9 < float(limited[-2]) < 1 and limited[-1] == "1e-06", "not at the deltas of the runs, which are 0"
    assert run("2.jsonl", "--epsilon", "1.2", "--dataset", "shop") == 2
    assert run("2.jsonl", "--epsilon", "1.2", "--dataset", "shop", "--budget_limit", "9") == 2
    assert capsys.readouterr().err.count("the limit in the ledger must not be exceeded: data set 'shop'") == 2
    other_data("x")
    assert run("2.jsonl", "--epsilon", "1", "--dataset", "shpo", "--budget_limit", "2") == 2
    assert "--dataset must be one of 'shop', which the ledger has, got 'shpo'" in capsys.readouterr().err


def test_data_that_a_ledger_knows_have_no_other_name_by_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop") == 0
    assert run("2.jsonl", "--epsilon", "1", "--dataset", "shpo") == 2
    refused = "--dataset must be 'shop', as which the ledger has these data, got 'shpo'; privstream budget set opens"
    assert refused in capsys.readouterr().err
    assert budget("set", "--key", "key", "--dataset", "devices", "--limit", "5") == 0
    assert run("2.jsonl", "--epsilon", "1", "--dataset", "devices") == 0
    said = "NOTE: these data are in this ledger as data set 'shop', too, whose total is without this run"
    assert capsys.readouterr().err.count(said) == 1


def test_a_name_that_is_new_is_said_where_there_are_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1.jsonl", "--epsilon", "1", "--dataset", "shop") == 0
    assert "is new in this ledger" not in capsys.readouterr().err
    other_data("x")
    assert run("2.jsonl", "--epsilon", "1", "--dataset", "shpo") == 0
    assert "NOTE: data set 'shpo' is new in this ledger, which has 'shop'" in capsys.readouterr().err
    other_data("y")
    assert run("3.jsonl", "--epsilon", "1", "--dataset", "shop") == 0
    assert "is new in this ledger" not in capsys.readouterr().err


def test_nothing_is_half_written_when_the_disk_is_full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.append(entry("one"), accept)
    before, write = Path(ledger.path).read_bytes(), os.write
    full = pytest.raises(ValueError, match=r"must be a file that can be written, got .* \(No space left on device\)")
    with monkeypatch.context() as patch, full:
        patch.setattr(ledger_module.os, "write", lambda file, line: write(file, line[: len(line) // 2]))
        ledger.append(entry("two"), accept)
    assert Path(ledger.path).read_bytes() == before
    assert stat.S_IMODE(os.stat(ledger.path).st_mode) == 0o600
    assert ledger.append(entry("two"), accept).line == 2


@pytest.mark.slow
def test_runs_that_fit_are_counted_by_the_same_composition(capsys: pytest.CaptureFixture[str]) -> None:
    for guarantee, limit in (
        (gaussian(0.5, 1e-7), Limit(4.0, 1e-5)),
        (pure(0.5), Limit(4.0, 1e-5)),
        (pure(0.1), Limit(1.0)),
        (replace(gaussian(0.5, 1e-6), curve=None), Limit(100.0, 1e-5)),
    ):
        found = most_runs(limit, guarantee, [])
        book = Ledger(f"{guarantee.epsilon} {guarantee.delta} {guarantee.curve is None}")
        book.set_limit("shop", limit)
        for number in range(found):
            book.append(entry(str(number), guarantee=guarantee), accept)
        with pytest.raises(ValueError, match="must not be exceeded"):
            book.append(entry("more", guarantee=guarantee), accept)
        assert found > 0
    assert most_runs(Limit(1.0), pure(0.1), []) == 10
    assert most_runs(Limit(1.0), pure(0.1), [pure(0.35)]) == 6
    assert most_runs(Limit(1.0), pure(2.0), []) == 0
    event = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0)
    assert most_runs(Limit(1.0), pure(0.1), [event]) == 2, "a person's epsilon is twice as much for an event"
    asked = ["fit", "--limit", "4,1e-5", "--epsilon", "0.5", "--delta", "1e-7"]
    assert budget(*asked, "--json") == 0
    plain = json.loads(capsys.readouterr().out)["runs"]
    assert budget(*asked, "--gaussian", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] > plain >= 8


def test_what_is_spent_already_leaves_less_room(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.set_limit("default", Limit(3.0))
    assert run("1.jsonl", "--epsilon", "1") == 0
    fit = ["fit", "--ledger", ledger.path, "--dataset", "default"]
    assert budget(*fit, "--like", "1.jsonl.guarantee.json") == 0
    assert "2 runs fit into epsilon 3 as plain sum after 1 releases" in capsys.readouterr().out
    for wrong, message in (
        (["fit", "--limit", "1"], "--epsilon must be given, or like"),
        (["fit", "--epsilon", "1"], "--limit must be given without dataset"),
        (
            [*fit[:4], "other", "--epsilon", "1"],
            "--limit must be given, since the ledger has none for data set 'other'",
        ),
        (["fit", "--limit", "1", "--epsilon", "1", "--gaussian"], "--delta must be"),
    ):
        assert budget(*wrong) == 2
        assert message in capsys.readouterr().err


def test_a_run_of_several_questions_is_one_entry_and_a_line_for_each(ledger: Ledger, capsys) -> None:
    parts = {"pages": pure(0.75), "latency": pure(0.25)}
    ledger.append(entry("both", command="monitor", parts=parts), accept)
    ledger.append(entry("alone", 0.5), accept)
    (found, _) = ledger.read()
    assert dict(found.parts) == parts
    assert budget("--ledger", ledger.path, "--json") == 0
    (account,) = json.loads(capsys.readouterr().out)["datasets"]
    assert [(one["question"], one["epsilon"]) for one in account["questions"]] == [
        ("pages", 0.75),
        ("latency", 0.25),
        ("counts", 0.5),
    ]
    assert account["totals"][0]["epsilon"] == 1.5
    assert budget("--ledger", ledger.path) == 0
    assert "data set shop: by question" in capsys.readouterr().out


def test_a_pipeline_of_ones_own_has_an_account(ledger: Ledger) -> None:
    noise = KeyedNoise(bytes(range(32)), "visits")
    given = {"noise": noise, "run_id": "visits", "data": "visits of 2026", "dataset": "shop"}
    days = {"begin": datetime(2026, 1, 1, tzinfo=UTC), "end": datetime(2027, 1, 1, tzinfo=UTC)}
    ledger.set_limit("shop", Limit(1.0, 1e-6, "year"))
    first = ledger.record(pure(0.75), **given, **days, parameters={"epsilon": 0.75})
    again = ledger.record(pure(0.75), **given, **days, parameters={"epsilon": 0.75})
    assert (first.line, first.repeats, again.line, again.repeats) == (2, False, 3, True)
    with pytest.raises(ValueError, match=r"run_id must be another one: the run visits of .* had other data"):
        ledger.record(pure(0.1), **(given | {"data": "visits of 2027"}), **days, parameters={"epsilon": 0.75})
    more = {"run_id": "more", "noise": KeyedNoise(bytes(range(32)), "more")}
    with pytest.raises(ValueError, match=r"data set 'shop' has in 2026 spent epsilon 0\.7\d+ for one person"):
        ledger.record(pure(0.5), **(given | more), **days)
    with pytest.raises(ValueError, match="begin must have a time zone, got 2026-01-01T00:00:00"):
        ledger.record(pure(0.1), **(given | more), begin=datetime(2026, 1, 1))


def test_a_run_id_that_its_noise_has_not_is_no_release_of_its_own(ledger: Ledger) -> None:
    """January and February under one run id of the noise have the same noise, whatever the ledger calls them."""
    noise = KeyedNoise(bytes(range(32)))
    message = r"run_id must be that of the noise, got 'January' with noise of ''"
    with pytest.raises(ValueError, match=message):
        ledger.record(pure(0.1), noise=noise, run_id="January", data="visits of January")
    with pytest.raises(ValueError, match="data must say what is read, got a text without words"):
        ledger.record(pure(0.1), noise=noise, run_id="", data=" ")
    assert ledger.record(pure(0.1), noise=noise, run_id="", data="visits of January").line == 1
    with pytest.raises(ValueError, match=r"run_id must be another one: the run .* had other data"):
        ledger.record(pure(0.1), noise=noise, run_id="", data="visits of February")
