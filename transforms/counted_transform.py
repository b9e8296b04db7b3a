"""The stages of questions that noisy counts answer: those of counts, and a view of their rows."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.transforms.counted import CountedParameters, CountsView
from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.steps import Steps
from privstream.transforms.timing.window_ends import AtWindowEnds
from typing_extensions import override

AFTER_COUNTS = 5
"""How many stages have decided a window before its view does."""


class CountedTransform(CountedParameters, PeopleTransform):
    """Counts and a view of them, or the stages of another method."""

    counts_type = KeyedCounts

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.counts is None:
            return super().segments
        counts = cast(KeyedCounts, copy.copy(self.counts))
        counts._shared, counts._names = self._shared, self._names
        *first, last = counts.segments
        if not self._ended:  # else the view is one of the whole run
            last = Segment(partial(viewed, last, self.view, self.steps))
        return *first, last


def viewed(
    counts: Segment, view: CountsView, steps: Steps, counted: PCollection[Any], apply_dofn: ApplyDoFn
) -> PCollection[Any]:
    """Add the stages that publish counts, and those that publish a view of each window when it is over."""
    rows = counts.stages(counted, apply_dofn)
    given = rows | "View" >> beam.FlatMap(_of_its_window, view).with_output_types(view.row_type)
    ends = AtWindowEnds(steps, view.row_type, timer_offset=AFTER_COUNTS, choose=view.choose, follow=view.publish)
    return cast(PCollection[Any], given | "AtWindowEnds" >> ends)


def _of_its_window(row: Any, view: CountsView, at: Any = beam.DoFn.TimestampParam) -> list[Any]:
    """Return what a row of counts gives, if it is published after its own window, not after a later one."""
    return list(view.of_row(row)) if at < row.window_end else []
