"""Views: published numbers in, published numbers out."""

from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.views.counts import ranked
from privstream.mechanisms.views.rules import (
    ALERT,
    CLEAR,
    CONTINUES,
    NO_DATA,
    STARTED,
    Condition,
    Watch,
    alerts,
    surely_above,
    trending,
    watched,
)
from privstream.transforms.row_types import RankedItem
from privstream.transforms.timing.steps import Steps

MINUTE = 60_000_000


@given(st.lists(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=9), max_size=3), st.integers(1, 10))
def test_ranks_are_in_order_and_leads_are_the_differences(windows, top):
    rows = [(start, f"item {i}", number) for start, some in enumerate(windows) for i, number in enumerate(some)]
    named = zip(("window_start", "item", "people"), (pa.int64(), pa.string(), pa.float64()), strict=True)
    columns = {name: pa.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(named)}
    table = pa.table(columns | dict.fromkeys(("window_end", "lower", "upper"), columns["people"]))
    assert [*RankedItem._fields] == ranked(table, top).column_names, "also where there is nothing"
    found = ranked(table, top).to_pylist()
    for start, some in enumerate(windows):
        wanted = sorted((-number, f"item {i}") for i, number in enumerate(some))
        mine = [row for row in found if row["window_start"] == start]
        assert [(row["rank"], -row["people"], row["item"]) for row in mine] == [
            (rank, *one) for rank, one in enumerate(wanted[:top], start=1)
        ]
        leads = [after - before for (before, _), (after, _) in pairwise(wanted)]
        assert [row["gap"] for row in mine] == [*leads, None][: len(mine)]


def test_reports_go_on_from_window_to_window_and_never_into_another_budget_period():
    steps = Steps.of(window=60, start=0, end=600, renew_every=300)
    high = {"a": (1, 1, 0, 1, 1, 1, 1), "b": (0, 0, 1, 1, 0, 0, 0)}
    rows = [(t * MINUTE, (t + 1) * MINUTE, item, 90.0 * up, 90.0 * up - 5, 90.0 * up + 5)
            for item, ups in high.items() for t, up in enumerate(ups)]  # fmt: skip
    names = ("window_start", "window_end", "item", "people", "lower", "upper")
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    whole = trending(table, None, steps, 10).to_pylist()
    told = {(row["item"], row["window_start"] // MINUTE): (row["since"] // MINUTE, row["status"]) for row in whole}
    begun = {("a", 0): 0, ("a", 1): 0, ("a", 3): 3, ("a", 4): 3, ("a", 5): 5, ("a", 6): 5, ("b", 2): 2, ("b", 3): 2}
    assert told == {at: (since, STARTED if at[1] == since else CONTINUES) for at, since in begun.items()}
    rules = {item: Condition(1, 50, 50, reaching=True) for item in high}
    met = alerts(table, None, steps, rules).to_pylist()
    assert {(row["rule"], row["window_start"] // MINUTE): row["since"] // MINUTE for row in met} == begun
    for view in (partial(trending, windows=steps, threshold=10), partial(alerts, windows=steps, rules=rules)):
        before, found = None, []
        assert view(table.slice(0, 0), None).num_rows == 0
        for t in range(7):
            before = view(table.filter(pc.equal(table["window_start"], t * MINUTE)), before)
            found += before.to_pylist()
        assert sorted(found, key=str) == sorted(view(table, None).to_pylist(), key=str)


def test_of_items_that_nobody_has_hardly_any_is_surely_above_nothing():
    """Numbers with noise of standard deviation 10, cut off at 0 as rows are."""
    numbers = np.random.default_rng(1).normal(0, 10, 200_000)
    lower, upper = (np.maximum(0, numbers + side * 19.6) for side in (-1, 1))
    assert surely_above(numbers, lower, upper, 0).mean() < 0.003
    assert surely_above([40.0], [20.4], [59.6], 0).all() and not surely_above([40.0], [20.4], [59.6], 15).any()
    assert surely_above([156.0], [133.0], [301.0], 0).all(), "the upper end may have what limits drop"


def states(values, condition):
    watch, found = Watch(), []
    for start, value in enumerate(values):
        watch = watched(watch, value, condition, start)
        found.append((watch.state, watch.since))
    return found


@pytest.mark.parametrize("reaching", [False, True])
def test_an_alert_stays_until_the_number_is_clear(reaching):
    found = states([9, 10, 8, 6, 5, 10], Condition(1, 10, 6, reaching=reaching))
    begins = 1 if reaching else 99
    wanted = [ALERT if begins <= at <= 3 or (reaching and at == 5) else CLEAR for at in range(6)]
    assert [state for state, _ in found] == wanted
    assert states([11, 7, 6], Condition(1, 10, 6))[-1] == (CLEAR, 2)


def test_few_people_and_windows_in_a_row_and_windows_without_data():
    found = states([4, 4, None, 4, 4, 6, 7], Condition(-1, 5, 7, windows=2))
    assert [state for state, _ in found] == [CLEAR, ALERT, NO_DATA, ALERT, ALERT, ALERT, CLEAR]
    assert [since for _, since in found] == [0, 1, 2, 3, 3, 3, 6]
