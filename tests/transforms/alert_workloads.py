"""Alerts over small random events, and a slow reference that says what they must be."""

import functools
import math
import random
import statistics
from collections import defaultdict

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Alert, AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.methods import SHARES

KEY = b"a key for tests, no secret"
SECOND = 1_000_000
START = 1_700_000_000 // 60 * 60
WINDOWS = 12
ITEMS = ("a", "b", "c", "other", "ä\u2028\U0001f600")
RULES = (
    AlertRule(name="everybody", at_least=22),
    AlertRule(name="a or b", at_least=12, items=("a", "b")),
    AlertRule(name="b or ä", at_least=9, items=("b", ITEMS[4])),
)
COMMON = {
    "epsilon": 4.0,
    "rules": RULES,
    "window": 10,
    "start": START,
    "end": START + 10 * WINDOWS,
    "min_alerts": 6,
    "method": "sparse_vector",
}
CONFIGURATIONS = {
    "shared": {},
    "listed items": {"rules": RULES[1:], "allowed_lateness": 3},
    "per rule": {"budget": "per_rule", "shards": 2},
    "both directions": {"rules": (*RULES[:2], AlertRule(name="silence", at_most=10))},
    "sliding, quiet": {"period": 5, "quiet": 3, "branches": 4},
    "replace one": {"neighbouring": "replace_one", "epsilon": 8.0},
    "shared streams": {"streams": ("s", "t", "never seen"), "epsilon": 8.0},
    "own streams": {"streams": ("s", "t", "never seen"), "streams_per_person": 1, "quiet": 1},
    "soon over": {"min_alerts": 1, "branches": 1},
}
COUNTED = {
    "counts": {"epsilon": 8.0, "delta": 1e-3},
    "counts, pure": {"rules": RULES[1:], "epsilon": 30.0, "shards": 2},
    "counts, both directions": {
        "rules": (*RULES[:2], AlertRule(name="silence", at_most=10)),
        "neighbouring": "replace_one",
        "epsilon": 40.0,
    },
    "counts, sliding, quiet": {"period": 5, "quiet": 3, "epsilon": 8.0, "delta": 1e-3},
    "counts, streams": {"streams": ("s", "t", "never seen"), "epsilon": 20.0, "delta": 1e-3},
    "counts, lasting": {
        "rules": (
            AlertRule(name="everybody", at_least=22, windows=4),
            AlertRule(name="a or b", at_least=12, items=("a", "b")),
            AlertRule(name="few", at_most=16, windows=2),
        ),
        "streams": ("s", "t"),
        "epsilon": 40.0,
        "delta": 1e-3,
        "quiet": 1,
    },
    "counts, own streams": {"streams": ("s", "t"), "streams_per_person": 1, "quiet": 1, "epsilon": 9.0, "delta": 1e-3},
}
"""Those of the method that pays for counts."""


@functools.cache
def transform(name: str) -> SparseVectorAlerts:
    return SparseVectorAlerts(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS.get(name, {}), **counted(name)})


def counted(name: str) -> dict:
    """Return the arguments of a configuration with counts."""
    return COUNTED[name] | {"method": "counts"} if name in COUNTED else {}


