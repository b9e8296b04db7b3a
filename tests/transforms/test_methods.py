"""The rule by which methods are chosen: what items need, by the windows that they last."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.smoothing import LocalLevel
from privstream.transforms import Domain, ShiftingHeavyHitters
from privstream.transforms.heavy_hitters.methods import SURELY, SURELY_SPREAD
from privstream.transforms.methods import AUTO, chance_of_half, choose_method, durations, least_people, needed, worth

RUN = {"epsilon": 1.0, "delta": 1e-6, "window": 3600, "noise": KeyedNoise(b"a key for tests, no secret")}
MANY = 2000


@dataclass(frozen=True)
class Plain:
    """A method that needs so many people in each of 1, 4, 16 .. windows."""

    people: tuple[float, ...]
    counts_every_row: bool = True
    may_stop: bool = False
    fewer: float = 1.0

    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        people = self.people[durations(None).index(windows)] * (1 if probability == 0.5 else 2)
        return people * self.fewer if others else people


def chosen(windows: int | None, **methods: Plain) -> str:
    makers = {name: lambda one=one: one for name, one in methods.items()}
    return choose_method(AUTO, makers, lambda made: worth(made, windows), lambda made: made.may_stop)[0]


def test_items_last_as_long_as_the_run_at_most():
    assert durations(None) == (1, 4, 16, 64, 256)
    assert (durations(1), durations(15), durations(16)) == ((1,), (1, 4), (1, 4, 16))


def test_the_mean_logarithm_over_durations_decides():
    short, lasting = Plain((100, 90, 80, 70, 60)), Plain((300, 150, 75, 37, 18))
    assert chosen(3, short=short, lasting=lasting) == "short"
    assert chosen(256, short=short, lasting=lasting) == "lasting"
    assert worth(short, 4) == pytest.approx(math.log(9000) / 2)


def test_people_who_are_the_same_and_others_count_alike():
    one, other = Plain((100,) * 5), Plain((110,) * 5, fewer=0.8)
    assert worth(other, 64) == pytest.approx((math.log(110) + math.log(88)) / 2)
    assert (chosen(64, one=one, other=other), chosen(64, one=one, other=replace(other, fewer=0.9))) == ("other", "one")
    assert "needed_by_others_in_4" not in needed(one, 4)
    found = needed(other, 4)
    assert (found["needed_in_4"], found["needed_by_others_in_4"], found["likely_by_others_in_4"]) == (110, 88, 176)


def test_a_method_without_counts_must_need_a_fifth_fewer():
    counts = Plain((100,) * 5)
    assert chosen(None, counts=counts, blind=Plain((81,) * 5, counts_every_row=False)) == "counts"
    assert chosen(None, counts=counts, blind=Plain((79,) * 5, counts_every_row=False)) == "blind"


def test_a_method_that_may_stop_is_taken_only_if_nothing_else_can_answer():
    stops, never = Plain((10,) * 5, may_stop=True), Plain((1000,) * 5)
    assert chosen(None, stops=stops, never=never) == "never"
    assert chosen(None, stops=stops) == "stops"


def test_what_may_stop_is_not_calibrated_where_something_else_can_answer():
    asked: list[str] = []

    def error(made: Plain) -> float:
        asked.append("stops" if made.may_stop else "never")
        if refused and not made.may_stop:
            raise ValueError("epsilon must be larger")
        return 1.0

    makers = {"stops": lambda: Plain((), may_stop=True), "never": lambda: Plain(())}
    refused = False
    assert choose_method(AUTO, makers, error, lambda made: made.may_stop)[0] == "never" and asked == ["never"]
    refused = True
    assert choose_method(AUTO, makers, error, lambda made: made.may_stop)[0] == "stops"
    with pytest.raises(ValueError, match="epsilon must be larger"):
        choose_method(AUTO, {"never": makers["never"]}, error, lambda made: made.may_stop)


def test_a_method_that_the_same_people_cannot_carry_is_not_taken_but_for_short_runs():
    fades, counts = Plain((10, 10, math.inf, math.inf, math.inf)), Plain((1000,) * 5)
    assert chosen(15, fades=fades, counts=counts) == "fades"
    assert chosen(16, fades=fades, counts=counts) == "counts"
    assert needed(fades, 16) == {
        **{"needed_in_1": 10, "needed_in_4": 10, "needed_in_16": None},
        **{"likely_in_1": 20, "likely_in_4": 20, "likely_in_16": None},
    }


@pytest.mark.parametrize(("windows", "probability"), list(itertools.product((1, 4, 5, 16), (0.5, 0.95))))
def test_the_chance_of_a_test_with_which_half_of_them_pass(windows, probability):
    chance = chance_of_half(windows, probability)
    masses = [
        math.comb(windows, passed) * chance**passed * (1 - chance) ** (windows - passed)
        for passed in range(windows + 1)
    ]
    assert math.fsum(masses[math.ceil(windows / 2) :]) == pytest.approx(probability)


def test_the_least_people_have_the_chance():
    def chance(people):
        return -np.expm1(-people / 300)

    assert chance(np.array(least_people(chance, 0.5))) == pytest.approx(0.5, rel=2e-3)
    assert least_people(chance, 1e-9) <= 1e-3


def reported(transform, people: int, windows: int) -> float:
    """Return how many of many items are up or counted in at least half of so many windows, with so many people each."""
    keys, noise, answer = np.arange(MANY, dtype=np.uint64), SeededNoise(5), transform.answer
    times, up = np.zeros(MANY), np.zeros(MANY, bool)
    state = answer.counts.initial_state(keys if answer.domain else None) if transform.method == "counts" else None
    for window in range(1, windows + 1):
        if state is not None:
            given = KeyedStep(step=window, keys=keys, counts=np.full(MANY, people))
            state, rows = answer.counts.step(state, given, noise)
            up = np.isin(keys, rows.keys[rows.counts >= answer.threshold])
        else:
            calibrated = answer.monitor.calibrated
            hit = calibrated.draw_thresholds(noise.derive("start", window), keys) <= people
            if transform.method == "status":
                stays = calibrated.draw_end_thresholds(noise.derive("end", window), keys) <= people
                up = np.where(up, stays, hit)
            else:
                up = hit
        times += up
    return float(np.mean(times >= math.ceil(windows / 2)))


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("clock", {"max_hits": 16}),
        ("status", {}),
        ("counts", {"forget": True}),
        ("counts", {"domain": Domain(f"item {number}" for number in range(MANY))}),
    ],
)
@pytest.mark.parametrize(("windows", "probability"), [(1, 0.5), (16, 0.95)])
def test_so_many_people_are_reported_so_often_as_is_said(method, given, windows, probability):
    """With 2,000 items the share is off by 0.08 or more with a probability below 1e-9; noise is of whole people."""
    transform = ShiftingHeavyHitters(**RUN, start=0, horizon=32, method=method, **given)
    people = transform.answer.people_needed(windows, probability)
    assert reported(transform, math.floor(people), windows) <= probability + 0.08
    assert reported(transform, math.ceil(people), windows) >= probability - 0.08
    assert reported(transform, math.ceil(0.8 * people), windows) < probability - 0.08


def test_items_that_stay_found_need_as_many_as_is_said_or_fewer():
    """One block is enough; several, and each window of the item's end, can find it too."""
    transform = ShiftingHeavyHitters(**RUN, start=0, horizon=16, method="counts")
    mechanism, keys = transform.answer.counts, np.arange(MANY, dtype=np.uint64)
    for windows, probability in ((1, 0.5), (16, 0.5), (16, 0.95)):
        people = math.ceil(transform.answer.people_needed(windows, probability))
        state = mechanism.initial_state()
        for window in range(1, 17):
            given = KeyedStep(step=window, keys=keys, counts=np.full(MANY, people if window <= windows else 0))
            state, _ = mechanism.step(state, given, SeededNoise(6))
        assert len(state.found) / MANY >= probability - 0.08


