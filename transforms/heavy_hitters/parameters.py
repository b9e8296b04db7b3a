"""What `ShiftingHeavyHitters` is asked with, and what it promises; needs no Beam."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, Self

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.mechanisms.monitor.threshold_monitor import (
    CALIBRATIONS,
    DEFAULT_TESTS,
    LARGEST_UINT16,
    ThresholdMonitor,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import (
    KEYED_NOISE,
    PrivacyGuarantee,
    contributions_hashed,
    items_hashed,
    people_hashed,
    streams_hashed,
)
from privstream.transforms.counts.keyed_counts import FULL, public_list
from privstream.transforms.events.coverage import (
    FOR_OTHERS,
    items_in_window,
    people_who_count,
    streams_of_person,
    windows_of_person,
)
from privstream.transforms.events.domain import Domain, Items, PublicKeys
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.parameters import SELECTIONS, Parameters, check_shards, check_streams
from privstream.transforms.heavy_hitters.methods import ByCounts, ByMonitor, ByStatus, check_full_share
from privstream.transforms.methods import (
    AUTO,
    FEW_HITS,
    USUAL_CONTRIBUTIONS,
    choose_method,
    needed,
    usual_items,
    worth,
)
from privstream.transforms.timing.steps import Length, Moment, Steps, WindowOptions, renamed
from typing_extensions import Unpack, override

MOST_STEPS = 2**53
LATER = 1000
"""The window for which a threshold that rises is stated, beside the first."""


class HeavyHittersParameters(Parameters):
    """Report the items that many people have in each window; one guarantee protects each person over the whole run.

    A row says since when its item has been reported, and whether it has just started, continues or has ended.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`,
    or Arrow record batches with these columns. A time is a Beam Timestamp, a datetime, an Arrow timestamp, or a number
    of seconds since 1970. Bounded or unbounded, in any order. Output: `HeavyHitter` rows; with `with_dead_letters()`, a
    `Published` pair of rows and dead letters: the records that cannot be used, each with the reason. Reasons are also
    counted, and reported in the log.

    A window is decided once, at its end plus `allowed_lateness`; events that come later are never used.

    Privacy:
        Unit: one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta): `guarantee`.
        Enforced: each person counts with at most `items_per_step` items per window, takes part in at most `windows`
        windows (counted from the public `start`, or else per person), is charged at most `max_hits` times per stream
        (not with the method "counts") and appears in at most `streams_per_person` streams. Public: all arguments but
        `noise`.

    Accuracy:
        An item is reported if at least `detection_threshold` people have it, all of them within their limits and none
        of them charged `max_hits` times before. With probability 1 - beta this is so in `tests` tests, of one item in
        one window of one stream each, together. Without a horizon the number is for the first window; see
        `detection_threshold_at`.

    Args:
        epsilon: limit on what all rows together show about one person, > 0. A smaller value protects better and needs
            more noise.
        delta: probability with which the rows may show more than `epsilon` allows, in (0, 1). Choose it far below 1 /
            (number of people).
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        max_hits: number of times that one person is charged in one stream, 1 to 65,535. With the method "status" an
            item charges the people who have it when it starts and when it ends; with other methods that charge people,
            in every window in which it is reported. After the last charge a person no longer counts. It must not be
            less than `items_per_step`. The method "counts" charges nobody, and does not use it. Without it, 4, or
            `items_per_step` if that is more.
        windows: number of windows of the run since `start`. With `start` and `end` it is known. Without, thresholds
            rise slowly with time.
        horizon: deprecated name of `windows` or, without `start`, of `participation_cap`.
        period: seconds between the starts of two windows, for sliding windows; with windows of a calendar so many days,
            weeks, months or years, of which a window is a whole number. Without it windows do not overlap.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        end: no window ends after this moment, in seconds since 1970 UTC.
        participation_cap: number of windows that one person may take part in, in all streams together, counted for each
            person. On long runs thresholds are lower than with `windows`, at the price of a counter for each person.
        items_per_step: number of items of one person that count in a window. Without it one; over files where items
            stay found, in at most 100 windows of a person, as many as make 100 in the run, but 4 to 10.
        selection: which items of a person count if there are more than `items_per_step`: the "last", the "first", or
            "random" ones.
        domain: a public list of items. Only these are monitored. With `start`, and `end` or `windows`, each of them is
            tested in every window, whether anybody has it or not.
        public_items: a public list of items beside those that are found, where items stay found by the method
            "counts", which "auto" then takes: they need not be found, and are reported in each window in which their
            smoothed count is surely above 0. Other items are found as without it.
        streams: public names of the streams to monitor. Without them all streams are monitored.
        streams_per_person: number of streams in which one person may appear, if events have a stream.
        forget: whether every window forgets which items were found before. Otherwise, with the method "counts", an item
            stays found, and is reported in each window in which its smoothed count is surely above 0, by the lower end
            of its interval, from then on and before. That needs `start`, and `end`,
            `windows` or `renew_every`, windows that do not overlap, and with `streams_per_person` also `streams`;
            without them, and where a known domain is tested, every window forgets.
        method: method that finds the items. "status" reports an item from the window in which it starts to the one in
            which it ends, and spends budget on these two. "clock" and "target_charging" spend budget on every report,
            so that an item fades that the same people have in more than `max_hits` windows; "paper" is
            the algorithm of Kaplan, Mansour and Stemmer as published. "counts" publishes the noisy counts of items that
            were found, or, where windows forget, those that reach a threshold: it needs `windows`, `end` or
            `participation_cap`, since the budget pays for every window that a person may take part in. "auto" takes
            the method with which items that last 1, 4, 16, 64 or 256 windows need fewest people to be reported in at
            least half of them, by the mean logarithm; a method without a count in every row must need a fifth fewer.
            One with which items fade is taken only if no other can answer.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which the accuracy statement may be wrong.
        count_share: share of epsilon that pays for noisy counts. With 0, items are reported without a count. The method
            "status" has counts only where an item starts or ends. The method "counts" has no such share: all of its
            noise is on counts.
        full_share: share of the budget that pays for what `items_per_step` leaves out, in [0, 0.5], as a part of a
            squared shift; 0.05 makes the noise of counts larger by 3%. Then rows have `full`: an estimate of the number
            of people as it would be without that limit. It needs the method "counts", delta > 0, and `start`, and `end`
            or `renew_every`; not with streams, `participation_cap` or `forget`.
        shards: number of parallel parts into which people and items are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, events of
            this type cannot be used, or the runner cannot keep time.

    Example:
        >>> hitters = ShiftingHeavyHitters(epsilon=1.0, delta=1e-6, window=3600, start=0, windows=1000,
        ...                                noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Kaplan, Mansour, Stemmer (2020), Theorem 4.7; docs/proofs/; for "status", docs/proofs/status_monitor.md; for
    "counts", docs/proofs/keyed_counts.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        noise: NoiseSource,
        max_hits: int | None = None,
        windows: int | None = None,
        horizon: int | None = None,
        period: Length | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        participation_cap: int | None = None,
        items_per_step: int | None = None,
        selection: Literal["last", "first", "random"] = "last",
        domain: Items | None = None,
        public_items: Items | None = None,
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        forget: bool = False,
        method: Literal["auto", "status", "clock", "target_charging", "paper", "counts"] = "auto",
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        count_share: float = 0.25,
        full_share: float | None = None,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        checks.one_of("selection", selection, SELECTIONS)
        domain = None if domain is None else Domain.of(domain)
        check_streams(streams)
        if windows is not None and start is None:
            raise ValueError("start must be given with windows, which are counted from it")
        horizon = renamed("windows", windows, "horizon", horizon)
        limits = {"windows" if start is not None else "horizon": horizon, "participation_cap": participation_cap}
        _check_limits(limits, no_limit=start is None)
        items_per_step = 1 if items_per_step is None else checks.integer("items_per_step", items_per_step, minimum=1)
        if max_hits is None:
            max_hits = min(max(FEW_HITS, items_per_step), LARGEST_UINT16)  # counts use neither
        self.noise = noise
        self.selection = selection
        self.domain = domain
        self.streams = streams
        self.streams_per_person = streams_per_person
        self.shards = check_shards(shards)
        steps = Steps.of(
            period=period,
            start=start,
            end=end,
            **options,
        )
        if horizon is not None and steps.first is not None:
            steps = steps.first_ones(horizon)
        self.steps = steps
        capped = participation_cap is not None or steps.first is None
        known = self._tested_domain is not None
        self.forget = _checked_forget(forget, useless=known or method not in (AUTO, "counts"))
        able = not (known or forget or self._missing) and method in (AUTO, "counts")
        self.public_items = public_list(public_items, useful=able, refused=NO_PUBLIC_ITEMS)
        if known and streams_per_person is not None and streams is None:
            raise ValueError("streams must be given when a known domain is tested in every window of every stream")
        bound = _most_windows(steps, participation_cap, horizon)
        if known and steps.count is not None:
            if participation_cap is not None:
                raise ValueError("participation_cap must not be given when a known domain is tested in every window")
            bound, capped = steps.count, False
        self.items_per_step = items_per_step
        self.neighbouring = neighbouring
        self.beta = beta
        in_streams = 1 if streams_per_person is None else streams_per_person
        self._participations = self._enforced(bound, participation_cap, in_streams) if capped else None
        by_person = steps.first is None or participation_cap == self._participations
        self._capped_by = "participation_cap" if by_person else "windows"
        monitor = ThresholdMonitor(  # checks what all methods are given
            epsilon=epsilon,
            delta=delta,
            max_hits=max_hits,
            neighbouring=neighbouring,
            domain_size=len(domain) if domain is not None and known else None,
            horizon=bound,
            first_step=None if capped else steps.first,
            items_per_step=items_per_step,
            streams_per_person=in_streams,
            beta=beta,
            count_share=count_share,
            label=self._label(counted_from=steps.first if capped else None),
        )
        self._full_share = check_full_share(
            full_share,
            method=method,
            possible=delta > 0 and not capped and (known or not (self.forget or self._missing)),
            limits={
                "participation_cap": participation_cap,
                "streams": streams,
                "streams_per_person": streams_per_person,
            },
        )
        of_run = steps.count or horizon
        of_stream = _least(participation_cap, of_run)
        of_all = _least(self._participations, None if of_run is None else of_run * in_streams)
        self._lasting = _least(steps.count, bound)
        self.method, self.answer = choose_method(
            method,
            self._makers(monitor, of_stream, of_all),
            lambda made: worth(made, self._lasting),
            may_stop=lambda made: made.may_stop,
        )

    def _makers(
        self, monitor: ThresholdMonitor, of_stream: int | None, of_all: int | None
    ) -> dict[str, Callable[[], ByMonitor | ByCounts]]:
        """Return what makes each method, where a person may take part in so many windows of a stream, and of all."""
        by_counts = {"counts": partial(self._by_counts, monitor, of_all)}
        if self.public_items is not None:  # no other method has a number of an item that nobody has
            return {**by_counts}
        return {
            "status": partial(self._by_status, monitor, of_stream),
            **{name: partial(self._by_tests, monitor, of_stream, name) for name in CALIBRATIONS},
            **by_counts,
        }

    def _enforced(self, bound: int | None, participation_cap: int | None, streams: int) -> int | None:
        """Return in how many windows a person may take part, in all streams together.

        In a period that is renewed no stream has more than `bound` windows, so that the limit is of all of them.
        """
        return bound if self.steps.renewal is None or bound is None else _least(participation_cap, bound * streams)

    def _by_status(self, monitor: ThresholdMonitor, windows: int | None) -> ByMonitor:
        """Return the method that charges people for changes."""
        common = {field.name: getattr(monitor, field.name) for field in fields(monitor) if field.name != "calibration"}
        return self._by_monitor(ByStatus, StatusMonitor(**common), windows)

    def _by_tests(self, monitor: ThresholdMonitor, windows: int | None, calibration: str) -> ByMonitor:
        """Return a method that charges people for every report."""
        return self._by_monitor(ByMonitor, replace(monitor, calibration=calibration), windows)

    def _by_monitor(self, kind: type[ByMonitor], monitor: Any, windows: int | None) -> ByMonitor:
        """Return a method that tests items, where a person may take part in so many windows of a stream."""
        if monitor.max_hits < monitor.items_per_step:
            raise ValueError(
                f"max_hits must be >= items_per_step, got {monitor.max_hits} < {monitor.items_per_step}: a person "
                "counts with no more items than there are charges left"
            )
        return kind(
            monitor=monitor,
            windows=windows,
            steps=self.steps,
            noise=self.noise,
            domain=self._tested_domain,
            streams=self.streams,
            shards=self.shards,
        )

    def _by_counts(self, monitor: ThresholdMonitor, windows: int | None) -> ByCounts:
        """Return the method that counts all items, with the monitor's budget, in so many windows of a person."""
        if windows is None:
            raise ValueError("end or participation_cap must be given for counts: they pay for every window")
        domain, steps, items = self._tested_domain, self.steps, self.items_per_step
        missing = "" if domain is not None or self.forget else self._missing
        kind = KeyedCounts if domain is not None or self.forget or missing else FoundKeys
        limits = items_in_window(items, self.selection, domain, "")
        told: dict[str, Any] = {"full_share": self._full_share, "contributions_per_window": items}
        counts = kind(
            epsilon=monitor.epsilon,
            delta=monitor.delta,
            horizon=steps.count,
            contributions=items * windows,
            public_keys=domain is not None,
            neighbouring=monitor.neighbouring,
            beta=monitor.beta,
            **(told if self._full_share and limits else {}),
        )
        if isinstance(counts, FoundKeys):
            counts = counts.with_list()
        stream = "" if self.streams_per_person is None else " of a stream"
        noise = self.noise.derive("heavy hitters by counts", monitor.label, steps.label, self._limits_label)
        always = None if self.public_items is None else PublicKeys(self.public_items, self.noise)
        if self.public_items is not None:  # what is seen here without a test is tested in a run without the list
            noise = noise.derive("public items", self.public_items.digest)
        plurals = "s" * (items > 1), "s" * (windows > 1)
        return ByCounts(
            counts=counts,
            tests=DEFAULT_TESTS if domain is None or steps.count is None else len(domain) * steps.count,
            limits=(
                f"Each person counts with at most {items:,} item{plurals[0]} in a window{stream}, and in at most "
                f"{windows:,} window{plurals[1]}{stream}.",
            ),
            steps=steps,
            noise=noise,
            domain=domain,
            streams=self.streams,
            shards=self.shards,
            missing=missing,
            always=always,
            complete=not limits and self._participations is None and self.streams_per_person is None,
        )

    @property
    def _missing(self) -> str:
        """What must be given that items stay found; empty if nothing is missing."""
        if self.steps.count is None:
            return "start, and end or renew_every"
        if self.steps.period != self.steps.size:
            return "windows that do not overlap"
        return "streams" if self.streams_per_person is not None and self.streams is None else ""

    @override
    def to_finish(self) -> Self:
        """Return this transform with all counts that are found, and more items of a person if nobody says how many."""
        if not isinstance(self.answer, ByCounts) or not self.answer.remembers:
            return self
        windows = self.answer.counts.contributions // self.items_per_step
        if self._given.get("items_per_step") is None and windows <= USUAL_CONTRIBUTIONS:
            given = {**self._given, "items_per_step": usual_items(windows)}
            more = type(self)(**given, noise=self.noise)
            if more.method == self.method:  # in more windows another one may need fewer people: then one item stays
                return more.to_finish()
        made = copy.copy(self)
        made.answer = self.answer.for_end()
        return made

    def _label(self, *, counted_from: int | None) -> str:
        """Return what counts depend on beside the events and the monitor's own parameters: other runs, other noise."""
        steps, domain = self.steps, self.domain.digest if self.domain else ""
        label = f"{steps.size} {steps.period} {steps.allowed_lateness} {self.selection} {domain}"
        streams = "" if self.streams_per_person is None else " of all streams"
        if self.streams is not None:
            streams = f" of {sorted(self.streams)}"  # all of them decide who counts where
        return label + streams + ("" if counted_from is None else f" from {counted_from}") + steps.further_label

    @property
    def _limits_label(self) -> str:
        """What decides who counts, beside the selection: a run with other limits shares no noise."""
        limits = (self.items_per_step, self._participations, self.streams_per_person)
        return " ".join("-" if limit is None else str(limit) for limit in limits)

    @property
    def _tested_domain(self) -> Domain | None:
        """The domain, if each of its items is tested in every window, whether anybody has it or not."""
        return None if self.steps.first is None or self.steps.end is None else self.domain

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        caveats = [KEYED_NOISE, people_hashed(self.neighbouring)]
        if self._tested_domain is None:
            caveats.append(items_hashed(self.neighbouring))
        if isinstance(self.answer, ByCounts) and self.answer.lists:
            caveats.append(contributions_hashed(self.neighbouring))
        if self.streams_per_person is not None and (
            self.streams is None or self.streams_per_person < len(self.streams)
        ):
            caveats.append(streams_hashed(self.neighbouring))
        return replace(self.answer.guarantee, caveats=tuple(caveats))

    @property
    @override
    def coverage(self) -> Coverage:
        stream = "" if self.streams_per_person is None else " of a stream"
        possible = None if self.steps.count is None else self.steps.count * (self.streams_per_person or 1)
        items = items_in_window(self.items_per_step, self.selection, self.domain, stream)
        told = isinstance(self.answer, ByCounts) and self.answer.counts.left_out is not None
        found = people_who_count(
            [
                *items,
                *windows_of_person(self._participations, self._capped_by, possible, streams=bool(stream)),
                *streams_of_person(self.streams_per_person, self.streams),
                *self.answer.charges,
            ],
            *self.answer.scope,
            more=f"; items that they have may be missing{FOR_OTHERS if items else ''}",
        )
        return replace(found, published=FULL) if told else found

    @property
    @override
    def prediction(self) -> Accuracy:
        first, later = self.detection_threshold, self.detection_threshold_at(LATER)
        rising = f" This number is for the first window; it rises to {later:,} in window {LATER:,}."
        stream = "" if self.streams_per_person is None else " of one stream"
        return Accuracy(
            error=first,
            failure_probability=self.beta,
            claim=f"With probability {1 - self.beta:g}, every item that at least {first:,} people have "
            f"in a window{stream}, all of them within their limits, is reported: in {self.tests:,} tests together, "
            f"each of one item in one window.{rising if later > first else ''}{self.answer.remarks}",
            numbers={
                "detection_threshold": first,
                "tests": self.tests,
                **self.answer.numbers,
                **needed(self.answer, self._lasting),
            },
        )

    @property
    @override
    def advice(self) -> str:
        return self.answer.advice if isinstance(self.answer, ByCounts) else ""

    @property
    def detection_threshold(self) -> int:
        """How many people must have an item for it to be reported."""
        return self.detection_threshold_at(1)

    def detection_threshold_at(self, window: int) -> int:
        """Return how many people must have an item for a report in window 1, 2, ..; rises without a horizon."""
        return self.answer.detection_threshold(window)

    @property
    def tests(self) -> int:
        """Tests of one item in one window, in one stream, for which the accuracy is stated."""
        return self.answer.tests

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(streams=self.streams_per_person is not None)


NO_PUBLIC_ITEMS = (
    "public_items must not be given with a known domain, with forget or with a method but counts; and start must be "
    "given, and end, windows or renew_every, that other items stay found"
)


def _check_limits(limits: Mapping[str, int | None], *, no_limit: bool) -> None:
    """Refuse numbers of windows that cannot be, and that there are none where nothing else limits thresholds."""
    for name, value in limits.items():
        if value is not None and checks.integer(name, value, minimum=1) > MOST_STEPS:
            raise ValueError(f"{name} must be <= {MOST_STEPS}, got {value}")
    if no_limit and not any(value is not None for value in limits.values()):
        raise ValueError("start or participation_cap must be given")


def _most_windows(steps: Steps, participation_cap: int | None, horizon: int | None) -> int | None:
    """Return in how many windows of a stream a person may take part; None if nothing says."""
    if participation_cap is None and steps.count is not None:
        return steps.count
    bound = participation_cap if participation_cap is not None else horizon
    if bound is not None and horizon is not None and steps.first is None:
        bound = min(bound, horizon)  # without a start, the horizon is counted per person too
    return bound if steps.renewal is None else min(steps.count or 1, bound or MOST_STEPS)


def _checked_forget(forget: bool, *, useless: bool) -> bool:
    """Return whether windows forget; refuse it where they do in any case, or where nothing is counted."""
    if not isinstance(forget, bool):
        raise TypeError(f"forget must be true or false, got {type(forget).__name__}")
    if forget and useless:
        raise ValueError("forget must not be given where a known domain is tested, or with a method but counts")
    return forget


def _least(*limits: int | None) -> int | None:
    """Return the least of the limits that there are."""
    return min((limit for limit in limits if limit is not None), default=None)
