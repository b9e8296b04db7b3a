"""What a question is: a model with its options, and what it is to a user. Imports no Beam."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privstream.pipelines.model.base import (
    Columns,
    Length,
    Model,
    Moment,
    Name,
    Number,
    Positive,
    Seconds,
    WrongKeyError,
    option,
)

TRANSFORMS = "privstream.transforms"
METHOD = "method"
POINT = "point, a whole number"  # what the field with the user may be
EVENT = "event"  # the unit of privacy of one event, no matter whose it is


@dataclass(frozen=True, kw_only=True)
class QuestionInfo:
    """What a question is to a user, apart from its options."""

    summary: str  # what the command does, in a line of a list
    transform: str  # path of its class in `privstream.transforms`
    row: str  # the NamedTuple in `privstream.transforms.row_types` that is published; see `row_type_of`
    # fields to sort rows by, `-` before a name for falling numbers; those without `-` tell rows apart
    order: tuple[str, ...]
    title: str  # what the rows are, in the plural
    parameters: str = ""  # path of the class with its guarantee and accuracy, which needs no Beam
    why_nothing: str = ""  # why a run may publish nothing of usable events; without it, every run publishes something
    user: str = "person"  # what the field of an event is; empty if it is not read; `item` and `value` likewise
    item: str = "item"
    items_with: tuple[str, ...] = ()  # options of which one must be given for the item to be read; empty for always
    value: str = ""
    whole_values: bool = False  # whether the value must be a whole number
    values_with: str = ""  # the option with which the value is read; empty if it is read always
    below: str | None = None  # path of what a terminal shows in place of rows, of rows and their guarantee file
    bounded: bool = False  # whether it is about all of one data set, which has an end
    usual: Mapping[str, Any] = field(default_factory=dict)  # values of a command that hold where nothing is given
    epilog: str = ""  # what stands below the help page, such as the form of a file
    error_unit: str = "people"  # what the error of a plan counts
    protected: str = "a person over the whole run"  # what the guarantee protects
    word: str = ""  # the command, such as "top-k"; this and what follows is taken from the model
    description: str = ""  # the question in sentences
    methods: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the rows of a single question are called in its monitor."""
        return self.word.replace("-", "_")

    @property
    def transform_class(self) -> Any:
        """The transform; imports Beam."""
        return resolve(f"{TRANSFORMS}.{self.transform}")

    @property
    def planned_class(self) -> Any:
        """What is enough of the transform for plans."""
        return resolve(f"{TRANSFORMS}.{self.parameters or self.transform}")

    @property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of the transform."""
        return inspect.signature(self.planned_class).parameters

    @property
    def has_windows(self) -> bool:
        """Whether answers are about windows."""
        return "window" in self.arguments

    @property
    def row_type(self) -> Any:
        """What is published."""
        return resolve(f"{TRANSFORMS}.row_types.{self.row}")

    def row_type_of(self, transform: Any) -> Any:
        """Return what a transform publishes: `row`, unless its arguments ask for further fields."""
        return getattr(transform, "row_type", self.row_type)


class Windows(Model):
    """The windows of a run, and when it starts and ends."""

    window: Length | None = option(
        None, "length of a window: 1h or 1d; or by the calendar, from --start on, 1day, 1month or 3months"
    )
    start: Moment | None = option(None, "start of the first window: ISO 8601, or seconds since 1970")
    end: Moment | None = option(None, "end of the last window")
    renew_every: Length | None = option(
        None,
        "length of a budget period, counted from --start: limits, budgets and what is remembered begin again; the "
        "guarantee is then for one such period",
        advanced=True,
    )
    allowed_lateness: Seconds = option(0.0, "how long after its end a window still takes late events", advanced=True)

    def __init__(self, window: Any = None, **given: Any) -> None:
        super().__init__(**({"window": window} if window is not None else {}) | given)

    def arguments(self, zone: str | None) -> dict[str, Any]:
        """Return arguments of a transform; what clocks have shown is by those of a zone."""
        moment = loaded("local_time.moment")
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        if isinstance(self.window, str) and zone is not None and " " not in self.window:
            given["window"] = f"{self.window} {zone}"
        return given | {name: moment(name, given[name], zone or "UTC") for name in ("start", "end") if name in given}


class Question(Model):
    """A question about a stream of events."""

    info: ClassVar[QuestionInfo]
    lists: ClassVar[Mapping[str, str]] = {}
    """Options that are public lists, or paths of such, and what reads them in `model.public_lists`."""

    question: str
    share: Positive = option(1.0, "of the budget of a monitor, relative to its other questions")
    user: Name | None = option(None, "field with the person, in place of that of the data")
    item: Columns | None = option(None, "field with the item, or several, in place of that of the data")
    value: Name | None = option(None, "field with the number, in place of that of the data")
    value_unit: Number | None = option(None, "unit of values, in place of that of the data")
    where: Name | None = option(None, "condition that an event must meet to count, in addition to that of the data")
    windows: Windows | None = option(None, "windows, where they are others than those of the monitor")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let `info` know what the model says: its word, its docstring, and the methods."""
        if (info := vars(cls).get("info")) is not None:
            method, word = cls.model_fields.get(METHOD), cls.model_fields["question"].default
            known = {"word": word, "description": " ".join((cls.__doc__ or "").split())}
            known["methods"] = () if method is None else tuple(method.annotation.__args__)  # type: ignore[union-attr]
            vars(info).update(known)

    def gives(self, *names: str) -> bool:
        """Tell whether one of these options is given."""
        return any(getattr(self, name, None) is not None for name in names)

    @classmethod
    def options(cls) -> list[str]:
        """Return the names of the options that are this question's own."""
        return [name for name in cls.model_fields if name not in Question.model_fields]

    def windows_in(self, windows: Windows) -> Windows:
        """Return its own windows where they say something, and else those of a run."""
        own = self.windows or Windows()
        return windows.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

    def arguments(self, windows: Windows, reading: Any = None, zone: str | None = None) -> dict[str, Any]:
        """Return the arguments of the transform, but for the budget and the noise.

        Args:
            windows: of the run.
            reading: how public lists are read; None as in UTF-8.
            zone: whose clocks have shown times without an offset.
        """
        known = self.info.arguments
        own = {name: value for name in self.options() if (value := getattr(self, name)) is not None}
        for name in self.lists.keys() & own:
            public = loaded("model.public_lists")
            own[name] = getattr(public, self.lists[name])(name, own[name], reading or public.Reading())
        if self.info.has_windows:
            spans = self.windows_in(windows).arguments(zone)
            needed = [name for name in ("start", "end") if name in known and known[name].default is known[name].empty]
            if missing := [name for name in ("window", *needed) if name not in spans]:
                raise WrongKeyError(("windows", missing[0]), "must be given")
            own |= spans
        return {name: value for name, value in own.items() if name in known}

    def transform(self, given: Mapping[str, Any], *, unbounded: bool) -> Any:
        """Return what answers the question, for rows that are seen when the run is over, or while it goes on."""
        made = self.info.transform_class(**given)
        return made if unbounded else made.over_files()


def loaded(path: str) -> Any:
    """Import what a path in `privstream.pipelines` names."""
    return resolve(f"privstream.pipelines.{path}")


def resolve(path: str) -> Any:
    """Import a module, or something in one, without what other libraries have to say when they are loaded."""
    module, _, name = path.rpartition(".")
    handlers = logging.root.handlers[:]
    logging.disable(logging.WARNING)
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if hasattr(found, name) else importlib.import_module(path)
    finally:
        logging.disable(logging.NOTSET)
        logging.root.handlers[:] = handlers  # Beam's warnings set the root logger up, even when silenced
