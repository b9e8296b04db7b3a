"""Alerts about measurements: numbers of which the caller guarantees the sensitivity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Coverage
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.guarantee import ROUNDED_FLOATS, PrivacyGuarantee, noise_caveats
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.methods import AlertPlan
from privstream.transforms.alerts.parameters import BUDGETS, OF_ALL_TESTS, SURE, AlertParameters
from privstream.transforms.alerts.rules import LARGEST, AlertRule, check_rules, describe
from privstream.transforms.alerts.threshold_tests import ONE_RUN, TestAlerts, Tests
from privstream.transforms.batches import Keyed, KeyedBatch, StepKey, digest
from privstream.transforms.events.dead_letters import late_letter, set_aside, text_of
from privstream.transforms.events.event_fields import FINITE, MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.parameters import check_streams
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform
from privstream.transforms.events.times import micros_of
from privstream.transforms.rows import Alert, Measurement
from privstream.transforms.timing.clocked import WithClock, stepped
from privstream.transforms.timing.on_time import OnTimeBatches, apart_in_time
from privstream.transforms.timing.steps import Length, Moment, Seconds, Steps, check_moment
from typing_extensions import override


class KeyMeasurements(beam.DoFn):
    """Check measurements, and encode them; those that break a rule become dead letters."""

    def __init__(self, *, rules: tuple[AlertRule, ...], streams: tuple[str, ...], steps: Steps, whole: bool) -> None:
        self.rules = {rule.name: number for number, rule in enumerate(rules)}
        self.streams = streams
        self.steps = steps
        self.whole = whole
        self.read = Metrics.counter("privstream", "measurements")
        self.outside = Metrics.counter("privstream", "events_outside_run")

    @override
    def process(self, row: Any) -> Iterator[Any]:
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

    @override
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        table = {str(i): batch for i, batch in enumerate(batches)}
        yield ONE_RUN, stepped(key.step, pack("measurements", 1, table))

    @override
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        self.late.inc()
        yield late_letter(self.steps, key.step, "late measurement", "", key.stream)


class TestMeasurements(TestAlerts, state="test_measurements"):
    """Test the measurements of each window in order of time, stream, rule and value.

    Sorting equal labels by value is safe: if no measurement differs by more than 1, no order statistic does.
    """

    @override
    def read(self, streams: tuple[str, ...], batches: list[bytes]) -> Tests:
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


class MeasurementAlerts(AlertParameters, PrivateTransform):
    """Report which of a stream of private measurements pass the threshold of their public rule, and by how much.

    For numbers that have been computed before, by whatever means, such that no change to be protected moves any of them
    by more than 1. For events of people use `SparseVectorAlerts`, which enforces that itself.

    Input: `Measurement` rows, bounded or unbounded. Each is one test of its rule, in order of time, stream, rule and
    value; the measurements of a window are tested when it has ended. Output, stop and lateness: as of
    `SparseVectorAlerts`.

    Privacy:
        Unit: one change of the data that moves no measurement by more than 1, in all windows and streams together. Only
        the caller knows whether the data of one person can do more: this guarantee does not speak of people. Public:
        all arguments but `noise`; number, times, rules and streams of the measurements. Pure epsilon.

    Accuracy:
        As of `SparseVectorAlerts`, with `margin(windows)` for one measurement per rule, stream and window.

    Args:
        epsilon: limit on what all rows together show about one such change over the whole run, > 0. A smaller value
            protects better and needs more noise.
        rules: public rules with the thresholds of the measurements; they name no items.
        window: length of a window in seconds, or so many days, weeks, months or years of a calendar from `start` on,
            such as "1month Europe/Berlin". The measurements of a window are tested together.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same measurements.
        end: every window that ends at or before this moment, in seconds since 1970 UTC, is tested, also an empty one.
            `end` must be given unless the input has no end.
        allowed_lateness: seconds after its end during which a window still takes late events.
        min_alerts: number of alerts that the budget pays for in any case. An alert that passes its threshold clearly
            costs less, so that there may be more.
        branches: number of prices of an alert, 1 to 32: the full price or, if the threshold is passed clearly enough, a
            half, a quarter and so on.
        budget: "shared" gives the tests of all rules one budget together; "per_rule" gives each rule an equal part of
            epsilon.
        quiet: number of windows after an alert in which its rule is not tested in its stream.
        integer: whether to test whole numbers: measurements are rounded down, and thresholds must be integers. The
            noise is then exact. Otherwise it is floating-point noise, whose low bits may reveal more than the guarantee
            says (Mironov 2012); published numbers are rounded.
        monotone: whether one change moves all measurements in the same direction, which needs half the noise.
        streams: public names of the streams. They must be given if measurements have a stream.
        beta: probability with which the accuracy statement, or the bound of one test, may be wrong.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made.

    Example:
        >>> alerts = MeasurementAlerts(epsilon=1.0, rules=[AlertRule(name="load", at_least=9.5)], window=60, start=0,
        ...                            end=86400, noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Ding et al., Free gap estimates (2022), Algorithm 1; docs/proofs/free_gap.md, docs/proofs/alerts.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        rules: tuple[AlertRule, ...],
        window: Length,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        allowed_lateness: Seconds = 0,
        min_alerts: int = 10,
        branches: int = 2,
        budget: Literal["shared", "per_rule"] = "shared",
        quiet: int = 0,
        integer: bool = False,
        monotone: bool = False,
        streams: tuple[str, ...] | None = None,
        beta: float = 0.05,
    ) -> None:
        super().__init__(noise)
        checks.positive("epsilon", epsilon)
        checks.integer("min_alerts", min_alerts, minimum=1)
        check_moment("start", start)
        rules = check_rules(rules, counts=False)
        names = check_streams(streams)
        by_rule = checks.one_of("budget", budget, BUDGETS) == "per_rule"
        if monotone is True and not by_rule and len({rule.sign for rule in rules}) > 1:
            raise ValueError("monotone must be False for rules of both directions that share a budget")
        self.epsilon = epsilon
        self.steps = Steps.of(window=window, start=start, end=end, allowed_lateness=allowed_lateness)
        mechanism = AdaptiveSparseVector(
            epsilon=epsilon / (len(rules) if by_rule else 1),
            min_hits=min_alerts,
            branches=branches,
            integer=integer,
            monotone=monotone,
        )
        if integer:
            for rule in rules:
                checks.integer(f"threshold of rule {rule.name!r}", rule.threshold, minimum=-(2**53))
        self.plan = AlertPlan(
            rules=rules,
            streams=names,
            mechanism=mechanism,
            by_stream=False,
            by_rule=by_rule,
            quiet=checks.integer("quiet", quiet, minimum=0),
            beta=checks.probability("beta", beta),
        )
        steps = (self.steps.size, self.steps.first, self.steps.allowed_lateness)
        public = describe(rules, *steps, names, by_rule, quiet) + self.steps.further_label.encode()
        self.noise = noise.derive("measurement alerts", public)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        cost = (
            f"Tests stop when alerts have cost as much as {self.plan.mechanism.min_hits:,} at the full price, or nearly"
        )
        return PrivacyGuarantee(
            unit=PrivacyUnit(what="measurement", same_direction=self.plan.mechanism.monotone),
            neighbouring="add_remove",
            epsilon=self.epsilon,
            delta=0.0,
            limits=(
                "That no more than such a change depends on one person is not checked here.",
                cost + (", for each rule by itself." if self.plan.by_rule else "."),
            ),
            public=("all parameters, among them the rules", "number, times, rules and streams of the measurements"),
            proof="docs/proofs/alerts.md, section 2 and section 3",
            caveats=noise_caveats(self.plan.mechanism.integer, ROUNDED_FLOATS),
            curve=PureDp(self.epsilon),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        return Coverage(holds="the measurements", scope=OF_ALL_TESTS, note=SURE)

    @override
    def build(self, measurements: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        plan = self.plan
        everywhere = measurements | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        check = KeyMeasurements(rules=plan.rules, streams=plan.streams, steps=self.steps, whole=plan.mechanism.integer)
        checked = apply_dofn(everywhere, check, KeyedBatch)
        keep = KeepMeasurements(steps=self.steps, timer_offset=1)
        kept = apply_dofn(apart_in_time(checked, self.steps), keep, Keyed)
        clocked = kept | "WithClock" >> WithClock(self.steps, plan.keys)
        tests = TestMeasurements(plan=plan, steps=self.steps, timer_offset=2, noise=self.noise)
        return apply_dofn(clocked, tests, Alert)
