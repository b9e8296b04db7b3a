"""Heavy hitters by counts, whose items stay found: where they do, since when, and what stands beside their counts."""

import random
from dataclasses import replace

import pytest
import tiny_runner
from event_forms import as_rows, run_bounded
from privstream.mechanisms.keyed_counts import found_keys
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, ShiftingHeavyHitters
from workloads import SECOND, START

RUN = {
    "epsilon": 3.0,
    "delta": 1e-2,
    "max_hits": 2,
    "window": 10,
    "start": START,
    "method": "counts",
    "noise": KeyedNoise(b"a key for tests, no secret"),
}
LISTED = Domain(["a", "b"])


def made(**given) -> ShiftingHeavyHitters:
    return ShiftingHeavyHitters(**RUN | given)


def rows_of(transform, people: dict[int, int]):
    """Return the rows, in the order of windows, of an item that so many people have in some windows."""
    events = [
        (f"user {person}", "a", (START + 10 * window) * SECOND, "")
        for window, number in people.items()
        for person in range(number)
    ]
    return sorted(tiny_runner.run_chain(transform, events, random.Random(1)).rows)


@pytest.mark.parametrize("given", [{}, {"streams": ("s",), "streams_per_person": 1}, {"participation_cap": 8}])
def test_an_item_of_many_different_people_is_found_by_the_list_after_half_of_the_run(given):
    """Six new people in each of eight windows: too few for blocks, and after four windows enough for the list."""
    limits = {"renew_every": 80, "end": START + 80} | given
    if "participation_cap" in given:
        limits["items_per_step"] = 2
    events = [
        (f"user {person} of {window}", "a", (START + 10 * window) * SECOND, "s" if "streams" in given else "")
        for window in range(8)
        for person in range(6)
    ]
    found = []
    for listed in (0, 2):
        transform = made(**limits)
        counts = replace(transform.answer.counts, listed=listed)
        law = counts.law
        vars(counts)["law"] = replace(
            law,
            scales=tuple(replace(scale, threshold=10_000) for scale in law.scales),
            people=law.people and replace(law.people, thresholds=(10_000, -10_000), least=(1, 24)),
        )
        transform.answer = replace(transform.answer, counts=counts)
        rows = run_bounded("fn_api", as_rows(events), transform.to_finish()).elements("rows")
        found.append(sorted({row.reported_at.micros // SECOND - START for row in rows}))
    assert found == [[], [40, 50, 60, 70, 80]]


def windows_since(rows) -> list[int]:
    return [(row.since.micros // SECOND - START) // 10 for row in rows]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"horizon": 8}, None),
        ({"end": START + 80}, None),
        ({"renew_every": 80}, None),
        ({"horizon": 8, "streams": ("s", "t"), "streams_per_person": 2}, None),
        ({"renew_every": 80, "domain": LISTED}, None),  # it is not tested in every window, only read
        ({"start": None, "horizon": 8}, "start, and end, horizon or renew_every"),
        ({"participation_cap": 8}, "start, and end, horizon or renew_every"),
        ({"horizon": 8, "period": 5}, "windows that do not overlap"),
        ({"horizon": 8, "streams_per_person": 2}, "streams"),
    ],
)
def test_items_stay_found_where_that_is_possible_and_else_it_is_said_what_is_missing(given, missing):
    transform = made(**given)
    told = transform.accuracy.claim
    assert isinstance(transform.answer.counts, FoundKeys) == (missing is None)
    assert (transform.finish is not None) == (missing is None)
    if missing is None:
        assert "Items that are found stay found" in told and not transform.advice
        assert "Theorem 3" in transform.guarantee.proof
    else:
        assert f"Every window forgets which items were found before: with {missing}, they would" in transform.advice
        assert "Theorem 2" in transform.guarantee.proof


def test_what_is_asked_to_forget_does_and_needs_no_remark():
    transform = made(horizon=8, forget=True)
    assert not isinstance(transform.answer.counts, FoundKeys)
    assert not transform.advice
    assert (
        transform.answer.noise.derive("x").words(1).tolist()
        == made(horizon=8).answer.noise.derive("x").words(1).tolist()
    )
    listed = made(horizon=8, domain=LISTED)
    assert "forgets" not in listed.accuracy.claim and listed.answer.counts.public_keys


@pytest.mark.parametrize("given", [{"method": "status"}, {"method": "clock"}, {"domain": LISTED}])
def test_forgetting_is_refused_where_it_means_nothing(given):
    with pytest.raises(ValueError, match=r"^forget must not be given where a known domain is tested, or with a method"):
        made(**{"horizon": 8, "forget": True, **given})
    with pytest.raises(TypeError, match="forget must be true or false, got int"):
        made(horizon=8, forget=1)


def test_a_person_counts_so_often_in_all_streams_and_windows_that_the_noise_pays_for():
    one = made(horizon=8, items_per_step=3)
    two = made(horizon=8, items_per_step=3, streams=("s", "t"), streams_per_person=2)
    capped = made(horizon=8, items_per_step=3, participation_cap=2)
    assert [transform.answer.counts.contributions for transform in (one, two, capped)] == [24, 48, 6]


def reports(rows, period=None):
    """Return the windows in which rows are surely above 0, and those since which they are without a gap: by hand."""
    found, last = [], None
    for row in sorted(rows, key=lambda row: row.window_start):
        window = (row.window_start.micros // SECOND - START) // 10
        if row.smoothed_lower > 0:
            goes_on = last is not None and last[0] == window - 1 and (period is None or window % period)
            last = window, last[1] if goes_on else window
            found.append(last)
    return found


def test_an_item_that_is_found_late_is_reported_where_it_is_surely_there(monkeypatch):
    monkeypatch.setattr(found_keys, "MOST_KEPT", 3)
    transform = made(horizon=8)
    crowd = 3 * transform.answer.counts.law.scales[0].threshold
    everything = rows_of(transform.to_finish(), {1: 1, 4: crowd, 5: crowd, 6: crowd})
    starts = [(row.window_start.micros // SECOND - START) // 10 for row in everything]
    assert starts == [2, 3, 4, 5, 6, 7]
    assert [row.backfilled for row in everything] == [True, True, False, False, False, False]
    assert {row.reported_at.micros // SECOND - START for row in everything[:3]} == {50}
    assert all(row.lower <= max(0, row.count) <= row.upper for row in everything)
    assert all(row.smoothed_lower <= row.smoothed <= row.smoothed_upper for row in everything)
    rows = rows_of(transform, {1: 1, 4: crowd, 5: crowd, 6: crowd})
    assert [(start, since) for start, since in reports(everything) if start < 7] == [(4, 4), (5, 4), (6, 4)]
    assert [row._replace(since=None, status="") for row in rows] == [
        row._replace(since=None, status="") for row in everything if row.smoothed_lower > 0
    ]
    assert windows_since(rows) == [since for _, since in reports(everything)]
    assert [row.status for row in rows][:3] == ["started", "continues", "continues"]


@pytest.mark.parametrize("windows", [(1, 2, 5), (0, 1, 2, 3, 4, 5, 6, 7), (3, 4), (1, 3, 5, 6)])
def test_reports_of_streams_and_of_finished_runs_go_on_without_a_gap_within_a_period(windows):
    transform = made(renew_every=40, end=START + 80)
    crowd = 3 * transform.answer.counts.law.scales[0].threshold
    people = dict.fromkeys(windows, crowd)
    everything, rows = rows_of(transform.to_finish(), people), rows_of(transform, people)
    starts = [(row.window_start.micros // SECOND - START) // 10 for row in rows]
    assert set(windows) <= set(starts) and len(everything) >= len(windows)
    assert list(zip(starts, windows_since(rows), strict=True)) == reports(everything, period=4)
    assert [row.status for row in rows] == ["started" if row.since == row.window_start else "continues" for row in rows]
    finished = transform.finish(everything)
    smoothed = transform.finish.smooth(everything)
    starts = [(row.window_start.micros // SECOND - START) // 10 for row in finished]
    assert list(zip(starts, windows_since(finished), strict=True)) == reports(smoothed, period=4)
    assert {row.status for row in finished if row.since == row.window_start} == {"started"}


def test_a_finished_run_is_smoothed_both_ways():
    transform = made(horizon=8)
    crowd = 3 * transform.answer.counts.law.scales[0].threshold
    rows = rows_of(transform.to_finish(), dict.fromkeys(range(8), crowd))
    finished = transform.finish(rows)
    assert [row._replace(smoothed=0, smoothed_lower=0, smoothed_upper=0) for row in finished] == [
        row._replace(smoothed=0, smoothed_lower=0, smoothed_upper=0) for row in rows
    ]
    assert finished[0].smoothed != rows[0].smoothed  # it knows of later windows now
    widths = [row.smoothed_upper - row.smoothed_lower for row in finished]
    assert max(widths) < rows[0].upper - rows[0].lower
