"""Private queries: from a data set and a stream of public counting queries to answers under one guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.transforms.batches import Keyed, KeyedBatch
from privstream.transforms.people.split_stages import SplitEvents
from privstream.transforms.queries.answering import (
    ALL_TIME,
    AnswerQueries,
    Answers,
    CountRecords,
    KeyQueries,
    add_up_all,
    without_number,
)
from privstream.transforms.queries.parameters import QueriesParameters
from privstream.transforms.rows import QueryAnswer
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from typing_extensions import override


class PrivateQueries(QueriesParameters, PrivateTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def build(self, inputs: Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        data, queries = inputs["events"], inputs["queries"]
        if not data.is_bounded:
            raise ValueError("events must be a bounded collection: all queries are about the same data set")
        size = len(self.domain)
        noise = self.noise.derive("private queries", self.domain.digest)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        keyed_batches = apply_dofn(self.read(data, apply_dofn), split, KeyedBatch)
        counts = (
            keyed_batches
            | "WithoutNumber" >> beam.Map(without_number).with_output_types(Keyed)
            | "ByPeople" >> beam.GroupByKey()
            | "CountRecords" >> beam.ParDo(CountRecords()).with_output_types(Keyed)
        )
        asked = apply_dofn(
            queries | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows()),
            KeyQueries(self.domain),
            Keyed,
        )
        apart = (
            (add_up_all(counts, size), asked)
            | "DataAndQueries" >> beam.Flatten()
            | "ApartFromOthers" >> beam.Reshuffle()
        )
        return apply_dofn(apart, AnswerQueries(Answers(self.mechanism, noise, self.queries)), QueryAnswer)
