"""Alerts by status: a rule that is met stays so until it ends, and people are charged for these changes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.monitor.holdings import Charges, Holdings
from privstream.mechanisms.monitor.item_monitors import StatusRows
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor, RuleState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.batches import HolderBatch, Keyed, decode, encode
from privstream.transforms.people.bound import place_in_run
from privstream.transforms.people.bounding import LimitCounter
from privstream.transforms.rows import CONTINUES, STATUSES, Alert
from privstream.transforms.timing.clock import STEP, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

SEGMENTS = 2
"""Version of what is stored."""


def rank_rules(element: Keyed, few: tuple[bool, ...]) -> Keyed:
    """Number the rules that each person meets in a window, those of `few` people first, and send them on.

    All that a person meets in a window is in one batch, so ranks depend on that person alone.
    """
    (step,), held = STEP.unpack_from(element[1]), decode(HolderBatch, element[1][STEP.size :])
    later = ~np.array(few)[held.items.astype(np.int64)]
    ranks = place_in_run(held.users, np.lexsort((held.items, later, held.users))).astype(np.uint16)
    return on_clock(step, encode(replace(held, ranks=ranks)))


class DecideRules(StepFn, state="decide_rules"):
    """On a public clock: test every rule in every window, and publish those that are met or end."""

    def __init__(
        self,
        *,
        rules: tuple[AlertRule, ...],
        monitor: RuleMonitor,
        steps: Steps,
        timer_offset: int,
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self.monitor = monitor
        self.noise = noise
        self.alerts = Metrics.counter("privstream", "alerts_published")
        self.stopped = Metrics.counter("privstream", "rules_stopped")
        self.limited = LimitCounter("charged")

    @override
    def initial(self, key: bytes) -> RuleState:
        return RuleState(since=self.monitor.initial_state().since)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: RuleState) -> Stepped:
        held = HolderBatch.join([decode(HolderBatch, batch) for batch in batches])
        given = Holdings(step=self.steps.in_first_period(step), users=held.users, items=held.items, ranks=held.ranks)
        noise = self.steps.renewed(self.noise, step)
        active = given.active(state.counters, self.monitor.max_hits)
        self.limited.add(len(active), len(active) - int(active.sum()))
        found, after, charges = self.monitor.decide(state, given, noise)
        self.alerts.inc(len(found.items))
        self.stopped.inc(int(found.stopped))
        after = replace(after, counters=state.counters.add(charges))
        return Stepped(after, self._rows(step, found), partial(_segment, charges, after))

    def _rows(self, step: int, found: StatusRows) -> Iterator[Alert]:
        """Write the rules that are met or end; a count that nobody was charged for is none."""
        later, reach = step - self.steps.in_first_period(step), self.monitor.count_error(OUTSIDE)
        start, end = self.steps.bounds(step)
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), found.status.tolist(), found.since.tolist(), counts)
        for number, kind, since, count in zip(*columns, strict=True):
            rule, status = self.rules[number], STATUSES[kind]
            counted = count is not None and status != CONTINUES
            yield Alert(
                window_start=start,
                window_end=end,
                rule=rule.name,
                threshold=float(rule.threshold),
                estimate=float(count) if counted else None,
                lower=max(0.0, count - reach) if counted else None,
                upper=max(0.0, count + reach) if counted else None,
                since=self.steps.bounds(since + later)[0],
                status=status,
                stopped=found.stopped,
            )

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> RuleState:
        state = self.initial(key)
        for segment in segments:
            found: dict[str, Any] = unpack("rules met", SEGMENTS, segment)
            counters = state.counters.add(Charges.from_bytes(found["charges"]))
            state = RuleState(counters, found["since"], found["changes"])
        return state

    @override
    def encode(self, state: RuleState) -> list[bytes]:
        charges = state.counters.compact()
        starts = range(0, max(1, len(charges)), SEGMENT)
        return [_segment(charges.slice(start, start + SEGMENT), state) for start in starts]


def _segment(charges: Charges, state: RuleState) -> bytes:
    fields: dict[str, Any] = {"charges": charges.to_bytes(), "since": state.since, "changes": state.changes}
    return pack("rules met", SEGMENTS, fields)
