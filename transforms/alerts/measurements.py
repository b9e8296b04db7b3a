"""Measurements for alerts: checked, encoded, and tested in order of time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.counts import ONE_RUN
from privstream.transforms.alerts.rules import LARGEST, AlertRule
from privstream.transforms.alerts.threshold_tests import TestAlerts, Tests
from privstream.transforms.batches import Keyed, StepKey
from privstream.transforms.events.broken_rule import FINITE, MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.dead_letters import set_aside, text_of
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.times import micros_of
from privstream.transforms.rows import Measurement
from privstream.transforms.timing.on_time_markers import digest
from privstream.transforms.timing.public_clock import stepped
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps


class KeyMeasurements(beam.DoFn):
    """Check measurements, and encode them; those that break a rule become dead letters."""

    def __init__(self, *, rules: tuple[AlertRule, ...], streams: tuple[str, ...], steps: Steps, whole: bool) -> None:
        self.rules = {rule.name: number for number, rule in enumerate(rules)}
        self.streams = streams
        self.steps = steps
        self.whole = whole
        self.read = Metrics.counter("privstream", "measurements")
        self.outside = Metrics.counter("privstream", "events_outside_run")

    def process(self, row: Any) -> Iterator[Any]:
        """Encode one measurement under the step keys of its windows."""
        self.read.inc()
        try:
            number, micros, value, stream = self._read(row)
        except Exception as error:
            yield set_aside(broken_by(error, "measurement"), text_of(row), "measurement")
            return
        _, steps = self.steps.assign(np.array([micros]))
        self.outside.inc(int(not len(steps)))
        fields: dict[str, int | float | bytes] = {
            "stream": stream.encode(),
            "rule": number,
            "time": micros,
            "value": value,
        }
        data = pack("measurement", 1, fields)
        for step in steps.tolist():
            yield StepKey(stream, step, 0).to_bytes(), (digest(data), data)

    def _read(self, row: Any) -> tuple[int, int, float, str]:
        """Return number of the rule, time, value and stream, or raise with the rule that the row breaks."""
        for name in Measurement._fields[:3]:
            if not hasattr(row, name):
                raise BrokenRuleError(name, MISSING, f"measurement must have a field {name}")
        if not isinstance(row.rule, str) or row.rule not in self.rules:
            raise BrokenRuleError("rule", RANGE, "rule must be the name of a rule")
        stream = getattr(row, "stream", "")
        if not isinstance(stream, str) or stream not in self.streams:
            raise BrokenRuleError("stream", RANGE, "stream must be one of the public streams")
        return self.rules[row.rule], micros_of(row.time), self._number(row.value), stream

    def _number(self, value: Any) -> float:
        """Return a value; to cut off large ones, and to round down, keeps values as near to each other as they were."""
        if isinstance(value, bool | np.bool_ | np.timedelta64) or not isinstance(
            value, int | float | np.integer | np.floating
        ):
            raise BrokenRuleError("value", TYPE, f"value must be a number, got {type(value).__name__}")
        if not isinstance(value, int) and not math.isfinite(float(value)):
            raise BrokenRuleError("value", FINITE, "value must be finite")
        number = float(max(-LARGEST, min(LARGEST, value)))
        return float(math.floor(number)) if self.whole else number


class KeepMeasurements(OnTimeBatches, state="keep_measurements"):
    """Per stream and step: pass on the measurements that were in time, when the step is due."""

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Pass them on, all together."""
        table = {str(i): batch for i, batch in enumerate(batches)}
        yield ONE_RUN, stepped(key.step, pack("measurements", 1, table))

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe a late measurement."""
        self.late.inc()
        yield late_letter(self.steps, key.step, "late measurement", "", key.stream)


class TestMeasurements(TestAlerts, state="test_measurements"):
    """Test the measurements of each window in order of time, stream, rule and value.

    Sorting equal labels by value is safe: if no measurement differs by more than 1, no order statistic does.
    """

    def read(self, streams: tuple[str, ...], batches: list[bytes]) -> Tests:
        """Put the measurements of a window in order."""
        found: list[tuple[int, int, int, float]] = []
        for batch in batches:
            for data in unpack("measurements", 1, batch).values():
                fields: dict[str, Any] = unpack("measurement", 1, data)  # type: ignore[arg-type]
                stream = streams.index(fields["stream"].decode())
                found.append((fields["time"], stream, fields["rule"], fields["value"]))
        found.sort()
        kind = np.int64 if self.plan.mechanism.integer else np.float64
        return Tests(
            np.array([stream for _, stream, _, _ in found], np.int64),
            np.array([rule for _, _, rule, _ in found], np.int64),
            np.array([value for _, _, _, value in found], kind),
        )
