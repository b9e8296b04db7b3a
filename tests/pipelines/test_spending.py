"""The filter that keeps limits, against exact compositions and against every chooser that looks at results."""

from functools import cache

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, SlackCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, shift_of
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.pipelines.accounts.commands import _account
from privstream.pipelines.accounts.entries import (
    SHARES,
    BudgetLimit,
    Cost,
    Entry,
    ShiftFilter,
    Standing,
    check_limit,
    standings,
)
from privstream.pipelines.accounts.ledger import Ledger
from privstream.transforms.timing.steps import Steps
from scipy import stats

GAUSSIAN = largest_shift(1.0, 1e-6)


def promise(epsilon, delta=0.0, curve=None, unit=PERSON) -> PrivacyGuarantee:
    return PrivacyGuarantee(unit=unit, epsilon=epsilon, delta=delta, curve=curve)


def cost(epsilon, delta=0.0, curve=None) -> Cost:
    return Cost(epsilon, delta, *shift_of(promise(epsilon, delta, curve)))


def gaussian(mu, delta) -> Cost:
    curve = GaussianCurve(shift=mu)
    return cost(curve.epsilon(delta), delta, curve)


def entry(name, guarantee) -> Entry:
    texts = ("digest", "command", "version", "data", "key", "output")
    return Entry.of(guarantee, label=name, name=name, dataset="shop", **dict.fromkeys(texts, ""))


def standing(*costs, limit=None) -> Standing:
    return Standing(unit=PERSON, costs=costs, silent=0, limit=limit)


def test_twelve_gaussian_releases_cost_3_45_and_not_12():
    one = cost(1.0, 1e-6, GaussianCurve(shift=GAUSSIAN))
    assert one.mu == pytest.approx(0.2367, abs=1e-4)
    together = standing(*[one] * 12)
    assert (together.epsilon, together.delta) == (pytest.approx(3.448, abs=0.01), pytest.approx(1.2e-5))
    limited = standing(limit=BudgetLimit(3.55, 1.2e-5))
    assert limited.more(one) == 12
    assert standing(*[one] * 12, limit=BudgetLimit(3.55, 1.2e-5)).epsilon == pytest.approx(3.51, abs=0.01)


def test_delta_that_the_sums_have_spent_is_spent_for_the_shifts_too():
    """Theorem 2: a chooser who ends within the sums has used their deltas, and may go on with the shifts."""
    filtered = ShiftFilter(BudgetLimit(1.0, 1e-6), slack=5e-7)
    first, second = Cost(0.5, 3e-7, 0.1, 0.0), Cost(0.9, 3e-7, 0.1, 3e-7)
    assert filtered.keeps([first]) and filtered.keeps([second])
    assert filtered.spent([first, second]) == np.inf


