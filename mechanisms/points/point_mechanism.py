"""What mechanisms on points of an ordered universe share: checks, what an update is, and the form of their labels."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.counters.continual_counter import LARGEST_HORIZON
from privstream.mechanisms.mechanism import Mechanism, State
from privstream.mechanisms.points.dynamic_points import DUPLICATES, LARGEST_UNIVERSE
from privstream.mechanisms.privacy.guarantee import NEIGHBOURING
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit


class PointMechanism(Mechanism[State]):
    """A mechanism whose input is insertions, and perhaps deletions, of points 1 .. `universe`."""

    universe: int
    horizon: int | None
    duplicates: str
    updates_per_unit: int
    neighbouring: str

    def _check_points(self) -> None:
        """Check the parameters that all these mechanisms have."""
        checks.integer("universe", self.universe, minimum=1, maximum=LARGEST_UNIVERSE)
        if self.horizon is not None:
            checks.integer("horizon", self.horizon, minimum=1, maximum=LARGEST_HORIZON)
        checks.integer("updates_per_unit", self.updates_per_unit, minimum=1, maximum=1 << 20)
        checks.one_of("duplicates", self.duplicates, DUPLICATES)
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))

    @property
    def _unit(self) -> PrivacyUnit:
        return EVENT if self.updates_per_unit == 1 else PERSON

    def _limits(self, does: str) -> tuple[str, ...]:
        """Return sentences that say what an update is, and how many of them a unit makes."""
        sentences = [f"An event {does} one point of 1 .. {self.universe}, at one step."]
        if self.updates_per_unit > 1:
            sentences.append(f"A person makes at most {self.updates_per_unit:,} such updates in the whole run.")
        return tuple(sentences)

    def _step_number(self, step: int) -> int:
        """Return a step number within the horizon."""
        return checks.step(step, self.horizon or LARGEST_HORIZON)

    def _described(self) -> Any:
        """Return the parameters with whole numbers as they are: some are too large for floats."""
        values = asdict(self)
        return [
            type(self).__name__,
            values | {name: float(values[name]) for name in ("epsilon", "delta") if name in values},
        ]
