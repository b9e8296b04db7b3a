"""Heavy hitters: rows of a plain reference, which method is taken, and items that stay found."""

import random
from dataclasses import replace

import numpy as np
import pytest
import slow_reference
import tiny_runner
from event_forms import as_rows, run_bounded
from grids import some_quick
from privstream.mechanisms.keyed_counts import found_keys
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.transforms import Domain, KeyedCounts, ShiftingHeavyHitters, TopKWithGap
from privstream.transforms.rows import STATUSES
from privstream.transforms.timing import keyed_state
from workloads import CONFIGURATIONS, SECOND, START, random_events, transform

SEEDS = range(2)
QUICK = (
    "plain",
    "public streams",
    "known domain, streams",
    "paper",
    "status",
    "status, known domain, streams",
    "counts",
)


def late_pairs(made, events) -> int:
    """Count the windows of the run that the events would have counted in."""
    steps = made.steps
    return sum(
        1
        for _, _, time, _ in events
        for step in range(time // steps.period, (time - steps.size) // steps.period, -1)
        if (steps.first is None or step >= steps.first) and (steps.end is None or step < steps.end)
    )


def domain_of(made) -> list[str]:
    return [made.domain[place] for place in range(len(made.domain))]


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_rows_are_those_of_the_reference_whatever_fails_and_in_whatever_order_timers_come(name, monkeypatch):
    published = 0
    for seed in SEEDS:
        events = random_events(name, random.Random(seed))
        expected = slow_reference.heavy_hitters(transform(name), events)
        quiet = tiny_runner.run_chain(transform(name), events, random.Random(seed))
        with monkeypatch.context() as patched:
            patched.setattr(keyed_state, "LEAST_COMPACTION", 64)
            patched.setattr(keyed_state, "CACHED_KEYS", 2)
            noisy = tiny_runner.run_chain(transform(name), events, random.Random(seed), crashes=0.3, workers=3)
        assert sorted(quiet.rows) == sorted(noisy.rows) == expected
        assert noisy.counters() == quiet.counters()
        assert not quiet.dead_letters()
        assert not noisy.dead_letters()
        published += len(expected)
    assert published


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_late_events_are_counted_and_set_aside_and_change_nothing(name):
    made = transform(name)
    for seed in SEEDS:
        chance = random.Random(seed)
        events = random_events(name, chance)
        watermark = START * SECOND + chance.randint(1, 3) * made.steps.size
        late = [
            (f"late {user}", item, watermark - chance.randint(made.steps.size, 2 * made.steps.size), stream)
            for user, item, _, stream in random_events(name, chance)
            if (made.streams is None or stream in made.streams) and (made.domain is None or item in domain_of(made))
        ]
        first = [event for event in events if event[2] < watermark]
        chain = tiny_runner.Chain(made, chance, crashes=0.1, workers=2)
        chain.arrive(first)
        chain.advance(watermark)
        chain.arrive(late)
        chain.arrive([event for event in events if event not in first])
        chain.advance(tiny_runner.END)
        assert sorted(chain.rows) == slow_reference.heavy_hitters(made, events)
        assert len(chain.dead_letters()) == late_pairs(made, late)
        assert chain.counters().get("BoundPerWindow.late", 0) == late_pairs(made, late)
        assert not any("user" in field for letter in chain.dead_letters() for field in letter)


@pytest.mark.parametrize(("name", "statuses"), [("status", STATUSES), ("counts", STATUSES[:2])])
def test_the_reference_has_rows_of_every_status(name, statuses):
    """An item that is reported has one row a window since it started; the row of an end is the last."""
    made = transform(name)
    rows = [
        row for seed in SEEDS for row in slow_reference.heavy_hitters(made, random_events(name, random.Random(seed)))
    ]
    assert {row.status for row in rows} == {*statuses}
    assert all((row.since == row.window_start) == (row.status == "started") for row in rows)
    assert all(bool(row.count_stddev) == (name != "status" or row.status != "continues") for row in rows)


@pytest.mark.parametrize("name", ["plain", "counts, forgetting", "counts"])
def test_a_report_that_was_there_in_the_window_before_goes_on(name):
    """Where nothing says how long an item lasts, what is published does, until there is a gap."""
    made = transform(name)
    size = made.steps.size // SECOND
    crowd = [
        (f"user {person} {window // 2}", "a", (START + window * size) * SECOND, "")
        for window in (0, 1, 3)
        for person in range(60)
    ]
    chain = tiny_runner.run_chain(made, crowd, random.Random(1))
    since = [(row.status, (row.since.micros // SECOND - START) // size) for row in sorted(chain.rows)]
    assert since == [("started", 0), ("continues", 0), ("started", 3)]


def test_public_items_need_not_be_found():
    """They are reported where their smoothed count is surely above 0, though too few have them to be found."""
    plain, listed = transform("counts"), transform("counts, public items")
    public = listed.public_items[0]
    some = [(f"user {person}", public, START * SECOND + person, "") for person in range(9)]  # 12 are found
    rows = [tiny_runner.run_chain(made, some, random.Random(1)).rows for made in (plain, listed)]
    assert not rows[0] and {row.item for row in rows[1]} == {public}
    assert "the list of public items" in listed.guarantee.public
    assert (listed.guarantee.epsilon, listed.guarantee.delta) == (plain.guarantee.epsilon, plain.guarantee.delta)


@pytest.mark.parametrize("changes", [{"forget": True}, {"method": "clock"}, {"domain": Domain("ab")}, {"start": None}])
def test_public_items_are_refused_where_no_item_stays_found(changes):
    common = {"epsilon": 3.0, "delta": 1e-2, "window": 10, "start": START, "horizon": 8, "public_items": ["a"]}
    with pytest.raises(ValueError, match=r"^public_items must not be given with a known domain, with forget or"):
        ShiftingHeavyHitters(noise=KeyedNoise(b"a key for tests, no secret"), **common | changes)


@pytest.mark.slow
def test_every_window_is_decided_while_anything_is_up():
    """An item that nobody or hardly anybody has any more ends, though nobody sends anything; then all is still."""
    made = transform("status, no start")
    crowd = [(f"user {i}", item, START * SECOND + i, "") for i in range(60) for item in "ab"]
    few = [(f"user {i}", "b", (START + 12) * SECOND + i, "") for i in range(3)]
    for events in (crowd[::2], [*crowd[1::2], *few]):
        chain = tiny_runner.run_chain(made, events, random.Random(1))
        assert sorted(chain.rows) == slow_reference.heavy_hitters(made, events)
        ended = [row for row in chain.rows if row.status == "ended"]
        assert len(ended) == 1
        assert ended[0].window_start > max(row.window_start for row in chain.rows if row.status != "ended")
        assert not any(stage.cells.timers for stage in chain.stages[:-1]), "the last one has a clock"


def test_late_events_are_never_used_whoever_else_has_events():
    """One person's event must not decide whether the events of others count."""
    made = transform("plain")
    crowd = [(f"user {i}", "a", START * SECOND + 1000 + i, "") for i in range(60)]
    for others in ([], [("somebody", "b", START * SECOND, "")]):
        chain = tiny_runner.Chain(made, random.Random(0))
        chain.arrive(others)
        chain.advance((START + 10) * SECOND)
        chain.arrive(crowd)
        for _ in range(3):
            chain.advance(chain.watermark + 30 * 24 * 3600 * SECOND)
            chain.arrive(crowd)
        chain.advance(tiny_runner.END)
        assert chain.rows == []
        assert len(chain.dead_letters()) == 4 * len(crowd)
    on_time = tiny_runner.run_chain(made, crowd, random.Random(0))
    assert len(on_time.rows) == 1


RUN = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "window": 3600, "noise": KeyedNoise(b"a key for tests, no secret")}
PETS = {"domain": Domain([f"pet {number}" for number in range(1000)])}
WINDOWS, BETA = 200, 0.5


def made(**given):
    return ShiftingHeavyHitters(**RUN | given)


@pytest.mark.parametrize(
    ("max_hits", "before", "after"), [(4, 100, 400), pytest.param(16, 300, 800, marks=pytest.mark.slow)]
)
def test_auto_takes_counts_for_few_windows_of_a_person_and_statuses_for_many(max_hits, before, after):
    few, many = (made(max_hits=max_hits, horizon=windows) for windows in (before, after))
    assert (few.method, many.method) == ("counts", "status")


def test_auto_takes_no_method_with_which_items_fade_though_it_detects_smaller_ones():
    clock, status = (made(horizon=1000, method=method) for method in ("clock", "status"))
    assert clock.detection_threshold < status.detection_threshold
    assert (clock.answer.lasting, status.answer.lasting, made(horizon=1000).method) == (4, None, "status")
    assert "the same people have in more than 4 windows fades" in clock.accuracy.sentence
    assert made(horizon=4, method="clock").answer.lasting is None
    assert made(horizon=4, method="clock", items_per_step=2).answer.lasting == 4
    assert made(horizon=1000, participation_cap=4, start=0, method="clock").answer.lasting is None


@pytest.mark.parametrize("method", ["status", "clock"])
def test_a_person_counts_with_no_more_items_than_there_are_charges(method):
    with pytest.raises(ValueError, match=r"^max_hits must be >= items_per_step, got 4 < 5: a person counts"):
        made(horizon=1000, items_per_step=5, method=method)
    assert made(horizon=1000, items_per_step=5).method == "counts"  # it charges nobody
    with pytest.raises(ValueError, match="max_hits must be >= items_per_step"):
        made(start=0, items_per_step=5)


def test_what_is_said_of_ends_holds():
    """An item with the detection threshold stays; one of few people ends at once, and one in between after a while."""
    status = made(horizon=1000, method="status")
    numbers, calibrated = status.accuracy.numbers, status.answer.monitor.calibrated
    items, noise = np.arange(1000, dtype=np.uint64), SeededNoise(22)
    ends = [calibrated.draw_end_thresholds(noise.derive("end", window), items) for window in range(20)]
    assert all(np.all(end <= status.detection_threshold) for end in ends)
    assert np.mean([np.mean(end > numbers["ends_with"]) for end in ends]) == pytest.approx(0.95, abs=0.01)
    ended = np.mean([np.mean(end > numbers["between"]) for end in ends])
    assert ended == pytest.approx(1 / numbers["windows_between"], abs=0.005)


@pytest.mark.slow
def test_what_a_person_may_contribute_decides_and_not_how_long_the_run_is():
    assert made(horizon=10_000, start=0, participation_cap=7).method == "counts"
    assert made(horizon=40, items_per_step=20, max_hits=20).method == "status"
    assert made(start=0, end=7 * 3600).method == "counts"  # the clock does not need the end, nor use it


def test_counts_need_a_bound_on_windows():
    assert made(start=0).method == "status"
    with pytest.raises(ValueError, match="end or participation_cap must be given for counts"):
        made(start=0, method="counts")


def test_a_budget_that_no_method_can_have_is_refused_for_each():
    for name, value in {"max_hits": 0, "count_share": 1.0, "delta": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            made(horizon=7, method="counts", **{name: value})


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_an_item_of_the_detection_threshold_is_missed_as_seldom_as_is_said_by_both(known):
    """The threshold is for a thousand tests at once, of which half of beta may miss one: 50 in 200 repetitions."""
    given = {"start": 0, "horizon": WINDOWS, "beta": BETA, **(PETS if known else {})}
    by_counts, by_clock = (made(**given, method=method).answer for method in ("counts", "clock"))
    by_counts, missed = replace(by_counts, tests=1000), {"counts": 0, "clock": 0}
    counted, clock = by_counts.detection_threshold(1), by_clock.monitor.calibrated
    tested = clock.detection_threshold(1000, BETA)
    keys, noise = np.arange(1000, dtype=np.uint64), SeededNoise(20)
    state = by_counts.counts.initial_state(keys if known else None)
    for window in range(1, WINDOWS + 1):
        nobody = None if known or not by_counts.counts.lists(window) else np.zeros(1000, np.int64)
        crowds = KeyedStep(step=window, keys=keys, counts=np.full(1000, counted), listed=nobody)
        state, rows = by_counts.counts.step(state, crowds, noise)
        missed["counts"] += 1000 - int(np.sum(rows.counts >= by_counts.threshold))
        thresholds = clock.draw_thresholds(noise.derive("clock", window), keys, step=1)
        missed["clock"] += int(np.sum(thresholds > tested))
    assert all(15 <= number <= 110 for number in missed.values()), missed


def test_of_a_list_no_item_that_nobody_has_is_reported_more_often_than_is_said():
    answer = made(start=0, horizon=WINDOWS, beta=BETA, method="counts", **PETS).answer
    answer = replace(answer, tests=1000)
    keys, found = np.arange(1000, dtype=np.uint64), 0
    state = answer.counts.initial_state(keys)
    for window in range(1, WINDOWS + 1):
        nobody = KeyedStep(step=window, keys=keys, counts=np.zeros(1000, np.int64))
        state, rows = answer.counts.step(state, nobody, SeededNoise(21))
        found += int(np.sum(rows.counts >= answer.threshold))
    assert 15 <= found <= 110


FOUND_RUN = {
    "epsilon": 3.0,
    "delta": 1e-2,
    "max_hits": 2,
    "window": 10,
    "start": START,
    "method": "counts",
    "items_per_step": 1,
    "noise": KeyedNoise(b"a key for tests, no secret"),
}
LISTED = Domain(["a", "b"])


def made_found(**given) -> ShiftingHeavyHitters:
    return ShiftingHeavyHitters(**FOUND_RUN | given)


@pytest.mark.parametrize(
    ("windows", "changes", "items"),
    [
        (1, {}, 10),
        (13, {}, 7),
        (52, {}, 4),
        (100, {}, 4),
        (101, {}, 1),
        (400, {"participation_cap": 20}, 5),
        (13, {"items_per_step": 2}, 2),
        (13, {"max_hits": 2}, 7),
        (13, {"method": "status"}, 1),
        (13, {"forget": True}, 1),
    ],
)
def test_over_files_a_person_counts_about_a_hundred_times_where_nobody_says_how_many(windows, changes, items):
    of_stream = made_found(**{"end": START + 10 * windows, "items_per_step": None} | changes)
    of_file = of_stream.to_finish()
    assert of_stream.settled == {"items_per_step": changes.get("items_per_step", 1)}
    assert of_file.settled == {"items_per_step": items} and of_file.method == of_stream.method
    named = made_found(**{"end": START + 10 * windows, "items_per_step": items} | changes)
    assert named.to_finish().guarantee == of_file.guarantee and named.method == of_file.method


def rows_of(transform, people: dict[int, int]):
    """Return the rows, in the order of windows, of an item that so many people have in some windows."""
    events = [
        (f"user {person}", "a", (START + 10 * window) * SECOND, "")
        for window, number in people.items()
        for person in range(number)
    ]
    return sorted(tiny_runner.run_chain(transform, events, random.Random(1)).rows)


@pytest.mark.slow
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
        transform = made_found(**limits)
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
        ({"start": None, "horizon": 8}, "start, and end or renew_every"),
        ({"participation_cap": 8}, "start, and end or renew_every"),
        ({"horizon": 8, "period": 5}, "windows that do not overlap"),
        ({"horizon": 8, "streams_per_person": 2}, "streams"),
    ],
)
def test_items_stay_found_where_that_is_possible_and_else_it_is_said_what_is_missing(given, missing):
    transform = made_found(**given)
    told = transform.accuracy.claim
    assert isinstance(transform.answer.counts, FoundKeys) == (missing is None)
    assert (transform.finish is not None) == (missing is None)
    if missing is None:
        assert "Items that are found stay found" in told and "forgets" not in transform.advice
        assert "Theorem 3" in transform.guarantee.proof
    else:
        assert f"Every window forgets which items were found before: with {missing}, they would" in transform.advice
        assert "Theorem 2" in transform.guarantee.proof


@pytest.mark.parametrize(("windows", "longest"), [(1, 1), (30, 16), (255, 128), (256, None), (400, None)])
def test_a_period_that_is_shorter_than_the_longest_blocks_is_told(windows, longest):
    common = {"epsilon": 3.0, "delta": 1e-2, "start": START, "window": 10, "noise": KeyedNoise(b"no secret in tests")}
    for make, given in (
        (made_found, {}),
        (KeyedCounts, common | {"max_contributions": 4}),
        (TopKWithGap, common | {"items_per_step": 1, "top": 3}),
    ):
        advice, single = make(**given, renew_every=10 * windows).advice, make(**given, end=START + 10 * windows).advice
        if longest is None:
            assert not advice
        else:
            assert f"A period of renew_every has {windows} window" in advice
            assert f"in at most {longest} of them together, and not in up to 256. With a longer renew_every" in advice
        assert not single, "a run that is over has no longer blocks"


def test_what_is_asked_to_forget_does_and_needs_no_remark():
    transform = made_found(horizon=8, forget=True)
    assert not isinstance(transform.answer.counts, FoundKeys)
    assert not transform.advice
    assert (
        transform.answer.noise.derive("x").words(1).tolist()
        == made_found(horizon=8).answer.noise.derive("x").words(1).tolist()
    )
    listed = made_found(horizon=8, domain=LISTED)
    assert "forgets" not in listed.accuracy.claim and listed.answer.counts.public_keys


@pytest.mark.parametrize("given", [{"method": "status"}, {"method": "clock"}, {"domain": LISTED}])
def test_forgetting_is_refused_where_it_means_nothing(given):
    with pytest.raises(ValueError, match=r"^forget must not be given where a known domain is tested, or with a method"):
        made_found(**{"horizon": 8, "forget": True, **given})
    with pytest.raises(TypeError, match="forget must be true or false, got int"):
        made_found(horizon=8, forget=1)


def test_a_person_counts_so_often_in_all_streams_and_windows_that_the_noise_pays_for():
    one = made_found(horizon=8, items_per_step=3)
    two = made_found(horizon=8, items_per_step=3, streams=("s", "t"), streams_per_person=2)
    capped = made_found(horizon=8, items_per_step=3, participation_cap=2)
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
    transform = made_found(horizon=8)
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
    transform = made_found(renew_every=40, end=START + 80)
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
    transform = made_found(horizon=8)
    crowd = 3 * transform.answer.counts.law.scales[0].threshold
    rows = rows_of(transform.to_finish(), dict.fromkeys(range(8), crowd))
    finished = transform.finish(rows)
    assert [row._replace(smoothed=0, smoothed_lower=0, smoothed_upper=0) for row in finished] == [
        row._replace(smoothed=0, smoothed_lower=0, smoothed_upper=0) for row in rows
    ]
    assert finished[0].smoothed != rows[0].smoothed  # it knows of later windows now
    widths = [row.smoothed_upper - row.smoothed_lower for row in finished]
    assert max(widths) < rows[0].upper - rows[0].lower
