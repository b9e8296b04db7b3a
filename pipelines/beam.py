"""Questions in a pipeline of one's own: rows of Beam in, private rows out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import KeyedNoise, NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.ledger import NONE, Receipt, named_ledger
from privstream.pipelines.accounts.run_identity import RunIdentity, noise_source
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.data import OF_TEXT, Data
from privstream.pipelines.model.monitor import Monitor, Privacy
from privstream.pipelines.model.question import Question, Windows
from privstream.pipelines.run.plan import Plan
from privstream.pipelines.run.run import NOISE
from privstream.pipelines.sources.fields import FieldMapping
from typing_extensions import override

IN_PIPELINE = "a pipeline"
"""Stands for the input where elements of a pipeline are it."""

OF_FILES: tuple[str, ...] = ("time_format", "null", "trim", "decimal", "value_unit", "normalize", "fold_case", *OF_TEXT)
"""Keys about how files are written, which elements of a pipeline are not."""


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
        super().__init__(question.info.transform.rpartition(".")[2])
        data = Data.read({"input": IN_PIPELINE, **fields})
        privacy = Privacy.read({"epsilon": epsilon, "delta": delta})
        monitor = Monitor.of(question, data=data, windows=windows or Windows(), privacy=privacy)
        _check_fields(data)
        plan = Plan.of(monitor, unbounded=True)
        (self.fields,) = plan.fields.values()
        given = plan.arguments(plan.questions[0])
        self.transform = with_fields(question.info.transform_class(**given, noise=noise), self.fields)
        self.guarantee: PrivacyGuarantee = self.transform.guarantee
        self.row_type = question.info.row_type_of(self.transform)

    def with_dead_letters(self) -> Any:
        """Return a transform whose output is a pair of rows and dead letters."""
        return self.transform.with_dead_letters()

    @override
    def expand(self, events: Any) -> Any:
        return events | self.transform


def _check_fields(data: Data) -> None:
    for name in OF_FILES:
        if name in data.model_fields_set and getattr(data, name):
            raise ValueError(f"{name} must not be given for a pipeline, whose elements have values")


def with_fields(transform: Any, fields: FieldMapping) -> Any:
    """Return a transform for elements whose fields have such names."""
    return transform.with_fields(
        user=fields.user or "user",
        item=fields.items if fields.several else fields.item or "item",
        time=fields.time,
        value=fields.value or "value",
        time_unit=fields.time_unit,
        time_zone=fields.time_zone,
        where=fields.where,
    )


class PrivateMonitor(beam.PTransform[Any, Any]):
    """All questions of a monitor, under one guarantee: events in, a table of private rows for each question out.

    The result is a dictionary of collections, by the names of questions. Views, `data.input` and `output` are of no
    account here.

    *Privacy*: all questions together promise `guarantee`, and each by itself one of `guarantees`. The noise of each is
    derived from the key, the run id and its name. A pipeline is refused until `record` has written it into a ledger, or
    `ledger="none"` says that nobody keeps an account. The same run id and key must never stand for other events.

    Example:
        >>> monitor = PrivateMonitor(Monitor.from_file("monitor.yaml", key="key", run_id="july"))  # doctest: +SKIP
        >>> monitor.record(data="clicks of July")  # doctest: +SKIP
        >>> tables = events | monitor  # doctest: +SKIP
        >>> tables["pages"] | beam.io.WriteToText("pages")  # doctest: +SKIP
    """

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self.monitor = monitor
        _check_fields(monitor.data)
        plan = Plan.of(monitor, unbounded=True)  # tables of a pipeline go on while it runs
        self._fields = plan.fields
        self._given = {each.name: plan.arguments(each) for each in plan.questions}
        self.guarantee: PrivacyGuarantee = plan.guarantee
        self.guarantees: Mapping[str, PrivacyGuarantee] = {each.name: each.guarantee for each in plan.questions}
        releases = {name: self._made(name, KeyedNoise.random()).release for name in monitor.questions}
        self._identity = RunIdentity(releases=releases, readings=self._fields, data="")
        self._recorded = monitor.account.ledger == NONE

    def record(self, data: str) -> Receipt:
        """Write the run into the ledger before the pipeline runs, with what is read, in words: see `Ledger.record`."""
        account, noise = self.monitor.account, self._noise()
        ledger = named_ledger(account.ledger, account.key)
        if ledger is None:
            raise ValueError("ledger must be given, or key, beside which there is one")
        given: Any = {"run_id": noise.run_id, "data": data, "dataset": account.dataset, "question": "run"}
        receipt = ledger.record(self.guarantee, noise=noise, **given)
        self._recorded = True
        return receipt

    def _noise(self) -> KeyedNoise:
        """Return the noise of the run: it depends on the run id that was given, and on what all questions draw."""
        account = self.monitor.account
        if not account.run_id:
            raise WrongKeyError(("account", "run_id"), "must be given: only a name can tell what a pipeline reads")
        return noise_source(account.key, account.key_variable, self._identity.label(account.run_id))

    def _made(self, name: str, noise: NoiseSource) -> Any:
        return self.monitor.questions[name].info.transform_class(**self._given[name], noise=noise)

    @override
    def expand(self, events: Any) -> dict[str, PCollection[Any]]:
        if not self._recorded:
            raise ValueError("record must be called before, which writes the run into a ledger; or ledger='none' given")
        noise, found = self._noise(), {}
        for name in self.monitor.questions:
            made = with_fields(self._made(name, noise.derive(NOISE, name)), self._fields[name])
            found[name] = events | f"{name}: {type(made).__name__}" >> made
        return found
