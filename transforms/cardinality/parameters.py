"""What SetCardinality is asked with, what it promises, and how accurate it is: without Beam."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage, Limit
from privstream.mechanisms.cardinality import set_cardinality as mechanisms
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, events_hashed, people_hashed, streams_hashed
from privstream.transforms.events.coverage import FIRST, people_who_count, streams_of_person, together
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.parameters import Parameters, check_shards, check_texts, privacy_unit
from privstream.transforms.timing.steps import Moment, Seconds, Steps, WindowOptions, to_micros
from typing_extensions import Unpack, override

UNITS = ("person", "event")
METHODS = {
    "auto": "auto",
    "sparse_counter": "sparse",
    "direct_counter": "direct",
    "visit_counter": "counter",
    "henzinger_sricharan_steiner": "paper",
}
"""Which mode of the mechanism each method is."""
KINDS = ("enter", "leave")
FOR_EVER = 65_535  # steps, where there is no time-out
ENTER, LEAVE = 0, 1


@dataclass(frozen=True, kw_only=True)
class PresenceRules:
    """How events are read: all of it is public.

    Attributes:
        enter: items that say that a person enters; None: all that do not say that they leave.
        leave: items that say that a person leaves; None for none.
        timeout: microseconds after their last entering event until which a person is there, or None for ever.
        streams: names of the streams; "" alone if events carry none.
    """

    enter: tuple[str, ...] | None
    leave: tuple[str, ...] | None
    timeout: int | None
    streams: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        enter_values: tuple[str, ...] | None,
        leave_values: tuple[str, ...] | None,
        timeout: float | None,
        streams: tuple[str, ...] | None,
    ) -> PresenceRules:
        """Make them from arguments of a transform."""
        for name, values in {"enter_values": enter_values, "leave_values": leave_values, "streams": streams}.items():
            if values is not None:
                check_texts(name, values)
        if set(enter_values or ()) & set(leave_values or ()):
            raise ValueError("enter_values and leave_values must have nothing in common")
        if leave_values is None and timeout is None:
            raise ValueError("leave_values or timeout must be given: nobody would ever leave")
        micros = None if timeout is None else to_micros("timeout", timeout)
        return cls(enter=enter_values, leave=leave_values, timeout=micros, streams=streams or ("",))

    @property
    def by_item(self) -> bool:
        """Whether the item says anything; if not, whoever has an event is there."""
        return self.enter is not None or self.leave is not None

    def kinds(self, items: pa.Array) -> np.ndarray:
        """Return ENTER, LEAVE or -1 for neither, int64, for each item."""
        leaves = _among(items, self.leave or ())
        enters = ~leaves if self.enter is None else _among(items, self.enter)
        return np.where(leaves, LEAVE, np.where(enters, ENTER, -1))

    def stay(self, steps: Steps, step: int, kinds: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return at the ends of how many steps, from `step` on, each person is present, if nothing more happens."""
        if self.timeout is None:
            present = np.full(len(kinds), FOR_EVER)
        else:
            present = steps.begun_before(steps.after(times, self.timeout) + 1) - step  # still there at that moment
        return np.where(kinds == ENTER, np.maximum(present, 0), 0).astype(np.uint16)


