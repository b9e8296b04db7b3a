"""Keys that stay found: against a slow reference, thresholds by laws computed anew, and people needed by simulation."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.checks import HorizonExceeded, SnapshotError
from privstream.mechanisms.keyed_counts import discovery, found_keys
from privstream.mechanisms.keyed_counts.found_keys import CARRIED, MOST_KEPT, NOT_FOUND, PUBLIC
from privstream.mechanisms.noise.discrete import DiscreteLaplace, WideGaussian
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.mechanisms.smoothing import LocalLevel
from scipy import signal, stats

BUDGET = {"epsilon": 1.0, "delta": 1e-3}
RUNS = {
    "one window": ({"horizon": 1}, 1),
    "two windows": ({"horizon": 2}, 2),
    "seven windows": ({"horizon": 7, "contributions": 3}, 7),
    "without end": ({"contributions": 2}, 20),
    "sums": ({"horizon": 9, "max_value": 5}, 9),
    "signed sums": ({"horizon": 9, "max_value": 5, "signed": True, "contributions": 30}, 9),
    "three people": ({"horizon": 12, "min_people": 3}, 12),
    "events": ({"horizon": 12, "unit": "event", "max_value": 3}, 12),
    "replacing": ({"horizon": 12, "neighbouring": "replace_one", "contributions": 40}, 12),
    "many windows": ({"horizon": 40, "contributions": 3}, 40),
    "a list": ({"horizon": 40, "contributions": 60, "listed": 4}, 40),
    "at the end": ({"horizon": 21, "contributions": 30, "at_end": True}, 21),
    "a list at the end": ({"horizon": 40, "contributions": 60, "listed": 4, "at_end": True}, 40),
    "a list, sums": (
        {
            "horizon": 12,
            "contributions": 90,
            "listed": 2,
            "max_value": 5,
            "min_people": 3,
            "neighbouring": "replace_one",
        },
        12,
    ),
}


def made(**fields):
    return FoundKeys(**(BUDGET | fields))


def stream(mechanism, steps, keys=14, seed=0):
    """Return dictionaries key -> (count, sum), one for each step: most keys are near what is needed to be found."""
    rng = np.random.default_rng(seed)
    most = rng.permutation(
        np.linspace(0, (1.2 if steps > 5 else 2.5) * mechanism.law.scales[0].threshold, keys)
    ).astype(int)
    largest = mechanism.max_value or 0
    found = []
    for _ in range(steps):
        counts = np.where(rng.random(keys) < 0.5, rng.integers(0, most + 1), 0)
        sums = [int(rng.integers(-largest * c if mechanism.signed else 0, largest * c + 1)) for c in counts]
        found.append({k: (int(counts[k]), sums[k]) for k in range(keys) if counts[k] or rng.random() < 0.2})
    return found


def given(mechanism, step, rows, number=int):
    """Return the input of a step; keys in the order of the dictionary."""
    columns = np.array([*rows.values()], np.int64).reshape(-1, 2)
    return KeyedStep(
        step=step,
        keys=np.array([number(key) for key in rows], np.uint64),
        counts=columns[:, 0].copy(),
        sums=None if mechanism.max_value is None else columns[:, 1].copy(),
        listed=new_people(columns[:, 0]) if mechanism.lists(step) else None,
    )


def new_people(counts):
    """Return how many of those who contribute count on the list of different people from now on."""
    return (counts + 1) // 2


def rows_of(rows):
    """Return what is published in a step: (step, key) -> count, or (count, sum)."""
    found = {}
    for some in (*rows.earlier, rows):
        sums = [] if some.sums is None else [some.sums.tolist()]
        for key, *values in zip(some.keys.tolist(), some.counts.tolist(), *sums, strict=True):
            assert (some.step, key) not in found
            found[some.step, key] = tuple(values)
    return found


def run(mechanism, inputs, seed=1, carried=0):
    """Return what is published in each step, and the last state."""
    state, published = mechanism.initial_state(carried=carried), []
    for step, rows in enumerate(inputs, start=1):
        state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(seed))
        published.append(rows_of(found))
    return published, state


class Reference:
    """One key at a time, one number at a time. Noise has the label (key, step), bound to what it is added to."""

    def __init__(self, mechanism, seed=1, carried=0):
        self.mechanism, self.law = mechanism, mechanism.law
        self.source = SeededNoise(seed).derive("counts of found keys", mechanism.parameters)
        self.sources = [self.source.derive("count"), self.source.derive("sum")]
        self.inputs, self.found, self.noise, self.tests = [], dict.fromkeys(range(carried), 0), {}, []
        self.on_list = []

    def noisy(self, key, step, answer=0):
        true = self.inputs[step - 1].get(key, (0, 0))[answer]
        place = key, step, answer, true
        if place not in self.noise:
            source = self.sources[answer]
            label = source.bind(np.array([[key, step]], np.uint64), np.array([true]))
            self.noise[place] = int(self.law.noises[answer].law.draw(source, label)[0])
        return true + self.noise[place]

    def passes(self, key, step):
        for scale in self.law.scales:
            if self.mechanism.at_end and scale.windows == self.mechanism.horizon:
                due = step == scale.windows
            else:
                due = step >= scale.windows and step % max(1, scale.windows // 4) == 0
            if not due:
                continue
            block = range(step - scale.windows + 1, step + 1)
            if sum(self.inputs[s - 1].get(key, (0, 0))[0] for s in block) >= scale.least:
                self.tests.append((key, scale.windows))
                if sum(self.noisy(key, s) for s in block) >= scale.threshold:
                    return True
        return self.is_listed(key, step)

    def is_listed(self, key, step):
        """Tell whether so many different people have had the key, and noise of each part of the time until now."""
        people = self.law.people
        if people is None or step not in people.steps:
            return False
        test, source = people.steps.index(step), self.source.derive("people")
        total = noise = 0
        for first, last in itertools.pairwise((0, *people.steps[: test + 1])):
            brought = sum(new_people(rows.get(key, (0, 0))[0]) for rows in self.inputs[first:last])
            label = source.bind(np.array([[key, last]], np.uint64), np.array([brought]))
            noise += int(people.noise.law.draw(source, label)[0])
            total += brought
        if total < people.least[test]:
            return False
        self.tests.append((key, "list"))
        if total + noise >= people.thresholds[test]:
            self.on_list.append(key)
            return True
        return False

    def step(self, rows):
        self.inputs.append(rows)
        now, published = len(self.inputs), {}
        answers = range(len(self.law.noises))
        for key in sorted({key for rows in self.inputs for key in rows} | set(self.found)):
            if key in self.found:
                published[now, key] = tuple(self.noisy(key, now, a) for a in answers)
            elif self.passes(key, now):
                self.found[key] = now
                for s in range(max(1, now - self.mechanism.kept + 1), now + 1):
                    published[s, key] = tuple(self.noisy(key, s, a) for a in answers)
        return published


def compared(mechanism, inputs, carried=0):
    """Check a run against the reference, which is returned."""
    reference = Reference(mechanism, carried=carried)
    expected = [reference.step(rows) for rows in inputs]
    published, state = run(mechanism, inputs, carried=carried)
    assert published == expected
    places = {key: int(at) for key, at in enumerate(state.found_at) if at != NOT_FOUND}
    assert places == reference.found
    return reference


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_those_of_the_slow_reference(name):
    fields, steps = RUNS[name]
    mechanism = made(**fields)
    references = [compared(mechanism, stream(mechanism, steps, seed=seed)) for seed in range(3)]
    times = [at for one in references for at in one.found.values()]
    assert times
    assert steps < 7 or len(set(times)) > 2
    assert steps < 7 or any(len(one.found) < 14 for one in references)


def test_runs_are_tried_with_every_kind_of_noise_and_many_scales():
    kinds = {type(noise.law) for fields, _ in RUNS.values() for noise in made(**fields).law.noises}
    assert kinds == {DiscreteLaplace, WideGaussian}
    fields, steps = RUNS["many windows"]
    mechanism = made(**fields)
    tests = compared(mechanism, stream(mechanism, steps, seed=5)).tests
    assert {windows for _, windows in tests} >= {1, 2, 4, 8}


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("a list")])
def test_keys_are_found_by_lists_and_by_blocks(name):
    fields, steps = RUNS[name]
    mechanism = made(**fields)
    references = [compared(mechanism, stream(mechanism, steps, seed=seed)) for seed in range(3, 9)]
    by_list = sum(len(one.on_list) for one in references)
    assert 0 < by_list < sum(len(one.found) for one in references)
    last = mechanism.last_listed
    assert (last == steps) == mechanism.at_end
    state = run(mechanism, stream(mechanism, steps)[:last])[1]
    assert state.listed.shape == (len(mechanism.law.people.steps), 0), "after its last test nothing is kept of a list"


def test_a_list_pays_for_its_noise_and_for_its_tests():
    """Its noise has the standard deviation of a Gaussian mechanism of its share; tails are computed anew."""
    plain, listed = (made(epsilon=1.0, delta=1e-6, horizon=365, contributions=365, listed=n) for n in (0, 4))
    people, curve = listed.law.people, listed.law.curve
    assert people.steps == (11, 46, 182)
    shift = curve.curve.shift
    assert listed.law.noises[0].law.sigma ** 2 == pytest.approx(365 / (0.9 * shift**2) + 4 / 365, rel=1e-9)
    assert people.noise.law.sigma**2 == pytest.approx(4 / (0.1 * shift**2) + 4 / 4, rel=1e-9)
    assert curve.delta(1.0) <= 1e-6 * (1 + 1e-9)
    assert plain.law.noises[0].law.sigma < listed.law.noises[0].law.sigma < 1.07 * plain.law.noises[0].law.sigma
    spent = 4 * sum(
        stats.norm.sf((threshold - few - 0.5) / (people.noise.law.sigma * math.sqrt(part)))
        for part, (few, threshold) in enumerate(zip(people.least, people.thresholds, strict=True), start=1)
    )
    blocks = 365 * len(listed.law.scales) * listed.law.tail * 0.9 / len(listed.law.scales)
    assert 0.5 * curve.slack < spent + blocks <= curve.slack
    assert 0.6 * curve.slack / 10 < spent <= curve.slack / 10


def test_a_list_at_the_end_has_all_that_lists_may_cost_for_one_test():
    """As above; blocks as long as the run have one test of each contribution."""
    listed = made(epsilon=1.0, delta=1e-6, horizon=365, contributions=365, listed=8, at_end=True)
    people, slack = listed.law.people, listed.law.curve.slack
    assert people.steps == (365,) and [scale.windows for scale in listed.law.scales][-2:] == [256, 365]
    assert people.noise.law.sigma**2 == pytest.approx(8 / (0.2 * listed.law.curve.curve.shift**2) + 4 / 8, rel=1e-9)
    (few,), (threshold,) = people.least, people.thresholds
    spent = 8 * stats.norm.sf((threshold - few - 0.5) / people.noise.law.sigma)
    assert 0.6 * slack / 11 < spent <= slack / 11, "ten scales, and as much for the list"
    whole = listed.law.scales[-1]
    own = np.array([1, 365])
    chances = stats.norm.sf((whole.threshold - whole.least + 0.5 - own) / (listed.stddev(1) * math.sqrt(365)))
    allowed = own * slack / (11 * 365)
    assert np.all(chances <= allowed) and np.any(chances > 0.6 * allowed)


@pytest.mark.parametrize("more", [{}, {"max_value": 2}])
def test_a_list_finds_a_key_whose_windows_are_all_forgotten(short_memory, more):
    mechanism = made(horizon=40, contributions=10_000, listed=4, **more)
    people = mechanism.law.people
    assert people.steps[-2:] == (5, 20)
    many = people.thresholds[-1] + 8 * math.ceil(math.sqrt(people.noise.variance(1)))
    assert many < mechanism.law.scales[0].threshold / 2, "a block does not find it"
    reference = compared(mechanism, [{0: (many, many)} if step == 6 else {} for step in range(1, 24)])
    assert reference.on_list == [0] and reference.found == {0: 20}


@pytest.mark.parametrize(("fields", "keys"), [
    ({"contributions": 365, "horizon": 365}, 4), ({"contributions": 212, "horizon": 53}, 4),
    ({"contributions": 1000, "horizon": 1000}, 8), ({"contributions": 365, "horizon": 365, "epsilon": 2.0}, 4),
    ({"contributions": 400, "horizon": 365, "epsilon": 8.0}, 0), ({"contributions": 52, "horizon": 13}, 0),
    ({"contributions": 40, "horizon": 48}, 0), ({"contributions": 1, "horizon": 365}, 0),
    ({"contributions": 365, "horizon": None}, 0), ({"unit": "event", "horizon": 365}, 0),
])  # fmt: skip
def test_a_list_is_kept_where_it_is_worth_its_cost(fields, keys):
    mechanism = made(**{"epsilon": 1.0, "delta": 1e-6} | fields)
    assert mechanism.with_list() == replace(mechanism, listed=keys)
    assert mechanism.with_list().with_list() == mechanism.with_list()


@pytest.mark.parametrize(("fields", "keys"), [
    ({"contributions": 365, "horizon": 365}, 4), ({"contributions": 12, "horizon": 12, "epsilon": 0.5}, 8),
    ({"contributions": 365, "horizon": 365, "epsilon": 4.0}, 4), ({"contributions": 52, "horizon": 13}, 4),
    ({"contributions": 400, "horizon": 365, "epsilon": 8.0}, 0), ({"contributions": 4, "horizon": 4}, 0),
    ({"contributions": 20, "horizon": 1}, 0), ({"unit": "event", "horizon": 365}, 0),
])  # fmt: skip
def test_what_is_found_at_the_end_of_a_run(fields, keys):
    mechanism = made(**{"epsilon": 1.0, "delta": 1e-6} | fields)
    found = mechanism.with_list().for_end()
    assert found == replace(mechanism, at_end=True, listed=keys) and found.for_end() == found
    horizon = mechanism.horizon
    assert found.people_needed(horizon, others=True) <= 1.05 * mechanism.with_list().people_needed(horizon, others=True)


@pytest.mark.parametrize("horizon", [None, MOST_KEPT + 1])
def test_a_run_of_which_rows_would_be_lost_finds_items_as_it_goes(horizon):
    assert (mechanism := made(horizon=horizon)).for_end() is mechanism
    with pytest.raises(ValueError, match=f"horizon must be at most 1,024 with at_end, got {horizon}"):
        made(horizon=horizon, at_end=True)
    with pytest.raises(TypeError, match="at_end must be true or false, got int"):
        made(horizon=3, at_end=1)


def test_listed_people_are_given_until_the_last_test():
    mechanism, one = made(horizon=8, listed=1, contributions=60), {0: (5, 0)}
    state = mechanism.initial_state()
    with pytest.raises(ValueError, match="listed must be given at step 1"):
        mechanism.step(state, replace(given(mechanism, 1, one), listed=None), SeededNoise(1))
    for step in range(1, 5):
        state, _ = mechanism.step(state, given(mechanism, step, one), SeededNoise(1))
    with pytest.raises(ValueError, match="listed must not be given at step 5"):
        mechanism.step(state, replace(given(mechanism, 5, one), listed=np.array([1])), SeededNoise(1))
    with pytest.raises(ValueError, match="listed must be from 0 to counts"):
        replace(given(mechanism, 4, one), listed=np.array([6]))


def test_a_list_changes_noise_and_nothing_else_does_without_one():
    plain = made(horizon=40, contributions=60)
    assert b"listed" not in plain.parameters and "listed" not in plain._fields(plain.initial_state())
    assert replace(plain, listed=4).parameters != replace(plain, listed=3).parameters != plain.parameters
    with pytest.raises(SnapshotError):
        replace(plain, listed=4).restore(plain.snapshot(plain.initial_state()))


@pytest.mark.parametrize("name", ["seven windows", "sums", "many windows", "a list, sums"])
def test_rises_change_no_count_and_are_restored(name):
    fields, steps = RUNS[name]
    plain, mechanism = made(**fields), made(**fields, rising=3)
    assert mechanism.parameters == plain.parameters
    inputs = stream(mechanism, steps)
    published, last = run(mechanism, inputs)
    assert published == run(plain, inputs)[0]
    state, columns = mechanism.initial_state(), []
    again = mechanism.initial_state()
    for step, rows in enumerate(inputs, start=1):
        again = replace(mechanism).restore(mechanism.snapshot(again))
        again, found = mechanism.step(again, given(mechanism, step, rows), SeededNoise(1))
        state, expected = mechanism.step(state, given(mechanism, step, rows), SeededNoise(1))
        if expected.rises is not None:
            columns.append(expected.rises.differences)
            assert all(np.array_equal(*both, equal_nan=True) for both in zip(found.rises, expected.rises, strict=True))
    assert mechanism.snapshot(again) == mechanism.snapshot(last)
    assert np.isfinite(np.concatenate(columns)).any()
    with pytest.raises(SnapshotError):
        plain.restore(mechanism.snapshot(last))
    with pytest.raises(SnapshotError):
        made(**fields, rising=2).restore(mechanism.snapshot(last))


@pytest.mark.parametrize("name", ["seven windows", "sums", "a list, sums"])
def test_counts_are_the_same_without_smoothing(name):
    fields, steps = RUNS[name]
    smoothed, mechanism = made(**fields), made(**fields, smooths=False)
    assert mechanism.parameters == smoothed.parameters
    inputs = stream(mechanism, steps)
    compared(mechanism, inputs)
    state, expected = mechanism.initial_state(), smoothed.initial_state()
    for period in range(2):
        for step, rows in enumerate(inputs, start=1):
            state = mechanism.restore(mechanism.snapshot(state))
            state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(period))
            expected, also = smoothed.step(expected, given(smoothed, step, rows), SeededNoise(period))
            for one, other in zip((found, *found.earlier), (also, *also.earlier), strict=True):
                assert one.smoothed is None and one.since is None and other.since is not None
                assert np.array_equal(one.keys, other.keys) and np.array_equal(one.answers, other.answers)
        (state, kept), (expected, as_many) = mechanism.renewed(state), smoothed.renewed(expected)
        assert np.array_equal(kept, as_many) and len(kept) and not len(state.smoothed)
    with pytest.raises(SnapshotError):
        smoothed.restore(mechanism.snapshot(state))


def test_rows_with_small_numbers_are_left_out_now_and_earlier():
    mechanism = made(horizon=9, max_value=5, rising=2)
    state, seen = mechanism.initial_state(), 0
    for step, rows in enumerate(stream(mechanism, 9), start=1):
        state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(1))
        if found.smoothed is None:
            continue
        least = int(np.median(found.smoothed.estimates)) + 1
        shown = found.at_least(least)
        for all_of_them, some in zip((found, *found.earlier), (shown, *shown.earlier), strict=True):
            kept = [place for place, value in enumerate(all_of_them.smoothed.estimates) if value >= least]
            seen += 0 < len(kept) < len(all_of_them.keys)
            for name in ("keys", "counts", "sums", "means", "mean_bounds"):
                assert getattr(some, name).tolist() == getattr(all_of_them, name)[kept].tolist()
            for group in ("smoothed", "rises"):
                for a, b in zip(getattr(all_of_them, group), getattr(some, group), strict=True):
                    assert np.array_equal(a[kept], b, equal_nan=True)
    assert seen


@pytest.fixture
def short_memory(monkeypatch):
    """Return a mechanism with rows of the last 10 windows of 40, and blocks of up to 8."""
    monkeypatch.setattr(found_keys, "MOST_KEPT", 10)
    monkeypatch.setattr(discovery, "MOST_SCALES", 4)
    mechanism = made(horizon=40, contributions=4)
    assert (mechanism.kept, len(mechanism.law.scales)) == (10, 4)
    return mechanism


def rare(mechanism, steps, seed):
    """Return a stream in which keys have people once in a while, and so are found late, or forgotten."""
    rng = np.random.default_rng(seed)
    return [
        {key: value for key, value in rows.items() if rng.random() < 0.25}
        for rows in stream(mechanism, steps, keys=20, seed=seed)
    ]


@pytest.mark.parametrize("seed", [2, 3])
def test_windows_that_are_not_kept_have_no_rows(short_memory, seed):
    inputs = rare(short_memory, 40, seed)
    reference = compared(short_memory, inputs)
    assert any(at > 10 for at in reference.found.values())
    left = [window.step for window in run(short_memory, inputs)[1].windows]
    assert left == sorted({*left} & {*range(31, 41)}) != []


def test_what_is_kept_is_enough_for_all_blocks():
    assert MOST_KEPT >= made().law.scales[-1].windows == 256
    assert made().kept == MOST_KEPT
    assert made(horizon=2000).kept == MOST_KEPT
    assert made(horizon=7).kept == 7


class Table:
    """Runs a mechanism on named keys: their numbers change when keys without effect are left out, their noise not."""

    def __init__(self, mechanism, seed=1):
        self.mechanism, self.names = mechanism, []
        self.sources = SourcesByName(lambda name: SeededNoise(seed))
        self.state = mechanism.initial_state()

    def step(self, step, rows):
        self.names += [key for key in rows if key not in self.names]
        names = np.array(self.names, np.uint64)
        noise = RoutedNoise(self.sources, ("",), np.zeros(len(names), np.int64), names)
        one = given(self.mechanism, step, rows, self.names.index)
        self.state, found = self.mechanism.step(self.state, one, noise)
        return {(at, self.names[number]): values for (at, number), values in rows_of(found).items()}

    def compact(self):
        self.state, kept = self.mechanism.compact(self.state)
        self.names = [self.names[number] for number in kept]


@pytest.mark.parametrize("seed", range(2))
def test_keys_without_effect_may_be_left_out_at_any_time(short_memory, seed):
    inputs, rng = rare(short_memory, 40, seed), np.random.default_rng(seed)
    whole, compacted, left = Table(short_memory), Table(short_memory), 0
    expected = [whole.step(step, rows) for step, rows in enumerate(inputs, start=1)]
    for step, rows in enumerate(inputs, start=1):
        assert compacted.step(step, rows) == expected[step - 1]
        if rng.random() < 0.4:
            before = len(compacted.names)
            compacted.compact()
            left += before - len(compacted.names)
    assert left
    assert expected == run(short_memory, inputs)[0]


def test_the_numbers_of_keys_are_those_of_their_noise():
    """To number keys anew, without a source that knows them by name, gives the noise of one key to another."""
    mechanism = made(horizon=9)
    one, other = ({0: (5000, 0)}, {0: (0, 0), 1: (5000, 0)})
    first, second = (run(mechanism, [rows] * 9)[0] for rows in (one, other))
    assert [first[i][i + 1, 0] for i in range(9)] != [second[i][i + 1, 1] for i in range(9)]


@pytest.mark.parametrize("name", ["signed sums", "many windows", "a list", "a list, sums"])
def test_snapshots_change_nothing(name):
    fields, steps = RUNS[name]
    mechanism = made(**fields)
    inputs = stream(mechanism, steps)
    expected, last = run(mechanism, inputs)
    state = mechanism.initial_state()
    for step, rows in enumerate(inputs, start=1):
        state = replace(mechanism).restore(mechanism.snapshot(state))
        state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(1))
        assert rows_of(found) == expected[step - 1]
    assert mechanism.snapshot(state) == mechanism.snapshot(last)
    with pytest.raises(SnapshotError, match="equal parameters"):
        replace(mechanism, min_people=2).restore(mechanism.snapshot(state))


def test_columns_of_a_snapshot_are_known():
    """State of a job that runs has them: with others, `_state_kind` must be another one."""
    mechanism = made(horizon=9, max_value=5, rising=2)
    state = mechanism.initial_state(carried=1)
    assert found_keys._layout(mechanism._fields(state)) == {
        ("step", "int64 ()"),
        *((name, "int64 ()") for name in ("found_at", "totals", "smoothed", "since", "steps", "sizes", "keys")),
        ("values", "int64 (2,)"),
        ("recent", "float64 (2,)"),
        ("levels_observed", "float64 ()"),
        *((f"levels_{name}", "float64 (18,)") for name in ("levels", "variances", "weights")),
    }


def test_keys_in_one_draw_or_in_many_are_the_same(monkeypatch):
    mechanism = made(horizon=40, contributions=3)
    inputs = stream(mechanism, 40)
    expected = run(mechanism, inputs)[0]
    monkeypatch.setattr(found_keys, "_TOGETHER", 30)
    assert run(mechanism, inputs)[0] == expected


def test_the_order_of_keys_in_a_step_does_not_matter():
    mechanism = made(horizon=9, max_value=4)
    inputs = stream(mechanism, 9)
    turned = [dict(reversed(rows.items())) for rows in inputs]
    assert run(mechanism, inputs)[0] == run(mechanism, turned)[0]


@pytest.mark.parametrize("windows", [1, 2, 53, 400])
def test_smoothed_errors_are_those_of_items_that_stay_as_they_are(windows):
    mechanism = made(horizon=windows, contributions=40)
    told, level = mechanism.smoothed_errors, LocalLevel(mechanism.stddev(1))
    number = min(64, windows)
    people = round(mechanism.people_needed(number))
    counts = people + np.random.default_rng(1).normal(0, mechanism.stddev(1), (number, 3000))
    found = {"file": level.smooth(counts).estimates - people, "stream": level.smooth(counts).estimates[-1] - people}
    for how, off in found.items():
        assert told[how] == pytest.approx(np.sqrt(np.mean(np.square(off))), rel=0.3)
    assert told["file"] <= 1.1 * mechanism.stddev(1) and (windows < 9 or told["file"] < 0.5 * mechanism.stddev(1))
    assert f"off by {round(told['file'], 3):.3g} over files" in mechanism.accuracy.claim


def test_steps_must_all_be_given():
    mechanism = made(horizon=3)
    state = mechanism.initial_state()
    with pytest.raises(ValueError, match="step must be 1, got 2: every step must be given"):
        mechanism.step(state, given(mechanism, 2, {}), SeededNoise(1))
    for step in (1, 2, 3):
        state, _ = mechanism.step(state, given(mechanism, step, {}), SeededNoise(1))
        with pytest.raises(ValueError, match=f"step must be > {step}, got {step}"):
            mechanism.step(state, given(mechanism, step, {}), SeededNoise(1))
    with pytest.raises(HorizonExceeded, match="step must be <= horizon 3, got 4"):
        mechanism.step(state, given(mechanism, 4, {}), SeededNoise(1))


@pytest.mark.parametrize(("fields", "message"), [
    ({"over": "start", "horizon": 4}, "over must be 'window' or at most 1,024 windows"),
    ({"over": 1025, "horizon": 4}, "over must be 'window' or at most 1,024 windows for keys that stay found, got 1025"),
    ({"over": 1, "horizon": 4}, "over must be >= 2"), ({"over": 2, "horizon": None}, "horizon must be given"),
    ({"over": 2, "horizon": 4, "rising": 1}, "rising must be 0 for counts over 2 windows, got 1"),
    ({"rising": 65}, "rising must be <= 64, got 65"), ({"rising": -1}, "rising must be >= 0, got -1"),
    ({"over": 16, "horizon": 20, "max_value": 1 << 26}, "max_value must be at most 33,554,432 for sums over 16 w"),
    ({"listed": 4}, "listed must be 0 without a horizon, or for the unit of an event, got 4"),
    ({"listed": 4, "horizon": 9, "unit": "event"}, "listed must be 0 without a horizon"),
    ({"listed": 17, "horizon": 9}, "listed must be <= 16, got 17"), ({"listed": -1}, "listed must be >= 0, got -1"),
    ({"public_keys": True}, "public_keys must be false"), ({"delta": 0.0}, "delta must be > 0"),
])  # fmt: skip
def test_parameters_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        made(**fields)


def test_keys_are_not_given_and_carried_ones_are_a_number():
    with pytest.raises(ValueError, match="keys must not be given"):
        made().initial_state(np.arange(3, dtype=np.uint64))
    with pytest.raises(ValueError, match="carried must be >= 0"):
        made().initial_state(carried=-1)


class Watched(SeededNoise):
    """Notes for which keys and steps noise is drawn."""

    def __init__(self, seed=1):
        super().__init__(seed)
        self.drawn = []

    def derive(self, *path):
        return self

    def bind(self, labels, values):
        self.drawn += [tuple(label) for label in labels.tolist()]
        return super().bind(labels, values)


def test_carried_keys_are_published_from_the_first_step_on_and_never_tested():
    mechanism, noise = made(horizon=8), Watched()
    state = mechanism.initial_state(carried=3)
    assert state.found_at.tolist() == [CARRIED] * 3
    for step in range(1, 9):
        rows = {} if step < 3 else {0: (500, 0), 7: (2, 0)}
        noise.drawn = []
        state, found = mechanism.step(state, given(mechanism, step, rows), noise)
        assert found.keys.tolist() == [0, 1, 2]
        assert not found.earlier
        assert sorted(label for label in noise.drawn if label[0] < 3) == [(key, step) for key in range(3)]
    assert {label[0] for label in noise.drawn} == {0, 1, 2, 7}
    compared(mechanism, stream(mechanism, 8), carried=3)


@pytest.mark.parametrize("smooths", [True, False])
def test_keys_of_a_public_list_are_published_in_every_window_of_every_period(smooths):
    """Keys 0 and 1 are public, and nobody has them; 2 was carried over, and is noise; 3 is found, and stays."""
    mechanism = made(horizon=6, smooths=smooths)
    state, many = mechanism.initial_state(public=2, carried=1), mechanism.detection(1, 1e-9)
    for period in range(3):
        place = 3 if period == 0 else 2  # its number after a renewal, without the key that was noise
        for step in range(1, 7):
            rows = {place: (many, 0)} if step > 1 or period else {}
            state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(period))
            here = {0, 1, 2} | ({place} if rows else set())
            assert set(found.keys.tolist()) == here and (found.smoothed is not None) == smooths
            assert all(one.keys.tolist() == [3] for one in found.earlier)
        assert state.found_at[:2].tolist() == [PUBLIC] * 2
        assert mechanism.lasting(state).tolist() == [0, 1, place]
        compacted, numbers = mechanism.compact(state)
        assert numbers[:2].tolist() == [0, 1] and compacted.found_at[:2].tolist() == [PUBLIC] * 2
        state = mechanism.restore(mechanism.snapshot(state))
        state, numbers = mechanism.renewed(state)
        assert state.found_at.tolist() == [PUBLIC, PUBLIC, CARRIED]


def test_a_public_list_changes_nothing_of_other_keys():
    """Keys behind it are found as they are without it: by the same tests, and with the same noise."""
    mechanism = made(horizon=7, contributions=3)
    inputs = stream(mechanism, 7)
    plain, _ = run(mechanism, inputs)
    state, published = mechanism.initial_state(public=2), []
    for step, rows in enumerate(inputs, start=1):
        state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(1))
        published.append({place: value for place, value in rows_of(found).items() if place[1] >= 2})
    assert published == [{place: value for place, value in rows.items() if place[1] >= 2} for rows in plain]
    assert any(published)


def test_keys_that_are_found_are_not_tested_again():
    mechanism, noise = made(horizon=8), Watched()
    state = mechanism.initial_state()
    for step in range(1, 9):
        noise.drawn = []
        state, found = mechanism.step(state, given(mechanism, step, {0: (500, 0)}), noise)
        assert found.keys.tolist() == [0]
        assert noise.drawn.count((0, step)) == (2 if step == 1 else 1)
        assert {at for _, at in noise.drawn} == {step}


def test_keys_with_few_contributions_cost_no_noise():
    mechanism, noise = made(horizon=8, contributions=60, min_people=4), Watched()
    leasts = [scale.least for scale in mechanism.law.scales]
    assert all(least > 3 * scale.windows for least, scale in zip(leasts, mechanism.law.scales, strict=True))
    state = mechanism.initial_state()
    for step in range(1, 9):
        state, _ = mechanism.step(state, given(mechanism, step, {key: (3, 0) for key in range(50)}), noise)
    assert not noise.drawn


@pytest.mark.parametrize("people", [2, 5])
def test_no_key_is_found_without_so_many_people_in_one_window(people):
    mechanism = made(epsilon=20.0, delta=0.1, horizon=16, min_people=people)
    few = [{0: (people - 1, 0)} for _ in range(16)]
    published, state = run(mechanism, few)
    assert not any(published)
    assert not len(state.found)
    assert len(run(mechanism, [*few[:8], {0: (people + 4, 0)}])[1].found)


def test_what_lasts_is_a_function_of_what_was_published(short_memory):
    kept = 0
    for seed, carried in itertools.product(range(3), (0, 4)):
        inputs = rare(short_memory, 30, seed)
        published, state = run(short_memory, inputs, carried=carried)
        values = {}
        for rows in published:
            for (_, key), (count,) in rows.items():
                values.setdefault(key, []).append(count)
        noise = short_memory.stddev(1)
        expected = [key for key in sorted(values) if sum(values[key]) > 2 * noise * math.sqrt(len(values[key]))]
        assert short_memory.lasting(state).tolist() == expected
        assert sorted(values) == state.found.tolist()
        kept += len(expected) < len(values)
    assert kept


def follow(since, steps):
    """Check since when keys are surely above 0, given that of the step before by key; it is brought up to date."""
    for rows in steps:
        if not len(rows.keys):
            continue
        for key, lower, found in zip(rows.keys.tolist(), rows.smoothed.lower, rows.since, strict=True):
            since[key] = (since.get(key) or rows.step) if lower > 0 else 0
            assert found == since[key]


@pytest.mark.parametrize("rising", [0, 1, 6])
@pytest.mark.usefixtures("models_of_streams")
def test_what_is_smoothed_is_a_function_of_what_was_published(short_memory, rising):
    """Also in the period that follows."""
    short_memory = replace(short_memory, rising=rising)
    level, history, since, seen = LocalLevel(short_memory.stddev(1)), {}, {}, 0
    state = short_memory.initial_state()
    for period in range(2):
        for step, rows in enumerate(stream(short_memory, 14, seed=period), start=1):
            state, found = short_memory.step(state, given(short_memory, step, rows), SeededNoise(period))
            new = {}
            for one in (*found.earlier, found):
                for key, count in zip(one.keys.tolist(), one.counts.tolist(), strict=True):
                    (history if key in history else new).setdefault(key, []).append(count)
            for place, one in enumerate(found.earlier):
                for number, key in enumerate(one.keys.tolist()):
                    back = level.smooth(np.array(new[key], float)[:, None])
                    assert [ends[number] for ends in one.smoothed] == [ends[place, 0] for ends in back]
                    if rising:
                        risen = level.smooth_rises(np.array(new[key], float)[:, None], rising)[1]
                        assert same([part[number] for part in one.rises], [part[place, 0] for part in risen])
            history |= new
            follow(since, (*found.earlier, found))
            for number, key in enumerate(found.keys.tolist()):
                ends = level.read(level.join(level.start(), np.array(history[key], float)[:, None]))
                assert [end[number] for end in found.smoothed] == [end[0] for end in ends]
                if rising:
                    risen = level.smooth_rises(np.array(history[key], float)[:, None], rising)[1]
                    if step > rising:
                        assert same([part[number] for part in found.rises], [part[-1, 0] for part in risen])
                    else:
                        assert all(np.isnan(part[number]) for part in found.rises), "a period begins"
                seen += 1
        state, kept = short_memory.renewed(state)
        assert state.found.tolist() == list(range(len(kept)))
        since.clear()
        history = {number: history[key] for number, key in enumerate(kept.tolist())}
    assert seen > 50


@pytest.mark.slow
@pytest.mark.parametrize("windows", [2, 5, 40])
@pytest.mark.parametrize("largest", [None, 9])
@pytest.mark.usefixtures("models_of_streams")
def test_counts_of_several_windows_are_sums_of_what_is_published_of_one(short_memory, windows, largest):
    """Also in the period that follows, and from snapshots; noise and found keys stay the same."""
    one = replace(short_memory, max_value=largest)
    several = replace(one, over=windows)
    assert several.parameters == one.parameters and several.law.scales == one.law.scales
    assert several.detection(1, 0.1) == one.detection(1, 0.1) and several.needed == one.needed
    with pytest.raises(SnapshotError):
        several.restore(one.snapshot(one.initial_state()))
    level, history, partial = LocalLevel(one.stddev(1)), {}, 0
    states = [one.initial_state(), several.initial_state()]
    for period in range(2):
        for step, rows in enumerate(stream(one, 14, seed=period), start=1):
            brought, noise = given(one, step, rows), SeededNoise(period)
            states[1] = several.restore(several.snapshot(states[1]))
            (states[0], found), (states[1], summed) = (
                mechanism.step(state, brought, noise) for mechanism, state in zip((one, several), states, strict=True)
            )
            assert [rows.step for rows in summed.earlier] == [rows.step for rows in found.earlier]
            new = {}
            for single, total in zip((*found.earlier, found), (*summed.earlier, summed), strict=True):
                assert same(single.keys, total.keys)
                places = total.of_each("counts", "count_stddev", "count_bound", "count_spread")
                for number, (key, count, stddev, bound, spread) in enumerate(
                    zip(single.keys.tolist(), *places, strict=True)
                ):
                    known = history if key in history else new
                    answers = single.answers[:, number].tolist()
                    known.setdefault(key, []).append(answers)
                    last = np.array(known[key][-windows:])
                    partial += len(last) < windows
                    assert total.answers[:, number].tolist() == last.sum(axis=0).tolist() and count == last[:, 0].sum()
                    assert stddev == pytest.approx(one.stddev(1) * math.sqrt(len(last)))
                    noise_of_sum = one.law.noises[0].summed(len(last))
                    assert spread == noise_of_sum.tail_bound(len(last), 0.025)
                    assert bound == several._row_bound(noise_of_sum, len(last)) >= single.count_bound
                    if total is summed:
                        smoothed = level.smooth_sums(np.array(known[key], float)[:, :1], windows)[1]
                        assert np.allclose([e[number] for e in total.smoothed], [e[-1, 0] for e in smoothed], atol=0.11)
            history |= new
            for place, total in enumerate(summed.earlier):
                for number, key in enumerate(total.keys.tolist()):
                    smoothed = level.smooth_sums(np.array(new[key], float)[:, :1], windows)[1]
                    assert np.allclose([e[number] for e in total.smoothed], [e[place, 0] for e in smoothed], atol=0.11)
        (states[0], kept), (states[1], others) = (m.renewed(s) for m, s in zip((one, several), states, strict=True))
        assert same(kept, others) and len(kept)
        history = {number: history[key] for number, key in enumerate(kept.tolist())}
    assert partial > 4


def test_means_of_several_windows_hold_the_true_ones():
    mechanism = made(epsilon=5.0, delta=1e-2, over=3, horizon=12, max_value=10)
    state, seen = mechanism.initial_state(), 0
    for step in range(1, 13):
        brought = KeyedStep(
            step=step,
            keys=np.arange(3, dtype=np.uint64),
            counts=np.array([80, 90, 100]),
            sums=np.array([240, 360, 500]),
        )
        state, rows = mechanism.step(state, brought, SeededNoise(3))
        for key, mean, bound in zip(rows.keys.tolist(), *rows.of_each("means", "mean_bounds"), strict=True):
            assert abs(mean - [3, 4, 5][key]) <= bound < 3
            seen += 1
    assert seen > 30


def same(left, right):
    return np.array_equal(left, right, equal_nan=True)


# Thresholds.


def masses(law):
    """Return the probabilities of the numbers -r .. r."""
    reach = math.ceil(60 * law.scale if isinstance(law, DiscreteLaplace) else 12 * law.sigma)
    numbers = np.arange(-reach, reach + 1)
    if isinstance(law, DiscreteLaplace):
        weights = np.exp(-abs(numbers) / law.scale)
    else:
        weights = np.exp(-((numbers / law.sigma) ** 2) / 2)
    return weights / weights.sum()


def tails(law, scales):
    """Return, for each scale, z -> Pr[sum of so many >= z], from the mass function."""
    summed, windows, found = masses(law), 1, []
    for scale in scales:
        while windows < scale.windows:
            summed, windows = np.maximum(signal.fftconvolve(summed, summed), 0), 2 * windows
            spare = len(summed) // 2 - math.ceil(11 * math.sqrt(windows) * deviation(law) + 60 * deviation(law))
            summed = summed[spare:-spare] if spare > 0 else summed
        above = np.cumsum(summed[::-1])[::-1]
        found.append(lambda z, above=above: float(above[z + len(above) // 2]) if z < len(above) // 2 else 0.0)
    return found


def deviation(law):
    return math.sqrt(law.variance)


LAWS = [
    ({"contributions": 96, "horizon": 48}, WideGaussian),
    ({"contributions": 50, "horizon": 365}, WideGaussian),
    ({"contributions": 50, "horizon": 30, "neighbouring": "replace_one"}, WideGaussian),
    (
        {"contributions": 256, "horizon": 300, "epsilon": 8.0},
        WideGaussian,
    ),  # the most of one person counts, and not one
    ({"contributions": 1, "horizon": 30}, DiscreteLaplace),
    ({"contributions": 3, "horizon": 30}, DiscreteLaplace),
    ({"contributions": 2, "neighbouring": "replace_one", "min_people": 3}, DiscreteLaplace),
    ({"contributions": 1, "horizon": 16, "delta": 0.1}, DiscreteLaplace),
]
MISSED = 1e-14  # of probabilities: what the Fourier transform rounds off


def bare_blocks(mechanism, own):
    """Return (scale number, contributions of u) of the bare blocks with u, who has `own` in successive windows."""
    start, found = 300, []
    for number, scale in enumerate(mechanism.law.scales):
        for end in range(scale.windows, 1000):
            if end % max(1, scale.windows // 4) == 0:
                inside = min(end, start + own - 1) - max(end - scale.windows + 1, start) + 1
                if inside > 0:
                    found.append((number, inside))
    return found


@pytest.mark.parametrize(("fields", "law"), LAWS)
def test_bare_blocks_pass_as_seldom_as_stated(fields, law):
    """`i q_n` in any bare block, and delta_2 / P in all of them together, by the masses of the law."""
    mechanism = made(**({"delta": 1e-6} | fields))
    noise, bounds, scales = mechanism.law.noises[0].law, mechanism.bounds, mechanism.law.scales
    assert isinstance(noise, law)
    above, slack = tails(noise, scales), mechanism.law.curve.slack
    assert [scale.windows for scale in scales] == [1 << level for level in range(len(scales))]
    for scale, tail in zip(scales, above, strict=True):
        share = slack / (bounds.people * bounds.contributions * len(scales) * min(scale.windows, 4))
        most = min(bounds.contributions, scale.windows)
        chances = [tail(scale.threshold - (scale.least - 1) - own) for own in range(1, most + 1)]
        lower = [tail(scale.threshold - (scale.least - 1) - own - 1) for own in range(1, most + 1)]
        allowed = share * np.arange(1, most + 1)
        assert np.all(chances <= allowed * (1 + 1e-6) + MISSED)
        least_used = 0.3 if law is DiscreteLaplace else 1 - 1e-6  # bounds of Laplace sums are not exact
        assert max(lower / allowed) > least_used
    for own in {1, min(3, bounds.contributions), bounds.contributions}:
        keys, rest = divmod(bounds.contributions, own)
        blocks = keys * bare_blocks(mechanism, own) + (bare_blocks(mechanism, rest) if rest else [])
        total = sum(above[n](scales[n].threshold - (scales[n].least - 1) - i) for n, i in blocks)
        assert total <= slack / bounds.people * (1 + 1e-6) + MISSED * len(blocks)
        assert own > 1 or total > 0.3 * slack / bounds.people


@pytest.mark.parametrize(("fields", "law"), LAWS)
def test_pruning_costs_at_most_three_percent(fields, law):
    mechanism = made(**({"delta": 1e-6} | fields))
    for scale in mechanism.law.scales:
        others = ((mechanism.min_people or 1) - 1) * scale.windows
        needed = scale.threshold - (scale.least - 1)
        assert others <= scale.least - 1 <= max(others, 0.03 * needed + 1)


def test_a_run_has_the_blocks_that_fit():
    for horizon, longest in ((1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (256, 256), (10_000, 256), (None, 256)):
        assert discovery.scales_of(horizon) == tuple(1 << level for level in range(longest.bit_length()))
    for horizon, longest in ((1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (400, (128, 256, 400))):
        assert discovery.scales_of(horizon, at_end=True)[-3:] == longest[-3:]
    whole = made(horizon=8, at_end=True).law.scales[-1]
    assert [step for step in range(1, 9) if whole.is_due(step)] == [8] and whole.people(3) == whole.threshold / 3
    strides = {scale.windows: scale.stride for scale in made().law.scales}
    assert strides == {n: max(1, n // 4) for n in strides}


TABLE = [
    ({"contributions": 96, "horizon": 48}, (261, 182, 135, 99, 71, 52)),
    ({"contributions": 50, "horizon": 365}, (188, 135, 96, 73, 52, 36)),
]


@pytest.mark.parametrize(("fields", "people"), TABLE)
def test_people_needed_are_those_of_the_design(fields, people):
    """Items with as many people in each of 1, 2, 4, .. windows, wherever these are: a simulation."""
    mechanism, items = made(**({"delta": 1e-6} | fields)), 6000
    windows, rng = mechanism.horizon, np.random.default_rng(5)
    noise = np.rint(rng.normal(0, mechanism.stddev(1), (windows, items)))
    sums = np.concatenate([np.zeros((1, items)), np.cumsum(noise, axis=0)])
    for lasting, expected in zip((1, 2, 4, 8, 16, 32), people, strict=True):
        first = rng.integers(0, windows - lasting + 1, items)
        needed = np.full(items, np.inf)
        for scale in mechanism.law.scales:
            for end in range(scale.windows, windows + 1, scale.stride):
                inside = np.minimum(end, first + lasting) - np.maximum(end - scale.windows, first)
                missing = np.maximum(scale.threshold - (sums[end] - sums[end - scale.windows]), scale.least)
                needed = np.where(inside > 0, np.minimum(needed, missing / np.maximum(inside, 1)), needed)
        found, stated = np.median(needed), mechanism.people_needed(lasting)
        print(f"\n{lasting} windows: {found:.0f} people, {expected} in the design, {stated:.0f} stated")
        assert found == pytest.approx(expected, rel=0.05)
        assert 0.98 * found < stated < 1.2 * found


@pytest.mark.parametrize(("windows", "probability"), [(8, 0.5), (30, 0.5), (30, 0.9)])
def test_a_list_finds_what_other_people_have_in_each_window(windows, probability):
    """Against all tests of a list, of 2,000 items that begin anywhere: the best one for each decides the number."""
    mechanism, items = made(horizon=40, contributions=400, listed=2, smooths=False), 2000
    people = mechanism.people_needed(windows, probability, others=True)
    assert (
        people == mechanism.law.people.people(windows, 40, probability) < mechanism.people_needed(windows, probability)
    )
    rng = np.random.default_rng(windows)
    begins = rng.integers(0, 40 - windows + 1, items)
    shares = []
    for number in (people, 0.8 * people):
        state = mechanism.initial_state()
        for step in range(1, mechanism.last_listed + 1):
            keys = np.flatnonzero((begins < step) & (step <= begins + windows)).astype(np.uint64)
            counts = np.full(len(keys), round(number))
            state, _ = mechanism.step(
                state, KeyedStep(step=step, keys=keys, counts=counts, listed=counts), SeededNoise(3)
            )
        shares.append(len(state.found) / items)
    print(f"\n{windows} windows, {people} people: {shares}")
    assert probability - 0.08 <= shares[0] <= probability + 0.12 and shares[1] < shares[0] - 0.03


def test_a_list_that_is_read_too_early_is_no_help():
    mechanism = made(horizon=40, contributions=400, listed=2)
    assert mechanism.law.people.people(8, 40, 0.95) == math.inf
    assert mechanism.people_needed(8, 0.95, others=True) == mechanism.people_needed(8, 0.95)


@pytest.mark.parametrize("windows", [1, 4, 64])
@pytest.mark.parametrize("lasting", [1, 7, 100])
def test_some_block_holds_so_many_windows_wherever_they_lie(windows, lasting):
    stride = max(1, windows // 4)
    places = [range(first, lasting + windows, stride) for first in range(1, stride + 1)]
    held = [[min(end, lasting) - max(end - windows, 0) for end in ends] for ends in places]
    scale = discovery.Scale(windows, stride, 1, 12)
    assert scale.people(lasting) == 12 / min(map(max, held))