@pytest.mark.parametrize("method", ["status", "clock"])
def test_others_are_not_charged_for_windows_before(method):
    answer = ShiftingHeavyHitters(**RUN, start=0, horizon=16, method=method, max_hits=1).answer
    assert answer.people_needed(16, 0.5) == math.inf > answer.people_needed(16, 0.5, others=True)


@pytest.mark.parametrize("windows", [4, 16, 64])
def test_with_so_many_people_an_item_is_surely_there_in_half_of_its_windows(windows):
    """300 items in a run of 128 windows: the share is off by 0.18 with a probability below 1e-9."""
    items, run, stddev, rng = 300, 128, 40.0, np.random.default_rng(windows)
    begins = rng.integers(0, run - windows + 1, items)
    there = (np.arange(run)[:, None] >= begins) & (np.arange(run)[:, None] < begins + windows)
    noise = np.rint(rng.normal(0, stddev, (run, items)))
    for deviations, least, most in (
        (SURELY, 0.3, 0.72),
        (SURELY + 2 * SURELY_SPREAD, 0.8, 1.0),
        (0.6 * SURELY, 0.0, 0.25),
    ):
        people = round(deviations * stddev / math.sqrt(windows))
        surely = LocalLevel(stddev).smooth(noise + people * there).lower > 0
        share = np.mean((surely & there).sum(axis=0) >= windows / 2)
        print(f"\n{windows} windows, {deviations:.1f} deviations: {share:.2f}")
        assert least <= share <= most


