"""What `KeyedCounts` is asked with, and what it promises, and questions that it answers; needs no Beam."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Limit
from privstream.mechanisms.keyed_counts.calibration import list_steps
from privstream.mechanisms.keyed_counts.dropped import DroppedShare, Share
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import LARGEST_CONTRIBUTIONS, LARGEST_SUMMED, MOST_SUMMED
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts as Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import (
    CONTRIBUTIONS_HASHED,
    ITEMS_HASHED,
    KEYED_NOISE,
    PEOPLE_HASHED,
    PrivacyGuarantee,
)
from privstream.mechanisms.views.counts import Dropped, ShownCounts, corrected_table
from privstream.mechanisms.views.smoothing import MOST_RISING
from privstream.transforms.parameters import (
    USUAL_CONTRIBUTIONS,
    Bound,
    Parameters,
    View,
    WindowedParameters,
    check_limits,
    limits_of,
    plain,
)
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.reading.fields import TEXT, UNREAD, WHOLE, EventFields
from privstream.transforms.row_types import KeyCount, KeyRise, KeySum, ReleasedCount, ReleasedSum
from privstream.transforms.timing.steps import Moment, Span, Steps, WindowOptions, windows_in
from typing_extensions import Unpack, override

MOST_IN_WINDOW = 65_535
JUST_FOUND = "Counts by which an item was found, or just passes a threshold, are more often too high than too low."

READINGS, PLACES = "limits_readings", "limits_readings_places"
NUMBERS = ("limits_counted", "limits_dropped_few", "limits_dropped_some", "limits_dropped_many")
"""Counters of what was released last, with noise, how often, and as which reading of a period, 1, 2, .., added up.

