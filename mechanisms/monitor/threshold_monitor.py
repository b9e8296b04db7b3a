"""ThresholdMonitor: report every test that many people pass, charging only those who passed it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, cast

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.monitor import clock, kaplan_mansour_stemmer, target_charging
from privstream.mechanisms.monitor.calibration import Calibration
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.item_monitor import ItemMonitor
from privstream.mechanisms.monitor.user_counters import Charges, UserCounters
from privstream.mechanisms.noise.sources import NoiseSource

CALIBRATIONS: dict[str, ModuleType] = {
    "clock": clock,
    "target_charging": target_charging,
    "paper": kaplan_mansour_stemmer,
}


@dataclass(frozen=True, eq=False)
class Hits:
    """What is published about one step.

    Attributes:
        items: uint64, shape (m,), increasing: the items whose test was a hit.
        counts: int64, shape (m,): noisy number of people charged for each, or shape (0,) without counts.
    """

    items: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class MonitorState:
    """Everything that outlives a step. `last_step` is the last one decided, None before the first."""

    counters: UserCounters = field(default_factory=UserCounters)
    last_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class ThresholdMonitor(ItemMonitor[MonitorState]):
    """Test at every step, for every item, whether at least about `detection_threshold` people have it now.

    Each hit charges every person who took part in it; a person charged `max_hits` times takes part no more. Misses
    cost nothing, so the number of tests is unbounded, and the inputs of a step may depend on everything published.

    Privacy:
        Unit: one person over the whole run. Neighbours: `neighbouring`. See `guarantee`. Assumes that each person
        enters at most `items_per_step` items a step, which is checked, and, with an unknown domain, takes part in at
        most `horizon` steps: with `first_step` the monitor refuses steps outside of [first_step, first_step +
        horizon); without it the caller must cap each person's participation, and the streams of a person in any case.
        Public: all fields, the steps, the hits and their noisy counts.

    Accuracy:
        `detection_threshold`: the number of people, not yet dropped, from which an item is reported with probability
        1 - beta, jointly over `tests` tests. With an unknown domain, items that nobody has are never reported.

    Attributes:
        calibration: "clock" (tightest), "target_charging", or "paper" (reference). With another one than "clock",
            `horizon` must be given unless the domain is known.

    All other attributes are those of `ItemMonitor`.

    Example:
        >>> monitor = ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, domain_size=1000, tests=10**6, beta=0.01,
        ...                            count_share=0.0)
        >>> monitor.detection_threshold
        330

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5 ("paper"); Cohen, Lyu (2023) for "target_charging";
    docs/proofs/clock.md for "clock".
    """

    calibration: str = "clock"
    noise_label = "threshold monitor"
    state_type = MonitorState

    def __post_init__(self) -> None:
        checks.one_of("calibration", self.calibration, tuple(CALIBRATIONS))
        super().__post_init__()
        if self.domain_size is None and self.horizon is None and self.calibration != "clock":
            raise ValueError("horizon must be given unless the calibration is clock")

    @cached_property
    def calibrated(self) -> Calibration:
        """The noise and the threshold that meet the guarantee."""
        return cast(Calibration, CALIBRATIONS[self.calibration].calibrate(self._budget))

    def step(self, state: MonitorState, holdings: Holdings, noise: NoiseSource) -> tuple[MonitorState, Hits]:
        """Decide one step. Equal state, holdings (in any order of rows) and noise give equal bits.

        Raises:
            ValueError: a step that is not after the last one, or holdings that break a rule of `Holdings`.
            HorizonExceeded: a step outside of the public horizon.
        """
        if state.last_step is not None and holdings.step <= state.last_step:
            raise ValueError(f"step must be > the last step {state.last_step}, got {holdings.step}")
        hits, charges = self.decide(state.counters, holdings, noise)
        return MonitorState(state.counters.add(charges), holdings.step), hits

    def decide(self, counters: UserCounters, holdings: Holdings, noise: NoiseSource) -> tuple[Hits, Charges]:
        """Return the hits of a step, and whom they charge (not for publication).

        For those who keep the counters themselves: steps must be decided in increasing order, each once, which only
        `step` checks.
        """
        tally, source = self._tally(counters, holdings), self._source(noise)
        hit, absent = self._hits(holdings.step, tally, source)
        published = np.union1d(tally.items[hit], absent)
        true = tally.counts(published)
        return Hits(published, self._noisy(holdings.step, published, true, source)), tally.charges(hit)

    @property
    def _state_kind(self) -> str:
        return "threshold monitor state"

    def _fields(self, state: MonitorState) -> dict[str, Any]:
        last = -1 if state.last_step is None else state.last_step
        return {"last": last, "charges": state.counters.compact().to_bytes()}

    def _state(self, fields: dict[str, Any]) -> MonitorState:
        counters = UserCounters().add(Charges.from_bytes(fields["charges"]))
        return MonitorState(counters, None if fields["last"] < 0 else fields["last"])

    def _described(self) -> Any:
        return asdict(self)
