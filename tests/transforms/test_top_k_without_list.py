"""Top-k without a list: what plain dictionaries and `FoundKeys` give, on every runner; what is said and refused."""

import random
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_arrow, as_rows, run_bounded, stamped
from every_runner import of_elements, of_stream, one_job
from grids import some_quick
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, KeyedCounts, RankedItem, TopKWithGap
from privstream.transforms.rows import KeyCount
from privstream.transforms.top_k.answers import LeadingItems
from slow_reference import hashed, lot
from test_top_k import kept_items
from workloads import KEY, SECOND, START

SEED = 5
WINDOWS = 8
ITEMS = ("a", "b", "c", "ä\u2028\U0001f600", "e" * 300, "seldom")
COMMON = {
    "epsilon": 2.0,
    "delta": 1e-2,
    "window": 10,
    "start": START,
    "end": START + 10 * WINDOWS,
    "top": 3,
    "items_per_step": 1,
    "noise": KeyedNoise(KEY),
}
CONFIGURATIONS = {
    "plain": {},
    "many items": {"items_per_step": 3, "shards": 2, "selection": "random"},
    "replaced": {"selection": "first", "neighbouring": "replace_one", "shards": 1, "top": 2},
    "more than there are": {"top": 50, "epsilon": 8.0},
    "streams": {"streams": ("s", "t", "never seen"), "items_per_step": 2, "epsilon": 20.0},
    "some streams": {"streams": ("s", "t", "u"), "streams_per_person": 1, "epsilon": 20.0},
    "capped": {"participation_cap": 3, "items_per_step": 2},
    "renewed": {"renew_every": 40, "end": START + 120},
    "renewed, unbounded": {"renew_every": 40, "end": None},
    "public items": {"public_items": Domain(["seldom", "never seen"]), "shards": 3, "top": 7, "epsilon": 8.0},
    "people listed": {"items_per_step": 3, "shards": 2, "epsilon": 3.0},
    "people listed, capped": {"participation_cap": 3, "items_per_step": 2, "streams": ("s", "t"), "epsilon": 6.0},
    "people listed, renewed": {"renew_every": 40, "end": START + 120},
}


ENDING = [name for name in CONFIGURATIONS if "unbounded" not in name]


def transform(name="plain", **changes) -> TopKWithGap:
    made = TopKWithGap(**{**COMMON, **CONFIGURATIONS[name], **changes})
    if "listed" in name:  # such a list is for longer runs, unless a test asks for one
        made.answer = replace(made.answer, mechanism=replace(made.answer.mechanism, listed=2))
    return made