A run that publishes nothing must not show them.
"""


Follow = Callable[[pa.Table, pa.Table | None], pa.Table]
"""From the counts that are shown, and what was made of those of the window before, to what is published."""


class CountsParameters(Parameters):
    """Publish, window by window, how many people have each item, and perhaps the sum and the mean of their values.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `value`,
    or Arrow record batches with these columns. Output: `KeyCount` rows, `KeySum` rows with `max_value`, or `KeyRise`
    rows with `rising`. With a `domain` every item on it has a row in every window. Without one an item is found when
    enough people have it in one window or in several, and then has a row in every window, also in those before; counts
    since the start are published once they reach a threshold. Args: see `Parameters` and `privstream counts --help`.

    Privacy:
        Unit: one person over the whole run, or one event, added or removed. (epsilon, delta):
        `guarantee`. Enforced: each person counts at most `max_contributions` times in the whole run, once for an item
        in a window, and once for an item in the whole run where `over` is "start"; values are clipped. Public: all
        arguments but `noise`.

    Accuracy:
        Intervals are of 95%, of each row alone.

    Example:
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, window=86400, max_contributions=30,
        ...                      start=0, end=30 * 86400, noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/keyed_counts.md.
    """

    counter = "counts_published"
    rules: tuple[Any, ...] = ()
    """What is counted in place of items."""

    def __init__(
        self,
        *,
        epsilon: float,
        noise: NoiseSource,
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        delta: float = 0.0,
        unit: Literal["person", "event"] = "person",
        over: Span = "window",
        start: Moment | None = None,
        end: Moment | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        min_people: int = 1,
        top: int | None = None,
        max_value: int | None = None,
        rising: int | None = None,
        at_least: int | None = None,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise, shards)
        self.domain = None if domain is None else Domain.of(domain)
        self.steps = Steps.of(start=start, end=end, **options)
        span, windows = windows_in(over, self.steps), self.steps.count
        if windows is None:
            raise ValueError("end or renew_every must be given: items stay found in a run with a last window")
        checks.probability("delta", delta, zero=True)
        self.remembers = domain is None and span != "start"
        if isinstance(span, int) and span > MOST_SUMMED:
            raise ValueError(f"over must be at most {MOST_SUMMED:,} windows, got {span:,}: give a longer window")
        if public_items is not None and not self.remembers:
            raise ValueError("public_items must not be given with a domain, or where counts are since the start")
        self.public_items = None if public_items is None else Domain.of(public_items, "public_items")
        self._by_person, self._distinct = unit == "person", span == "start"
        has = math.inf if self.domain is None or len(self.domain) > MOST_IN_WINDOW else len(self.domain)  # in a window
        most, in_window = 1, None
        if self._by_person:
            most, in_window = _contributions(max_contributions, max_per_window, windows)
            most = int(min(most, has * (1 if self._distinct else windows)))  # nobody has more of a list
            in_window = None if in_window is None else min(in_window, most)
        else:
            check_limits(unit, max_contributions=max_contributions, max_per_window=max_per_window)
        once = self._distinct and in_window is None
        self._cuts_run = most < (1 if once else windows) * min(has, in_window or has)
        self._cuts = self._cuts_run or (in_window is not None and in_window < has)
        mechanism = FoundKeys if self.remembers else Mechanism
        self.mechanism: Mechanism = mechanism(
            epsilon=epsilon,
            delta=delta,
            over=span,
            horizon=windows,
            contributions=most,
            contributions_per_window=in_window,
            public_keys=domain is not None,
            min_people=min_people,
            max_value=max_value,
            unit=unit,
        )
        self._possible = has + most - (in_window or most)  # since the start; a key dropped in its window never counts
        if self._by_person and not self._distinct and self._cuts:
            self.mechanism = self.mechanism.with_dropped_share(windows * has)
        _check_views(self.mechanism, rising, at_least, windows)
        self.top = None if top is None else checks.integer("top", top, minimum=1)
        self.rising, self.at_least = rising, at_least

    @property
    def promise(self) -> PrivacyGuarantee:
        """What one person is promised, over the whole run."""
        found = self.mechanism.guarantee
        caveats = [KEYED_NOISE]  # who and what has which number is said of hashes below
        if self._by_person:
            caveats.append(PEOPLE_HASHED)
        if self.domain is None:
            caveats.append(ITEMS_HASHED)
        listed = isinstance(self.mechanism, FoundKeys) and self.mechanism.listed
        if self._by_person and (self._distinct or listed):
            caveats.append(CONTRIBUTIONS_HASHED)
        lists = {"the list of items": self.domain, "the list of public items": self.public_items}
        public = ("all parameters", *(name for name, items in lists.items() if items is not None), "the windows")
        adaptivity = "The events of each window may depend on everything published before it."
        proof = found.proof if self.public_items is None else "docs/proofs/keyed_counts.md, Theorem 6"
        return replace(found, public=public, adaptivity=adaptivity, caveats=tuple(caveats), proof=proof)

    def counts_view(self, *, over: int = 1, rising: int = 0) -> ShownCounts:
        """Return a view of what is released for single windows, at no cost: sums over several, or what rose.

        Args:
            over: windows of a sum, at least 1; an item that has had a count in fewer has a sum of these.
            rising: number of windows to look back for what rose; 0 for none.

        Raises:
            ValueError: rows are of other counts, sums or views already, or a number is out of range.
        """
        if self.at_least or self.top or self.rising or self.mechanism.over != "window":
            raise ValueError("must be counts of single windows, without over, top, rising or at_least")
        if rising:
            _check_views(self.mechanism, rising, None, self.steps.count or 1)
        if checks.integer("windows", over, minimum=1) > MOST_SUMMED:
            raise ValueError(f"must be at most {MOST_SUMMED:,} windows, got {over:,}")
        if over > 1 and (self.mechanism.max_value or 0) > (largest := LARGEST_SUMMED // over):
            raise ValueError(f"max_value must be at most {largest:,} for sums over {over:,} windows")
        return replace(self._shown_of(over), rising=rising)

    @property
    def shown(self) -> ShownCounts:
        """What is shown of the counts of single windows, or, as they are released, of those since the start."""
        made = self._shown_of(self.mechanism.windows)
        return replace(made, rising=self.rising or 0, at_least=self.at_least, top=self.top)

    def _shown_of(self, over: int) -> ShownCounts:
        made = self.mechanism
        return ShownCounts(
            windows=self.steps,
            stddev=None if over > 1 or made.over == "start" else made.stddev(1),
            over=over,
            margins=made.margins,
            max_value=made.max_value,
        )

    @property
    @override
    def view(self) -> View:
        shown, ended, names = self.shown, self.ended, self.row_type._fields

        def rows(table: pa.Table, dropped: Dropped | None) -> pa.Table:
            return shown.chosen(corrected_table(shown.numbers(table, ended=ended), dropped)).select(names)

        return rows

    @property
    def released_type(self) -> Any:
        """What is released."""
        return ReleasedCount if self.mechanism.max_value is None else ReleasedSum

    @property
    def row_type(self) -> Any:
        """What is published."""
        return KeyRise if self.rising else KeyCount if self.mechanism.max_value is None else KeySum

    @override
    def over_files(self) -> Self:
        made = super().over_files()
        if made._distinct and made.chooses_randomly:  # in a stream what is dropped since the start may come again
            made.mechanism = made.mechanism.with_dropped_share(made._possible)
        return made

    @property
    @override
    def release(self) -> Mapping[str, Any]:
        found = super().release
        arguments = {**found["arguments"], "max_contributions": None, "max_per_window": None}  # the bound has them
        rules = {"rules": counted_items(self.rules)} if self.rules else {}  # thresholds are applied to what was drawn
        return {**found, "arguments": arguments, "bound": plain(self.bound), **rules}

    @property
    @override
    def views(self) -> dict[str, Any]:
        """Which rows are shown, and against what; how many windows are added up."""
        return {"top": None, "rising": None, "at_least": None} | ({} if self._distinct else {"over": "window"})

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        if not self._by_person or not self._cuts:
            return ()
        made, thing = self.mechanism, "item" if self._distinct else "contribution"
        run = made.contributions if self._cuts_run else None
        return limits_of(run=run, window=made.contributions_per_window, thing=thing)

    @property
    @override
    def accuracy(self) -> Accuracy:
        notes = []
        if self.mechanism.max_value is not None:
            whose = "what each person adds for an item in a window" if self._by_person else "the values of events"
            if self._distinct:
                whose = "what each person adds for an item in the first window with it"
            notes.append(f"Sums and means are of {whose}, clipped to max_value.")
        if self.domain is None:
            notes.append(JUST_FOUND)
        return replace(self.mechanism.accuracy, limits=self.person_limits, note=" ".join(notes))

    @property
    def bound(self) -> Bound | None:
        """How many contributions per person count; None where events are counted."""
        if not self._by_person:
            return None
        made = self.mechanism
        return Bound(made.contributions, made.contributions_per_window, self.chooses_randomly, self._cuts_run)

    @property
    def shares_read(self) -> tuple[int, ...]:
        """Numbers of the steps, of the run or of each period, after which it is released what limits drop."""
        last = self.steps.count or 1
        return (last,) if self.chooses_randomly else list_steps(last)

    @property
    def dropped_share(self) -> DroppedShare | None:
        """What releases that; None where nothing is released."""
        made = self.mechanism.dropped_share
        return made and replace(made, readings=len(self.shares_read))

    def limits(self, counters: Mapping[str, int]) -> dict[str, Any] | None:
        """Return what a run says of the limits per person, from what it has released; None where there are none.

        Privacy: post-processing.
        """
        if (bound := self.bound) is None:
            return None
        made, readings, share = self.dropped_share, counters.get(READINGS, 0), None
        periods, rest = divmod(readings, len(self.shares_read))
        places = sum(number * (last + 1) * last // 2 for number, last in ((periods, len(self.shares_read)), (1, rest)))
        if not self._cuts:
            share = Share(0.0, 0.0, 0.0)
        elif made is not None and readings and places == counters.get(PLACES):  # else the first ones are not counted
            noisy = [counters.get(name, 0) for name, _ in zip(NUMBERS, made.laws, strict=False)]
            share = made.share(np.array(noisy, np.int64), readings)  # None where noise hides it
        dropped = None if share is None else {name: end and round(end, 3) for name, end in share._asdict().items()}
        return {"max_contributions": bound.in_run, "max_per_window": bound.per_window, "dropped": dropped}

    @property
    def chooses_randomly(self) -> bool:
        """Whether random contributions of the whole run count."""
        return self.ended and self._by_person and self._cuts_run

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(
            user=TEXT if self._by_person else UNREAD,
            value=UNREAD if self.mechanism.max_value is None else WHOLE,
        )

    @property
    def counting_noise(self) -> NoiseSource:
        """The noise of counts: a run with other limits or lists of items shares none of it."""
        domain = "" if self.domain is None else self.domain.digest
        found = self.noise.derive("counts per key", self.steps.label, domain)
        if self.public_items is not None:  # what is seen here without a test is tested in a run without the list
            found = found.derive("public items", self.public_items.digest)
        return found.derive("random contributions") if self.chooses_randomly else found


class CountedParameters(WindowedParameters):
    """Parameters of a question that counts answer, unless another method is asked for.

    Attributes:
        counts: what answers; None where another method does.
        follow: what is made of its rows.
        steps: the windows.
    """

    counts_type: ClassVar[type[CountsParameters]] = CountsParameters
    row_type: ClassVar[type]
    counter: ClassVar[str]
    of_methods: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Arguments that only some methods have, and which."""

    method: str = "counts"
    counts: CountsParameters | None = None
    follow: Follow
    steps: Steps

    def _check_method(self, method: str, *methods: str) -> None:
        """Take a method; refuse unknown ones, and arguments that it does not have."""
        self.method = checks.one_of("method", method, methods)
        for name, able in self.of_methods.items():
            if self._given.get(name) is not None and method not in able:
                raise ValueError(f"{name} must not be given with the method {method}: it is for {' and '.join(able)}")

    def _by_counts(self, **changed: Any) -> None:
        """Let counts answer, with the arguments that they share with this question, or with others in their place."""
        shared = inspect.signature(CountsParameters).parameters
        given = {name: value for name, value in self._given.items() if name in shared} | changed
        self.counts = self.counts_type(**{name: value for name, value in given.items() if value is not None})
        self.steps = self.counts.steps

    @override
    def over_files(self) -> Self:
        made = super().over_files()
        made.counts = self.counts and self.counts.over_files()
        return made

    @property
    @override
    def view(self) -> View | None:
        view = None if self.counts is None else self.counts.view
        return view and (lambda table, dropped: self.follow(view(table, dropped), None))

    @property
    @override
    def release(self) -> Mapping[str, Any]:
        """That of the counts, of which the rows are a view."""
        return super().release if self.counts is None else self.counts.release

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        return self._other_promise if self.counts is None else self.counts.promise

    @property
    @override
    def accuracy(self) -> Accuracy:
        return self._other_accuracy if self.counts is None else self.counts.accuracy

    @property
    @abstractmethod
    def _other_promise(self) -> PrivacyGuarantee:
        """What another method promises."""

    @property
    @abstractmethod
    def _other_accuracy(self) -> Accuracy:
        """How accurate another method is."""