def random_events(name: str, chance: random.Random) -> list[tuple[str, str, int, str]]:
    """Return events around the run; a person stays in one stream, so that a limit of one leaves nobody out."""
    streams = transform(name).streams or ("",)
    events = []
    for window in range(-1, WINDOWS + 1):
        for person in range(chance.choice((8, 15, 30, 45))):
            time = START * SECOND + window * 10 * SECOND + chance.randrange(10 * SECOND)
            items = chance.choices(ITEMS, (3, 2, 1, 5, 1), k=chance.randint(1, 3))
            events += [(f"user {person}", item, time, streams[person % 2 % len(streams)]) for item in items]
    return events + chance.choices(events, k=len(events) // 10)


def true_counts(made: SparseVectorAlerts, events) -> dict[tuple[int, str, str], int]:
    """Return how many people meet each rule, by window, stream and name."""
    met = defaultdict(set)
    size, period = made.steps.size, made.steps.period
    for user, item, time, stream in events:
        for step in range(-(-(time + 1 - size) // period), time // period + 1):
            for rule in made.plan.rules:
                if rule.items is None or item in rule.items:
                    met[step, stream, rule.name].add(user)
    return {place: len(users) for place, users in met.items()}


def reference(made: SparseVectorAlerts, events) -> list[Alert]:
    """Return the alerts: all tests one by one, in their order."""
    counts = true_counts(made, events)
    plan, mechanism = made.plan, made.plan.mechanism
    groups = [(rule,) for rule in plan.rules] if plan.by_rule else [plan.rules]
    places = [(stream,) for stream in plan.streams] if plan.by_stream else [plan.streams]
    rows = []
    for streams in places:
        for rules in groups:
            key = streams[0].encode() if plan.by_stream else b""
            noise = made.noise.derive("run", key, rules[0].name if plan.by_rule else "")
            state, last, since = mechanism.initial_state(), {}, {}
            for step in range(made.steps.first, made.steps.end):
                for stream in streams:
                    for rule in rules:
                        if mechanism.halted(state) or last.get((stream, rule.name), -math.inf) + plan.quiet >= step:
                            continue
                        value = np.array([rule.sign * counts.get((step, stream, rule.name), 0)])
                        threshold = np.array([rule.sign * rule.threshold])
                        state, answer = mechanism.step(state, value, noise, thresholds=threshold)
                        if answer.hits[0]:
                            began = since_when(last, since, (stream, rule.name), step)
                            rows.append(row(made, mechanism, state, answer, step, stream, rule, began))
    return sorted(rows)


def reference_of_counts(made: SparseVectorAlerts, events) -> list[Alert]:
    """Return the alerts by noisy counts: all counts one by one."""
    true, plan, counts, rows, last = true_counts(made, events), made.plan, made.counted.counts, [], {}
    since: dict = {}
    published = defaultdict(list)
    places = [(stream,) for stream in plan.streams] if plan.by_stream else [plan.streams]
    for streams in places:
        key = streams[0].encode() if plan.by_stream else b""
        tests = [(stream, rule) for stream in streams for rule in plan.rules]
        for step in range(made.steps.first, made.steps.end):
            values = np.array([true.get((step, stream, rule.name), 0) for stream, rule in tests])
            for (stream, rule), count in zip(tests, with_noise(made, key, step, values).tolist(), strict=True):
                published[stream, rule.name].append(count)
                n, sums = rule.windows, sum(published[stream, rule.name][-rule.windows :])
                gap = rule.sign * (sums - n * rule.threshold)
                if (
                    len(published[stream, rule.name]) < n
                    or gap < 0
                    or last.get((stream, rule.name), -math.inf) + plan.quiet >= step
                ):
                    continue
                began = since_when(last, since, (stream, rule.name), step)
                start = step * made.steps.period
                bounds = Timestamp(micros=start), Timestamp(micros=start + made.steps.size)
                stddev = counts.stddev(n) if isinstance(counts, SharedCounts) else counts.stddev(1) / math.sqrt(n)
                noise = (gap / n, stddev, bound_of(made, rule, gap))
                numbers_of = (float(rule.threshold), sums / n, *noise, 0.0, 0.0, False)
                rows.append(Alert(stream, *bounds, rule.name, *numbers_of, *lasting(made, began, step)))
    return sorted(rows)


def bound_of(made: SparseVectorAlerts, rule: AlertRule, gap: int) -> float | None:
    """Return what the gap of an alert, a sum over the windows of its rule, is at least without noise."""
    counts, beta, n, least = made.counted.counts, made.plan.beta, rule.windows, math.inf
    law = None if isinstance(counts, SharedCounts) else counts.law.noises[0]
    stddev = counts.stddev(n) * n if law is None else counts.stddev(1) * math.sqrt(n)
    normal = statistics.NormalDist(0, stddev)
    for share in SHARES.tolist():
        if law is None or not law.is_laplace:
            beyond, within = n - normal.inv_cdf(beta * share), -normal.inv_cdf(share)
        else:
            beyond = law.summed(n).tail_bound(n, beta * share) + 1
            below = share >= 0.5
            within = -law.summed(n).tail_bound(n, 1 - share) if below else law.tail_bound(1, share * (1 + (n > 1)))
        if beyond - gap <= within:
            least = min(least, beyond - gap)
    known = -float(rule.threshold) if rule.sign > 0 else None
    if least == math.inf:
        return known
    bound = math.floor(-least) / n
    return bound if known is None else max(bound, known)


def with_noise(made: SparseVectorAlerts, key: bytes, step: int, values: np.ndarray) -> np.ndarray:
    """Return the counts of one window with noise."""
    counts = made.counted.counts
    if isinstance(counts, SharedCounts):
        return counts.release(key, step, values, made.noise)
    numbers = np.arange(len(values), dtype=np.uint64)
    given = KeyedStep(step=1, keys=numbers, counts=values)
    return counts.step(counts.initial_state(numbers), given, made.noise.derive("counts", key, step))[1].counts


def since_when(last, since, place, step) -> int:
    """Note that a rule is met, and return the step since which it has been met in each window."""
    since[place] = since[place] if last.get(place) == step - 1 else step
    last[place] = step
    return since[place]


def lasting(made, began, step) -> tuple[Timestamp, str]:
    return Timestamp(micros=began * made.steps.period), "started" if began == step else "continues"


def row(made, mechanism, state, answer, step, stream, rule, began) -> Alert:
    stddev = math.sqrt(mechanism.variances(answer)[0])
    digits = 2 - math.floor(math.log10(stddev))
    gap = round(float(answer.gaps[0]), digits)
    lower = float(mechanism.lower_bounds(answer, 1 - made.plan.beta)[0])
    return Alert(
        stream=stream,
        window_start=Timestamp(micros=step * made.steps.period),
        window_end=Timestamp(micros=step * made.steps.period + made.steps.size),
        rule=rule.name,
        threshold=float(rule.threshold),
        estimate=round(rule.threshold + rule.sign * gap, digits),
        gap=gap,
        gap_stddev=round(stddev, digits + 1),
        gap_lower_bound=math.floor(lower * 10.0**digits) / 10.0**digits,
        epsilon_spent=math.ceil(float(mechanism.costs(answer)[0]) * 1e6) / 1e6,
        epsilon_left=max(0.0, mechanism.epsilon - mechanism.spent(state)),
        stopped=mechanism.halted(state),
        since=Timestamp(micros=began * made.steps.period),
        status=lasting(made, began, step)[1],
    )


def check(made, rows, events) -> None:
    """Check that rows, of which there are some, are those of the reference of the method."""
    expected = (reference if made.method == "sparse_vector" else reference_of_counts)(made, events)
    assert expected
    assert same(rows, expected) if made.method == "sparse_vector" else sorted(rows) == expected


def same(rows, expected) -> bool:
    """Tell whether rows are equal, up to rounding of sums of epsilon."""
    place = Alert._fields.index("epsilon_left")
    return len(rows) == len(expected) and all(
        one[:place] + one[place + 1 :] == other[:place] + other[place + 1 :]
        and math.isclose(one[place], other[place], abs_tol=2e-6)
        for one, other in zip(sorted(rows), sorted(expected), strict=True)
    )