RELEASES = st.one_of(
    st.builds(gaussian, st.floats(0.05, 0.5), st.sampled_from([1e-7, 1e-6])),
    st.builds(cost, st.floats(0.01, 1.0), st.sampled_from([0.0, 1e-7])),
    st.builds(
        lambda mu: cost(
            GaussianCurve(shift=mu).epsilon(5e-7), 1e-6, SlackCurve(curve=GaussianCurve(shift=mu), slack=5e-7)
        ),
        st.floats(0.05, 0.5),
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(RELEASES, min_size=1, max_size=6))
def test_what_is_spent_is_never_less_than_the_exact_composition(costs):
    """Each release is taken at its best known: Gaussian with its catastrophe, or one point."""
    loss = None
    for one in costs:
        if (one.slack and one.slack == one.delta) or not one.delta:
            each = PointCurve(at_epsilon=one.epsilon, at_delta=one.delta).to_pld(1e-3)
        else:
            each = privacy_loss_distribution.from_gaussian_mechanism(1 / one.mu, value_discretization_interval=1e-3)
        loss = each if loss is None else loss.compose(each)
    found = standing(*costs)
    slack = sum(one.slack for one in costs if one.slack != one.delta)
    if found.delta > slack and found.epsilon < sum(one.epsilon for one in costs):
        assert found.epsilon >= loss.get_epsilon_for_delta(found.delta) * (1 - 1e-2)
    sums = sum(one.epsilon for one in costs), sum(one.delta for one in costs)
    assert standing(*costs, limit=BudgetLimit(sums[0], 4 * sums[1] + 1e-9)).kept


def pair_of(one: Cost, bins: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return two laws that cost exactly this: the last answer shows the world."""
    if one.slack or not one.delta:  # randomised response
        right = 1 / (1 + np.exp(-one.epsilon))
        laws = np.array([right, 1 - right]), np.array([1 - right, right])
    else:
        cuts = np.concatenate([[-np.inf], np.linspace(-3, 3 + one.mu, bins - 1), [np.inf]])
        laws = tuple(np.diff(stats.norm.cdf(cuts - shift)) for shift in (one.mu, 0.0))
    shown = [np.append(law * (1 - one.slack), 0.0) for law in laws]
    shown[0][-1] = one.slack
    return shown[0], shown[1]


def worst(keeps, menu, epsilon, depth) -> float:
    """Return the divergence at e^epsilon of the worst chooser of all, who sees each answer before the next choice."""
    laws = {one: pair_of(one) for one in menu}
    allowed = cache(keeps)

    def value(path, likely, other) -> np.ndarray:
        """The mean of (P - e^epsilon P')+ after a path, over all pairs of likelihoods."""
        best = np.maximum(0.0, likely - np.exp(epsilon) * other)
        for one in menu if len(path) < depth else ():
            if allowed((*path, one)):
                left, right = laws[one]
                after = value(
                    (*path, one), np.multiply.outer(likely, left).ravel(), np.multiply.outer(other, right).ravel()
                )
                best = np.maximum(best, after.reshape(likely.size, -1).sum(axis=1))
        return best

    return float(value((), np.ones(1), np.ones(1))[0])


LIMIT = BudgetLimit(1.0, 0.01)
MOST = largest_shift(*LIMIT)
MENU = (gaussian(0.25, 0.002), gaussian(0.35, 0.004), cost(0.0, 0.01), cost(0.0, 0.0025), cost(0.5), cost(0.3, 0.0025))
ATTACK = (gaussian(0.7 * MOST, 0.001), gaussian(0.71 * MOST, 0.005), cost(0.0, 0.009))


def both_with_all_of_delta(path: tuple[Cost, ...]) -> bool:
    """What looks right: either the plain sums fit, or the shifts with their slacks, each with the whole delta."""
    epsilon, delta, _, slack = (sum(column) for column in zip(*path, strict=True))
    mu = np.sqrt(sum(one.mu**2 for one in path))
    rest = GaussianCurve(shift=mu).delta(LIMIT.epsilon) if mu else 0.0
    return (epsilon <= LIMIT.epsilon and delta <= LIMIT.delta) or rest + slack <= LIMIT.delta


def test_no_chooser_who_looks_at_results_passes_the_limit_exactly():
    most = LIMIT.delta * (1 + 1e-9)
    for menu in (MENU, ATTACK):
        assert worst(lambda path: ShiftFilter.of(LIMIT, path[0]).keeps(path), menu, LIMIT.epsilon, depth=3) <= most
        for share in SHARES:
            assert worst(ShiftFilter(LIMIT, share * LIMIT.delta).keeps, menu, LIMIT.epsilon, depth=3) <= most
    assert worst(both_with_all_of_delta, ATTACK, LIMIT.epsilon, depth=3) > 1.5 * LIMIT.delta, "the attack is one"


def test_what_plain_sums_allow_always_fits_for_equal_runs():
    for epsilon, delta, number in ((1.0, 1e-6, 1), (0.5, 5e-7, 2), (0.25, 1e-7, 4)):
        for one in (cost(epsilon, delta), cost(epsilon, delta, GaussianCurve(shift=largest_shift(epsilon, delta)))):
            assert standing(limit=BudgetLimit(1.0, 1e-6)).more(one) >= number
    assert standing(limit=BudgetLimit(1.0, 0.0)).more(cost(0.1)) == 10
    assert standing(limit=BudgetLimit(1.0, 0.0)).more(cost(0.1, 1e-9)) == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(RELEASES, min_size=1, max_size=5), RELEASES)
def test_runs_that_fit_are_counted_by_the_filter_that_refuses_them(costs, one):
    before = standing(*costs, limit=BudgetLimit(3.0, 1e-5))
    found = before.more(one)
    if before.kept:
        for number, kept in ((found, True), (found + 1, False)):
            assert standing(*costs, *[one] * number, limit=before.limit).kept == kept
    else:
        assert found == 0


def test_a_limit_is_kept_for_every_unit_that_a_run_is_about(tmp_path):
    person, event = entry("person", promise(1.0)), entry("event", promise(1.0, unit=EVENT))
    check_limit(BudgetLimit(3.0, 0.0), event, [person])
    with pytest.raises(ValueError, match=r"the limit of data set 'shop' must not be exceeded.* one event"):
        check_limit(BudgetLimit(2.9, 0.0), event, [person])
    (people, events) = standings([person, event], None)
    assert (people.epsilon, people.silent, events.epsilon) == (1.0, 1, 3.0)
    ledger, limit = Ledger(str(tmp_path / "ledger")), BudgetLimit(5.0, 0.0)
    ledger.set_limit("shop", limit)
    for one in (event, person):
        ledger.append(one)
    account = _account("shop", ledger.contents())
    assert account["more"] == 1, "four more would fit for a person, one for an event"
    assert [each["left"] for each in account["totals"]] == [2.0, 1.0]


def test_what_is_said_to_be_left_fits_and_little_more_does_not():
    noisy = [cost(1.0, 1e-6, GaussianCurve(shift=GAUSSIAN))] * 4
    before = standing(*noisy, limit=BudgetLimit(4.0, 1e-5))
    assert 0 < before.room < 4.0 - before.epsilon, "pure epsilons are no shifts"
    for left, kept in ((before.room, True), (before.room + 0.005, False)):
        assert standing(*noisy, cost(left), limit=before.limit).kept == kept


def test_several_changes_of_a_gaussian_release_are_one_of_a_larger_shift():
    noisy = entry("noisy", promise(1.0, 1e-6, GaussianCurve(shift=GAUSSIAN)))
    assert noisy.about(EVENT).mu == pytest.approx(2 * GAUSSIAN)
    point = entry("point", promise(1.0, 1e-6)).about(EVENT)
    assert (point.epsilon, point.delta) == (2.0, pytest.approx((1 + np.e) * 1e-6))
    assert noisy.about(PrivacyUnit(what="query")) is None


def test_windows_of_different_lengths_and_calendars_have_a_part_in_common():
    hours = [PrivacyUnit(what="person", window=3_600_000_000 * hours) for hours in (2, 3)]
    months = Steps.of(window="1day", start=1_704_067_200, renew_every="1month").person_in_period
    years = Steps.of(window="1day", start=1_704_067_200, renew_every="1year").person_in_period
    for units in (hours, (months, years)):
        one, other = (entry(str(number), promise(1.0, unit=unit)) for number, unit in enumerate(units))
        check_limit(BudgetLimit(4.0, 0.0), other, [one])
        with pytest.raises(ValueError, match=r"for one person in one window of 1 (hour|day)"):
            check_limit(BudgetLimit(3.9, 0.0), other, [one])
