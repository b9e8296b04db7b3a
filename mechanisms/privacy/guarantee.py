"""PrivacyGuarantee: what a mechanism promises, to whom and on what conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.privacy.accounting import PointCurve, PrivacyCurve
from privstream.mechanisms.privacy.units import PrivacyUnit

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
    "So are pairs of a person and an item: with p of them in all, add p / 2^64 for each one of a person."
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
        return [f"It holds for at most {self.horizon:,} {step}{'' if self.horizon == 1 else 's'}."]

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
        """Return the guarantee as plain values for JSON, the unit in words too; the curve is left out."""
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
