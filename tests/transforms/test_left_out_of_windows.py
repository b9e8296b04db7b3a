"""What `items_per_step` leaves out of windows, as rows of top-k and of heavy hitters by counts tell it, against plain
Python; and the full numbers that are made of it."""

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from event_forms import as_arrow, run_bounded
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, ShiftingHeavyHitters, TopKWithGap
from workloads import KEY, SECOND, START

WINDOWS, LIMIT, CLIP = 6, 2, 10
COMMON = {
    "epsilon": 60.0,
    "delta": 1e-3,
    "window": 10,
    "start": START,
    "end": START + 10 * WINDOWS,
    "items_per_step": LIMIT,
    "full_share": 0.5,
    "noise": KeyedNoise(KEY),
}
ITEMS = [f"item {number:02}" for number in range(30)]
CASES = {
    "top-k": (TopKWithGap, {"top": 40}),
    "top-k, people listed": (TopKWithGap, {"top": 40}),
    "heavy hitters": (ShiftingHeavyHitters, {"method": "counts", "renew_every": 30}),
    "heavy hitters of a list": (ShiftingHeavyHitters, {"method": "counts", "domain": Domain(ITEMS)}),
}


def made(case, **changes):
    kind, given = CASES[case]
    transform = kind(**{**COMMON, **given, **changes})
    if "listed" in case:  # such a list is for longer runs
        transform.answer = replace(transform.answer, mechanism=replace(transform.answer.mechanism, listed=2))
    return transform


def random_events(seed=3) -> list[tuple[str, str, int]]:
    """Some people have two items in a window, some four, and a few twenty of which the clip tells ten."""
    chance, events = random.Random(seed), []
    for person in range(300):
        many = 20 if person < 15 else 4 if person < 100 else 2
        for window in range(WINDOWS):
            for item in chance.sample(ITEMS, many):
                events.append((f"user {person}", item, (START + 10 * window) * SECOND + chance.randrange(10 * SECOND)))
    return events


def totals(events) -> dict[int, tuple[int, int]]:
    """What counts of each window, and what does not, of each person as far as it is told."""
    items = defaultdict(set)
    for user, item, time in events:
        items[(time // SECOND - START) // 10, user].add(item)
    found = defaultdict(lambda: (0, 0))
    for (window, _), own in items.items():
        kept, left_out = found[window]
        more = max(0, len(own) - LIMIT)
        found[window] = kept + min(len(own), LIMIT), left_out + min(more, CLIP)
    return dict(found)


def rows_of(transform, events):
    """The rows of a bounded run, not finished."""
    return run_bounded("fn_api", as_arrow([(*event, "") for event in events]), transform).elements("rows")


@pytest.mark.parametrize("case", CASES)
def test_totals_are_those_of_plain_python(case):
    transform, events = made(case), random_events()
    mechanism = transform.answer.counts if hasattr(transform.answer, "counts") else transform.answer.mechanism
    assert mechanism.left_out.clips[:2] == (LIMIT, CLIP) and mechanism.left_out.counter is None
    rows = rows_of(transform, events)
    told = {(row.window_start.micros // SECOND - START) // 10: (row.kept, row.left_out) for row in rows}
    wanted = totals(events)
    assert set(wanted) <= set(told)
    for window, numbers in wanted.items():
        for number, noisy, stddev in zip(numbers, told[window], mechanism.left_out.stddevs, strict=True):
            assert abs(number - noisy) < 7 * stddev and 7 * stddev < 0.4 * number


@pytest.mark.slow
def test_full_numbers_are_nearer_to_all_people_than_those_that_count():
    events = random_events()
    full, counted, true = 0.0, 0.0, len({(user, item, time // (10 * SECOND)) for user, item, time in events})
    for row in rows_of(made("heavy hitters of a list"), events):
        assert row.full_lower <= row.full <= row.full_upper
        full, counted = full + row.full, counted + row.count
    told = sum(sum(numbers) for numbers in totals(events).values())  # people with twenty are told in part
    assert abs(full - told) < 0.05 * told < true - told and counted < 0.6 * true


@pytest.mark.slow
@pytest.mark.parametrize("case", ["top-k", "heavy hitters"])
def test_where_less_than_six_tenths_count_nothing_is_said_of_the_rest(case):
    """Who reaches a limit of a window has other items than others, and no share is right for those on top."""
    rows = rows_of(made(case, items_per_step=1), random_events())
    assert rows and all(row.full is None and row.full_lower is None for row in rows)
    assert all(row.left_out > row.kept for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["top-k, people listed"])
def test_shards_and_the_order_of_events_change_no_row(case):
    events = random_events()
    shuffled = random.Random(1).sample(events, len(events))
    assert sorted(rows_of(made(case, shards=1), events)) == sorted(rows_of(made(case, shards=3), shuffled))


def test_without_a_share_no_row_tells_of_limits_unless_none_can_bind():
    events = random_events()[:900]
    assert all(row.full is None and row.kept is None for row in rows_of(made("top-k", full_share=None), events))
    complete = rows_of(made("heavy hitters of a list", items_per_step=len(ITEMS)), events)
    assert complete and all(row.full == row.count or row.count < 0 for row in complete)
    assert all((row.full_lower, row.full_upper) == (row.lower, row.upper) and row.kept is None for row in complete)


def test_the_share_is_in_the_guarantee_and_in_what_intervals_hold():
    for case in ("top-k", "heavy hitters"):
        told, plain = made(case), made(case, full_share=0.0)
        assert "left out" not in " ".join(plain.guarantee.limits)
        assert any("limits leave out at most 10 times" in limit for limit in told.guarantee.limits)
        assert "full numbers" in told.coverage.published and not plain.coverage.published
        assert told.guarantee.curve.delta(1.0) == pytest.approx(plain.guarantee.curve.delta(1.0), rel=0.05)


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("heavy hitters", {"method": "auto"}, "full_share must be given with the method counts alone, got 'auto'"),
        ("heavy hitters", {"participation_cap": 3}, "full_share must not be given with participation_cap"),
        ("heavy hitters", {"forget": True}, "full_share must not be given without delta, or start"),
        ("top-k", {"streams": ("s", "t")}, "full_share must not be given with streams"),
        ("top-k", {"domain": Domain(ITEMS), "top": 3}, "full_share must not be given with domain"),
        ("top-k", {"full_share": 0.6}, "full_share must be <= 0.5, got 0.6"),
        ("top-k", {"full_share": -0.1}, "full_share must be in"),
    ],
)
def test_what_cannot_be_told_is_refused(case, changed, message):
    with pytest.raises(ValueError, match=message):
        made(case, **changed)