def random_events(made, chance: random.Random, n=900) -> list[tuple[str, str, int, str]]:
    """Events around the run, many of them twice; the third window is empty."""
    events = []
    for _ in range(n):
        time = START * SECOND + chance.randint(-10 * SECOND, 90 * SECOND)
        if 20 <= (time - START * SECOND) // SECOND < 30:
            continue
        item = chance.choices(ITEMS, [9, 6, 4, 2, 2, 0.1])[0]
        stream = "" if made.streams is None else chance.choice(["s", "s", "t", "u", "other"])
        events.append((f"user {chance.randrange(150)}", item, time, stream))
    return events + chance.choices(events, k=n // 10)


def on_list(made, kept) -> set[tuple[int, str, int, int]]:
    """Return when a person begins to count for an item on the list of different people: step, stream, person, item."""
    entries, found, listed = defaultdict(set), set(), made.answer.mechanism.listed
    for step in sorted(kept) if listed else ():
        if made.steps.number(step) == 1:
            entries.clear()
        for_list = [
            (lot(made.answer.noise.derive("contribution", stream), person, code), stream, person, code)
            for stream, people in kept[step].items()
            for person, codes in people.items()
            for code in codes
        ]
        for _, stream, person, code in sorted(for_list):
            mine = entries[person]
            in_time = made.steps.number(step) <= made.answer.mechanism.last_listed
            if in_time and (stream, code) not in mine and len(mine) < listed:
                mine.add((stream, code))
                found.add((step, stream, person, code))
    return found


def reference(made, events, windows=None) -> list[RankedItem]:
    """Return the rows that the transform must give in so many windows, sorted: `FoundKeys` with all keys together."""
    rows = [
        row
        for stream, step, names, found in published(made, events, windows)
        for row in ranked(made, stream, step, [names[key] for key in found.keys.tolist()], found)
    ]
    return sorted(rows, key=place)


def published(made, events, windows=None):
    """Yield what is published of each window: its stream, its step, the names of keys, and their rows."""
    mechanism, end = made.answer.mechanism, made.steps.first + (windows or made.steps.end - made.steps.first)
    names = {hashed(made.noise.derive("item hash"), item): item for item in {item for _, item, _, _ in events}}
    kept = kept_items(made, events, {item: code for code, item in names.items()}.get, end)
    entries = on_list(made, kept)
    texts = [] if made.public_items is None else made.public_items.texts.to_pylist()
    public = {hashed(made.noise.derive("item hash"), item): item for item in texts}
    names |= public
    for stream in made.streams or ("",):
        state, numbers = mechanism.initial_state(public=len(public)), [*public]
        for step in range(made.steps.first, end):
            number = made.steps.number(step)
            if number == 1 and step > made.steps.first:
                state, lasting = mechanism.renewed(state)
                numbers = [numbers[place] for place in lasting]
            people = kept.get(step, {}).get(stream, {})
            held = Counter(code for codes in people.values() for code in codes)
            new = Counter(code for at, of, _, code in entries if (at, of) == (step, stream))
            numbers += sorted(set(held) - set(numbers))
            given = KeyedStep(
                step=number,
                keys=np.array([numbers.index(code) for code in held], np.uint64),
                counts=np.array(list(held.values()), np.int64),
                listed=np.array([new[code] for code in held], np.int64) if mechanism.lists(number) else None,
            )
            noise = made.steps.renewed(made.answer.noise, step).derive("stream", stream)
            routed = RoutedNoise(
                SourcesByName(lambda _, noise=noise: noise),
                [""],
                np.zeros(len(numbers), np.int64),
                np.array(numbers, np.uint64),
            )
            state, found = mechanism.step(state, given, routed)
            if len(found.keys):
                yield stream, step, [names[code] for code in numbers], found


def ranked(made, stream, step, items, found):
    """Yield the rows of one window from what is published about it."""
    start = Timestamp(micros=step * made.steps.size)
    estimates, lower, upper = (ends.tolist() for ends in found.smoothed)
    order = sorted(range(len(items)), key=lambda i: (-estimates[i], items[i]))
    reach = made.answer.mechanism.error(1, made.beta, keys=10_000)
    for rank, i in enumerate(order[: made.answer.top], start=1):
        following = estimates[order[rank]] if rank < len(order) else None
        yield RankedItem(
            stream=stream,
            window_start=start,
            window_end=Timestamp(micros=start.micros + made.steps.size),
            rank=rank,
            item=items[i],
            gap=None if following is None else round(estimates[i] - following),
            estimate=estimates[i],
            error_bound=round(reach + abs(estimates[i] - int(found.counts[i])), 1),
            lower=lower[i],
            upper=upper[i],
        )


def place(row):
    return row.stream, row.window_start, row.rank


@one_job(
    "found ranks",
    [name for name in CONFIGURATIONS if "unbounded" not in name],
    "plain",
    "streams",
    "renewed",
    "people listed, capped",
    elsewhere=["plain", "some streams", "people listed, renewed", "people listed, capped"],
)
def test_rows_are_those_of_the_reference(name):
    made = transform(name)
    events = random_events(made, random.Random(SEED))
    results = yield of_elements(as_arrow(events) if name == "plain" else as_rows(events), made)
    expected = reference(made, events)
    assert sorted(results.elements("rows"), key=place) == expected
    assert results.elements("dead") == []
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])
    assert results.counters["privstream:ranks_published"] == len(expected)
    assert "privstream:counts_published" not in results.counters


