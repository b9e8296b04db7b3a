"""What `KeyedCounts` is asked with, and what it promises; needs no Beam."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar, cast

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import TOGETHER, Accuracy, Coverage, Limit
from privstream.mechanisms.keyed_counts.discovery import MOST_SCALES
from privstream.mechanisms.keyed_counts.found_keys import LARGEST_SUMMED, FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import LARGEST_CONTRIBUTIONS
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts as Mechanism
from privstream.mechanisms.keyed_counts.part_told import ASSUMED
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import (
    KEYED_NOISE,
    PrivacyGuarantee,
    contributions_hashed,
    items_hashed,
    people_hashed,
)
from privstream.mechanisms.smoothing import MOST_RISING, MOST_SUMMED
from privstream.transforms.counts.finished import LargestCounts, SmoothFinished
from privstream.transforms.events.coverage import (
    ALL_EVENTS,
    ALL_PEOPLE,
    FIRST_WINDOWS,
    JUST_FOUND,
    RANDOM,
    SPREAD,
    WHOLE_RUN,
)
from privstream.transforms.events.domain import Domain, Items
from privstream.transforms.events.event_fields import TEXT, UNREAD, WHOLE, EventFields
from privstream.transforms.events.parameters import Parameters, check_shards, check_streams
from privstream.transforms.methods import USUAL_CONTRIBUTIONS
from privstream.transforms.row_types import KeyCount, KeySum
from privstream.transforms.timing.steps import Moment, Span, Steps, WindowOptions, renamed, windows_in
from typing_extensions import Unpack, override

MOST_IN_WINDOW = 65_535
UNTIL = "start, and end or renew_every"
"""What items need to stay found."""
FULL = f"By how much is estimated in the columns of full numbers, which are empty where noise hides it, if {ASSUMED}"
Counted = TypeVar("Counted", bound=Mechanism)
MANY = 10_000
"""Error bounds hold for so many items that nobody knew before."""


class CountsParameters(Parameters):
    """Publish, window by window, how many people have each item, and perhaps the sum and the mean of their values.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`
    and `value`, or Arrow record batches with these columns. Output: `KeyCount` rows, or `KeySum` rows with
    `max_value`; with `with_dead_letters()`, a `Published` pair of rows and dead letters. A window is decided once, at
    its end plus `allowed_lateness`; what comes later is never used. With a `domain` every item on it has a row in every
    window; without one an item has a row where its noisy count reaches a threshold that depends on public parameters
    alone, or, unless windows forget, in every window from the one in which it was found.

    Privacy:
        Unit: one person over the whole run and all streams, or one event. Neighbours: `neighbouring`. (epsilon, delta):
        `guarantee`. Enforced: each person counts at most `max_contributions` times in the whole run, once for an item
        in a window, and once for an item in the whole run where `over` is "start"; values are clipped. Public: all
        arguments but `noise`.

    Accuracy:
        The noise has the standard deviation `count_stddev` of the rows, and all error bounds hold together with
        probability 1 - beta, for the people who count within their limits.

    Args:
        epsilon: limit on what all rows together show about one person, > 0. A smaller value protects better and needs
            more noise.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        max_contributions: number of times that one person counts in the whole run; without it 100, and `privstream
            suggest` finds a better number privately. Noise is never for more than the items of `domain` in all windows.
        max_contributions_per_window: number of times that one person counts in one window, in all streams together, at
            most: random ones. Without it a person may use up `max_contributions` in one window. Limits then leave out
            more of early windows and less of late ones, and what `full_share` pays for is more exact. Noise of counts
            stays the same, unless so many in each window are fewer than `max_contributions`.
        selection: which contributions of a person count: "random" ones of the whole run, or of a period, as many early
            as late, which needs input that ends, and `start`, and `end` or `renew_every`; or the "first" ones, those of
            earlier windows, which can make a decline that is none. Without it, or with "auto", random ones where a
            command or `ask` reads files and the last window is known; else the first ones, also in every pipeline of
            your own: what is recorded of one does not say whether its input ends.
        spread: whether the first ones are taken, but up to the end of each window at most such a part of
            `max_contributions` as the part of the run until then, rounded up; what is not used is carried over. In a
            stream, limits then leave out about as much early as late of people who come all the time. It needs `start`,
            and `end` or `renew_every`.
        delta: probability with which the rows may show more than epsilon allows, in [0, 1). Choose it far below
            1 / (number of people). Without a `domain` it must be > 0.
        unit: what is protected: all that one "person" does in the whole run, or one "event", whoever sent it. Then no
            user is read.
        over: what a count is about: a "window", all windows since the "start", or so many seconds before the end of
            each window. Where items stay found the last is a sum of their counts in these windows, at most 1,024, at no
            cost: a person who has an item in three of them counts three times.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it. It must be given
            with a `domain`, and where counts are about more than one window.
        end: end of the last window that is published, in seconds since 1970 UTC.
        windows: number of windows of the run since `start`, in place of `end`. One of both must be given where counts
            are about more than one window.
        horizon: deprecated name of `windows`.
        renew_every: seconds after which everything starts afresh, counted from `start`: limits, budgets, noise, and all
            that is remembered but items that stay found; with windows of a calendar so many days, weeks, months or
            years of it, such as "1month". The guarantee is then for what one person does in one such period.
        domain: a public list of items. Only these are counted, and all of them have a row in every window. Where a
            person may have many of them in most windows, counts of a window have a part of their noise in common.
        public_items: a public list of items beside those that are found: they have a row in every window, whether
            anybody has them or not, and need no threshold. Other items are found as without it. It needs items that
            stay found, without `top`.
        min_people: number of people without whom an item is never found or published: in one window where items stay
            found or `over` is "window", else since the start. Other windows of an item that was found may have fewer,
            unless windows forget. With the unit "event" it is a number of events.
        top: number of items that are published in a window of a stream at most: those with the largest counts; of equal
            counts, those whose names come first. With `rising`, those that rose most, and none while no rise is known.
            Without it all are published.
        max_value: largest value of an event, a whole number in a public unit such as cents. With it, the sum and the
            mean of values are published too. The values of a person for an item in a window are added up; a value and
            such a sum count as `max_value` if they are larger, and as 0 if they are negative.
        signed_values: whether values may be negative: those below minus `max_value` count as that.
        rising: number of windows to look back for what rose: rows say how many more people have an item than so many
            windows before, and how probable it is that there are more. Not where windows forget or counts span windows.
        at_least: rows whose number with noise, smoothed where it can be, is below this whole number are not published.
            It does not mean that nobody has the item. Only where items stay found, or counts are those of windows of a
            list.
        value_share: share of the budget that pays for sums, in (0, 1). Without it, half of the budget.
        full_share: share of the budget that pays for what limits leave out, in [0, 0.5], as a part of a squared shift;
            0.05 makes the noise of counts larger by 3%, and 0 tells nothing. Then rows have `full`: an estimate of the
            count as it would be without limits. It needs `start`, and `end` or `renew_every`, delta > 0, and counts of
            one window or, without `renew_every`, their sums over several. Without it, 0.05 where a command or `ask`
            reads files, limits may leave something out, and noise is Gaussian; else 0, also in streams and in every
            pipeline of your own.
        streams: public names of the streams to count; they must be given if events have a stream.
        forget: whether every window forgets which items were found before. Otherwise, where counts are not since the
            start and items are not on a list, an item stays found: it has a row in every window from then on, and also
            in those before. That needs `start`, and `end` or `renew_every`; without them every window forgets. Counts
            of several windows that forget have noise, and a threshold, of their own.
        neighbouring: what makes two inputs neighbours: one person or event is added or removed ("add_remove"), or
            replaced by another one ("replace_one").
        beta: probability with which some error bound may be wrong, or an item that enough people have is not published.
        shards: number of parallel parts into which people and items are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, events of
            this type cannot be used, or the runner cannot keep time.

    Example:
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, window=86400, max_contributions=30,
        ...                      noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/keyed_counts.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        noise: NoiseSource,
        max_contributions: int | None = None,
        max_contributions_per_window: int | None = None,
        selection: Literal["auto", "random", "first"] | None = None,
        spread: bool = False,
        delta: float = 0.0,
        unit: Literal["person", "event"] = "person",
        over: Span = "window",
        start: Moment | None = None,
        end: Moment | None = None,
        windows: int | None = None,
        horizon: int | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        min_people: int = 1,
        top: int | None = None,
        max_value: int | None = None,
        signed_values: bool = False,
        value_share: float | None = None,
        full_share: float | None = None,
        streams: tuple[str, ...] | None = None,
        forget: bool = False,
        rising: int | None = None,
        at_least: int | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.01,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        domain = None if domain is None else Domain.of(domain)
        self.noise = noise
        self.domain = domain
        self.streams = None if streams is None else check_streams(streams)
        self.shards = check_shards(shards)
        rises = rising is not None
        by = ("rise", "count") if rises else ("count",)
        self._choose = None if top is None else LargestCounts(checks.integer("top", top, minimum=1), by)
        windows = renamed("windows", windows, "horizon", horizon)
        self.steps = Steps.of(start=start, end=end, windows=windows, **options)
        span = windows_in(over, self.steps)
        by_itself, may_be_found = domain is None and span == "window", domain is None and span != "start"
        if not isinstance(forget, bool):
            raise TypeError(f"forget must be true or false, got {type(forget).__name__}")
        if forget and not may_be_found:
            raise ValueError("forget must not be given with a domain, or where counts are since the start")
        self.remembers = may_be_found and not forget and self.steps.count is not None
        self._clocked, self._forget = self.remembers or not by_itself, forget
        self.public_items = public_list(public_items, useful=self.remembers and top is None, refused=NO_PUBLIC_ITEMS)
        if not by_itself and start is None:
            raise ValueError("start must be given with a domain, and where counts are about more than one window")
        if span != "window" and self.steps.count is None:
            raise ValueError("end or renew_every must be given where counts are about more than one window")
        checks.boolean("signed_values", signed_values)
        for name, given in {"signed_values": signed_values, "value_share": value_share is not None}.items():
            if given and max_value is None:
                raise ValueError(f"max_value must be given with {name}")
        if self.remembers and isinstance(span, int) and span > MOST_SUMMED:
            raise ValueError(
                f"over must be at most {MOST_SUMMED:,} windows where items stay found, got {span:,}: give a longer "
                "window, or forget"
            )
        checks.probability("delta", delta, zero=True)
        summed = self.remembers and self.steps.renewal is None
        lasts = (span == "window" or summed) and unit == "person" and delta > 0 and self.steps.count is not None
        if max_contributions is None and unit == "person":
            max_contributions = USUAL_CONTRIBUTIONS
        most, in_window = _contributions(max_contributions, max_contributions_per_window, unit, self.steps.count)
        if unit == "person":  # nobody has more of a list, and noise is for no more
            most = int(min(most, self._most_in_window * (1 if span == "start" else self.steps.count or math.inf)))
            in_window = None if in_window is None else min(in_window, most)
        mechanism = FoundKeys if self.remembers else Mechanism
        self.mechanism: Mechanism = mechanism(
            epsilon=epsilon,
            delta=delta,
            over=span,
            horizon=self.steps.count,
            contributions=most,
            contributions_per_window=in_window,
            contributions_per_key=1 if span == "start" else None,
            public_keys=domain is not None,
            cells=None if domain is None else len(domain),
            streams=len(self.streams or ("",)),
            min_people=min_people,
            max_value=max_value,
            signed=signed_values,
            value_share=0.5 if value_share is None else value_share,
            unit=unit,
            neighbouring=neighbouring,
            beta=beta,
            bounded_keys=MANY if domain is None else len(domain) * len(self.streams or ("",)),
            **({"rising": 0 if rising is None else rising} if self.remembers and span == "window" else {}),
        )
        self.mechanism = with_list(self._telling(full_share, possible=lasts and not forget))
        self._may_choose, self._share_chosen = full_share is None and lasts and not forget, False
        self.spread = _checked_spread(spread, unit, self.steps.count)
        self.selection = _checked_selection(selection, unit, self.steps.count, spread=spread)
        lasting = self.remembers or (self._clocked and span == "window")
        _check_views(self.mechanism, rising, at_least, lasting=lasting, windows=self.steps.count)
        if rises and domain is not None and top is not None:
            raise ValueError("rising must not be given with domain and top: counts of a list are smoothed at the end")
        self.rising, self.at_least, self._to_finish, self._in_columns = rising, at_least, False, False

    def _telling(self, share: float | None, *, possible: bool) -> Mechanism:
        """Return the mechanism, with this share of the budget for what limits leave out; None for none.

        Raises:
            ValueError, TypeError: the share is out of range, or above 0 where nothing can be told.
        """
        if share is not None and checks.probability("full_share", share, zero=True) and not possible:
            raise ValueError(
                "full_share must not be given without delta, or start and end or renew_every, where counts of a list "
                "or of periods span windows or windows forget, or with the unit event"
            )
        told = replace(self.mechanism, full_share=share) if share else self.mechanism
        return told if self._may_leave_out else self.mechanism  # else there is nothing to tell

    @property
    def promise(self) -> PrivacyGuarantee:
        """What one person is promised, over the whole run and all streams."""
        found = self.mechanism.guarantee
        caveats = [KEYED_NOISE]  # who and what has which number is said of hashes below
        if self._by_person:
            caveats.append(people_hashed(self.mechanism.neighbouring))
        if self.domain is None:
            caveats.append(items_hashed(self.mechanism.neighbouring))
        if self._by_person and (self._distinct or self.mechanism.needs_people or self._listed):
            caveats.append(contributions_hashed(self.mechanism.neighbouring))
        lists = {"the list of items": self.domain, "the list of public items": self.public_items}
        public = ("all parameters", *(name for name, items in lists.items() if items is not None), "the windows")
        adaptivity = "The events of each window may depend on everything published before it."
        proof = found.proof if self.public_items is None else "docs/proofs/keyed_counts.md, Theorem 6"
        return replace(found, public=public, adaptivity=adaptivity, caveats=tuple(caveats), proof=proof)

    @property
    def finish(self) -> SmoothFinished | None:
        """Smooth counts of windows that follow each other, and add them up where they are to be about several."""
        if not self._of_windows or self._choose is not None:
            return None
        windows = self.mechanism.windows if isinstance(self.mechanism, FoundKeys) else 1
        return self._finished(windows, self.rising or 0, self.at_least)

    @property
    def smoothed_over(self) -> int:
        """Windows of a file over which counts are smoothed; 0 where they are not, or windows come one by one."""
        return (self.steps.count or 0) if self._to_finish else 0

    @property
    def _of_windows(self) -> bool:
        """Whether an item has a noisy count of each window, of which others can be made."""
        return self.remembers or (self.mechanism.over == "window" and self._clocked)

    def _finished(self, windows: int, rising: int, at_least: int | None, *, live: bool = False) -> SmoothFinished:
        """Return what makes rows, out of those about one window each."""
        return SmoothFinished(
            self.steps.size,
            self.mechanism.stddev(1),
            rising,
            at_least,
            windows,
            self.mechanism if windows > 1 else None,
            self.steps,
            self.mechanism.left_out,
            self.chooses_randomly and self.mechanism.contributions_per_window is None,
            live,
            self.mechanism.common_stddev,
        )

    def view(self, *, windows: int = 1, rising: int = 0, live: bool = False) -> Callable[[Sequence[Any]], list[Any]]:
        """Return what adds published counts up over several windows, or compares them with earlier ones.

        Privacy: post-processing; it costs nothing.

        Args:
            windows: of a sum, at least 1; an item that has had a count in fewer has a sum of these.
            rising: number of windows to look back for what rose; 0 for none.
            live: whether the last window is one of a run that goes on, so that it is whole.

        Returns:
            A function of all rows that a run of this transform has published. Its rows are those of a run with `over`
            or `rising`.

        Raises:
            ValueError: rows do not have every item in every window, are sums already, or a number is out of range.
        """
        if self.finish is None or self.at_least is not None or getattr(self.mechanism, "windows", 1) > 1:
            raise ValueError(
                "must be counts of single windows in which an item has a row in every one: give start, and end or "
                "renew_every, without forget, over, top or at_least"
            )
        if rising:
            _check_views(self.mechanism, rising, None, lasting=True, windows=self.steps.count)
        if checks.integer("windows", windows, minimum=1) > MOST_SUMMED:
            raise ValueError(f"must be at most {MOST_SUMMED:,} windows, got {windows:,}")
        if windows > 1 and (self.mechanism.max_value or 0) > (largest := LARGEST_SUMMED // windows):
            raise ValueError(f"max_value must be at most {largest:,} for sums over {windows:,} windows")
        return self._finished(windows, rising, None, live=live)

    @property
    def row_type(self) -> type:
        """What is published."""
        return KeyCount if self.mechanism.max_value is None else KeySum

    def to_finish(self) -> Self:
        """Return this transform with all rows, about one window each: `finish` knows their final numbers and sums.

        Nobody sees a window before the run is over, so that items may be found at its end.
        """
        made = copy.copy(self)
        made.selection = self.selection or "random"
        if self._may_choose and self._may_leave_out and (told := self.mechanism.with_full_share()) != self.mechanism:
            made._share_chosen, made.mechanism = True, with_list(told)
        if self.finish is not None:
            made._to_finish, made.mechanism = True, for_end(made.mechanism, self.steps)
        return made

    @property
    @override
    def finish_table(self) -> Callable[[Any], Any] | None:
        return self.finish.in_columns if self._in_columns and self.finish is not None else None

    @override
    def in_columns(self) -> Self:
        made = copy.copy(self)
        made._in_columns = self._to_finish
        return made

    @property
    def of_files(self) -> dict[str, Any]:
        """The share of the budget for what limits leave out, if nobody has given one."""
        return {"full_share": self.mechanism.full_share} if self._share_chosen else {}

    @property
    def views(self) -> dict[str, Any]:
        """Which rows are shown, and against what; where items stay found, how many windows are added up."""
        return dict.fromkeys(("top", "rising", "at_least", "beta")) | ({"over": "window"} if self.remembers else {})

    @property
    def prediction(self) -> Accuracy:
        """How far counts are off, and how many people must have an item for it to be published."""
        return self.mechanism.accuracy

    @property
    def shared_variance(self) -> float:
        """Which part of the variance of counts all items of a window of a stream have in common."""
        return (self.mechanism.common_stddev / self.mechanism.stddev(1)) ** 2

    @property
    def advice(self) -> str:
        """That items could stay found, where windows forget though nobody asked for it; that periods are short."""
        if self.remembers:
            return short_period(self.mechanism, self.steps)
        return "" if self._forget or self._clocked else forgets(UNTIL)

    @property
    def coverage(self) -> Coverage:
        """What counts: of a person so many contributions, and of a value what is within its limits."""
        over, limits, note = self.mechanism.over, [], ""
        what, everything = "events", ALL_EVENTS
        if self._by_person:
            what, everything = "people", ALL_PEOPLE
            if over not in ("window", "start"):
                what = "contributions"  # of several windows; a person has one for each
                everything = "the numbers of contributions in all records that are usable and in time"
        if self._by_person and self._may_leave_out:
            thing, most = "item" if self._distinct else "contribution", self.mechanism.contributions
            if self._run_may_leave_out:
                kept, lasting = self._kept
                limits.append(Limit.at_most("max_contributions", most, thing, WHOLE_RUN, kept, lasting=lasting))
            if (in_window := self.mechanism.contributions_per_window) is not None:
                where = "in a window of all streams together" if self.streams else "in a window"
                limits.append(Limit.at_most("max_contributions_per_window", in_window, thing, where, "random"))
        if self.mechanism.max_value is not None:
            whose = "what each person adds for an item in a window" if self._by_person else "the values of events"
            if self._distinct:
                whose = "what each person adds for an item in the first window with it"
            note = f"Sums and means are of {whose}, clipped to max_value."
        if self.domain is None:
            note = " ".join([note, JUST_FOUND]).strip()
        some = "" if self.domain is not None else f"up to {MANY:,} items"
        scope = f"all of {some} together" if some else TOGETHER
        if self.steps.count is None:
            scope = f"all of {some + ' of ' if some else ''}a window together"
        return Coverage(
            holds=f"the numbers of {what} {'who' if what == 'people' else 'that'} count" if limits else everything,
            scope=scope,
            limits=tuple(limits),
            beyond=f"the numbers of all {what} may be larger",
            looks_like="a standstill" if over == "start" else "a decline, or hide a rise",
            note=note,
            published="" if self.mechanism.left_out is None else FULL,
        )

    @property
    def _kept(self) -> tuple[str, bool]:
        """Which contributions of a person count, in words, and whether limits leave out more and more."""
        if self.selection == "random":
            return RANDOM, False
        return f"{SPREAD if self.spread else FIRST_WINDOWS}, and random ones in a window", not self.spread

    @property
    def chooses_randomly(self) -> bool:
        """Whether random contributions of the whole run count.

        Privacy: parameters alone decide it, not whether the input ends: an entry of a ledger has no more than them.
        """
        return self.selection == "random" and self._by_person and self._run_may_leave_out

    @property
    def _may_leave_out(self) -> bool:
        """Whether a person can have more contributions than count."""
        in_window = self.mechanism.contributions_per_window
        return self._run_may_leave_out or (in_window is not None and in_window < self._most_in_window)

    @property
    def _run_may_leave_out(self) -> bool:
        """Whether a person can have more contributions in the whole run than count, within the limit of a window."""
        windows, in_window = 1 if self._distinct else self.steps.count, self._most_in_window
        if (limit := self.mechanism.contributions_per_window) is not None:
            windows, in_window = self.steps.count, min(limit, in_window)
        return windows is None or self.mechanism.contributions < windows * in_window

    @property
    def _most_in_window(self) -> float:
        """How many contributions a person can have in a window."""
        if self.domain is None or len(self.domain) > MOST_IN_WINDOW:
            return math.inf
        return len(self.domain) * len(self.streams or ("",))

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(
            user=TEXT if self._by_person else UNREAD,
            streams=self.streams is not None,
            value=UNREAD if self.mechanism.max_value is None else WHOLE,
        )

    @property
    def _by_person(self) -> bool:
        return self.mechanism.unit == "person"

    @property
    def _value_limits(self) -> tuple[int, int]:
        """The least and the largest value."""
        largest = self.mechanism.max_value or 0
        return -largest if self.mechanism.signed else 0, largest

    @property
    def _listed(self) -> int:
        """For how many items a person counts on a list of different people; 0 without such a list."""
        return self.mechanism.listed if isinstance(self.mechanism, FoundKeys) else 0

    @property
    def _distinct(self) -> bool:
        return self.mechanism.contributions_per_key == 1

    @property
    def counting_noise(self) -> NoiseSource:
        """The noise of counts: a run with other limits, lists of items or streams shares none of it."""
        streams = "" if self.streams is None else f"{sorted(self.streams)}"
        domain = "" if self.domain is None else self.domain.digest
        found = self.noise.derive("counts per key", self.steps.label, streams, domain)
        if self.public_items is not None:  # what is seen here without a test is tested in a run without the list
            found = found.derive("public items", self.public_items.digest)
        if self.chooses_randomly:
            return found.derive("random contributions")
        return found.derive("spread") if self.spread else found


NO_PUBLIC_ITEMS = (
    "public_items must not be given with a domain, top or forget, or where counts are since the start: give start, and "
    "end or renew_every, that other items stay found"
)


def public_list(items: Items | None, *, useful: bool, refused: str) -> Domain | None:
    """Return the list of items beside those that are found; refuse one where none stay found, or few are shown.

    Raises:
        ValueError, TypeError: naming it.
    """
    if items is None:
        return None
    if not useful:
        raise ValueError(refused)
    return Domain.of(items, "public_items")


def with_list(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism with a list of different people, where that finds more items; chosen afresh."""
    return replace(mechanism, listed=0).with_list() if isinstance(mechanism, FoundKeys) else mechanism


def for_end(mechanism: Counted, steps: Steps) -> Counted:
    """Return a mechanism for a run of which nothing is seen before its end; as it is where everything starts afresh."""
    if not isinstance(mechanism, FoundKeys) or steps.renewal is not None:
        return mechanism
    return cast(Counted, mechanism.for_end())


def forgets(missing: str) -> str:
    """Say that windows forget, and what is missing that they would not."""
    return (
        f"Every window forgets which items were found before: with {missing}, they would stay found, and items that "
        "are too small for one window could be found in several."
    )


def short_period(mechanism: Mechanism, steps: Steps) -> str:
    """Say that a period has fewer windows than the longest blocks in which items are looked for; empty if not so."""
    if not isinstance(mechanism, FoundKeys) or steps.renewal is None:
        return ""
    longest, most = mechanism.law.scales[-1].windows, 1 << (MOST_SCALES - 1)
    if longest == most:
        return ""
    windows = f"{steps.count:,} window{'s' * (steps.count != 1)}"
    return (
        f"A period of renew_every has {windows}, so items are looked for in at most "
        f"{longest:,} of them together, and not in up to {most:,}. With a longer renew_every, up to {most:,} windows, "
        "smaller items that last would be found."
    )


def _contributions(limit: int | None, per_window: int | None, unit: str, windows: int | None) -> tuple[int, int | None]:
    """Return how often one unit counts in the whole run, and in a window; None where that is no limit of its own."""
    given = {"max_contributions": limit, "max_contributions_per_window": per_window}
    if unit == "event":
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} must not be given when the unit is an event")
        return 1, None
    limit = checks.integer("max_contributions", limit, minimum=1, maximum=LARGEST_CONTRIBUTIONS)
    if per_window is None:
        return limit, None
    if checks.integer("max_contributions_per_window", per_window, minimum=1) >= limit:
        raise ValueError(f"max_contributions_per_window must be < {limit}, max_contributions, got {per_window}")
    return (limit if windows is None else min(limit, windows * per_window)), per_window


def _checked_spread(spread: bool, unit: str, windows: int | None) -> bool:
    """Return whether contributions are spread over the windows; refuse it where there are none, or no last window."""
    if not isinstance(spread, bool):
        raise TypeError(f"spread must be true or false, got {type(spread).__name__}")
    if spread and (unit == "event" or windows is None):
        raise ValueError("spread must not be given with the unit event, or without start, and end or renew_every")
    return spread


def _checked_selection(selection: str | None, unit: str, windows: int | None, *, spread: bool) -> str | None:
    """Return which contributions count, "random" or "first" ones; None for random ones in runs over files alone.

    Raises:
        ValueError: there is no such selection, random ones cannot be taken, or `spread` takes others.
    """
    if selection is not None:
        checks.one_of("selection", selection, ("auto", "random", "first"))
    if selection == "random" and (unit == "event" or windows is None or spread):
        raise ValueError(
            "selection must not be random with the unit event, with spread, or without start, and end or renew_every"
        )
    if spread or windows is None or unit == "event":
        return "first"
    return None if selection == "auto" else selection


def _check_views(
    mechanism: Mechanism, rising: int | None, at_least: int | None, *, lasting: bool, windows: int | None
) -> None:
    """Check what is made of published counts.

    `lasting`: items have one in every window; `windows`: of the run, or of a period that is renewed.

    Raises:
        ValueError, TypeError: one of them is out of range, or these counts do not have it.
    """
    if rising is not None and not (lasting and mechanism.over == "window"):
        raise ValueError(
            "rising must not be given where windows forget or counts span windows: give start, and end or "
            "renew_every, without forget or over"
        )
    if at_least is not None and not lasting:
        raise ValueError(
            "at_least must not be given where windows forget, or counts span windows since the start or of a domain: "
            "give start, and end or renew_every, without forget"
        )
    if rising is not None and checks.integer("rising", rising, minimum=1) > MOST_RISING:
        raise ValueError(f"rising must be <= {MOST_RISING}, got {rising}")
    if rising is not None and windows is not None and rising >= windows:
        raise ValueError(
            f"rising must be < {windows}, the number of windows of the run or of a period that is renewed, got "
            f"{rising}: no window would have one to be compared with"
        )
    noise = mechanism.stddev(mechanism.horizon or 1)
    if at_least is not None and checks.integer("at_least", at_least, minimum=1) < noise:
        raise ValueError(
            f"at_least must be >= {math.ceil(noise)}, one standard deviation of the noise of a count, got {at_least}: "
            "smaller numbers are noise"
        )
