"""SampleContributions: who has what in which window, of data that anyone may see; no noise, and no privacy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection
from privstream.mechanisms.limits.sample import Sample
from privstream.mechanisms.noise.sources import NoiseSource, SeededNoise
from privstream.transforms.batches import Keyed
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ROWS
from privstream.transforms.events.split import SplitEvents
from privstream.transforms.limits.measuring import DistinctContributions, by_people
from privstream.transforms.timing.on_time import KeyedBatch
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class SampleContributions(beam.PTransform[Any, Any]):
    """Turn public events into one `Sample`, or none if no event can be used. It is exact, and protects nobody.

    Args:
        steps: the windows, with an end.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        self.noise = SeededNoise(0)  # hashes people and items, and orders what a person has in a window: no secret

    @override
    def expand(self, events: PCollection[Any]) -> PCollection[Sample]:
        def apply_dofn(source: PCollection[Any], fn: beam.DoFn, output: Any) -> PCollection[Any]:
            typed = beam.ParDo(fn).with_output_types(output, **{DEAD_LETTERS: DeadLetter})
            outputs = source | type(fn).__name__ >> typed.with_outputs(DEAD_LETTERS, main=ROWS)
            return cast(PCollection[Any], outputs[ROWS])

        split = SplitEvents(steps=self.steps, noise=self.noise, shards=1)
        gathered = gather(events, apply_dofn, EventFields())
        together = (
            apply_dofn(gathered, split, KeyedBatch)
            | "ByPeople" >> beam.Map(by_people).with_output_types(Keyed)
            | "PeopleTogether" >> beam.GroupByKey()
        )
        sample: PCollection[Sample] = together | "TakeSample" >> beam.ParDo(TakeSample(self.steps, self.noise))
        return sample


class TakeSample(DistinctContributions):
    """Put contributions in the order in which they count, with small numbers for people and items."""

    def __init__(self, steps: Steps, noise: NoiseSource) -> None:
        super().__init__(noise, added_up=False)
        self.steps = steps

    @override
    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Sample]:
        found = self.distinct(element[1])
        drawn = self.noise.words(np.stack([found.events.users, found.events.items], axis=1))[:, 0, 0]
        order = np.lexsort((drawn, found.steps))
        columns = found.events.users[order], found.events.items[order]
        users, items = (np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns)
        numbers = np.array([self.steps.number(step) for step in np.unique(found.steps).tolist()], np.int64)
        windows = numbers[np.unique(found.steps[order], return_inverse=True)[1]] - 1
        yield Sample(users, items, windows, self.steps.count or int(windows.max()) + 1)
