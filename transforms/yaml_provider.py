"""Shifting heavy hitters for Beam YAML: rows with a schema in and out, everything configured by plain values.

The listing `providers.yaml` beside this file names what is here. Beam reads the keys of a configuration, and their
documentation, from signature and docstring. Nothing here imports what only Beam's `yaml` extra installs.
"""

import logging
from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.schemas import named_fields_from_element_type
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_rows import EVENTS, PER_SECOND, Event, ReadRows, to_micros
from privstream.transforms.heavy_hitters.shifting_heavy_hitters import ShiftingHeavyHitters
from privstream.transforms.rows import HeavyHitter
from privstream.transforms.timing.steps import MICROS

GOOD = "good"  # Beam YAML's name for the output beside the one of `error_handling`
UNBOUNDED = "unbounded"
STREAM = "stream"

_LOGGER = logging.getLogger(__name__)


class HeavyHitterRow(NamedTuple):
    """A `HeavyHitter` with its times as ISO 8601 text, since the sinks of Beam YAML cannot write Beam's timestamps."""

    stream: str
    window_start: str
    window_end: str
    item: str
    count: int  # type: ignore[assignment]  # the field's name wins over tuple.count
    count_stddev: float


registry.register_coder(HeavyHitterRow, RowCoder)


class YamlShiftingHeavyHitters(beam.PTransform[Any, Any]):
    """Reports, window by window, the items that many people hold, with differential privacy for each person.

    Input are rows with a person, an item and a time, output rows with stream, window_start, window_end, item, count and
    count_stddev. The windows are those of this configuration; `windowing` has no influence. The guarantee covers each
    person's whole life in the stream; it is logged when the pipeline is built.

    Privacy: as of `ShiftingHeavyHitters`. The whole configuration is public: Beam writes it into the pipeline. So the
    noise key is named by its file or environment variable.

    Args:
        epsilon: Privacy budget of each person over the whole run, > 0.
        delta: Privacy budget of each person over the whole run, in (0, 1).
        max_hits: Hits that one person is charged for in a stream, then dropped.
        window: Length of a window in seconds.
        horizon: Windows that one person takes part in at most, or the word unbounded.
        period: Seconds between the starts of two windows. Default: window.
        start: Start of the first window, ISO 8601 in quotes or seconds since 1970 UTC.
        end: No window ends after this, ISO 8601 in quotes or seconds since 1970 UTC.
        allowed_lateness: Seconds that a window stays open after its end.
        participation_cap: Windows of one person, counted per person.
        items_per_step: Items of one person in a window.
        selection: Which of a person's items count: last, first or random.
        domain: Public list of items, or the path of a file with one item per line.
        streams: Public list of the streams to monitor. Default: all.
        streams_per_person: Streams of one person. Default: 1.
        calibration: One of clock, target_charging, paper.
        neighbouring: One of add_remove, replace_one.
        beta: Failure probability of the accuracy statement.
        count_share: Share of epsilon spent on counts.
        shards: Parallel shards. Changes no answer.
        noise_key_file: File with the noise key, readable by every worker. Default: a new random key.
        noise_key_variable: Environment variable with the noise key, set on every worker.
        run_id: Public name of the run. A run on other data needs another.
        user_field: Field with the person, text or an integer.
        item_field: Field with the item, text or an integer.
        time_field: Field with the time: ISO 8601 text, a timestamp, or a number in time_unit.
        stream_field: Field with the stream. Default: stream, where present; an empty text for none.
        time_unit: Unit of times that are plain numbers: s, ms, us or ns.
        error_handling: Names in output where rows that cannot be used go. Without it they are only counted.

    Raises:
        ValueError, TypeError: a value breaks its rule, or a field is missing, when the pipeline is built.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        max_hits: int,
        window: float,
        horizon: int | str,
        period: float | None = None,
        start: float | str | None = None,
        end: float | str | None = None,
        allowed_lateness: float = 0,
        participation_cap: int | None = None,
        items_per_step: int = 1,
        selection: str = "last",
        domain: str | list[str] | None = None,
        streams: list[str] | None = None,
        streams_per_person: int | None = None,
        calibration: str = "clock",
        neighbouring: str = "add_remove",
        beta: float = 0.05,
        count_share: float = 0.25,
        shards: int = 4,
        noise_key_file: str | None = None,
        noise_key_variable: str | None = None,
        run_id: str = "",
        user_field: str = "user",
        item_field: str = "item",
        time_field: str = "time",
        stream_field: str | None = None,
        time_unit: str | None = None,
        error_handling: dict[str, str] | None = None,
    ) -> None:
        super().__init__("ShiftingHeavyHitters")
        self.fields = {"user_field": user_field, "item_field": item_field, "time_field": time_field}
        self.stream_field = stream_field
        self.time_unit = None if time_unit is None else checks.one_of("time_unit", time_unit, tuple(PER_SECOND))
        self.error_output = _error_output(error_handling)
        steps: Any = None if horizon == UNBOUNDED else horizon
        self._make = partial(
            ShiftingHeavyHitters,
            epsilon=_number("epsilon", epsilon),
            delta=_number("delta", delta),
            max_hits=max_hits,
            window=_number("window", window),
            horizon=steps,
            period=_number("period", period),
            start=_moment("start", start),
            end=_moment("end", end),
            allowed_lateness=_number("allowed_lateness", allowed_lateness),
            participation_cap=participation_cap,
            items_per_step=items_per_step,
            selection=selection,
            domain=_domain(domain),
            streams=None if streams is None else tuple(_texts("streams", streams)),
            calibration=calibration,
            neighbouring=neighbouring,
            beta=_number("beta", beta),
            count_share=_number("count_share", count_share),
            shards=shards,
            noise=_noise(noise_key_file, noise_key_variable, run_id),
        )
        self.hitters = self._make(streams_per_person=streams_per_person)

    def expand(self, rows: PCollection[Any]) -> Any:
        """Build the stages around `ShiftingHeavyHitters`."""
        stream = self._stream(_field_names(rows))
        hitters = self.hitters
        if stream is not None and hitters.streams_per_person is None:
            hitters = self._make(streams_per_person=1)
        _LOGGER.info("%s Found from %d people on.", hitters.guarantee.paragraph(), hitters.detection_threshold)
        read = beam.ParDo(ReadRows(**self.fields, stream_field=stream, time_unit=self.time_unit))
        events = (
            rows
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
            | "ReadRows"
            >> read.with_output_types(Event, **{DEAD_LETTERS: DeadLetter}).with_outputs(DEAD_LETTERS, main=EVENTS)
        )
        published = events[EVENTS] | "ShiftingHeavyHitters" >> hitters.with_dead_letters()
        found = published.rows | "TimesAsText" >> beam.Map(_with_times_as_text).with_output_types(HeavyHitterRow)
        if self.error_output is None:
            return found
        dead = (events[DEAD_LETTERS], published.dead_letters) | "AllDeadLetters" >> beam.Flatten()
        return {GOOD: found, self.error_output: dead}

    def _stream(self, names: list[str]) -> str | None:
        """Return the field with the stream, or None, after checking that all fields are there."""
        wanted = dict(self.fields)
        if self.stream_field:
            wanted["stream_field"] = self.stream_field
        elif self.stream_field is None and STREAM in names and STREAM not in wanted.values():
            wanted["stream_field"] = STREAM
        for key, name in wanted.items():
            if name not in names:
                raise ValueError(f"{key} must be a field of the input, got {name!r}; its fields are {', '.join(names)}")
        stream = wanted.get("stream_field")
        if stream is None and self.hitters.streams_per_person is not None:
            raise ValueError("streams_per_person must not be given when the events have no stream")
        return stream


def _with_times_as_text(hit: HeavyHitter) -> HeavyHitterRow:
    """Write the times of a row as text."""
    start, end = hit.window_start.to_rfc3339(), hit.window_end.to_rfc3339()
    return HeavyHitterRow(hit.stream, start, end, hit.item, hit.count, hit.count_stddev)


def _field_names(rows: PCollection[Any]) -> list[str]:
    """Return the fields of rows."""
    element: Any = rows.element_type
    try:
        return [name for name, _ in named_fields_from_element_type(element)]
    except TypeError:
        raise TypeError(f"input must be rows with a schema, got {element}") from None


def _number(name: str, value: Any) -> Any:
    """Return text as the number that it is: YAML reads 1e-6, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def _moment(name: str, value: Any) -> float | None:
    """Return seconds since 1970 UTC."""
    if isinstance(value, date):
        raise TypeError(f"{name} must be ISO 8601 text in quotes or seconds since 1970, got a {type(value).__name__}")
    return None if value is None else to_micros(name, value, "s") / MICROS