@some_quick("name", ENDING, "plain", "streams", "renewed")
def test_workloads_are_interesting(name):
    """Items are found, in the course of the run; not all of them, and some of these are not among the top."""
    made = transform(name)
    rows = reference(made, random_events(made, random.Random(SEED)))
    by_window = Counter((row.stream, row.window_start) for row in rows)
    assert max(by_window.values()) > 1
    assert len({*by_window.values()}) > 1 or len(by_window) < WINDOWS
    assert made.answer.top == 50 or max(by_window.values()) == made.answer.top
    assert (None in {row.gap for row in rows}) or made.answer.top < 4


def test_public_items_are_ranked_in_every_window_whether_anybody_has_them_or_not():
    """Others are found, as without the list."""
    made = transform("public items")
    rows = reference(made, random_events(made, random.Random(SEED)))
    for item in ("seldom", "never seen"):
        assert len([row for row in rows if row.item == item]) == WINDOWS
    assert {row.item for row in rows} > {"seldom", "never seen"}
    assert "the list of public items" in made.guarantee.public


@one_job("late counts", runners=["prism"])
def test_an_unbounded_run_publishes_each_window_as_it_ends():
    """Also in the period that follows: what was found stays so."""
    made = transform("renewed, unbounded")
    events = [e for e in random_events(made, random.Random(SEED)) if e[2] >= START * SECOND]
    source = test_stream.TestStream().add_elements([stamped(e) for e in events])
    source = source.advance_watermark_to(START + 65).advance_watermark_to_infinity()
    results = yield of_stream(source, made)
    shown = [row for row in results.elements("rows") if row.window_end <= START + 60]
    assert sorted(shown, key=place) == reference(made, events, windows=6)
    assert {row.window_start for row in shown} > {Timestamp(START + 40), Timestamp(START + 50)}


def test_ranks_are_those_of_smoothed_counts():
    """The same noisy table, read another way: estimates are what counts of found items give, and rank the items."""
    made = transform("many items", participation_cap=3)
    counts = KeyedCounts(**{name: COMMON[name] for name in ("epsilon", "delta", "window", "start", "end", "noise")},
                         max_contributions=9, beta=0.05)  # fmt: skip
    assert made.answer.mechanism == counts.mechanism
    crowd = [(f"user {i}", "ab"[i % 3 == 0], (START + i % 80) * SECOND, "") for i in range(900)]
    rows = run_bounded("fn_api", as_rows(crowd), made).elements("rows")
    assert {(row.rank, row.item) for row in rows} == {(1, "a"), (2, "b")}
    assert all(row.lower <= row.estimate <= row.upper for row in rows)
    first, *_, last = [row for row in sorted(rows, key=place) if row.rank == 1]
    assert last.upper - last.lower < first.upper - first.lower
    assert {row.gap is None for row in rows if row.rank == 2} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "streams", "renewed", "people listed, capped"])