def _among(items: pa.Array, values: tuple[str, ...]) -> np.ndarray:
    found: np.ndarray = pc.is_in(items, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return found


def _check_needs(method: str, unit: str, *, has_end: bool, limited: bool) -> None:
    """Check that there is what a method needs."""
    if unit == "event" and method not in ("auto", "visit_counter"):
        raise ValueError(f"method must be auto or visit_counter with unit event, got {method!r}")
    if unit == "person" and method == "visit_counter" and not limited:
        raise ValueError("visits_per_person must be given with method visit_counter and unit person")
    if method == "direct_counter" and not has_end:
        raise ValueError("end must be given with method direct_counter")


class CardinalityParameters(Parameters):
    """Publish how many people are in a set now: in the building, subscribed, online; at the end of every window.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`,
    or Arrow record batches with these columns; in any order. Output: one `CardinalityEstimate` row for each window and
    stream; with `with_dead_letters()`, a `Published` pair of rows and dead letters.

    The item says whether a person enters (`enter_values`) or leaves (`leave_values`); with `timeout` a person has also
    left when they have sent no event for that time. Without `enter_values` every event whose item is not one of
    `leave_values` means that the person is present. A person counts if their last event before the end of the window
    means that they are present then; of events at one time, leaving comes last. Entering twice, and leaving without
    being present, change nothing. At `start` nobody is present, whatever came before.

    Every window from `start` to `end` is published once, also an empty one, at its end plus `allowed_lateness`. Events
    that come later are never used.

    Privacy:
        Unit "person": all that one person does over the whole run, in at most `streams_per_person` streams (enforced:
        those entered first count). How often they come and go need not be limited: a person counts as one or as none at
        each moment. With method visit_counter, a person enters each stream at most `visits_per_person` times
        (enforced with all methods). Unit "event": one event, added or removed. (epsilon, delta): `guarantee`.
        Public: all arguments but `noise`. `max_updates` is a guess that must not be taken from the data; it is not
        enforced, since that would let one person decide whose later moves count.

    Accuracy:
        With probability 1 - beta, all estimates of a stream are within their `error_bound` of the number of people who
        count, in all windows together, if they enter or leave it at most `max_updates` times in all. If people enter or
        leave more often than that, the bounds may be wrong, and the estimate may stop following the set: its bound is
        then -1.

    Args:
        epsilon: limit on what all rows together show about one person or one event, > 0. A smaller value protects
            better and needs more noise.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it. Nobody is in
            the set at that moment.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: every window that ends at or before this moment, in seconds since 1970 UTC, is published, also an empty
            one. `end` must be given unless the input has no end.
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). Choose it far below 1 /
            (number of people). A delta above 0 lowers the noise of long runs, and may raise that of short ones, up to
            some hundred windows: `privstream plan` says where it does.
        unit: what is protected: all that one "person" does in the whole run, or one "event".
        enter_values: items that mean that a person enters. Without them every item that is not one of `leave_values`
            means that.
        leave_values: items that mean that a person leaves; of events at one time, leaving comes last, whatever their
            order. They must be given unless `timeout` is given.
        timeout: number of seconds without an entering event after which a person has left, less than 65,534 windows. As
            long as days or weeks that are the windows, these are counted: a day of 25 hours is one.
        max_updates: with unit "person", a public guess of how often people enter or leave a stream in the whole run,
            all people together, as seen at the ends of windows. Without it errors are larger.
        visits_per_person: with unit "person", the number of times that one person may enter a stream; later visits do
            not count. Without it there is no limit.
        method: method that makes the estimates; "auto" takes the most accurate one. "sparse_counter" changes an
            estimate when a private test finds it far from the truth; "direct_counter" draws fresh noise in every
            window, and with delta > 0 and people who are added or removed also one that all windows of a stream have in
            common, for short runs or delta > 0; "visit_counter" adds up changes, with `visits_per_person` or unit
            "event"; "henzinger_sricharan_steiner" is the published algorithm.
        streams: public names of the streams, each of which has a set of its own. They must be given if events have a
            stream.
        streams_per_person: with unit "person", the number of streams that one person may be in: those that the person
            enters first. Without it, one.
        neighbouring: what makes two inputs neighbours: one person or event is added or removed ("add_remove"), or
            replaced by another one ("replace_one").
        beta: probability with which the accuracy statement may be wrong.
        shards: number of parallel parts into which people are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made or applied.

    Example:
        >>> inside = SetCardinality(epsilon=1.0, window=600, start=0, end=86400, enter_values=("in",),
        ...                         leave_values=("out",), noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023), section 5; docs/proofs/cardinality.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        unit: Literal["person", "event"] = "person",
        enter_values: tuple[str, ...] | None = None,
        leave_values: tuple[str, ...] | None = None,
        timeout: Seconds | None = None,
        max_updates: int | None = None,
        visits_per_person: int | None = None,
        method: Literal[
            "auto", "sparse_counter", "direct_counter", "visit_counter", "henzinger_sricharan_steiner"
        ] = "auto",
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        self.steps = Steps.of(start=start, end=end, **options)
        self.rules = PresenceRules.of(
            enter_values=enter_values, leave_values=leave_values, timeout=timeout, streams=streams
        )
        if self.rules.timeout is not None and self.rules.timeout // self.steps.size >= FOR_EVER - 1:
            raise ValueError(f"timeout must be < {FOR_EVER - 1} windows, got {timeout} seconds")
        protected = privacy_unit(unit, UNITS)
        if streams_per_person is not None:
            if streams is None:
                raise ValueError("streams must be given with streams_per_person")
            if protected == "event":
                raise ValueError("streams_per_person must not be given with unit event")
            checks.integer("streams_per_person", streams_per_person, minimum=1)
        checks.one_of("method", method, tuple(METHODS))
        _check_needs(method, protected, has_end=end is not None, limited=visits_per_person is not None)
        self.shards = check_shards(shards)
        self.streams_per_person = (
            min(streams_per_person or 1, len(self.rules.streams)) if protected == "person" else None
        )
        self.mechanism = mechanisms.SetCardinality(
            epsilon=epsilon,
            delta=delta,
            unit="user" if protected == "person" else protected,  # as noise labels have it
            horizon=self.steps.count,
            max_updates=max_updates,
            visits_per_person=visits_per_person,
            mode=METHODS[method],
            streams_per_person=self.streams_per_person or 1,
            streams=len(self.rules.streams) if protected == "person" and neighbouring == "replace_one" else None,
            neighbouring=neighbouring,
            beta=beta,
        )
        self.method = next(name for name, mode in METHODS.items() if mode == self.mechanism.chosen_mode)
        self.noise = noise

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found = self.mechanism.guarantee
        limits = list(found.limits)
        if self.mechanism.unit == "event":
            limits.append("An event that changes nothing by itself, such as entering twice, is covered as well.")
        else:
            limits.append("A person counts as one or as none at the end of each window, by their last event.")
        public = ("all arguments but the noise", "the number of windows, all of which are published")
        return replace(found, limits=tuple(limits), public=public, caveats=(*found.caveats, *self._hash_caveats()))

    def _hash_caveats(self) -> list[str]:
        """Return what hashes may cost. Two people with one hash are one person, from whom one event may be taken."""
        neighbouring, several = self.mechanism.neighbouring, len(self.rules.streams) > 1
        if self.mechanism.unit == "event":
            return [events_hashed(neighbouring)] if several else []
        return [people_hashed(neighbouring), *([streams_hashed(neighbouring)] if several else [])]

    @property
    @override
    def coverage(self) -> Coverage:
        visits, limits = (
            self.mechanism.visits_per_person,
            streams_of_person(self.streams_per_person, self.rules.streams),
        )
        if visits is not None and (self.steps.count is None or visits < self.steps.count):
            where = "in the whole run" if self.rules.streams == ("",) else "to a stream in the whole run"
            limits.append(Limit.at_most("visits_per_person", visits, "visit", where, FIRST, lasting=True))
        return people_who_count(limits, together(self.rules.streams))

    @property
    @override
    def prediction(self) -> Accuracy:
        mechanism, windows = self.mechanism, self.mechanism.expected_steps
        error, updates = mechanism.error(windows), mechanism.expected_updates
        span = "" if mechanism.horizon else f" in the first {windows:,} windows"
        counted = mechanism.chosen_mode in ("sparse", "paper")
        condition = f", while people enter or leave it at most {updates:,} times in all" if counted else ""
        return Accuracy(
            error=error,
            failure_probability=mechanism.beta,
            claim=f"With probability {1 - mechanism.beta:g}, all estimates of a stream{span} are within {error:,} "
            f"of the number without noise{condition} (method {self.method}; each row has an error bound of its own).",
            numbers={"method": self.method, "error_bound": error, "windows": windows, "updates": updates},
        )

    def error(self, window: int, updates: int | None = None) -> int:
        """Return what estimates in windows 1 .. `window` are off by at most, as the mechanism's `error`."""
        return self.mechanism.error(window, updates)

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(item=self.rules.by_item, streams=self.rules.streams != ("",))