def _texts(name: str, values: Any) -> list[str]:
    """Return a list of texts; an integer is its decimal text, as in events."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list, got {type(values).__name__}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise TypeError(
                f"{name} must hold texts, in quotes where YAML reads something else: one is a {type(value).__name__}"
            )
    return [str(value) for value in values]


def _domain(domain: Any) -> Domain | None:
    """Return the domain that a list or a path describes."""
    if domain is None:
        return None
    return Domain.from_file(domain) if isinstance(domain, str) else Domain(_texts("domain", domain))


def _noise(file: str | None, variable: str | None, run_id: str) -> KeyedNoise:
    """Return the noise source whose key stands in a file or an environment variable, or one with a new random key."""
    if file is not None and variable is not None:
        raise ValueError("noise_key_file and noise_key_variable must not both be given")
    if file is not None:
        return KeyedNoise.from_file(file, run_id)
    if variable is not None:
        return KeyedNoise.from_environment(variable, run_id)
    _LOGGER.warning("noise key: a new random one, for this run only; with noise_key_file the run could be repeated")
    return KeyedNoise.random(run_id)


def _error_output(error_handling: Any) -> str | None:
    """Return the name of the output for dead letters."""
    if error_handling is None:
        return None
    if not isinstance(error_handling, Mapping) or list(error_handling) != ["output"]:
        raise ValueError("error_handling must be a mapping with the one key output")
    output = error_handling["output"]
    if not isinstance(output, str) or output in ("", GOOD):
        raise ValueError(f"error_handling.output must be a name other than {GOOD}, got {output!r}")
    return output
