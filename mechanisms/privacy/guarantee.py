"""PrivacyGuarantee: what a mechanism promises, to whom, on what conditions; as JSON, and as a Gaussian shift."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, NamedTuple, cast

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.privacy import accounting
from privstream.mechanisms.privacy.accounting import SUM_ERROR, TAIL, PointCurve, PrivacyCurve
from privstream.mechanisms.privacy.units import PrivacyUnit
from scipy import special

KEYED_NOISE = (
    "All noise comes from AES-256 and BLAKE2b under a secret key: the guarantee is about observers who do not have the "
    "key and cannot break these."
)
PUBLISHED_FLOATS = (
    "Real numbers are published with floating-point noise, whose low bits may betray more than the guarantee says: "
    "round them first."
)
GIVEN_NUMBERS = (
    "A person is what has one 64-bit number, and so is an item: if these are hashes, add the chance that two collide "
    "to delta."
)
GIVEN_FUNCTIONS = "The guarantee rests on what the caller's own `Monotone` functions promise."
PEOPLE_HASHED = "People are told apart by keyed 64-bit hashes: with n people add n / 2^64 to delta."
"""Where limits and counts tell people apart by hashes (docs/proofs/clock.md, section 4)."""
ITEMS_HASHED = (
    "Items are told apart by keyed 64-bit hashes: with m of them in all, add m / 2^64 to delta for each one that a "
    "person sends."
)
"""Where items that are not on a list are published by their hashes."""
CONTRIBUTIONS_HASHED = (
    "So are pairs of person and item: with p of them in all, add p / 2^64 for each one of that person."
)
"""Where a hash tells a person's second contribution to an item from the first."""


