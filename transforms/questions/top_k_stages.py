"""Top-k by free gaps: of the items of a public list, which are the largest in a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from privstream.mechanisms.selection.top_k import MeasuredTopK
from privstream.transforms.counts.transform import CountedTransform
from privstream.transforms.people.bounding import BoundPerWindow, LimitRows
from privstream.transforms.questions.running_stages import ListedTransform, RunningAnswers
from privstream.transforms.questions.top_k import TopKParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.rows import RankedItem
from typing_extensions import override


class RankItems(RunningAnswers, state="rank_items"):
    """At each step rank all items of the domain, and publish those on top. No state outlives a step."""

    mechanism: MeasuredTopK
    row_type = RankedItem
    counter = "ranks_published"

    @override
    def initial(self, key: bytes) -> None:
        return None

    @override
    def encode(self, state: None) -> list[bytes]:
        return []

    @override
    def answer(self, step: int, batches: list[bytes], state: None) -> tuple[None, Iterator[tuple[Any, ...]]]:
        found = self.mechanism.release(self.given(step, batches), self.noise.derive("step", step))
        columns = (found.indices, found.gaps.astype(float), found.estimates, found.lower, found.upper)
        rows = enumerate(zip(*(column.tolist() for column in columns), strict=True), start=1)
        return None, ((rank, self.listed[item], *numbers) for rank, (item, *numbers) in rows)


class TopKWithGap(TopKParameters, CountedTransform, ListedTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = RankItems

    @override
    def _limits(self) -> tuple[BoundPerWindow, LimitRows]:
        _ = self.mechanism.estimate_variance  # once, at launch; workers receive it
        in_window = BoundPerWindow(
            steps=self.steps, noise=self.noise, items_per_step=self.max_per_window, by_people=True, ranked=False
        )
        in_run = LimitRows(steps=self.steps, timer_offset=1, limit=self.windows_of_person, whole_steps=True)
        return in_window, in_run

    @property
    @override
    def _labels(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.max_per_window, self.windows_of_person, cast(Domain, self.domain).digest
