"""What histograms and flags share: counts of categories since the start."""

from __future__ import annotations

from typing import cast

from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.histograms.categories import BoundRows, CountedCategories
from privstream.transforms.histograms.parameters import CategoryParameters
from typing_extensions import override


class CategoryTransform(CategoryParameters, CountedCategories):
    """Counts of categories since the start."""

    @property
    @override
    def _people(self) -> NoiseSource:
        return self.noise.derive("people in histograms")

    @override
    def _limits(self) -> tuple[BoundRows, int]:
        in_run = cast(int, self.max_contributions)
        limit = min(in_run, self.max_per_window or in_run)
        return BoundRows(steps=self.steps, limit=limit), in_run

    @override
    def _noise(self) -> NoiseSource:
        limits = f"{self.unit} {self.max_contributions} {self.max_per_window}"
        rows = f"{self.categories.domain.digest} {self.categories.limit} {self.categories.separator}"
        return self.noise.derive(type(self).__name__, self.steps.label, limits, rows)
