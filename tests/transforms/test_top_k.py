"""Top-k by window: what plain dictionaries and the mechanism give, on every runner, whatever happens to the bundles."""

import random
import re
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_rows, run_bounded, stamped
from every_runner import of_elements, of_stream, one_job
from grids import some_quick
from privstream.mechanisms import SeededNoise
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.smoothing import LocalLevel
from privstream.mechanisms.snapshots import pack
from privstream.transforms import Domain, RankedItem, TopKWithGap
from privstream.transforms.rows import KeyCount
from privstream.transforms.timing.clocked import StartClocks, clock_of, on_clocks
from privstream.transforms.top_k.answers import RankItems
from slow_reference import bounded, hashed, limit_people
from tiny_runner import Stage, call_all
from workloads import KEY, SECOND, START

SEED = 5
ITEMS = ("a", "b", "c", "ä\u2028\U0001f600", "e" * 300, "nobody's", "never seen")
COMMON = {
    "epsilon": 20.0,
    "window": 10,
    "start": START,
    "end": START + 80,
    "domain": Domain(ITEMS),
    "top": 3,
    "items_per_step": 1,
    "noise": KeyedNoise(KEY),
    "method": "exponential_gaps",
}
CONFIGURATIONS = {
    "plain": {},
    "many items": {"items_per_step": 3, "shards": 2},
    "random items": {"items_per_step": 2, "selection": "random", "method": "laplace_gaps"},
    "first item": {"selection": "first", "neighbouring": "replace_one", "shards": 1},
    "streams": {"streams": ("s", "t", "never seen"), "delta": 1e-3},
    "some streams": {"streams": ("s", "t", "u"), "streams_per_person": 2, "items_per_step": 2},
    "capped": {"participation_cap": 3, "delta": 1e-3, "items_per_step": 2},
    "capped, in streams": {"participation_cap": 2, "streams": ("s", "t")},
    "one window": {"unit": "person_in_window", "top": 1},
    "counts": {"method": "counts", "items_per_step": 2},
    "counts, streams": {"method": "counts", "streams": ("s", "t", "u"), "streams_per_person": 2, "delta": 1e-3},
    "noise in common": {
        "method": "counts",
        "items_per_step": 7,
        "streams": ("s", "t", "u"),
        "streams_per_person": 2,
        "participation_cap": 9,
        "delta": 1e-3,
    },
}


SMOOTHED = {"method": "counts", "items_per_step": 5, "streams": ("s", "t"), "delta": 1e-3, "epsilon": 3.0}


def transform(name="plain", **changes) -> TopKWithGap:
    return TopKWithGap(**{**COMMON, **CONFIGURATIONS[name], **changes})


@pytest.mark.parametrize(("items", "top"), [(30, 10), (11, 10), (4, 3)])
def test_ten_items_are_published_where_nobody_says_how_many(items, top):
    made = transform(top=None, domain=Domain(map(str, range(items))))
    assert made.answer.mechanism.top == top
    assert transform(top=None, domain=None, delta=1e-6, method="counts").answer.top == 10


@pytest.mark.parametrize(("items", "count"), [(30, 4), (4, 4), (2, 2)])
def test_four_items_of_a_person_count_where_nobody_says_how_many(items, count):
    """Or all of a list that is shorter, for which there is no need of more noise."""
    domain = Domain(map(str, range(items)))
    made = transform(top=1, domain=domain, items_per_step=None, method="counts")
    assert made.items_per_step == count
    given = transform(top=1, domain=domain, items_per_step=count, method="counts")
    assert made.answer.mechanism == given.answer.mechanism and made.guarantee == given.guarantee
    assert transform(domain=None, delta=1e-6, items_per_step=None, method="counts").items_per_step == 4


