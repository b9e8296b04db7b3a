"""Heavy hitters by a monitor, which tests each item in each window, and charges people for reports or changes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.monitor import NONE_UP, ThresholdMonitor, UpItems
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import HolderBatch, Keyed, Names
from privstream.transforms.counts.counted import with_streaks
from privstream.transforms.counts.transform import AtWindowEnds, CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow, LimitCounter, SplitEvents
from privstream.transforms.questions.heavy_hitters import HeavyHittersParameters
from privstream.transforms.row_types import interval
from privstream.transforms.rows import CONTINUES, STATUSES, HeavyHitter
from privstream.transforms.stages import ApplyDoFn
from privstream.transforms.timing.clock import WithClock
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class Statuses:
    """How often each person has been charged; which items are up, and their names if there is no public list."""

    counters: UserCounters = field(default_factory=UserCounters)
    up: UpItems = NONE_UP
    names: Names = field(default_factory=Names.none)


class DecideSteps(StepFn):
    """Decide each step once, publish hits, or what is up or ends, and log who was charged and what is up.

    An entry of the log has charges, and what is up after them, which is public.
    """

    monitor: ThresholdMonitor
    listed: Any = None
    """Public items, or rules, by their number."""
    limited = LimitCounter("charged")

    @abstractmethod
    def row(self, step: int, what: Any, *told: Any) -> Any:
        """Return a row about an item, or a rule: its number and interval, since when it is reported, and its status."""

    @override
    def initial(self, key: bytes) -> Statuses:
        return Statuses()

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Statuses) -> Stepped:
        held, number = HolderBatch.read(batches), self.steps.in_first_period(step)
        holdings = Holdings(step=number, users=held.users, items=held.items, ranks=held.ranks)
        active = holdings.active(state.counters, self.monitor.max_hits)
        self.limited.add(len(active), int(np.count_nonzero(~active)))
        found, charges, up = self.monitor.decide(state.counters, holdings, self.noise_of(step), state.up)
        names = held.names if not len(state.up) else Names.union([state.names, held.names])
        listed = names if self.listed is None else self.listed
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        rows = [
            self.row(
                step,
                listed[item],
                *self.numbered(None if STATUSES[status] == CONTINUES else count),
                self.steps.bounds(since + step - number)[0],
                STATUSES[status],
            )
            for item, count, since, status in zip(*columns, strict=True)
        ]
        self.published.inc(len(rows))
        if not len(charges) and np.array_equal(up.items, state.up.items):
            return Stepped(state, rows, unchanged)
        kept = names.select(up.items) if self.listed is None and len(up) else Names.none()
        after = Statuses(state.counters.add(charges), up, kept)
        return Stepped(after, rows, lambda: _entry(charges, after))

    def numbered(self, count: int | None) -> tuple[float | None, float | None, float | None]:
        """Return a count and its interval of 95%, or nothing where there is no count."""
        if count is None:
            return None, None, None
        return float(count), *interval(float(count), self.monitor.count_error(OUTSIDE))

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Statuses:
        if not segments:
            return self.initial(key)
        found: list[dict[str, Any]] = [unpack("statuses", 1, segment) for segment in segments]
        last = found[-1]
        names = Names(*(last[f"names.{name}"] for name in ("items", "offsets", "text")))
        counters = UserCounters.of(Charges.from_bytes(one["charges"]) for one in found)
        return Statuses(counters, UpItems(last["items"], last["since"]), names)

    @override
    def encode(self, state: Statuses) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges)), SEGMENT)
        return [_entry(charges.slice(start, start + SEGMENT), state) for start in starts]


def _entry(charges: Charges, state: Statuses) -> bytes:
    """Encode one entry of the log."""
    names = {f"names.{name}": column for name, column in vars(state.names).items()}
    return pack("statuses", 1, {"charges": charges.to_bytes(), **vars(state.up), **names})


class DecideItems(DecideSteps, state="decide_items"):
    """Which items many people have."""

    counter = "hits_published"

    @override
    def row(self, step: int, what: str, *told: Any) -> HeavyHitter:
        return HeavyHitter(*self.steps.bounds(step), what, *told)


class ShiftingHeavyHitters(HeavyHittersParameters, CountedTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(**self._split_by, domain=self.domain, positions=self.domain is not None)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        bound = BoundPerWindow(steps=self.steps, noise=self.noise, items_per_step=self.max_per_window)
        return apply_dofn(closed, bound, Keyed)

    @override
    def _publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        given: dict[str, Any] = {"monitor": self.monitor, "steps": self.steps, "noise": self.noise}
        decide = DecideItems(**given, listed=self.domain, timer_offset=1)
        clocked = held | "WithClock" >> WithClock(self.steps)
        rows = apply_dofn(clocked, decide, HeavyHitter)
        if self.method == "status":
            return rows
        at_ends = AtWindowEnds(self.steps, HeavyHitter, timer_offset=2, follow=with_streaks)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
