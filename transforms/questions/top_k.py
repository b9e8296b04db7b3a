"""What `TopKWithGap` is asked with, and what it promises; no Beam."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy, Limit
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.mechanisms.views.rank import ranked
from privstream.transforms.counts.counted import CountedParameters
from privstream.transforms.parameters import USUAL_CONTRIBUTIONS, limits_of, within
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.row_types import RankedItem
from typing_extensions import override

USUAL_TOP, USUAL_ITEMS = 10, 4


class TopKParameters(CountedParameters):
    """Publish, window by window, the `top` items that most people have, and by how much each is ahead of the next one.

    By counts, items are ranked by the number of people that `KeyedCounts` publishes for them, with the same limits.
    With a `domain` all its items are ranked; without one, those that are found.

    Input: as of `KeyedCounts`. Output: `RankedItem` rows. Args: see `Parameters` and `privstream top-k --help`.

    Privacy:
        Unit: one person over the whole run, or, with `renew_every`, one period. (epsilon, delta): `guarantee`.
        Enforced: the limits of `KeyedCounts`; with the method "gaps" each person counts with at most `max_per_window`
        items in a window, in at most `max_contributions` / `max_per_window` windows, the first ones. Public: all
        arguments but `noise`.

    Accuracy:
        By counts, that of `KeyedCounts`. By "gaps", in each window, with probability 95%, no item that is left out
        belongs to over `selection_error` more people than one that is published. Items on top are more often too high
        than too low.

    Source: docs/proofs/keyed_counts.md; for "gaps" Ding et al., Free gap estimates (2022), Algorithm 3,
    docs/proofs/top_k_windows.md.
    """

    row_type, counter = RankedItem, "ranks_published"
    of_methods = MappingProxyType({"public_items": ("counts",)})

    def __init__(
        self,
        *,
        top: int | None = None,
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        domain: Items | None = None,
        public_items: Items | None = None,
        method: Literal["counts", "gaps"] = "counts",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._check_method(method, "counts", "gaps")
        self.domain = None if domain is None else Domain.of(domain)
        if self.domain is not None and len(self.domain) < 2:
            raise ValueError("domain must have at least two items, of which one is ranked first, got 1")
        if top is None:
            top = USUAL_TOP if self.domain is None else min(USUAL_TOP, len(self.domain) - 1)
        self.top = checks.integer("top", top, minimum=1)
        if self.domain is not None and top >= len(self.domain):
            raise ValueError(f"top must be < {len(self.domain)}, the number of items in domain, got {top}")
        if method == "counts":
            self._by_counts(noise=self.noise, top=None)
            self.follow = lambda counts, _: ranked(counts, top)
            return
        if self.domain is None:
            raise ValueError("domain must be given with the method gaps")
        if self.steps.count is None:
            raise ValueError("end or renew_every must be given with the method gaps")
        most = USUAL_CONTRIBUTIONS if max_contributions is None else max_contributions
        usual = min(USUAL_ITEMS, len(self.domain), checks.integer("max_contributions", most, minimum=1))
        self.max_per_window = usual if max_per_window is None else max_per_window
        if checks.integer("max_per_window", self.max_per_window, minimum=1) > most:
            raise ValueError(f"max_per_window must be <= max_contributions, got {self.max_per_window} > {most}")
        self.windows_of_person = min(self.steps.count, most // self.max_per_window)
        self.mechanism = MeasuredTopK(
            **self.budget,
            top=top,
            releases=self.windows_of_person,
            items_per_release=self.max_per_window,
        )

    @property
    @override
    def person_limits(self) -> tuple[Limit, ...]:
        limited = self.windows_of_person < (self.steps.count or 0)
        return limits_of(
            run=self.windows_of_person if limited else None, window=self.max_per_window, thing="item", whole="window"
        )

    @property
    @override
    def _other_promise(self) -> PrivacyGuarantee:
        found = within(self.mechanism.guarantee, self.person_limits)
        adaptivity = "The events of each window may depend on everything published before it."
        return replace(found, adaptivity=adaptivity)

    @property
    @override
    def _other_accuracy(self) -> Accuracy:
        assert self.domain is not None
        error = self.mechanism.selection.accuracy(len(self.domain), OUTSIDE)
        return Accuracy(
            error=error,
            failure_probability=OUTSIDE,
            claim=f"With probability {1 - OUTSIDE:g}, no item that is left out of a window belongs to over "
            f"{error:,.0f} more people than an item that is published.",
            numbers={"selection_error": error, "stddev": self.mechanism.estimate_variance**0.5},
            limits=self.person_limits,
        )