@pytest.mark.parametrize(
    ("windows", "size", "changes", "items"),
    [
        (1, 30, {}, 10),
        (12, 30, {}, 8),
        (12, 5, {}, 5),
        (52, 30, {}, 4),
        (52, 30, {"participation_cap": 14}, 7),
        (12, None, {}, 8),
        (12, 30, {"items_per_step": 2}, 2),
    ],
)
def test_over_files_a_person_counts_about_a_hundred_times_where_nobody_says_how_many(windows, size, changes, items):
    domain = None if size is None else Domain(map(str, range(size)))
    given = {"end": START + 10 * windows, "domain": domain, "items_per_step": None, "delta": 1e-6, "method": "counts"}
    of_stream = transform(**{**given, "top": 1, **changes})
    of_file = of_stream.to_finish()
    assert of_file.settled == {"items_per_step": items} and of_file.guarantee.epsilon == of_stream.guarantee.epsilon
    named = transform(**{**given, "top": 1, **changes, "items_per_step": items})
    assert named.to_finish().guarantee == of_file.guarantee


@pytest.mark.parametrize(
    ("in_all", "size", "changes", "items"),
    [(100, 30, {}, 8), (24, 30, {}, 2), (12, None, {}, 1), (100, 5, {}, 5), (30, 30, {"participation_cap": 3}, 10)],
)
def test_a_limit_of_the_run_gives_each_window_the_same_part(in_all, size, changes, items):
    """It is what so many items of each window promise, over files and in streams alike."""
    domain = None if size is None else Domain(map(str, range(size)))
    given = {"end": START + 120, "domain": domain, "delta": 1e-6, "method": "counts", "top": 1, **changes}
    made = transform(**given, items_per_step=None, max_contributions=in_all)
    named = transform(**given, items_per_step=items)
    for one, other in ((made, named), (made.to_finish(), named.to_finish())):
        assert one.settled == {"items_per_step": items} and one.guarantee == other.guarantee
        assert one.answer.mechanism == other.answer.mechanism


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"items_per_step": 2}, "one of items_per_step and max_contributions must be given, not both"),
        ({"max_contributions": 11}, "max_contributions must be >= 12, the number of windows that a person may take "),
        ({"max_contributions": 0}, "max_contributions must be >= 1, got 0"),
        ({"unit": "person_in_window"}, "max_contributions must not be given with unit person_in_window"),
    ],
)
def test_a_limit_of_the_run_that_says_nothing_is_refused(changes, error):
    given = {"end": START + 120, "items_per_step": None, "max_contributions": 24}
    with pytest.raises(ValueError, match=re.escape(error)):
        transform(**(given | changes))


def random_events(made, chance: random.Random) -> list[tuple[str, str, int, str]]:
    """Events around the run, many of them twice, some items outside of the domain; the third window is empty."""
    events = []
    for _ in range(400):
        time = START * SECOND + chance.randint(-10 * SECOND, 60 * SECOND)
        if 20 <= (time - START * SECOND) // SECOND < 30:
            continue
        item = chance.choice([*ITEMS[:5], "a", "a", "b", "unlisted"])
        stream = "" if made.streams is None else chance.choice(["s", "s", "t", "u", "other"])
        events.append((f"user {chance.randrange(60)}", item, time, stream))
    return events + chance.choices(events, k=100)


def kept_items(made, events, code, end) -> dict:
    """Return the numbers of the items that count, by step before `end`, stream and person."""
    times = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    for user, item, time, stream in events:
        step = time // made.steps.period
        if code(item) is not None and stream in (made.streams or ("",)) and made.steps.first <= step < end:
            person = hashed(made.noise.derive("user hash"), user)
            times[step][stream][person][code(item)].append(time)
    view = SimpleNamespace(
        noise=made.noise,
        selection=made.selection,
        items_per_step=made.items_per_step,
        streams_per_person=made._streams_limit,
        _participations=made._participations,
    )
    kept = {
        step: {
            stream: {person: bounded(view, stream, step, person, items) for person, items in people.items()}
            for stream, people in by_stream.items()
        }
        for step, by_stream in times.items()
    }
    limit_people(view, kept)
    return kept


def reference(made, events, windows=8) -> list[RankedItem]:
    """Return the rows that the transform must give in so many windows, sorted."""
    end = made.steps.first + windows
    known = [made.domain[place] for place in range(len(made.domain))]
    kept = kept_items(made, events, {item: place for place, item in enumerate(known)}.get, end)
    rows = []
    for stream in made.streams or ("",):
        for step in range(made.steps.first, end):
            held = Counter(item for items in kept.get(step, {}).get(stream, {}).values() for item in items)
            noise = made.answer.noise.derive("stream", stream, "step", step)
            found = made.answer.mechanism.release([held[place] for place in range(len(known))], noise, made.beta)
            start = step * made.steps.period
            bounds = Timestamp(micros=start), Timestamp(micros=start + made.steps.size)
            for rank, (item, *numbers) in enumerate(zip(*(column.tolist() for column in found), strict=True), start=1):
                rows.append(RankedItem(stream, *bounds, rank, known[item], *numbers))
    return sorted(rows)


