"""Queries are answered as the mechanism answers them one by one, in their order, about the whole data set."""

import random

import apache_beam as beam
import numpy as np
import pytest
import runner_harness
from apache_beam.options.pipeline_options import PipelineOptions
from every_runner import one_job
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries
from privstream.transforms import Domain, LinearQuery, PrivateQueries

KEY = b"a key for tests, no secret"
ITEMS = (*(f"item {i}" for i in range(8)), "ä\u2028")
COMMON = {"epsilon": 50.0, "domain": Domain(ITEMS), "records": 2000, "alpha": 0.15}
CONFIGURATIONS = {
    "plain": {},
    "one shard": {"shards": 1},
    "with delta": {"delta": 1e-3},
    "soon over": {"alpha": 0.95, "epsilon": 0.005},
}


def make(name: str, queries) -> PrivateQueries:
    return PrivateQueries(**{**COMMON, **CONFIGURATIONS[name], "queries": queries}, noise=KeyedNoise(KEY))


def random_data(chance: random.Random, people: int = 2000) -> list[beam.Row]:
    """Return events: some people have several, some of the items are not in the domain."""
    rows = [
        (
            f"user {i}",
            chance.choices((*ITEMS, "elsewhere"), [9, 5, 3, 1, 1, 1, 0, 0, 2, 1])[0],
            chance.randint(1, 10**9),
        )
        for i in range(people)
    ]
    rows += [
        (user, ITEMS[6], time + 1 - 2 * chance.randint(0, 1)) for user, _, time in chance.sample(rows, people // 5)
    ]
    chance.shuffle(rows)
    return [beam.Row(user=user, item=item, time=time) for user, item, time in rows]


def random_queries(chance: random.Random, number: int) -> list[LinearQuery]:
    order = chance.sample(range(number), number)
    return [LinearQuery(name=f"query {i}", items=chance.sample(ITEMS, chance.randint(1, 6))) for i in order]


def true_counts(made: PrivateQueries, data) -> np.ndarray:
    chosen = {}
    for row in data:
        if row.item in ITEMS:
            chosen.setdefault(row.user, []).append((-row.time, row.item))
    held = [item for records in chosen.values() for time, item in records if time == min(records)[0]]
    assert len(held) == len(chosen)  # no ties, which the mechanism of the test would have to break
    return np.array([held.count(item) for item in sorted(ITEMS)])


def reference(made: PrivateQueries, data) -> list[tuple]:
    """Return name, estimate, source and measurements left of each answer: asked one by one."""
    mechanism = made.mechanism
    counts, rows = true_counts(made, data), []
    places = {item: i for i, item in enumerate(sorted(ITEMS))}
    state = mechanism.initial_state()
    for query in made.queries:
        vector = np.zeros((1, len(ITEMS)), np.int64)
        vector[0, [places[item] for item in query.items]] = 1
        if mechanism.updates(state) >= mechanism.max_updates:
            value, source = mechanism.records * float((vector[0] * np.exp(state.log_law)).sum()), "refused"
        else:
            state, answers = mechanism.step(state, LinearQueries(counts, vector), made.noise)
            value, source = float(answers.values[0]), "measured" if answers.measured[0] else "hypothesis"
            if source == "hypothesis" and not mechanism.updates(state):
                source = "guess"
        rows.append((query.name, value, source, mechanism.max_updates - mechanism.updates(state)))
    return rows


def same(rows, expected) -> bool:
    """Tell whether rows are as expected, up to rounding."""
    given = [(row.query, row.source, row.measurements_left) for row in rows]
    return given == [(name, source, left) for name, _, source, left in expected] and all(
        abs(row.estimate - value) <= (0 if row.source == "measured" else 0.0501)
        for row, (_, value, _, _) in zip(rows, expected, strict=True)
    )


def asked(data, made):
    return lambda pipeline: pipeline | "Data" >> beam.Create(data) | made.with_dead_letters()


@one_job("points", CONFIGURATIONS, "plain", "soon over", elsewhere=["plain", "soon over"])
def test_answers_are_those_of_the_mechanism_asked_one_by_one(name):
    chance = random.Random(4)
    data, made = random_data(chance), make(name, random_queries(chance, 60))
    results = yield asked(data, made)
    expected = reference(made, data)
    assert same(sorted(results.elements("rows")), expected)
    assert results.elements("dead") == []
    refused = sum(source == "refused" for _, _, source, _ in expected)
    assert (refused > 0) == (name == "soon over")
    sources = {source for _, _, source, _ in expected} - {"refused"}
    assert sources - {"guess"} == {"measured", "hypothesis"}
    assert results.counters["privstream:queries_answered"] == 60
    assert results.counters.get("privstream:queries_refused", 0) == refused


def test_without_any_event_queries_are_answered_all_the_same():
    made = make("plain", random_queries(random.Random(6), 3))
    assert len(runner_harness.run("fn_api", asked([], made)).elements("rows")) == 3


def test_other_queries_and_another_order_have_other_noise():
    queries = random_queries(random.Random(7), 3)
    words = {make("plain", asked).noise.words(1).tobytes() for asked in (queries, queries[::-1], queries[:2])}
    assert len(words) == 3


def test_unbounded_input_is_refused():
    events = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) | beam.Create([1])
    events.is_bounded = False
    with pytest.raises(ValueError, match="events must be a bounded collection"):
        _ = events | make("plain", random_queries(random.Random(8), 1))
