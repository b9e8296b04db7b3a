"""What `TopKWithGap` is asked with, and what it promises; needs no Beam."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage
from privstream.mechanisms.free_gap.measured_top_k import MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import left_out_told, list_told
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import (
    KEYED_NOISE,
    PrivacyGuarantee,
    contributions_hashed,
    items_hashed,
    people_hashed,
    streams_hashed,
)
from privstream.mechanisms.privacy.units import PERSON
from privstream.transforms.counts.keyed_counts import FULL, public_list, short_period
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
from privstream.transforms.heavy_hitters.methods import check_full_share
from privstream.transforms.methods import AUTO, USUAL_ITEMS, choose_method, usual_items
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions
from privstream.transforms.top_k.methods import MOST_COUNTS, MOST_ITEMS, FoundItems, RankedList
from typing_extensions import Unpack, override

UNITS = ("person", "person_in_window")
USUAL_TOP = 10
METHODS = (AUTO, "exponential_gaps", "laplace_gaps", "counts")

SMOOTHED, FOR_SMOOTHING = 0.75, 8
"""Part of the error of counts that remains, at most, when a file of so many windows is smoothed, for levels that move
in a window by 1.5 deviations of the noise: as those of flights by month do, with three quarters of it."""

LIKELY_DELTA, WORTH_A_DELTA = 1e-6, 0.8
"""A usual delta, and how much of an error it must take away to be spoken of."""

BETTER = (
    "delta is 0: no item that is left out belongs to over {now:,.0f} more people than one that is published, and with "
    "a delta of {delta:g}, or the number of people in its place, to over {then:,.0f}"
)


class TopKParameters(Parameters):
    """Publish, window by window, the `top` items that most people have, their gaps and their counts.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`,
    or Arrow record batches with these columns. Output: `RankedItem` rows, with a `domain` exactly `top` for each window
    from `start` to `end` of each stream, whatever the data; with `with_dead_letters()`, a `Published` pair of rows and
    dead letters. A window is decided once, at its end plus `allowed_lateness`; events that come later are never used.

    Without a `domain` items need not be known before. An item is found when enough people have it in one window or in
    several, and stays found. Of these, the `top` items with the largest estimates are published, or as many as there
    are. Estimates are noisy counts smoothed over the windows until this one; later windows change nothing in it. The
    command ranks a finished file by counts that are smoothed over all of its windows (`to_finish`, `finish`): also
    those of a `domain`, by the method "counts", where they are no more than a million.

    Privacy:
        Unit: one person over the whole run and all streams, or, with unit "person_in_window", one person in one window
        and all streams: then a person who comes back in n windows is promised n times epsilon and delta. Neighbours:
        `neighbouring`. (epsilon, delta): `guarantee`. Enforced: each person has at most `items_per_step` distinct items
        in a window of a stream, takes part in at most `participation_cap` windows of streams, and appears in at most
        `streams_per_person` streams (without it, in all). Public: all arguments but `noise`. Without a `domain` ranks,
        gaps and smoothing are functions of what `FoundKeys` publishes.

    Accuracy:
        With a `domain`, in each window, with probability 1 - beta, no item that is left out belongs to over
        `selection_error` more people than one that is published. Without one, `accuracy` says how many people must have
        an item for it to be found. Each estimate is within its error bound of the number without noise with probability
        1 - beta. All this is about people within their limits. The order is that of numbers with noise: items on top
        are more often too high than too low. See `MeasuredTopK` for what estimates mean where the noise decides which
        items are published. Without a `domain` lower and upper rest on a model: counts stay near a level that moves.

    Args:
        epsilon: limit on what all rows together show about one person, or about one person in one window, > 0. A
            smaller value protects better and needs more noise.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        top: number of items to publish in each window, fewer than there are in `domain`. Without it 10, or one fewer
            than there are.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        domain: public list of items. All of them are ranked in every window, whether anybody has them or not. Without
            it those are ranked that are found; that needs a delta above 0, and `end` or `renew_every`.
        public_items: a public list of items beside those that are found, without a `domain`: they need not be found to
            be ranked. Other items are found as without it.
        end: every window that ends at or before this moment, in seconds since 1970 UTC, is published, also an empty
            one. `end` must be given unless the input has no end.
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). Choose it far below 1 /
            (number of people). With a delta above 0 there is less noise where people take part in many windows. Without
            a `domain` it must be > 0.
        unit: what is protected: one "person" over the whole run, or, with a `domain`, one "person_in_window".
        participation_cap: number of windows that one person may take part in, in all streams together, counted for each
            person. Without it a person may take part in all windows of the run.
        renew_every: seconds after which everything starts afresh, counted from `start`: limits, budgets and all that is
            remembered but items that are found; with windows of a calendar so many days, weeks, months or years of it,
            such as "1month". The guarantee is then for what one person does in one such period.
        items_per_step: number of items of one person that count in a window of a stream. Without it 4; over a finished
            file as many as are 100 in the whole run, from 4 to 10; or all of a `domain` that has fewer.
        max_contributions: number of items of one person that count in the whole run or, with `renew_every`, in a
            period, in place of `items_per_step`: each window gets the same part of it, rounded down.
        selection: which items of a person count if there are more than `items_per_step`: the "last", the "first", or
            "random" ones.
        streams: public names of the streams that are ranked, each by itself. They must be given if events have a
            stream.
        streams_per_person: number of streams in which one person may appear.
        measure_share: share of epsilon that pays for the counts of the published items. The method "counts" has no such
            share: its ranks and its counts are the same numbers.
        method: method that selects the items; "auto" takes the one with the smallest `selection_error`, of equal ones
            the one with the smallest error bound of counts; over a finished file of eight windows or more, whose counts
            are smoothed, that of "counts" is taken for three quarters. Without a `domain` there is "counts" alone.
            "exponential_gaps" and "laplace_gaps" add noise of that kind to all counts, and publish which are the
            largest, and the gaps between them. Their noise grows with `top`. "counts" adds noise to all counts so that
            all of them might be published. Its noise grows with `items_per_step`; where that is many of the `domain`,
            counts of a window have a part of it in common, which changes no rank.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which each accuracy statement may be wrong.
        full_share: share of the budget that pays for what `items_per_step` leaves out, in [0, 0.5], as a part of a
            squared shift; 0.05 makes the noise of counts larger by 3%. Then rows have `full`: an estimate of the number
            of people as it would be without that limit. Not with a `domain`, streams or `participation_cap`.
        shards: number of parallel parts into which people are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made, or the runner cannot keep time.

    Example:
        >>> ranking = TopKWithGap(epsilon=1.0, window=3600, start=0, end=86400, domain=Domain(["a", "b", "c"]), top=2,
        ...                       noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Ding et al., Free gap estimates (2022), Algorithm 3; docs/proofs/top_k_windows.md; without a `domain`
    derived here, docs/proofs/keyed_counts.md, section 9.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        start: Moment,
        noise: NoiseSource,
        top: int | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        end: Moment | None = None,
        delta: float = 0.0,
        unit: Literal["person", "person_in_window"] = "person",
        participation_cap: int | None = None,
        items_per_step: int | None = None,
        max_contributions: int | None = None,
        selection: Literal["last", "first", "random"] = "last",
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        measure_share: float = 0.25,
        method: Literal["auto", "exponential_gaps", "laplace_gaps", "counts"] = "auto",
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        full_share: float | None = None,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        checks.one_of("unit", unit, UNITS)
        checks.one_of("selection", selection, SELECTIONS)
        domain = None if domain is None else Domain.of(domain)
        if start is None:
            raise ValueError("start must be given: every window from start on is published")
        if top is None:
            top = USUAL_TOP if domain is None else min(USUAL_TOP, len(domain) - 1)
        checks.integer("top", top, minimum=1)
        if domain is not None and top >= len(domain):
            raise ValueError(f"top must be < {len(domain)}, the number of items in domain, got {top}")
        check_streams(streams)
        if streams is None and streams_per_person is not None:
            raise ValueError("streams must be given with streams_per_person: every window of every stream is published")
        self.unit = unit
        self.domain = domain
        self.noise = noise
        self.selection = selection
        self.streams = streams
        self.beta = checks.probability("beta", beta)
        self.shards = check_shards(shards)
        self.steps = Steps.of(start=start, end=end, **options)
        self._asked, self._method_chosen = method, False
        self.neighbouring = neighbouring
        checks.probability("measure_share", measure_share)
        if domain is None and unit != "person":
            raise ValueError(f"unit must be person without a domain, got {unit!r}: items are found in many windows")
        if domain is None:
            _check_without_list(method, checks.probability("delta", delta, zero=True), self.steps)
        self._limit_contributions(participation_cap, streams_per_person)
        self.items_per_step = self._items_of_person(items_per_step, max_contributions)
        without = {"domain": domain, "streams": streams, "participation_cap": participation_cap}
        self._full_share = check_full_share(full_share, possible=True, limits=without)
        self.public_items = public_list(public_items, useful=domain is None, refused=ON_THE_LIST)
        self.answer: RankedList | FoundItems
        if domain is None:
            self.method, self.answer = "counts", self._found_items(epsilon, delta, top)
        else:
            self.method, self.answer = self._ranked_list(domain, epsilon, delta, top, measure_share, method)

    def _found_items(self, epsilon: float, delta: float, top: int) -> FoundItems:
        """Return what ranks items that are found."""
        told: dict[str, Any] = {"full_share": self._full_share, "contributions_per_window": self.items_per_step}
        noise = self.noise.derive("top-k of found items", self.steps.label, self._limits_label, self._releases)
        if self.public_items is not None:  # what is seen here without a test is tested in a run without the list
            noise = noise.derive("public items", self.public_items.digest)
        return FoundItems(
            mechanism=FoundKeys(
                epsilon=epsilon,
                delta=delta,
                horizon=self.steps.count,
                contributions=self._releases * self.items_per_step,
                neighbouring=self.neighbouring,
                beta=self.beta,
                bounded_keys=MOST_ITEMS,
                **(told if self._full_share else {}),
            ).with_list(),
            top=top,
            steps=self.steps,
            noise=noise,
            always=None if self.public_items is None else PublicKeys(self.public_items, self.noise),
            streams=self.streams,
            shards=self.shards,
        )

    def _ranked_list(
        self, domain: Domain, epsilon: float, delta: float, top: int, measure_share: float, method: str
    ) -> tuple[str, RankedList]:
        """Return the method that ranks the items of a list, and what does it."""
        budget: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "top": top,
            "releases": self._releases,
            "items_per_release": self.items_per_step,
            "neighbouring": self.neighbouring,
        }
        self._makers: dict[str, Callable[[], MeasuredTopK | CountedTopK]] = {
            f"{law}_gaps": partial(MeasuredTopK, **budget, measure_share=measure_share, noise_law=law)
            for law in ("exponential", "laplace")
        } | {"counts": partial(CountedTopK, **budget, size=len(domain))}
        self._with_delta = (
            partial(CountedTopK, **(budget | {"delta": LIKELY_DELTA}), size=len(domain)) if not delta else None
        )
        name, mechanism = choose_method(method, self._makers, self._ranking_error)
        return name, RankedList(
            mechanism=mechanism,
            domain=domain,
            beta=self.beta,
            steps=self.steps,
            noise=self.noise.derive("top-k windows", self.steps.label, self._limits_label, domain.digest),
            streams=self.streams,
        )

    def _ranking_error(self, made: MeasuredTopK | CountedTopK, smoothed: float = 1.0) -> tuple[float, float]:
        """Return what "auto" wants little of, for counts that are smoothed so many times as much as without."""
        assert self.domain is not None
        error = made.selection_error(len(self.domain), self.beta) * (smoothed if isinstance(made, CountedTopK) else 1.0)
        return error, made.measure_error(self.beta)

    def _items_of_person(self, items: int | None, in_all: int | None) -> int:
        """Return how many items of a person count in a window."""
        if items is not None and in_all is not None:
            raise ValueError("one of items_per_step and max_contributions must be given, not both")
        if items is not None:
            return checks.integer("items_per_step", items, minimum=1)
        if in_all is not None and self.unit != "person":
            raise ValueError(f"max_contributions must not be given with unit {self.unit}: it counts over the run")
        if in_all is not None and checks.integer("max_contributions", in_all, minimum=1) < self._releases:
            raise ValueError(
                f"max_contributions must be >= {self._releases}, the number of windows that a person may take part in "
                f"(see participation_cap), got {in_all}"
            )
        found = USUAL_ITEMS if in_all is None else in_all // self._releases
        return found if self.domain is None else min(found, len(self.domain))

    def _items_at_end(self) -> int:
        """Return how many items of a person count over files: as often as with `counts` in the run, within limits."""
        items = usual_items(self._releases)
        return items if self.domain is None else min(items, len(self.domain))

    def _at_end(self) -> tuple[str, RankedList | FoundItems]:
        """Return the method and the answer of a run whose rows `finish` gets: counts of a list are smoothed there."""
        if isinstance(self.answer, FoundItems):
            return self.method, self.answer.for_end()
        listed, (first, end) = self.answer, (self.steps.first, self.steps.end)
        if first is None or end is None:
            return self.method, listed
        windows = end - first
        if windows * len(listed.domain) * len(self.streams or ("",)) > MOST_COUNTS:
            return self.method, listed
        gained = SMOOTHED if windows >= FOR_SMOOTHING else 1.0
        name, mechanism = choose_method(self._asked, self._makers, partial(self._ranking_error, smoothed=gained))
        return name, replace(listed, mechanism=mechanism, to_finish=isinstance(mechanism, CountedTopK))

    @property
    @override
    def advice(self) -> str:
        """That a delta would rank a list better; that periods are short."""
        if isinstance(self.answer, FoundItems):
            return short_period(self.answer.mechanism, self.steps)
        if self._with_delta is None:
            return ""
        size = len(self.answer.domain)
        now, then = (made.selection_error(size, self.beta) for made in (self.answer.mechanism, self._with_delta()))
        return "" if then > WORTH_A_DELTA * now else BETTER.format(delta=LIKELY_DELTA, now=now, then=then)

    def _limit_contributions(self, cap: int | None, streams_per_person: int | None) -> None:
        """Find what one person can take part in, and what of that has to be limited by counting."""
        if cap is not None:
            checks.integer("participation_cap", cap, minimum=1)
        if streams_per_person is not None:
            checks.integer("streams_per_person", streams_per_person, minimum=1)
        streams = len(self.streams or ("",))
        if self.unit == "person_in_window":
            limits = {"participation_cap": cap, "streams_per_person": streams_per_person}
            for name, value in (limits | {"renew_every": self.steps.renewal}).items():
                if value is not None:
                    raise ValueError(f"{name} must not be given with unit person_in_window: it counts over the run")
            self._windows: int | None = 1
        else:
            self._windows = self.steps.count
        limited = streams_per_person is not None and streams_per_person < streams
        self._streams_limit = streams_per_person if limited else None
        possible = None if self._windows is None else self._windows * (self._streams_limit or streams)
        self._participations = cap if possible is None or (cap is not None and cap < possible) else None
        releases = possible if self._participations is None else self._participations
        if releases is None:
            raise ValueError("end or participation_cap must be given: what one person takes part in needs a bound")
        self._releases = releases

    @override
    def to_finish(self) -> Self:
        """Return this transform with counts that are smoothed at the end, and more items of a person if nobody says."""
        usual = all(self._given.get(name) is None for name in ("items_per_step", "max_contributions"))
        if usual and (items := self._items_at_end()) != self.items_per_step:
            return type(self)(**{**self._given, "items_per_step": items}, noise=self.noise).to_finish()
        made = copy.copy(self)
        made.method, made.answer = self._at_end()
        made._method_chosen = made.method != self.method
        return made

    @property
    @override
    def of_files(self) -> Mapping[str, Any]:
        return {"method": self.method} if self._method_chosen else {}

    @property
    @override
    def fingerprint(self) -> bytes:
        """Where counts of a window share noise, of that as well: an earlier commit may have answered by another method,
        and the promise of this one does not cover what that has published."""
        made = self.answer.mechanism
        if not isinstance(made, CountedTopK) or made.shared is None:
            return super().fingerprint
        return hashlib.blake2b(super().fingerprint + b"noise in common", digest_size=8).digest()

    @property
    def promise(self) -> PrivacyGuarantee:
        """What one person, or one person in one window, is promised."""
        limits, made = [], self.answer.mechanism.guarantee
        stream = "" if self.streams is None else " of a stream"
        counted = f"Each person counts with at most {_many(self.items_per_step, 'item')} in a window{stream}"
        limits.append(f"{counted}, the {self.selection} ones; each item counts once.")
        if self._streams_limit is not None:
            limits.append(f"Each person appears in at most {_many(self._streams_limit, 'stream')}.")
        if self._participations is not None:
            limits.append(f"Each person takes part in at most {_many(self._participations, 'window')}{stream}.")
        if isinstance(self.answer, FoundItems):
            limits += [*list_told(self.answer.mechanism.bounds), *left_out_told(self.answer.mechanism.bounds)]
        in_window = self.unit == "person_in_window"
        if in_window:
            limits.append("A person who takes part in n windows is promised n times this epsilon and this delta.")
        listed = self.domain is not None
        lists = {"the list of items": self.domain, "the list of public items": self.public_items}
        windows = "the windows and streams" + listed * ", each of which is published"
        caveats = [KEYED_NOISE, people_hashed(self.neighbouring)]  # numbers of FoundKeys are hashes of items
        if not listed:
            caveats.append(items_hashed(self.neighbouring))
        if isinstance(self.answer, FoundItems) and self.answer.mechanism.listed:
            caveats.append(contributions_hashed(self.neighbouring))
        if self._streams_limit is not None:
            caveats.append(streams_hashed(self.neighbouring))
        return replace(
            made,
            unit=self.steps.person_in_window if in_window else PERSON,
            limits=tuple(limits),
            public=("all parameters", *(name for name, items in lists.items() if items is not None), windows),
            adaptivity="The events of each window may depend on everything published before it.",
            caveats=tuple(caveats),
            horizon=None if in_window or self._participations is not None else self._windows,
        )

    @property
    def coverage(self) -> Coverage:
        """Who counts: people within their limits."""
        stream = "" if self.streams is None else " of a stream"
        items = items_in_window(self.items_per_step, self.selection, self.domain, stream)
        told = isinstance(self.answer, FoundItems) and self.answer.mechanism.left_out is not None
        found = people_who_count(
            [
                *items,
                *windows_of_person(self._participations, "participation_cap", None, streams=bool(stream)),
                *streams_of_person(self._streams_limit, self.streams),
            ],
            scope=self.answer.scope,
            note=self.answer.note,
            more=f"; their order and gaps may be others{FOR_OTHERS if items else ''}",
        )
        return replace(found, published=FULL) if told else found

    @property
    def prediction(self) -> Accuracy:
        """How right the ranking and the counts are, or how many people must have an item for it to be found."""
        return self.answer.prediction

    @property
    def _limits_label(self) -> str:
        """What decides who counts: a run with other limits shares no noise."""
        limits = f"{self.unit} {self.selection} {self._participations} {self._streams_limit}"
        if self.streams is not None:
            limits += f" {sorted(self.streams)}"  # which of a person's windows count depends on all streams
        return limits

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(streams=self.streams is not None)


ON_THE_LIST = "public_items must not be given with a domain, all items of which are ranked"


def _check_without_list(method: str, delta: float, steps: Steps) -> None:
    """Refuse what cannot be answered without a public list of items."""
    if checks.one_of("method", method, METHODS) not in (AUTO, "counts"):
        raise ValueError(f"method must be counts without a domain, got {method!r}")
    if delta == 0:
        raise ValueError("delta must be > 0 without a domain, got 0")
    if steps.count is None:
        raise ValueError(
            "end or renew_every must be given without a domain: items are found in a known number of windows"
        )


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
