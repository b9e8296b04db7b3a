"""Views: published numbers in, published numbers out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.views.rank import ranked
from privstream.mechanisms.views.rules import ALERT, CLEAR, NO_DATA, Condition, Watch, watched
from privstream.mechanisms.views.trending import surely_above


@given(st.lists(st.integers(-5, 5).map(float), max_size=12), st.integers(1, 14))
def test_ranks_are_in_order_and_leads_are_the_differences(numbers, top):
    names = [f"item {place}" for place in range(len(numbers))]
    found = ranked(numbers, names, top)
    wanted = sorted(range(len(numbers)), key=lambda place: (-numbers[place], names[place]))
    assert [place for place, _ in found] == wanted[:top]
    for rank, (place, lead) in enumerate(found):
        after = wanted[rank + 1] if rank + 1 < len(numbers) else None
        assert lead == (None if after is None else numbers[place] - numbers[after])


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