@one_job(
    "ranking",
    CONFIGURATIONS,
    "plain",
    "capped, in streams",
    "counts",
    elsewhere=["plain", "streams", "capped, in streams", "noise in common"],
)
def test_rows_are_those_of_the_reference(name):
    made = transform(name)
    events = random_events(made, random.Random(SEED))
    results = yield of_elements(as_rows(events), made)
    expected = reference(made, events)
    assert sorted(results.elements("rows")) == expected
    assert results.elements("dead") == []
    windows = made.steps.end - made.steps.first
    ranks = Counter((row.stream, row.window_start) for row in results.elements("rows"))
    assert len(ranks) == windows * len(made.streams or ("",))  # empty windows too
    assert set(ranks.values()) == {made.answer.mechanism.top}
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])
    assert results.counters["privstream:events"] == len(events)
    assert results.counters["privstream:ranks_published"] == len(expected)


def noisy_counts(made, events) -> dict[str, np.ndarray]:
    """Return the noisy counts of all items of the list, (windows, items), of each stream."""
    names = made.domain.texts.to_pylist()
    kept = kept_items(made, events, {item: place for place, item in enumerate(names)}.get, made.steps.end)
    found = {}
    for stream in made.streams:
        held = {step: people.get(stream, {}) for step, people in kept.items()}
        rows = []
        for step in range(made.steps.first, made.steps.end):
            totals = Counter(item for items in held.get(step, {}).values() for item in items)
            noise = made.answer.noise.derive("stream", stream, "step", step)
            true = [totals[place] for place in range(len(ITEMS))]
            rows.append(made.answer.mechanism.count(true, noise).counts)
            top = made.answer.mechanism.release(true, noise)
            assert top.estimates.tolist() == rows[-1][top.indices].tolist(), "a stream publishes some of these counts"
        found[stream] = np.array(rows, np.float64)
    return found


@one_job("files", runners=["fn_api"])
def test_a_list_over_files_is_ranked_by_counts_that_are_smoothed():
    made = transform(**SMOOTHED).to_finish()
    assert made.answer.mechanism.shared is not None
    events = random_events(made, random.Random(SEED))
    results = yield of_elements(as_rows(events), made)
    assert made.unfinished is KeyCount and len(results.elements("rows")) == 2 * 8 * len(ITEMS)
    mechanism, rows = made.answer.mechanism, made.finish(results.elements("rows"))
    level, bound = LocalLevel(mechanism.estimate_variance**0.5), mechanism.measure_error(0.05)
    names = made.domain.texts.to_pylist()
    for stream, noisy in noisy_counts(made, events).items():
        smoothed = level.smooth(noisy)
        ranked = [row for row in rows if row.stream == stream]
        assert [row.rank for row in ranked] == [1, 2, 3] * 8
        for row in ranked:
            window, item = int(row.window_start.micros / SECOND - START) // 10, names.index(row.item)
            ends = [part[window] for part in smoothed]
            order = sorted(range(len(ITEMS)), key=lambda place: (-ends[0][place], names[place]))
            assert order[row.rank - 1] == item and row.lower <= row.estimate <= row.upper
            assert (row.estimate, row.lower, row.upper) == tuple(end[item] for end in ends)
            assert row.error_bound == pytest.approx(bound + abs(row.estimate - noisy[window, item]), abs=0.05)
            assert row.gap == round(ends[0][item] - ends[0][order[row.rank]])


