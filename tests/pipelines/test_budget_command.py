"""`privstream budget` against compositions made by hand."""

import json
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, PureDp
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.pipelines import cli
from privstream.pipelines.accounts.entries import BEFORE_ALL, Entry, head_after, to_line
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.spending import Limit, Total, check_limit, totals
from privstream.transforms.timing.steps import Steps

SHIFT = 0.25
EPSILON = GaussianCurve(shift=SHIFT).epsilon(1e-6)


def gaussian(shift: float = SHIFT, delta: float = 1e-6) -> PrivacyGuarantee:
    curve = GaussianCurve(shift=shift)
    return PrivacyGuarantee(
        unit=PERSON, neighbouring="add_remove", epsilon=curve.epsilon(delta), delta=delta, curve=curve
    )


def pure(epsilon: float, unit: PrivacyUnit = PERSON) -> PrivacyGuarantee:
    return PrivacyGuarantee(unit=unit, neighbouring="add_remove", epsilon=epsilon, delta=0.0, curve=PureDp(epsilon))


def total(guarantees: Sequence[PrivacyGuarantee]) -> Total:
    (found,) = totals(entry(number, guarantee) for number, guarantee in enumerate(guarantees))
    return found


def entry(number: int, guarantee: PrivacyGuarantee, dataset: str = "default") -> Entry:
    return Entry(
        time=f"2030-01-01T00:00:{number % 60:02}+00:00",
        run_id=f"run {number}",
        digest=f"{number}",
        name=f"run {number}",
        dataset=dataset,
        command="heavy-hitters",
        version="0.1.0",
        data="ab",
        key="0123456789abcdef",
        guarantee=guarantee,
        output="rows",
    )


def write(path: Path, *entries: Entry) -> str:
    head = BEFORE_ALL
    with path.open("wb") as file:
        for each in entries:
            line = to_line(each.to_record(), head)
            head = head_after(head, line)
            file.write(line)
    return str(path)


