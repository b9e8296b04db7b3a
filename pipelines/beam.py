"""Questions in a pipeline of one's own: rows of Beam in, private rows out."""

from __future__ import annotations

from typing import Any, Self

import apache_beam as beam
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.model.monitor import Data, Monitor, Privacy
from privstream.pipelines.model.question import Question, Windows
from privstream.pipelines.run.plan import Plan
from typing_extensions import override

IN_PIPELINE = "a pipeline"
"""Stands for the input where elements of a pipeline are it."""

FIELDS = ("user", "item", "time", "value", "time_unit", "time_zone", "where")
"""Keys of the data that are about elements of a pipeline; others are about files."""


class Private(beam.PTransform[Any, Any]):
    """A question about events: rows in, private rows out.

    Elements are rows of Beam, named tuples, dataclasses or mappings, or frames. The names of their fields are given as
    for `Data`: user, item, time, value, time_unit, time_zone, where.

    *Privacy*: `guarantee`. The same noise, such as `KeyedNoise.from_file("key", "name of the run")`, must never stand
    for other events.

    Example:
        >>> events | Private(Counts(max_contributions=40), Windows("1h", start=0, end=86400), epsilon=1, delta=1e-6,
        ...                  noise=noise, user="who")  # doctest: +SKIP
    """

    def __init__(
        self,
        question: Question,
        windows: Windows | None = None,
        *,
        epsilon: float,
        delta: float = 0.0,
        noise: NoiseSource,
        **fields: Any,
    ) -> None:
        if wrong := [name for name in fields if name in Data.model_fields and name not in FIELDS]:
            raise ValueError(f"{wrong[0]} must not be given for a pipeline, whose elements have values")
        data = Data.read({"input": IN_PIPELINE, **fields})
        privacy = Privacy.read({"epsilon": epsilon, "delta": delta})
        self._answer(Monitor.of(question, data=data, windows=windows or Windows(), privacy=privacy), noise)

    @classmethod
    def of(cls, monitor: Monitor, noise: NoiseSource) -> Self:
        """Return the only question of a monitor, whose data are elements of a pipeline."""
        made = cls.__new__(cls)
        made._answer(monitor, noise)
        return made

    def _answer(self, monitor: Monitor, noise: NoiseSource) -> None:
        plan = Plan.of(monitor, unbounded=True)
        (paid,), (info,) = plan.questions, (question.info for question in monitor.questions.values())
        super().__init__(info.transform.rpartition(".")[2])
        self.fields = named = plan.fields[paid.name]
        self.transform = info.transform_class(**plan.given[paid.name], noise=noise).with_fields(
            user=named.user or "user",
            item=named.several or named.item or "item",
            time=named.time or None,
            value=named.value or "value",
            time_unit=named.time_unit,
            time_zone=named.time_zone,
            where=named.where,
        )
        self.guarantee: PrivacyGuarantee = self.transform.guarantee
        self.row_type = info.row_type_of(self.transform)

    def with_dead_letters(self) -> Any:
        """Return a transform whose output is a pair of rows and dead letters."""
        return self.transform.with_dead_letters()

    @override
    def expand(self, events: Any) -> Any:
        return events | self.transform