def test_smoothed_ranks_are_right_more_often():
    """Of twelve items that differ by half of the noise, over 30 windows in which nothing changes."""
    made = TopKWithGap(
        **COMMON | {"domain": Domain([f"{i:02}" for i in range(12)]), "end": START + 300, "method": "counts"},
    ).to_finish()
    stddev = made.answer.mechanism.estimate_variance**0.5
    true = np.round(stddev * (20 - np.arange(12) / 2)).astype(int).tolist()
    fn, names = ranking(made, ""), [made.domain[place] for place in range(12)]
    held = pack("counts", 1, {"items": np.arange(12, dtype=np.uint64), "counts": np.array(true)})
    rows = [row for step in range(30) for row in fn.advance(b"", made.steps.first + step, [held], None)[1]]
    by_window = [rows[first : first + 12] for first in range(0, len(rows), 12)]
    alone = [names.index(row.item) < 3 for of in by_window for row in sorted(of, key=lambda row: -row.count)[:3]]
    together = [names.index(row.item) < 3 for row in made.finish(rows)]
    assert len(together) == len(alone) == 90
    assert sum(together) >= 80 and sum(alone) <= 70  # expected: 86 and 62, each with a deviation of 5 at most


@pytest.mark.parametrize(("windows", "method"), [(7, "exponential_gaps"), (8, "counts")])
def test_over_files_counts_are_taken_for_three_quarters(windows, method):
    """They are smoothed there, if windows are enough; streams, and plans of them, take what they took."""
    given = {"domain": Domain(map(str, range(30))), "top": 1, "epsilon": 1.0, "measure_share": 0.4}
    made, counts = (transform(**given, method=name, end=START + 10 * windows) for name in ("auto", "counts"))
    assert made.accuracy.error < counts.accuracy.error < made.accuracy.error / 0.75
    assert made.method == "exponential_gaps" and made.of_files == {}
    of_file = made.to_finish()
    assert of_file.method == method and (of_file.finish is not None) == (method == "counts")
    assert of_file.of_files == ({"method": "counts"} if method == "counts" else {})


def test_noise_in_common_is_said_and_smoothing_knows_it():
    made = transform("noise in common")
    mechanism = made.answer.mechanism
    common = mechanism.stddevs[1]
    assert mechanism.shared.streams == mechanism.releases == 9
    said = (
        f"Numbers of people in one window of a stream have a part of their noise in common, with a standard deviation "
        f"of {common:.3g}: it changes no rank and no gap"
    )
    assert said in made.coverage.note and said in made.to_finish().coverage.note
    assert made.to_finish().finish.smooth.common == common
    for changes in ({"items_per_step": 1}, {"neighbouring": "replace_one"}, {"delta": 0.0}):
        independent = transform("noise in common", **changes)
        assert independent.answer.mechanism.shared is None
        assert "in common" not in independent.coverage.note
        assert independent.to_finish().finish.smooth.common == 0


def test_state_of_noise_that_is_not_in_common_is_refused(monkeypatch):
    """By `auto` an earlier commit may have ranked by gaps: both together would show more than either promises."""
    shares, apart = transform("noise in common").fingerprint, transform("counts").fingerprint
    monkeypatch.setattr(CountedTopK, "shared", None)
    assert transform("noise in common").fingerprint != shares
    assert transform("counts").fingerprint == apart


def test_a_list_that_is_too_large_for_memory_is_ranked_window_by_window(monkeypatch):
    made = transform(**SMOOTHED)
    monkeypatch.setattr("privstream.transforms.top_k.parameters.MOST_COUNTS", 2 * 8 * len(ITEMS) - 1)
    assert made.to_finish().finish is None and made.to_finish().unfinished is None
    monkeypatch.undo()
    assert made.to_finish().finish is not None


@pytest.mark.slow
def test_items_compete_that_nobody_holds():
    """The noise of a small budget brings them to the top, as often as others."""
    made = transform(epsilon=0.1, end=START + 2000)
    events = as_rows([("u", "a", START * SECOND + i * SECOND, "") for i in range(2000)])
    rows = run_bounded("fn_api", events, made)
    ranked = Counter(row.item for row in rows.elements("rows"))
    assert min(ranked[item] for item in ITEMS) > 40


@one_job("late counts", runners=["prism"])
def test_an_unbounded_run_publishes_each_window_as_it_ends():
    made = transform(end=None, participation_cap=2)
    events = [(f"user {i}", ITEMS[i % 3], START * SECOND + i * SECOND, "") for i in range(60)]
    source = test_stream.TestStream().add_elements([stamped(e) for e in events])
    source = source.advance_watermark_to(START + 55).advance_watermark_to_infinity()
    results = yield of_stream(source, made)
    rows = results.elements("rows")
    shown = sorted(row for row in rows if row.window_end <= START + 50)
    assert shown == reference(made, events, windows=5)
    assert len(shown) == 5 * 3