def counted_items(rules: Sequence[Any]) -> list[list[Any]]:
    """Return, by the name of each rule, the items whose people it counts; none for any item."""
    return sorted([rule.name, sorted(rule.items or ())] for rule in rules)


def _contributions(given: int | None, per_window: int | None, windows: int) -> tuple[int, int | None]:
    """Return how often a person counts in the whole run, and in a window; None where that is no limit of its own."""
    limit = USUAL_CONTRIBUTIONS if given is None else given
    limit = checks.integer("max_contributions", limit, minimum=1, maximum=LARGEST_CONTRIBUTIONS)
    if per_window is None:
        return limit, None
    if checks.integer("max_per_window", per_window, minimum=1) >= limit:
        raise ValueError(f"max_per_window must be < {limit}, max_contributions, got {per_window}")
    return min(limit, windows * per_window), per_window


def _check_views(mechanism: Mechanism, rising: int | None, at_least: int | None, windows: int) -> None:
    """Check which rows are to be shown; `windows` are those of the run, or of a period that is renewed."""
    if rising is not None:
        if mechanism.over != "window":
            raise ValueError("rising must not be given where counts span windows")
        checks.integer("rising", rising, minimum=1, maximum=MOST_RISING)
        if rising >= windows:
            of = "the number of windows of the run or of a period that is renewed"
            raise ValueError(f"rising must be < {windows}, {of}, got {rising}: no window has one to be compared with")
    noise = mechanism.stddev(mechanism.horizon or 1)
    if at_least is not None and checks.integer("at_least", at_least, minimum=1) < noise:
        raise ValueError(
            f"at_least must be >= {math.ceil(noise)}, one standard deviation of the noise of a count, got {at_least}: "
            "smaller numbers are noise"
        )
