"""Monitors in Python: in a pipeline of one's own, or about a frame."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.account import NONE
from privstream.pipelines.accounts.ledger import ENDING, Ledger, Receipt
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.run_identity import RunIdentity, noise_source
from privstream.pipelines.command import UsageError
from privstream.pipelines.frames import check_account, in_python
from privstream.pipelines.monitor.monitor_file import MonitorFile, Output, read_monitor
from privstream.pipelines.monitor.plan_command import shared_out
from privstream.pipelines.monitor.run_command import COMMAND_NAME, NOISE, MonitorRun
from privstream.pipelines.questions.arguments import given_to, input_fields
from privstream.pipelines.runners import launch
from privstream.pipelines.sources.fields import SharedFields
from privstream.pipelines.sources.frame_files import as_table, write_events
from typing_extensions import override

ABOUT_FILES: tuple[str, ...] = ("time_format", "null", "trim", "decimal", "value_unit", "encoding", "delimiter")
ABOUT_FILES += ("quote", "normalize", "fold_case")
"""Options about how files are written, which elements of a pipeline are not."""


class Monitor(beam.PTransform[Any, Any]):
    """All questions of a file, under one guarantee: events in, a table of private rows for each question out.

    Elements are rows of Beam, named tuples, dataclasses or mappings, whose fields have the names that the file gives.
    The result is a dictionary of collections, by the names of questions. Views, `data.input` and `output` are of no
    account here.

    *Privacy*: all questions together promise `guarantee`. The noise of each is derived from the key, the run id and its
    name. A pipeline is refused until `record` has written it into a ledger, or `ledger="none"` says that nobody keeps
    an account. The same run id and key must never stand for other events.

    Args:
        path: of the file.
        noise_key_file, noise_key_variable, run_id, ledger, dataset: as of `privstream run`; those that are keys of the
            file may be left out. `run_id` is needed in a pipeline, since only a name can tell what is read there.

    Attributes:
        guarantee: what is promised of all questions together.
        guarantees: what each promises by itself, by name.

    Raises:
        ValueError, TypeError: a key, with its line, or an option breaks a rule.

    Example:
        >>> monitor = Monitor.from_file("monitor.yaml", noise_key_file="key", run_id="july")  # doctest: +SKIP
        >>> monitor.record(data="clicks of July")  # doctest: +SKIP
        >>> tables = events | monitor  # doctest: +SKIP
        >>> tables["pages"] | beam.io.WriteToText("pages")  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        noise_key_file: str | os.PathLike[str] | None = None,
        noise_key_variable: str | None = None,
        run_id: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
    ) -> None:
        super().__init__()
        self.path = os.fspath(path)
        given = {
            "noise_key_file": None if noise_key_file is None else os.fspath(noise_key_file),
            "noise_key_variable": noise_key_variable,
            "run_id": run_id,
            "ledger": None if ledger is None else os.fspath(ledger),
            "dataset": dataset,
        }
        with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
            try:
                file = read_monitor(self.path, folder)
                self.options = dict(file.of_run) | {name: value for name, value in given.items() if value is not None}
                self._prepare(file)
            except UsageError as error:
                raise ValueError(in_python(str(error))) from None
        self._recorded = self.options.get("ledger") == NONE

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Return the monitor of a file; see the class for options."""
        return cls(path, **options)

    def _prepare(self, file: MonitorFile) -> None:
        """Share the budget out, and make what is needed of the questions when there is a pipeline."""
        planned = shared_out(file, ends=False)  # tables of a pipeline go on while it runs
        paid = {each.name: each for each in planned.questions}
        options = {
            each.name: each.with_budget(paid[each.name].epsilon, paid[each.name].delta) for each in file.questions
        }
        wrong = [name for name in ABOUT_FILES if any(getattr(given, name, None) for given in options.values())]
        self._of_files = wrong[0] if wrong else ""
        self._fields = {each.name: input_fields(each.spec, options[each.name]) for each in file.questions}
        self._given = {
            each.name: given_to(each.spec, options[each.name], self._fields[each.name]) for each in file.questions
        }
        self._specs = {each.name: each.spec for each in file.questions}
        self.guarantee: PrivacyGuarantee = planned.guarantee
        self.guarantees = {name: each.guarantee for name, each in paid.items()}
        releases = {
            name: spec.transform_class(**self._given[name], noise=KeyedNoise.random()).release
            for name, spec in self._specs.items()
        }
        self._identity = RunIdentity(releases=releases, readings=self._fields, data="")

    def record(self, data: str) -> Receipt:
        """Write a run of one's own pipeline into the ledger; call it before the pipeline runs.

        Privacy: the account is as true as what it is given, see `Ledger.record`.

        Args:
            data: what is read, in words or as a digest; not what is in it.

        Raises:
            ValueError: there is no ledger, it refuses the run, or there is no run id.
        """
        ledger = self.options.get("ledger") or f"{self.options.get('noise_key_file', '')}{ENDING}"
        if ledger in (NONE, ENDING):
            raise ValueError("ledger must be given, or noise_key_file, beside which there is one")
        receipt = Ledger(ledger).record(
            self.guarantee,
            noise=self._noise(),
            run_id=self._run_id,
            data=data,
            dataset=self.options.get("dataset", DEFAULT_DATASET),
            question=COMMAND_NAME,
        )
        self._recorded = True
        return receipt

    @property
    def _run_id(self) -> str:
        """What noise depends on: the run id that was given, and what all questions draw."""
        if not self.options.get("run_id"):
            raise ValueError("run_id must be given: only a name can tell what a pipeline reads")
        return self._identity.label(self.options["run_id"])

    def _noise(self) -> KeyedNoise:
        """Return the noise of the run."""
        return noise_source(self.options.get("noise_key_file"), self.options.get("noise_key_variable"), self._run_id)

    @override
    def expand(self, events: Any) -> dict[str, PCollection[Any]]:
        if not self._recorded:
            raise ValueError("record must be called before, which writes the run into a ledger; or ledger='none' given")
        if self._of_files:
            raise ValueError(f"{self._of_files} must not be given for a pipeline, whose elements have values")
        noise = self._noise()
        found = {}
        for name, spec in self._specs.items():
            fields = self._fields[name]
            made = spec.transform_class(**self._given[name], noise=noise.derive(NOISE, name)).with_fields(
                user_field=fields.user or "user",
                item_field=fields.items if fields.several else fields.item or "item",
                time_field=fields.time,
                value_field=fields.value or "value",
                time_unit=fields.time_unit,
                time_zone=fields.time_zone,
                where=fields.where,
            )
            found[name] = events | f"{name}: {type(made).__name__}" >> made
        return found

    def answer(self, frame: Any, output: str | os.PathLike[str] | None, folder: str) -> Mapping[str, str]:
        """Answer all questions about a frame for `ask`; return the files of rows, by the names of questions."""
        check_account(self.options)
        table, events = as_table(frame), os.path.join(folder, "events.parquet")
        monitor = read_monitor(self.path, folder, input=events)
        fields = SharedFields(tuple(self._fields.items()))
        fields.check(table.schema, "the frame")
        write_events([table], fields.names(), events)
        place = Output(
            folder=os.path.join(folder, "rows") if output is None else os.fspath(output),
            format="parquet",
            sent_to=(),
            dead_letter=None,
        )
        options = dict.fromkeys(("noise_key_file", "noise_key_variable", "run_id", "ledger", "dataset"))
        options |= {"overwrite": False, "dry_run": False, "dead_letter": None} | self.options
        runner = launch.parse_beam_options([])
        made = MonitorRun.of(replace(monitor, output=place), argparse.Namespace(**options), runner, folder)
        made.report(*made.publish(runner))
        return {each.name: each.arguments.output for each in made.run.questions}