def test_a_finished_file_is_ranked_by_the_finished_table(name):
    """The same noisy counts, smoothed as those of `counts` are; also of windows before an item was found."""
    made, events = transform(name).to_finish(), random_events(transform(name), random.Random(SEED))
    streamed = transform(name)
    streamed.answer = replace(made.answer, to_finish=False)  # items are found at the end there, with other noise
    table = run_bounded("fn_api", as_rows(events), made).elements("rows")
    expected = {
        (stream, (step - found.step + rows.step) * made.steps.size, names[key]): count
        for stream, step, names, found in published(streamed, events)
        for rows in (found, *found.earlier)
        for key, count in zip(rows.keys.tolist(), rows.counts.tolist(), strict=True)
    }
    assert {(row.stream, row.window_start.micros, row.item): row.count for row in table} == expected
    assert len(table) == len(expected)

    given = {key: made._given[key] for key in ("epsilon", "delta", "window", "start", "end", "streams", "renew_every")
             if key in made._given}  # fmt: skip
    counts = KeyedCounts(**given, max_contributions=made.answer.mechanism.contributions, noise=KeyedNoise(KEY))
    counts.mechanism = made.answer.mechanism  # with the list of different people that the test asked for
    windows = defaultdict(list)
    for row in counts.finish(table):
        windows[row.stream, row.window_start].append(row)
    ranks = {}
    for (stream, start), rows in windows.items():
        rows.sort(key=lambda row: (-row.smoothed, row.item))
        for rank, (row, following) in enumerate(zip(rows, [*rows[1:], None], strict=True), start=1):
            if rank <= made.answer.top:
                gap = None if following is None else round(row.smoothed - following.smoothed)
                bound = round(made.answer.reach + abs(row.smoothed - row.count), 1)
                interval = row.smoothed_lower, row.smoothed_upper
                ranks[stream, start, rank] = (row.item, gap, row.smoothed, bound, *interval)
    finished = made.finish(table)
    assert {(row.stream, row.window_start, row.rank): row[4:10] for row in finished} == ranks
    assert all(set(row[10:]) == {None} for row in finished), "nothing is told of what limits leave out, unasked"
    assert len(finished) == len(ranks)
    before = reference(streamed, events)
    assert len(finished) >= len(before) > 0 and sorted(finished, key=place) != before
    assert {row.backfilled for row in table} == {True, False}


def test_a_run_that_does_not_end_has_nothing_to_finish():
    given = COMMON | {"top": 1, "domain": Domain(["a", "b"])}
    streamed, listed, by_gaps = transform(), TopKWithGap(**given), TopKWithGap(**given | {"method": "laplace_gaps"})
    assert streamed.finish is None and streamed.unfinished is None
    finished = streamed.to_finish()
    assert finished.unfinished is KeyCount and finished.finish([]) == [] and streamed.finish is None
    assert "all windows of the file" in finished.coverage.note and "just been found" in streamed.coverage.note
    assert finished.guarantee.to_dict() == streamed.guarantee.to_dict()
    assert finished.answer.mechanism == streamed.answer.mechanism.for_end() != streamed.answer.mechanism
    assert listed.finish is None and listed.unfinished is None and listed.to_finish().unfinished is KeyCount
    assert by_gaps.to_finish().finish is None and by_gaps.to_finish().unfinished is None


def row(item: str, estimate: float, stream: str = "") -> RankedItem:
    return RankedItem(stream, Timestamp(0), Timestamp(10), 0, item, None, estimate, 5.0, estimate, estimate)


def test_ranks_gaps_and_ties():
    rows = [row("d", 5.2), row("a", 5.2), row("c", 9.0), row("b", 0.4), row("z", 1.0, "other")]
    chosen = LeadingItems(2)(rows)
    assert [(one.stream, one.rank, one.item, one.gap) for one in chosen] == [
        ("", 1, "c", 4),
        ("", 2, "a", 0),
        ("other", 1, "z", None),
    ]
    halves = LeadingItems(2).among(rows[:2]) + LeadingItems(2).among(rows[2:])
    assert LeadingItems(2)(halves[::-1]) == chosen
    assert len(LeadingItems(2).among(rows)) == 4, "one more than are published: the last gap is to it"
    assert LeadingItems(9)([]) == []