def budget(capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    assert cli.main(["budget", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_gaussian_releases_compose_as_one_gaussian_release(tmp_path, capsys) -> None:
    """Four releases of shift s are one of shift 2 s: known in closed form, and from dp_accounting itself."""
    path = write(tmp_path / "ledger", *(entry(number, gaussian()) for number in range(4)))
    (account,) = budget(capsys, "--ledger", path)["datasets"]
    (found,) = account["totals"]
    assert (found["unit"], found["releases"]) == (str(PERSON), 4)
    assert found["delta"] == pytest.approx(4e-6)
    assert found["plain_epsilon"] == pytest.approx(4 * EPSILON)
    exact = GaussianCurve(shift=2 * SHIFT).epsilon(4e-6)
    assert exact <= found["epsilon"] <= exact * 1.01
    loss = privacy_loss_distribution.from_gaussian_mechanism(1 / SHIFT, value_discretization_interval=1e-4)
    assert found["epsilon"] == pytest.approx(loss.self_compose(4).get_epsilon_for_delta(4e-6), rel=0.01)
    assert found["epsilon"] < 0.8 * found["plain_epsilon"]


def test_pure_releases_add_up_at_delta_0(tmp_path, capsys) -> None:
    path = write(tmp_path / "ledger", *(entry(number, pure(0.1)) for number in range(10)))
    (found,) = budget(capsys, "--ledger", path)["datasets"][0]["totals"]
    assert found["epsilon"] == found["plain_epsilon"] == pytest.approx(1.0)
    assert found["delta"] == 0


def test_a_total_is_never_above_the_plain_sum() -> None:
    point = replace(gaussian(), curve=PointCurve(at_epsilon=EPSILON, at_delta=1e-6))
    for guarantees in ([point] * 3, [point, gaussian(), pure(0.3)], [replace(point, curve=None)] * 2, [gaussian()]):
        found = total(guarantees)
        assert 0 < found.epsilon <= found.plain_epsilon
        assert found.plain_epsilon == pytest.approx(sum(one.epsilon for one in guarantees))
    assert total([point] * 3).epsilon == pytest.approx(3 * EPSILON), "no delta is left to compose better"
    mixed = total([gaussian(), gaussian(), pure(0.3)])
    losses = [gaussian().curve.to_pld(), gaussian().curve.to_pld(), PureDp(0.3).to_pld()]
    by_hand = losses[0].compose(losses[1]).compose(losses[2]).get_epsilon_for_delta(2e-6)
    assert mixed.epsilon == pytest.approx(by_hand, rel=1e-3)


def test_deltas_that_come_to_1_promise_nothing_but_are_added() -> None:
    found = total([replace(gaussian(), delta=0.6, curve=None)] * 2)
    assert (found.epsilon, found.delta) == (pytest.approx(2 * EPSILON), 1.0)


def test_a_table_of_long_names_fits_a_terminal(tmp_path, capsys) -> None:
    """Eighty letters are enough for the longest command, a whole run id and each head."""
    long = replace(entry(1, gaussian()), command="heavy-hitters", name="run-0123456789abcdef")
    budget_of = ["budget", "--ledger", str(write(tmp_path / "ledger", long))]
    assert cli.main(budget_of) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown and all(len(line) <= 80 for line in shown.splitlines())


def test_repetitions_are_free_and_each_unit_has_all_that_concerns_it(tmp_path, capsys) -> None:
    again, other_key = entry(1, pure(1.0)), replace(entry(1, pure(1.0)), key="fedcba9876543210")
    path = write(
        tmp_path / "ledger",
        again,
        again,
        replace(again, time="later"),
        other_key,
        entry(2, pure(0.5, EVENT)),
        entry(3, replace(pure(0.25), neighbouring="replace_one")),
        entry(4, pure(4.0), dataset="another"),
    )
    found = budget(capsys, "--ledger", path)["datasets"]
    assert [account["dataset"] for account in found] == ["default", "another"]
    assert [one["repeats"] for one in found[0]["runs"]] == [2, 0, 0, 0]
    of_units = {(one["unit"], one["neighbouring"]): one for one in found[0]["totals"]}
    assert {unit: (one["epsilon"], one["releases"], one["silent"]) for unit, one in of_units.items()} == {
        (str(PERSON), "add_remove"): (2.25, 3, 1),  # the event promises nothing to a person
        ("one event", "add_remove"): (4.75, 4, 0),  # 0.5 + 2 * 2 for people added or removed + 0.25 for one replaced
        (str(PERSON), "replace_one"): (4.25, 3, 1),
    }
    (found,) = budget(capsys, "--ledger", path, "--dataset", "another")["datasets"]
    assert [one["epsilon"] for one in found["totals"]] == [4.0]


def test_the_table_says_what_there_is(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    red = replace(entry(2, pure(0.5)), name="\x1b[31mred" + "x" * 40)
    made = replace(entry(4, pure(0.25)), name="run-de4d971b363328d4")
    write(tmp_path / "key.ledger.jsonl", entry(1, gaussian()), red, entry(3, pure(0.5, EVENT)), made)
    assert cli.main(["budget", "--key", str(tmp_path / "key")]) == 0
    shown = capsys.readouterr().out
    assert f"data set default: {PERSON}, neighbours by add_remove" in shown
    assert "data set default: one event, neighbours by add_remove" in shown
    assert "\x1b" not in shown and "x1b[31mred" in shown
    lines = [line.split() for line in shown.splitlines()]
    plain = f"{EPSILON:g}", f"{EPSILON + 0.75:g}"
    assert ["2030-01-01T00:00", "heavy-hitters", "run", "1", plain[0], "1e-06", "0"] in lines
    assert ["all,", "plain", "sum", "3", "releases", plain[1], "1e-06"] in lines
    assert ["2030-01-01T00:00", "heavy-hitters", "run", "3", "0.5", "0", "0"] in lines
    assert shown.count("not in this total: 1 release promising nothing to this unit") == 1
    assert "…" in shown and "run-de4d971b363328d4" in shown  # a name is cut, an id of a run is not
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "--ledger must be given, or --key, the key whose ledger lies beside it"),
        ("--ledger a --key b", "--ledger must not be given with --key"),
        ("--ledger nowhere", "--ledger must be a file that can be read, got nowhere (No such file or directory)"),
        ("--key key", "--ledger must be a file that can be read, got key.ledger.jsonl"),
        ("--ledger empty", "--ledger must have at least one run, and empty has none"),
        ("--ledger bad", "ledger bad: line 1 must be an entry"),
        ("--ledger good --dataset other", "--dataset must be one of 'default', got 'other'"),
    ],
)
def test_what_is_missing_is_said(options, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("bad").write_text("{}\n")
    write(Path("good"), entry(1, pure(1.0)))
    assert cli.main(["budget", *options.split()]) == 2
    shown = capsys.readouterr()
    assert f"privstream budget show: error: {message}" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


def test_a_limit_refuses_what_would_pass_it() -> None:
    earlier = [entry(number, pure(1.0)) for number in range(2)]
    earlier += [entry(10, pure(7.0), dataset="another")]
    check_limit(Limit(3.0), entry(11, pure(1.0)), earlier)
    check_limit(Limit(1.0), entry(11, pure(1.0)), [])
    check_limit(Limit(1.0), entry(99, pure(0.1)), [entry(number, pure(0.1)) for number in range(9)])
    with pytest.raises(ValueError) as caught:
        check_limit(Limit(2.5), entry(11, pure(1.0)), earlier)
    assert str(caught.value) == (
        "budget_limit must not be exceeded: data set 'default' has spent epsilon 2 for one person over the whole run, "
        "this run costs epsilon 1, all together epsilon 3; left: epsilon 0.5"
    )
    point = replace(gaussian(), curve=None)
    with pytest.raises(ValueError) as caught:
        check_limit(Limit(20.0, 1.5e-6), entry(12, point), [entry(11, point)])
    assert str(caught.value) == (
        "budget_limit must not be exceeded: data set 'default' has spent delta 1e-06 for one person over the whole "
        "run, this run costs delta 1e-06, all together delta 2e-06; left: delta 5e-07"
    )
    check_limit(Limit(2.0, 1e-6), entry(11, point), [])
    check_limit(Limit(2.0, 5e-7), entry(11, gaussian()), [])


def test_a_refusal_names_the_neighbours_where_releases_have_several() -> None:
    """What is spent is then another number for each of them, and the table has both."""
    replaced = entry(2, replace(pure(0.1), neighbouring="replace_one"))
    with pytest.raises(ValueError) as caught:
        check_limit(Limit(1.5), replaced, [entry(1, pure(1.0))])
    assert "spent epsilon 2 for one person over the whole run, neighbours by replace_one, this run" in str(caught.value)


def test_a_limit_is_kept_for_every_unit_that_a_run_is_about() -> None:
    person, event = entry(1, pure(1.0)), entry(2, pure(1.0, EVENT))
    check_limit(Limit(1.0), event, [])
    check_limit(Limit(3.0), event, [person])
    for new, earlier in ((event, [person]), (person, [event]), (replace(person, run_id="more"), [person, event])):
        with pytest.raises(
            ValueError, match=r"for one event, this run costs epsilon ., all together epsilon (3|5); left"
        ):
            check_limit(Limit(2.9), new, earlier)


def test_a_limit_with_a_delta_counts_the_composition_not_the_plain_sum() -> None:
    earlier = [entry(number, gaussian()) for number in range(3)]
    together = total([gaussian()] * 4)
    check_limit(Limit(together.epsilon, 4e-6), entry(4, gaussian()), earlier)
    for limit in (Limit(together.epsilon * 0.99, 4e-6), Limit(together.plain_epsilon * 0.99)):
        with pytest.raises(ValueError, match="budget_limit must not be exceeded"):
            check_limit(limit, entry(4, gaussian()), earlier)
    check_limit(Limit(together.plain_epsilon), entry(4, gaussian()), earlier)


@pytest.mark.parametrize("limit", [Limit(4.0), Limit(4.0, 1e-6)])
def test_what_has_passed_a_limit_is_not_brought_back_below_it_by_spending_more(limit) -> None:
    """A run with hardly an epsilon and a large delta lowers the epsilon at the sum of the deltas."""
    earlier = [entry(number, pure(0.1)) for number in range(100)]
    careless = gaussian(0.01, 1e-3)
    assert total([*(one.guarantee for one in earlier), careless]).epsilon < 4 < total([pure(0.1)] * 100).epsilon
    for one in (careless, pure(0.1)):
        with pytest.raises(ValueError, match="budget_limit must not be exceeded"):
            check_limit(limit, entry(100, one), earlier)
    with pytest.raises(ValueError, match="budget_limit must not be exceeded"):
        check_limit(limit, entry(101, pure(0.1)), [*earlier, entry(100, careless)])


def test_repetitions_pass_any_limit(tmp_path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    one = entry(1, pure(1.0))
    assert not ledger.append(one, lambda earlier: check_limit(Limit(1.0), one, earlier)).repeats
    assert ledger.append(one, lambda earlier: check_limit(Limit(1.0), one, earlier)).repeats
    with pytest.raises(ValueError, match="budget_limit must not be exceeded"):
        other = entry(2, pure(0.1))
        ledger.append(other, lambda earlier: check_limit(Limit(1.0), other, earlier))


def _append_many(path: str, barrier: Barrier, name: str) -> None:
    barrier.wait()
    for number in range(20):
        one = replace(entry(number, pure(1.0)), run_id=f"{name} {number}")
        with suppress(ValueError):
            Ledger(path).append(one, lambda earlier, one=one: check_limit(Limit(25.0), one, earlier))


def test_two_launches_at_once_do_not_pass_the_limit(tmp_path) -> None:
    context, path = multiprocessing.get_context("fork"), str(tmp_path / "ledger")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_append_many, args=(path, barrier, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    entries = Ledger(path).read()
    assert len(entries) == 25
    assert len({each.run_id for each in entries}) == 25


def test_windows_of_different_lengths_have_a_part_in_common() -> None:
    hours = [PrivacyUnit(what="person", window=3_600_000_000 * hours) for hours in (2, 3)]
    one, other = (entry(number, pure(1.0, unit)) for number, unit in enumerate(hours))
    check_limit(Limit(4.0), other, [one])
    with pytest.raises(ValueError, match="for one person in one window of 1 hour, this run costs epsilon 2, all"):
        check_limit(Limit(3.9), other, [one])
    assert [each.plain_epsilon for each in totals([one, other])] == [1.0, 1.0, 4.0]


def test_windows_of_different_calendars_have_hours_in_common() -> None:
    months = Steps.of(window="1day Europe/Berlin", start=1_704_063_600, renew_every="1month").person_in_period
    years = Steps.of(window="1year Europe/Berlin", start=1_704_063_600).person_in_window
    one, same, other = (entry(number, pure(1.0, unit)) for number, unit in enumerate((months, months, years)))
    with pytest.raises(ValueError, match="one window of 1 month in Europe/Berlin, counted from 1970-01-01, this run"):
        check_limit(Limit(1.9), same, [one])
    with pytest.raises(ValueError, match="for one person in one window of 1 hour, this run costs epsilon 2, all"):
        check_limit(Limit(3.9), other, [one])
    check_limit(Limit(4.0), other, [one])


@pytest.mark.parametrize(("start", "length"), [(1_704_067_200, "1year"), (1_705_276_800, "1month")])
def test_calendars_made_of_the_same_days_have_days_in_common(start, length) -> None:
    """In UTC a month, a year, and a month from the 15th on have one grid and origin, and are no parts of each other."""
    months = Steps.of(window="1day", start=1_704_067_200, renew_every="1month").person_in_period
    others = Steps.of(window="1day", start=start, renew_every=length).person_in_period
    assert (months.window, months.origin) == (others.window, others.origin)
    one, other = (entry(number, pure(1.0, unit)) for number, unit in enumerate((months, others)))
    with pytest.raises(ValueError, match="for one person in one window of 1 day, this run costs epsilon 2, all"):
        check_limit(Limit(3.9), other, [one])
    check_limit(Limit(4.0), other, [one])
    assert [each.plain_epsilon for each in totals([one, other])] == [1.0, 1.0, 4.0]


@pytest.mark.slow
def test_a_thousand_runs_take_seconds(tmp_path, capsys) -> None:
    runs = [entry(number, gaussian(0.2 + number / 10_000)) for number in range(1000)]
    path = write(tmp_path / "ledger", *runs)
    began = time.process_time()
    (found,) = budget(capsys, "--ledger", path)["datasets"][0]["totals"]
    assert time.process_time() - began < 30
    shift = math.sqrt(sum((0.2 + number / 10_000) ** 2 for number in range(1000)))
    exact = GaussianCurve(shift=shift).epsilon(1e-3)
    assert exact <= found["epsilon"] <= 1.02 * exact
    assert found["epsilon"] < found["plain_epsilon"] / 10


def test_it_does_not_load_beam() -> None:
    code = "import sys; from privstream.pipelines import cli; cli.load('accounts.budget_command'); "
    code += "print('apache_beam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