def test_a_list_is_part_of_what_is_needed_where_others_come():
    """What it finds is too small to be reported: an item must surely be there as well."""
    answer = ShiftingHeavyHitters(**RUN, start=0, horizon=365, method="counts").answer
    same, others, by_list = (
        np.array([made(windows) for windows in (1, 16, 256)])
        for made in (
            lambda windows: answer.people_needed(windows, 0.5),
            lambda windows: answer.people_needed(windows, 0.5, others=True),
            lambda windows: answer.counts.people_needed(windows, 0.5, others=True),
        )
    )
    assert answer.counts.listed and np.all(by_list <= others) and np.all(others[1:] < 0.9 * same[1:])
    assert others[2] == pytest.approx(SURELY * answer.counts.stddev(1) / 16, rel=0.05), "there all are found"
    assert {"needed_by_others_in_256", "likely_by_others_in_1"} <= {*needed(answer, 365)}


@pytest.mark.slow
@pytest.mark.parametrize("windows", [4, 16, 64])
def test_items_of_others_are_found_and_surely_there_with_as_many_people_as_it_says(windows):
    """300 items that begin anywhere in a year of days: the share is off by 0.18 with a probability below 1e-9."""
    items, run = 300, 365
    answer = ShiftingHeavyHitters(**RUN, start=0, horizon=run, method="counts").answer
    counts = replace(answer.counts, smooths=False)
    people = round(answer.people_needed(windows, 0.5, others=True))
    begins = np.random.default_rng(windows).integers(0, run - windows + 1, items)
    state, published = counts.initial_state(), np.full((run, items), np.nan)
    for step in range(1, run + 1):
        keys = np.flatnonzero((begins < step) & (step <= begins + windows)).astype(np.uint64)
        held = np.full(len(keys), people)
        given = KeyedStep(step=step, keys=keys, counts=held, listed=held if counts.lists(step) else None)
        state, rows = counts.step(state, given, SeededNoise(windows))
        for one in (*rows.earlier, rows):
            published[one.step - 1, one.keys.astype(int)] = one.counts
    surely = np.zeros((run, items), bool)
    surely[:, state.found] = LocalLevel(counts.stddev(1)).smooth(published[:, state.found]).lower > 0
    there = (np.arange(run)[:, None] >= begins) & (np.arange(run)[:, None] < begins + windows)
    share = np.mean((surely & there).sum(axis=0) >= windows / 2)
    print(f"\n{windows} windows, {people} people, other ones in each: {share:.2f}")
    assert 0.5 - 0.18 <= share <= 0.65 + 0.18  # cautious: several blocks find more than the best one


def test_a_person_with_one_charge_carries_a_status_for_one_window():
    status = ShiftingHeavyHitters(**RUN, start=0, horizon=16, method="status", max_hits=1).answer
    assert status.people_needed(1, 0.5) < math.inf and status.people_needed(4, 0.5) == math.inf


def test_charges_have_a_default_that_holds_all_items_of_a_window():
    for items, hits in ((1, 4), (9, 9)):
        made = ShiftingHeavyHitters(**RUN, start=0, items_per_step=items, method="status")
        assert made.answer.monitor.max_hits == hits
    with pytest.raises(TypeError, match="items_per_step must be an integer"):
        ShiftingHeavyHitters(**RUN, start=0, items_per_step="many")


@pytest.mark.parametrize(("method", "unused"), [("counts", {"max_hits", "count_share"}), ("status", {"forget"})])
def test_a_method_says_what_it_does_not_use(method, unused):
    assert ShiftingHeavyHitters(**RUN, start=0, horizon=16, method=method).unused == unused