class TestGuarantee:
    def test_is_that_of_found_keys_within_the_limits_of_people(self, check_proof):
        made = transform("some streams", participation_cap=5, items_per_step=2)
        guarantee = made.guarantee
        assert (guarantee.epsilon, guarantee.delta) == (20.0, 1e-2)
        assert guarantee.proof == "docs/proofs/keyed_counts.md, Theorem 3"
        check_proof(guarantee.proof)
        text = guarantee.paragraph()
        assert "Each person counts with at most 2 items in a window of a stream, the last ones" in text
        assert "Each person appears in at most 1 stream." in text
        assert "Each person takes part in at most 5 windows of a stream." in text
        assert "list of items" not in text

    @pytest.mark.parametrize(
        ("name", "changes", "contributions"),
        [
            ("plain", {}, 8),
            ("many items", {}, 24),
            ("streams", {}, 48),
            ("some streams", {}, 8),
            ("capped", {}, 6),
            ("renewed, unbounded", {}, 4),
        ],
    )
    def test_the_budget_is_that_of_all_items_of_one_person(self, name, changes, contributions):
        assert transform(name, **changes).answer.mechanism.contributions == contributions

    def test_says_that_order_and_intervals_are_those_of_a_model(self):
        told = transform().accuracy.coverage
        assert "rest on a model" in told.note and "more often too high than too low" in told.note
        assert [limit.option for limit in told.limits] == ["items_per_step"]


def test_accuracy_says_how_many_people_are_needed():
    made = transform("plain", epsilon=1.0, delta=1e-6, end=START + 10 * 16)
    numbers, found = made.accuracy.numbers, made.answer.mechanism
    assert {name: numbers[name] for name in ("needed_in_1", "needed_in_4", "needed_in_16")} == {
        f"needed_in_{windows}": round(found.people_needed(windows)) for windows in (1, 4, 16)
    }
    assert "needed_in_64" not in numbers
    assert numbers["least_error_bound"] == found.error(1, 0.05, keys=10_000)
    one, four = numbers["needed_in_1"], numbers["needed_in_4"]
    assert f"by {one:,} people in one window, or by {four:,} people in each of 4 windows" in made.accuracy.sentence
    assert made.accuracy.error == numbers["detection_threshold"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0.0}, "delta must be > 0 without a domain, got 0"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\), got 1.0"),
        ({"delta": 0.2}, "delta must be <= 0.1 unless the list of items is public"),
        ({"method": "laplace_gaps"}, "method must be counts without a domain, got 'laplace_gaps'"),
        ({"method": "best"}, "method must be one of auto, exponential_gaps, laplace_gaps, counts, got 'best'"),
        ({"end": None}, "end or renew_every must be given without a domain"),
        ({"end": None, "participation_cap": 2}, "end or renew_every must be given without a domain"),
        ({"unit": "person_in_window"}, "unit must be person without a domain, got 'person_in_window'"),
        ({"start": None}, "start must be given: every window from start on is published"),
        (
            {"domain": Domain("abcd"), "public_items": ["a"]},
            "public_items must not be given with a domain, all items of",
        ),
        ({"top": 0}, "top must be >= 1, got 0"),
        ({"items_per_step": 0}, "items_per_step must be >= 1, got 0"),
        ({"streams_per_person": 1}, "streams must be given with streams_per_person"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        transform(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"end": START + 90},
        {"allowed_lateness": 1},
        {"selection": "first"},
        {"public_items": ["seldom"]},
        {"participation_cap": 4, "items_per_step": 2},
        {"streams": ("",), "streams_per_person": 1},
    ],
)
def test_a_run_with_other_parameters_shares_no_noise(changes):
    """Also where people count as often in all."""
    one, other = (transform(**more) for more in ({}, changes))
    words = [made.answer.mechanism._source(made.answer.noise).derive("stream", "").words(4) for made in (one, other)]
    assert np.all(words[0] != words[1])


def test_the_guarantee_says_what_a_person_has_on_the_list_of_different_people():
    """A long run has a list, and a short one has none."""
    long = {"start": START, "end": START + 10 * 365, "epsilon": 1.0, "delta": 1e-6}
    told = [" ".join(transform(**given).guarantee.limits) for given in (long, {})]
    listed = "On the list of different people a person counts for at most 4 items in the whole run, once for each."
    assert [listed in text for text in told] == [True, False]
    assert "Theorem 4" in transform(**long).guarantee.proof and "Theorem 3" in transform().guarantee.proof
