"""Keys that stay found: against a slow reference, thresholds by laws computed anew, and people needed by simulation."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.keyed_counts import calibration, found_keys
from privstream.mechanisms.keyed_counts.found_keys import CARRIED, NOT_FOUND, PUBLIC
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from scipy import signal, stats

BUDGET = {"epsilon": 1.0, "delta": 1e-3}
RUNS = {
    "one window": ({"horizon": 1}, 1),
    "two windows": ({"horizon": 2}, 2),
    "seven windows": ({"horizon": 7, "contributions": 3}, 7),
    "a part": ({"horizon": 200, "contributions": 2}, 20),
    "sums": ({"horizon": 9, "max_value": 5}, 9),
    "sums of many": ({"horizon": 9, "max_value": 5, "contributions": 30}, 9),
    "three people": ({"horizon": 12, "min_people": 3}, 12),
    "events": ({"horizon": 12, "unit": "event", "max_value": 3}, 12),
    "many windows": ({"horizon": 42, "contributions": 3}, 42),
    "a list": ({"horizon": 40, "contributions": 60}, 40),
    "a list, sums": ({"horizon": 12, "contributions": 90, "max_value": 5, "min_people": 3}, 12),
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
        sums = [int(rng.integers(0, largest * c + 1)) for c in counts]
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
        listed=new_people(columns[:, 0]) if mechanism.listed else None,
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
            due = step >= scale.windows and step % max(1, scale.windows // 4) == 0
            block = range(step - scale.windows + 1, step + 1)
            if due and sum(self.inputs[s - 1].get(key, (0, 0))[0] for s in block) >= scale.least:
                self.tests.append((key, scale.windows))
                if sum(self.noisy(key, s) for s in block) >= scale.threshold:
                    return True
        return self.is_listed(key, step)

    def is_listed(self, key, step):
        """Tell whether enough different people have had the key until now, by their noisy number."""
        people = self.law.people
        if people is None or step not in people.steps:
            return False
        test, source = people.steps.index(step), self.source.derive("people")
        total = sum(new_people(rows.get(key, (0, 0))[0]) for rows in self.inputs[:step])
        label = source.bind(np.array([[key, step]], np.uint64), np.array([total]))
        noise = int(people.noises[test].law.draw(source, label)[0])
        if total < people.least[test]:
            return False
        self.tests.append((key, "list"))
        passed = total + noise >= people.thresholds[test]
        self.on_list += [key] * passed
        return passed

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
    references = [compared(mechanism, stream(mechanism, steps, seed=seed)) for seed in range(5)]
    times = [at for one in references for at in one.found.values()]
    assert times
    assert steps < 7 or len(set(times)) > 2
    assert steps < 7 or any(len(one.found) < 14 for one in references)


def test_runs_are_tried_with_every_kind_of_noise_and_many_scales():
    kinds = {type(noise.law) for fields, _ in RUNS.values() for noise in made(**fields).law.noises}
    assert kinds == {DiscreteLaplace, DiscreteGaussian}
    fields, steps = RUNS["many windows"]
    mechanism = made(**fields)
    tests = compared(mechanism, stream(mechanism, steps, seed=5)).tests
    assert {windows for _, windows in tests} >= {1, 4, 16}


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("a list")])
def test_keys_are_found_by_lists_and_by_blocks(name):
    fields, steps = RUNS[name]
    mechanism = made(**fields)
    references = [compared(mechanism, stream(mechanism, steps, seed=seed)) for seed in range(3, 9)]
    by_list = sum(len(one.on_list) for one in references)
    assert 0 < by_list < sum(len(one.found) for one in references)
    assert mechanism.last_listed == steps


def test_a_list_pays_for_its_noise_and_for_its_tests():
    """Its noise has the standard deviation of a Gaussian mechanism of its share; tails are computed anew."""
    listed = made(epsilon=1.0, delta=1e-6, horizon=365, contributions=365)
    people, shift = listed.law.people, listed.law.curve.shift
    assert people.steps == (182, 365)
    assert listed.law.noises[0].law.sigma ** 2 == pytest.approx(365 / (0.8 * shift**2) + 4 / 365, rel=1e-4)
    for noise, part in zip(people.noises, (0.1, 0.9), strict=True):
        assert noise.law.sigma**2 == pytest.approx(32 / (0.2 * part * shift**2) + 4 / 32, rel=1e-4)
    assert listed.law.whole_curve.delta(1.0) <= 1e-6 * (1 + 1e-9)
    spent = 32 * sum(
        stats.norm.sf((threshold - few - 0.5) / noise.law.sigma)
        for noise, few, threshold in zip(people.noises, people.least, people.thresholds, strict=True)
    )
    blocks = 365 * len(listed.law.scales) * listed.law.tail * 0.8 / len(listed.law.scales)
    assert 0.5 * listed.law.slack < spent + blocks <= listed.law.slack
    assert 0.6 * listed.law.slack / 5 < spent <= listed.law.slack / 5


@pytest.mark.parametrize("more", [{}, {"max_value": 2}])
def test_a_list_finds_a_key_whose_windows_are_all_forgotten(short_memory, more):
    mechanism = made(horizon=40, contributions=100_000, **more)
    people = mechanism.law.people
    assert people.steps == (20, 40)
    many = 2 * people.thresholds[0] + 8 * math.ceil(math.sqrt(people.noises[0].variance(1)))
    assert many < mechanism.law.scales[0].threshold / 2, "a block does not find it"
    reference = compared(mechanism, [{0: (many, many)} if step == 6 else {} for step in range(1, 24)])
    assert reference.on_list == [0] and reference.found == {0: 20}


def test_listed_people_are_given_until_the_last_test():
    mechanism, one = made(horizon=8, contributions=60), {0: (5, 0)}
    state = mechanism.initial_state()
    with pytest.raises(ValueError, match="listed must be given if there"):
        mechanism.step(state, replace(given(mechanism, 1, one), listed=None), SeededNoise(1))
    state, _ = mechanism.step(state, given(mechanism, 1, one), SeededNoise(1))
    alone = made(horizon=1)
    with pytest.raises(ValueError, match="listed must be given if there"):
        alone.step(alone.initial_state(), replace(given(mechanism, 1, one), listed=np.array([1])), SeededNoise(1))
    with pytest.raises(ValueError, match="listed must be from 0 to counts"):
        mechanism.step(state, replace(given(mechanism, 2, one), listed=np.array([6])), SeededNoise(1))


@pytest.fixture
def short_memory(monkeypatch):
    """Return a mechanism with rows of the last 10 windows of 40, and blocks of up to 8."""
    monkeypatch.setattr(found_keys, "MOST_KEPT", 10)
    monkeypatch.setattr(calibration, "LENGTHS", (1, 4, 8))
    mechanism = made(horizon=40, contributions=4)
    assert (mechanism.kept, len(mechanism.law.scales)) == (10, 3)
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


class Table:
    """Runs a mechanism on named keys: their numbers change when keys without effect are left out, their noise not."""

    def __init__(self, mechanism, seed=1):
        self.mechanism, self.names = mechanism, []
        self.noise = SeededNoise(seed)
        self.state = mechanism.initial_state()

    def step(self, step, rows):
        self.names += [key for key in rows if key not in self.names]
        one = replace(given(self.mechanism, step, rows, self.names.index), names=np.array(self.names, np.uint64))
        self.state, found = self.mechanism.step(self.state, one, self.noise)
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


def test_keys_of_a_public_list_are_published_in_every_window_of_every_period():
    """Keys 0 and 1 are public, and nobody has them; 2 was carried over, and is noise; 3 is found, and stays."""
    mechanism = made(horizon=6)
    state, many = mechanism.initial_state(public=2, carried=1), mechanism.detection(1, 1e-9)
    for period in range(3):
        place = 3 if period == 0 else 2  # its number after a renewal, without the key that was noise
        for step in range(1, 7):
            rows = {place: (many, 0)} if step > 1 or period else {}
            state, found = mechanism.step(state, given(mechanism, step, rows), SeededNoise(period))
            here = {0, 1, 2} | ({place} if rows else set())
            assert set(found.keys.tolist()) == here
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


def test_no_threshold_finds_a_key_of_fewer_people_than_the_least():
    """With thresholds that noise always reaches; and of a block that is tested the shorter ones are not for free."""
    mechanism, low, high = made(horizon=8, contributions=60, min_people=4), -(10**9), 10**9
    law = mechanism.law
    people = replace(law.people, thresholds=(low,) * len(law.people.steps))
    one, four = law.scales
    for scales, counts in (
        ((replace(one, threshold=low), replace(four, threshold=low)), (3, 0)),
        ((replace(one, least=50, threshold=low), replace(four, least=10, threshold=high)), (3, 9)),
    ):
        mechanism.__dict__["law"] = replace(law, scales=scales, people=people)
        state = mechanism.initial_state()
        for step in range(1, 9):
            keys, listed = np.arange(2, dtype=np.uint64), np.array([3, 0]) * (step == 1)
            one_step = KeyedStep(step=step, keys=keys, counts=np.array(counts), listed=listed)
            state, _ = mechanism.step(state, one_step, SeededNoise(1))
        assert not len(state.found)


def test_blocks_end_at_multiples_of_their_stride_and_not_with_the_run():
    mechanism, low = made(horizon=18, contributions=60), -(10**9)
    scales = [replace(scale, threshold=low if scale.windows == 16 else 10**9) for scale in mechanism.law.scales]
    people = replace(mechanism.law.people, thresholds=(10**9,) * len(mechanism.law.people.steps))
    mechanism.__dict__["law"] = replace(mechanism.law, scales=tuple(scales), people=people)
    found = {step: run(mechanism, [{0: (90 * (s == step), 0)} for s in range(1, 19)])[1].found_at for step in (16, 17)}
    assert {step: at.tolist() for step, at in found.items()} == {16: [16], 17: [NOT_FOUND]}


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
    ({"contributions": 64, "horizon": 300, "epsilon": 8.0}, DiscreteGaussian),  # the most of a person counts
    ({"contributions": 96, "horizon": 48}, DiscreteGaussian),
    ({"contributions": 50, "horizon": 365}, DiscreteGaussian),
    ({"contributions": 1, "horizon": 30}, DiscreteGaussian),
    ({"contributions": 3, "horizon": 30, "unit": "person"}, DiscreteGaussian),
    ({"contributions": 2, "min_people": 3, "horizon": 1}, DiscreteLaplace),
    ({"unit": "event", "horizon": 16, "delta": 0.1}, DiscreteLaplace),
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
    above, slack = tails(noise, scales), mechanism.law.slack
    assert [scale.windows for scale in scales] == [1, 4, 16, 64][: len(scales)]
    for scale, tail in zip(scales, above, strict=True):
        share = slack / (bounds.contributions * (len(scales) + (mechanism.listed > 0)) * min(scale.windows, 4))
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
        assert total <= slack * (1 + 1e-6) + MISSED * len(blocks)
        assert own > 1 or total > 0.25 * slack


@pytest.mark.parametrize("contributions", [1, 10, 100, 1000])
def test_more_budget_never_finds_fewer(contributions):
    """T13: every threshold falls as epsilon rises, and the list is never switched off."""
    for horizon in (2, 37, 365):
        laws = [
            made(epsilon=e, delta=1e-6, horizon=horizon, contributions=contributions).law for e in (0.5, 1, 2, 4, 8)
        ]
        for less, more in itertools.pairwise(laws):
            assert all(a.threshold >= b.threshold for a, b in zip(less.scales, more.scales, strict=True))
            assert all(a >= b for a, b in zip(less.people.thresholds, more.people.thresholds, strict=True))


def test_steps_must_all_be_given():
    mechanism = made(horizon=3)
    with pytest.raises(ValueError, match="step must be 1, got 2: every step must be given"):
        mechanism.step(mechanism.initial_state(), given(mechanism, 2, {}), SeededNoise(1))
