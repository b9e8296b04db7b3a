"""PrivacyGuarantee: what a mechanism promises, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from privstream.mechanisms import checks

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

NEIGHBOURING = {
    "add_remove": "adding or removing the unit",
    "replace_one": "replacing the unit's data by any other",
}


class PrivacyCurve(Protocol):
    """All (epsilon, delta) pairs that a mechanism satisfies, never better than the truth."""

    def delta(self, epsilon: float) -> float:
        """Return a delta for which the mechanism is (epsilon, delta)-differentially private."""
        ...

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for which the mechanism is (epsilon, delta)-differentially private."""
        ...

    def to_pld(self, interval: float = 1e-4) -> PrivacyLossDistribution:
        """Return a pessimistic privacy loss distribution on multiples of `interval`."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrivacyGuarantee:
    """A differential privacy guarantee, and everything that it is conditional on.

    Attributes:
        unit: what is protected, such as "one person over the whole run".
        neighbouring: "add_remove" or "replace_one": how two neighbouring inputs differ in one unit.
        epsilon: finite and >= 0.
        delta: in [0, 1).
        limits: sentences that say what each unit is limited to.
        public: what is public, or published, besides the outputs.
        adaptivity: sentence that says what the adversary may choose.
        caveats: sentences that say what the guarantee rests on besides; see `privstream.mechanisms.privacy.caveats`.
        horizon: number of steps that the guarantee is stated for; None if it has no bound.
        curve: the whole privacy curve, or None if only (epsilon, delta) is known.

    Raises:
        ValueError: a field is out of range.
        TypeError: a field is of the wrong type.

    Example:
        >>> print(PrivacyGuarantee(unit="one event", neighbouring="add_remove", epsilon=1.0, delta=0.0).paragraph())
        (epsilon = 1, delta = 0)-differential privacy for one event, between inputs that differ by adding or removing \
the unit. The inputs of each step may depend on everything published before it.
    """

    unit: str
    neighbouring: str
    epsilon: float
    delta: float
    limits: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    adaptivity: str = "The inputs of each step may depend on everything published before it."
    caveats: tuple[str, ...] = ()
    horizon: int | None = None
    curve: PrivacyCurve | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))
        checks.non_negative("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1)

    def paragraph(self) -> str:
        """Return the guarantee as one readable paragraph."""
        sentences = [
            f"(epsilon = {self.epsilon:g}, delta = {self.delta:g})-differential privacy for {self.unit}, "
            f"between inputs that differ by {NEIGHBOURING[self.neighbouring]}."
        ]
        if self.horizon is not None:
            sentences.append(f"It holds for at most {self.horizon:,} steps.")
        sentences += self.limits
        if self.public:
            sentences.append(f"Public: {'; '.join(self.public)}.")
        sentences.append(self.adaptivity)
        return " ".join([*sentences, *self.caveats])

    def to_dict(self) -> dict[str, str | float | int | list[str] | None]:
        """Return the guarantee as plain values that JSON can hold; the curve is left out."""
        return {
            "unit": self.unit,
            "neighbouring": self.neighbouring,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "limits": list(self.limits),
            "public": list(self.public),
            "adaptivity": self.adaptivity,
            "caveats": list(self.caveats),
            "horizon": self.horizon,
            "paragraph": self.paragraph(),
        }