@dataclass(frozen=True, kw_only=True)
class PrivacyGuarantee:
    """A differential privacy guarantee, and everything that it is conditional on.

    Example:
        >>> from privstream.mechanisms.privacy.units import EVENT
        >>> PrivacyGuarantee(unit=EVENT, epsilon=1.0, delta=0.0).paragraph()[:60]
        '(epsilon = 1, delta = 0)-differential privacy for one event,'
    """

    unit: PrivacyUnit  # what is protected
    epsilon: float  # finite and >= 0
    delta: float  # in [0, 1)
    limits: tuple[str, ...] = ()  # sentences that say what each unit is limited to
    public: tuple[str, ...] = ()  # what is public, or published, besides the outputs
    adaptivity: str = "The inputs of each step may depend on everything published before it."
    proof: str = ""  # where it is proved, such as "docs/proofs/clock.md, Theorem 2"
    caveats: tuple[str, ...] = ()  # sentences that say what the guarantee rests on besides
    horizon: int | None = None  # number of steps that it is stated for; None if it has no bound
    curve: PrivacyCurve | None = field(default=None, compare=False, repr=False)  # all of it, if it is known
    step: str = field(default="step", compare=False, repr=False)  # what a step is called, such as "window"

    def __post_init__(self) -> None:
        if not isinstance(self.unit, PrivacyUnit):
            raise TypeError(f"unit must be a PrivacyUnit, got {type(self.unit).__name__}")
        checks.non_negative("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)

    @property
    def known_curve(self) -> PrivacyCurve:
        """The curve, or what (epsilon, delta) alone implies."""
        return self.curve or PointCurve(at_epsilon=self.epsilon, at_delta=self.delta)

    def lasting(self, step: str) -> list[str]:
        """Return the sentence that says for how many steps the guarantee holds, by a name for one; none without end."""
        if self.horizon is None:
            return []
        which = "It holds for" if self.unit.window is None and not self.unit.calendar else "A period has"
        return [f"{which} at most {self.horizon:,} {step}{'' if self.horizon == 1 else 's'}."]

    def paragraph(self) -> str:
        """Return the guarantee as one readable paragraph."""
        sentences = [
            f"(epsilon = {self.epsilon:g}, delta = {self.delta:g})-differential privacy for {self.unit}, "
            "between inputs that differ by adding or removing the unit."
        ]
        sentences += self.lasting(self.step)
        sentences += self.limits
        if self.public:
            sentences.append(f"Public: {'; '.join(self.public)}.")
        sentences.append(self.adaptivity.replace("step", self.step))
        if self.proof:
            sentences.append(f"Proof: {self.proof}.")
        return " ".join([*sentences, *self.caveats])

    def to_dict(self) -> dict[str, Any]:
        """Return the guarantee as plain values for JSON, the unit in words too; without the curve."""
        return {
            "unit": str(self.unit),
            "privacy_unit": self.unit.to_dict(),
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "limits": list(self.limits),
            "public": list(self.public),
            "adaptivity": self.adaptivity,
            "proof": self.proof,
            "caveats": list(self.caveats),
            "horizon": self.horizon,
            "paragraph": self.paragraph(),
        }


CURVES: Mapping[str, type] = {
    curve.__name__: curve
    for curve in (
        *(PointCurve, accounting.PureDp, accounting.SlackCurve, accounting.ComposedCurve, accounting.GaussianCurve),
        *(accounting.ClockCurve, accounting.StatusCurve, accounting.PureComposition),
    )
}
"""All curves that mechanisms have, by the names under which they are written: frozen records of plain numbers."""


def guarantee_record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    """Return a guarantee as plain values, with its whole curve; `read_guarantee` makes an equal one of them.

    Raises:
        TypeError: its curve is of a kind that cannot be written.
        ValueError: its curve does not promise its epsilon and delta, so that nobody could read it again.
    """
    curve = None if guarantee.curve is None else _plain(guarantee.curve)
    _check_promise(guarantee.curve, guarantee.epsilon, guarantee.delta)
    return guarantee.to_dict() | {"curve": curve}


def read_guarantee(record: Mapping[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee that `guarantee_record` has written; a field that it has without a value may be missing.

    Raises:
        ValueError, TypeError: it was written otherwise; the message names the field.
    """
    unit, curve = PrivacyUnit.from_dict(record.get("privacy_unit")), record.get("curve")
    names = {each.name for each in fields(PrivacyGuarantee)} - {"unit", "curve", "step"}
    given = {name: record[name] for name in names if name in record}
    for name in ("limits", "public", "caveats"):
        texts = given.get(name, [])
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            raise TypeError(f"{name} must be a list of texts")
        given[name] = tuple(texts)
    for name in ("adaptivity", "proof"):
        if not isinstance(given.get(name, ""), str):
            raise TypeError(f"{name} must be a text, got {type(given[name]).__name__}")
    found = PrivacyGuarantee(**given, unit=unit, curve=None if curve is None else _curve(curve))
    _check_promise(found.curve, found.epsilon, found.delta)
    return found


def read_guarantee_file(path: str) -> PrivacyGuarantee:
    """Return the guarantee, with its privacy curve, in a local file that a command has written beside its rows.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a guarantee that a command has written; the message names the file.
    """
    with open(path, encoding="utf-8") as file:
        try:
            return guarantee_of(json.load(file))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path} must be a guarantee that a command has written: {error}") from None


def guarantee_of(promise: Mapping[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee in the content of such a file; `ValueError`, `TypeError` or `KeyError` if there is none."""
    return read_guarantee(promise["guarantee"])


@functools.lru_cache(maxsize=4096)
def _check_promise(curve: PrivacyCurve | None, epsilon: float, delta: float) -> None:
    """Refuse a curve that is not of this promise: sums of budgets would believe the curve."""
    if curve is None:
        return
    try:
        at_epsilon = curve.delta(epsilon)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"curve must be one that can be computed ({type(error).__name__})") from None
    if not at_epsilon <= delta * (1 + SUM_ERROR) + TAIL:
        raise ValueError(f"curve must promise delta {delta:g} at epsilon {epsilon:g}, got {at_epsilon:g}")


def _plain(value: Any) -> Any:
    """Return a curve, or a field of one, as plain values."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, PrivacyCurve):
        name = type(value).__name__
        if CURVES.get(name) is not type(value):
            raise TypeError(f"curve must be one of {', '.join(CURVES)}, got {name}")
        return {"type": name} | {field.name: _plain(getattr(value, field.name)) for field in fields(CURVES[name])}
    return int(value) if isinstance(value, Integral) else float(value)


def _curve(record: Any) -> PrivacyCurve:
    """Return the curve that a record describes, with all curves in it."""
    if not isinstance(record, dict) or record.get("type") not in CURVES:
        raise ValueError(f"curve must be a record with a type of {', '.join(CURVES)}")
    kind, given = CURVES[record["type"]], {name: value for name, value in record.items() if name != "type"}
    if set(given) != {field.name for field in fields(kind)}:
        raise ValueError(f"curve must have all fields of {kind.__name__}, and no others, got {', '.join(record)}")
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(map(_curve, value))
        elif isinstance(value, dict):
            given[name] = _curve(value)
    return cast(PrivacyCurve, kind(**given))


GRID = 400  # points at which curves without a known shift are compared with a Gaussian one
SLACK = 0.1  # of its delta, that a release without a known shift may have as slack: less hardly costs any shift
UP = 1 + 1e-9  # by which shifts are rounded up


class Shift(NamedTuple):
    """A pair of laws that dominates a release: it shows the world with probability `slack`, else is N(0, 1), N(mu, 1).

    >>> round(shift_of_point(1.0, 1e-6).mu, 3)
    1.232
    """

    mu: float
    slack: float


def shift_of(guarantee: PrivacyGuarantee) -> Shift:
    """Return a shift and a slack, at most its delta, that dominate what a guarantee promises to its own unit.

    Privacy: docs/proofs/budget.md, section 1.

    Raises:
        ValueError: its curve does not promise its epsilon and delta.
    """
    point, curve = shift_of_point(guarantee.epsilon, guarantee.delta), guarantee.curve
    if curve is None:
        return point
    _check_promise(curve, guarantee.epsilon, guarantee.delta)
    found = _of_curve(curve, guarantee.delta * SLACK)
    return found if found.slack <= guarantee.delta and found.mu <= point.mu else point


def shift_of_point(epsilon: float, delta: float) -> Shift:
    """Return the shift and the slack of whatever is (epsilon, delta)-differentially private."""
    return Shift(max(0.0, 2 * float(-special.ndtri_exp(-float(np.logaddexp(0.0, epsilon)))) * UP), delta)


def _of_curve(curve: PrivacyCurve, slack: float) -> Shift:
    """Return a shift and a slack that dominate a curve; parts that are neither Gaussian nor points may use `slack`."""
    if isinstance(curve, accounting.GaussianCurve):
        return Shift(curve.shift * UP, 0.0)
    if (point := accounting.point_of(curve)) is not None:
        return shift_of_point(point.at_epsilon, point.at_delta)
    if isinstance(curve, accounting.SlackCurve):
        inner = _of_curve(curve.curve, slack - curve.slack)
        known = 0 < inner.mu < math.inf
        rest = 1 - (accounting.GaussianCurve(shift=inner.mu).delta(0.0) if known else float(inner.mu > 0))
        return Shift(inner.mu, inner.slack + curve.slack / rest * UP) if rest else Shift(math.inf, 1.0)
    if isinstance(curve, accounting.ComposedCurve):
        return added(_of_curve(part, slack / len(curve.curves)) for part in curve.curves)
    return Shift(_least_shift(curve, slack), slack)


def added(shifts: Iterable[Shift]) -> Shift:
    """Return the shift and the slack of all of them together."""
    found = list(shifts)
    return Shift(math.sqrt(math.fsum(mu * mu for mu, _ in found)), math.fsum(slack for _, slack in found))


def _least_shift(curve: PrivacyCurve, slack: float) -> float:
    """Return a shift near the least one of which the Gaussian curve, with a slack, is nowhere below another curve."""
    top = curve.epsilon(slack) if slack > 0 else math.inf
    if not 0 < top < math.inf:
        return math.inf if top else 0.0
    epsilon = np.linspace(0.0, top, GRID)
    # Both curves fall, so that it is enough to compare each point of a grid with the next one.
    needed = (np.array([curve.delta(float(one)) for one in epsilon[:-1]]) - slack) / (1 - slack)

    def dominates(mu: float) -> bool:
        likely, unlikely = special.ndtr(mu / 2 - epsilon / mu), special.log_ndtr(-mu / 2 - epsilon / mu)
        below = likely * (1 - accounting.FUNCTION_ERROR) - np.exp(epsilon + unlikely) * (1 + accounting.FUNCTION_ERROR)
        return bool(np.all(needed <= below[1:]))

    high = 1.0
    while not dominates(high):
        high *= 2
        if high > 1e3:
            return math.inf
    return accounting.smallest(dominates, 0.0, high, 1e-9)
