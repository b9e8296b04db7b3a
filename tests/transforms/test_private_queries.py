"""Queries are answered as the mechanism answers them one by one, in order of time, about the whole data set."""

import json
import random
from hashlib import blake2b

import apache_beam as beam
import numpy as np
import pytest
import runner_harness
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp
from every_runner import one_job
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries
from privstream.transforms import Domain, LinearQuery, PrivateQueries

KEY = b"a key for tests, no secret"
ITEMS = (*(f"item {i}" for i in range(8)), "ä\u2028")
START = 1_700_000_000
COMMON = {"epsilon": 50.0, "domain": Domain(ITEMS), "records": 2000, "alpha": 0.15, "queries": 20}
CONFIGURATIONS = {
    "plain": {},
    "one shard": {"shards": 1},
    "with delta": {"delta": 1e-3},
    "soon over": {"alpha": 0.95, "epsilon": 0.005},
}


def make(name: str) -> PrivateQueries:
    return PrivateQueries(**{**COMMON, **CONFIGURATIONS[name]}, noise=KeyedNoise(KEY))


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
    queries = []
    for i in range(number):
        items = chance.sample(ITEMS, chance.randint(1, 6))
        queries.append(LinearQuery(f"query {i:03}", Timestamp(micros=chance.randint(1, 50) * 700), items))
    return queries


def true_counts(made: PrivateQueries, data) -> np.ndarray:
    chosen = {}
    for row in data:
        if row.item in ITEMS:
            chosen.setdefault(row.user, []).append((-row.time, row.item))
    held = [item for records in chosen.values() for time, item in records if time == min(records)[0]]
    assert len(held) == len(chosen)  # no ties, which the mechanism of the test would have to break
    return np.array([held.count(item) for item in sorted(ITEMS)])


def reference(made: PrivateQueries, data, queries) -> list[tuple]:
    """Return name, estimate, source and measurements left of each answer: asked one by one."""
    mechanism = made.mechanism
    counts, rows = true_counts(made, data), []
    places = {item: i for i, item in enumerate(sorted(ITEMS))}
    in_order = sorted(queries, key=lambda q: (q.time, q.name))
    asked = [[q.time.micros, q.name, sorted(places[item] for item in q.items)] for q in in_order]
    digest = blake2b(b"\n".join(json.dumps(one).encode() for one in asked), digest_size=16).hexdigest()
    noise = made.noise.derive("private queries", made.domain.digest).derive("queries", digest)
    state = mechanism.initial_state()
    for query in in_order:
        vector = np.zeros((1, len(ITEMS)), np.int64)
        vector[0, [places[item] for item in query.items]] = 1
        if mechanism.updates(state) >= mechanism.max_updates:
            value, source = mechanism.records * float((vector[0] * np.exp(state.log_law)).sum()), "refused"
        else:
            state, answers = mechanism.step(state, LinearQueries(counts, vector), noise)
            value, source = float(answers.values[0]), "measured" if answers.measured[0] else "hypothesis"
        rows.append((query.name, value, source, mechanism.max_updates - mechanism.updates(state)))
    return rows


def same(rows, expected) -> bool:
    """Tell whether rows are as expected, up to rounding."""
    given = [(row.query, row.source, row.measurements_left) for row in rows]
    return given == [(name, source, left) for name, _, source, left in expected] and all(
        abs(row.estimate - value) <= (0 if row.source == "measured" else 0.0501)
        for row, (_, value, _, _) in zip(rows, expected, strict=True)
    )


def asked(data, queries, made):
    def build(pipeline):
        source = queries if isinstance(queries, beam.PTransform) else beam.Create(queries)
        inputs = {"events": pipeline | "Data" >> beam.Create(data), "queries": pipeline | "Queries" >> source}
        return inputs | made.with_dead_letters()

    return build


def run(data, queries, made, runner="fn_api", *extra):
    return runner_harness.run(runner, asked(data, queries, made), *extra)


def in_order(results):
    return sorted(results.elements("rows"), key=lambda row: (row.time, row.query))


@some_quick("name", CONFIGURATIONS, "plain", "soon over")
def test_answers_are_those_of_the_mechanism_asked_one_by_one(name):
    made, chance = make(name), random.Random(4)
    data = random_data(chance)
    queries = random_queries(chance, 60)
    results = run(data, queries, made)
    expected = reference(made, data, queries)
    assert same(in_order(results), expected)
    assert results.elements("dead") == []
    refused = sum(source == "refused" for _, _, source, _ in expected)
    assert (refused > 0) == (name == "soon over")
    sources = {source for _, _, source, _ in expected} - {"refused"}
    assert sources == {"measured", "hypothesis"}
    assert results.counters["privstream:queries_answered"] == 60
    assert results.counters.get("privstream:queries_refused", 0) == refused


@one_job("points", ["plain", "soon over"], "plain")
def test_runners_agree(name):
    made, chance = make(name), random.Random(5)
    data, queries = random_data(chance), random_queries(chance, 15)
    results = yield asked(data, queries, made)
    assert same(in_order(results), reference(made, data, queries))


def test_what_breaks_a_rule_is_a_dead_letter():
    at = Timestamp(START)
    bad = {
        "name must be text, not empty": LinearQuery("", at, ITEMS[:1]),
        "time must be between 1970-01-01 and 2200-01-01": LinearQuery("q", -5, ITEMS[:1]),
        "items must be distinct texts, at least one": LinearQuery("q", at, ()),
        "items must be a list, got str": LinearQuery("q", at, "ab"),
        "items must be in the domain": LinearQuery("q", at, ("elsewhere",)),
        "query must have a field name": ("q", 1),
    }
    results = run([("u", ITEMS[0])], [*bad.values(), LinearQuery("q", at, ITEMS[:1])], make("plain"))
    assert sorted(letter.reason for letter in results.elements("dead")) == sorted(bad)
    assert len(results.elements("rows")) == 1


@pytest.mark.parametrize("unbounded", ["events", "queries"])
def test_unbounded_input_is_refused(unbounded):
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    inputs = {name: pipeline | name >> beam.Create([1]) for name in ("events", "queries")}
    inputs[unbounded].is_bounded = False
    with pytest.raises(ValueError, match=f"{unbounded} must be a bounded collection: all queries are about the same"):
        _ = inputs | make("plain")