def test_bounded_input_needs_an_end():
    with pytest.raises(ValueError, match="end must be given when the input is bounded"):
        run_bounded("fn_api", [], transform(end=None, participation_cap=2))


@one_job("ranking")
def test_events_outside_of_the_run_are_counted_and_left_out():
    made = transform()
    good = random_events(made, random.Random(SEED))[:50]
    before = [("u", "a", -5 * SECOND, ""), ("u", "a", (START - 1) * SECOND, ""), ("u", "a", 2**61, "")]
    outside = yield of_elements(as_rows(good + before), made)
    assert sorted(outside.elements("rows")) == reference(made, good)
    assert outside.counters["privstream:events_outside_run"] >= len(before)


def ranking(made, stream):
    return RankItems(
        steps=made.steps,
        noise=made.noise,
        timer_offset=3,
        streams=(stream,),
        mechanism=made.answer.mechanism,
        domain=made.domain,
        beta=made.beta,
        all_counts=made.answer.to_finish,
    )


@some_quick("seed", range(6), 0)
def test_bundles_that_fail_and_batches_in_any_order(seed):
    chance, made = random.Random(seed), transform("streams")
    fn = ranking(made, "s")
    records = []
    for _ in range(60):
        step, size = chance.randrange(made.steps.first, made.steps.end), chance.randrange(1, 4)
        counts = {"items": np.array(sorted(chance.sample(range(7), size)), np.uint64)}
        counts["counts"] = np.array([chance.randrange(1, 900) for _ in range(size)])
        records += on_clocks([("s", step, pack("counts", 1, counts))])

    def rows(chance, crashes, workers):
        stage = Stage(fn, chance, crashes=crashes, workers=workers)
        stage.feed(call_all(StartClocks((clock_of("s"),)), [b""]))
        stage.feed(records)
        stage.advance(2**62)
        assert not stage.dead
        assert not stage.cells.states[clock_of("s").encode(), "rank_items_waiting"]
        return sorted(stage.take())

    quiet = rows(random.Random(0), 0.0, 1)
    assert len(quiet) == 8 * 3
    assert rows(chance, 0.3, 3) == quiet


def test_late_counts_are_set_aside_by_item():
    made = transform()
    stage = Stage(ranking(made, ""), random.Random(1))
    stage.feed(call_all(StartClocks((clock_of(""),)), [b""]))
    stage.advance((START + 15) * SECOND)
    held = {"items": np.array([0, 2], np.uint64), "counts": np.array([5, 1])}
    stage.feed(on_clocks([("", made.steps.first, pack("counts", 1, held))]))
    assert [letter.record for letter in stage.dead] == [made.domain[0], made.domain[2]]
    assert stage.counters["late"] == 6


