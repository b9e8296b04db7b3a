"""The limit of a period from what the one before has published."""

import numpy as np
import pytest
from privstream.mechanisms.limits.next_limit import PeriodTold, next_limit
from privstream.mechanisms.limits.suggested_limits import LaterRun

RUN = LaterRun(epsilon=1.0, delta=1e-6, windows=13, items=10)


def told(limit: int, people: np.ndarray) -> PeriodTold:
    """Return what a period tells in which each person has so many contributions, without noise."""
    over = np.maximum(people - limit, 0)
    return PeriodTold(
        limit=limit,
        kept=float((people - over).sum()),
        left_out=float(np.minimum(over, 3 * limit).sum()),
        used_up=float((people >= limit).sum()),
        row=float(people.sum() / 2 / 13 / 10),
    )


def worth(limit: int, people: np.ndarray) -> float:
    """Return what is shown with a limit."""
    left = np.maximum(people - limit, 0).sum() / people.sum()
    (found,) = RUN.predict(np.array([float(limit)]), np.array([left]), float(people.sum() / 2 / 13 / 10))
    return found.worth


@pytest.mark.parametrize("first", [4, 40, 400])
def test_limits_follow_what_people_have(first: int) -> None:
    """After six periods of one kind it shows nearly what the best limit would, wherever it began."""
    rng = np.random.default_rng(1)
    people, limit = np.maximum(1, rng.lognormal(2.5, 1.0, 5000)).astype(np.int64), first
    for _ in range(6):
        before, limit = limit, next_limit(told(limit, people), RUN)
        assert before / 2 <= limit <= 2 * before
    assert worth(limit, people) >= 0.9 * max(worth(each, people) for each in range(10, 400, 5))


def test_nobody_at_the_limit_makes_it_smaller_and_most_people_at_it_larger() -> None:
    few = PeriodTold(limit=100, kept=50_000.0, left_out=0.0, used_up=0.0, row=200.0)
    assert next_limit(few, RUN) == 50
    many = PeriodTold(limit=10, kept=50_000.0, left_out=50_000.0, used_up=5_000.0, row=400.0)
    assert next_limit(many, RUN) == 20
    assert next_limit(many._replace(limit=1), RUN) in (1, 2)


def test_noise_below_zero_is_no_reason_to_fail() -> None:
    odd = PeriodTold(limit=10, kept=-50.0, left_out=-70.0, used_up=-3.0, row=-4.0)
    assert 5 <= next_limit(odd, RUN) <= 20
    with pytest.raises(ValueError, match="limit must be >= 1, got 0"):
        next_limit(odd._replace(limit=0), RUN)