class TestGuarantee:
    def paragraph(self, name="plain", **changes):
        return transform(name, **changes).guarantee.paragraph()

    def test_names_unit_and_limits(self):
        text = self.paragraph("many items")
        assert text.startswith("(epsilon = 20, delta = 0)-differential privacy for one person over the whole run,")
        assert "It holds for at most 8 windows." in text
        assert "Each person counts with at most 3 items in a window, the last ones; each item counts once." in text

    def test_names_streams_and_caps(self):
        text = self.paragraph("some streams", participation_cap=5)
        assert "Each person appears in at most 2 streams." in text
        assert "Each person takes part in at most 5 windows of a stream." in text
        assert "steps" not in text

    def test_one_window_is_another_unit(self):
        text = self.paragraph("one window")
        assert "privacy for one person in one window of 10 seconds," in text
        assert "A person who takes part in n windows is promised n times this epsilon and this delta." in text
        assert transform("one window", end=None).answer.mechanism.releases == 1

    @pytest.mark.parametrize(
        ("name", "changes", "releases"),
        [
            ("plain", {}, 8),
            ("streams", {}, 24),
            ("some streams", {}, 16),
            ("capped", {}, 3),
            ("capped", {"participation_cap": 100}, 8),
            ("capped", {"end": None}, 3),
            ("capped, in streams", {}, 2),
            ("one window", {"streams": ("s", "t")}, 2),
        ],
    )
    def test_the_budget_is_that_of_all_windows_of_one_person(self, name, changes, releases):
        assert transform(name, **changes).answer.mechanism.releases == releases


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"unit": "event"}, ValueError, "unit must be one of person, person_in_window, got 'event'"),
        ({"selection": "all"}, ValueError, "selection must be one of last, first, random, got 'all'"),
        ({"domain": [1]}, TypeError, "domain must hold texts, got int"),
        ({"top": 7}, ValueError, "top must be < 7, the number of items in domain, got 7"),
        ({"top": 0}, ValueError, "top must be >= 1, got 0"),
        ({"start": None}, ValueError, "start must be given"),
        ({"unit": "person_in_window", "renew_every": 86400}, ValueError, "renew_every must not be given with unit"),
        ({"end": None}, ValueError, "end or participation_cap must be given: what one person takes part in"),
        ({"streams": "s"}, ValueError, "streams must be distinct names, at least one, got 's'"),
        ({"streams_per_person": 1}, ValueError, "streams must be given with streams_per_person"),
        ({"streams": ("s",), "streams_per_person": 0}, ValueError, "streams_per_person must be >= 1, got 0"),
        ({"participation_cap": 0}, ValueError, "participation_cap must be >= 1, got 0"),
        (
            {"unit": "person_in_window", "participation_cap": 2},
            ValueError,
            "participation_cap must not be given with unit person_in_window",
        ),
        (
            {"unit": "person_in_window", "streams": ("s", "t"), "streams_per_person": 1},
            ValueError,
            "streams_per_person must not be given with unit person_in_window",
        ),
        ({"beta": 0}, ValueError, r"beta must be in \(0, 1\), got 0"),
        ({"shards": 0}, ValueError, "shards must be >= 1, got 0"),
        ({"window": -1}, ValueError, "window must be > 0"),
    ],
)
def test_bad_arguments(changes, error, message):
    with pytest.raises(error, match=message):
        transform(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"end": START + 90},
        {"allowed_lateness": 1},
        {"domain": Domain([*ITEMS, "more"])},
        {"selection": "first"},
        {"unit": "person_in_window", "epsilon": 20.0 / 8},
    ],
)
def test_a_run_with_other_parameters_shares_no_noise(changes):
    """Nobody holds anything: all that the rows show is noise."""
    one, other = (reference(transform(**more), []) for more in ({}, changes))
    shared = len({row[1:] for row in one} & {row[1:] for row in other})
    assert shared <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"items_per_step": 1}, "counts"),
        ({"items_per_step": 2}, "counts"),  # the selection errors are equal
        ({"items_per_step": 7}, "exponential_gaps"),
        ({"items_per_step": 7, "delta": 1e-3, "participation_cap": 1}, "exponential_gaps"),
        ({"items_per_step": 7, "delta": 1e-3, "end": START + 2000}, "counts"),
    ],
)
def test_auto_takes_the_method_with_the_smaller_selection_error(changes, taken):
    found = transform(method="auto", epsilon=1.0, **changes)
    assert found.method == taken
    asked = [transform(method=method, epsilon=1.0, **changes) for method in ("counts", "exponential_gaps")]
    assert found.accuracy.error == min(each.accuracy.error for each in asked)
    assert found.accuracy.error == found.accuracy.numbers["selection_error"]


def test_a_list_that_a_delta_would_rank_better_says_so() -> None:
    given = {"epsilon": 1.0, "window": 60, "start": 0, "end": 780, "domain": ["a", "b", "c", "d"], "top": 2}
    given["items_per_step"] = 1
    told = TopKWithGap(**given, noise=SeededNoise(1)).advice
    found = re.fullmatch(r"delta is 0: no item .* over (\d+) more people .* a delta of 1e-06, .* to over (\d+)", told)
    assert found is not None and int(found[2]) < 0.8 * int(found[1])
    with_delta = TopKWithGap(**given, delta=1e-6, noise=SeededNoise(1))
    assert not with_delta.advice and f"over {found[2]} more people" in with_delta.accuracy.sentence
    assert not TopKWithGap(**given | {"end": 60, "start": 0}, noise=SeededNoise(1)).advice
