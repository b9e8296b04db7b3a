"""What a question is to a user: one description, from which commands, Beam YAML, plans and help pages are made."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from privstream.pipelines.questions.signature import PACKAGE, Signature, read_signature

PIPELINES = "privstream.pipelines"
ROWS = f"{PACKAGE}.row_types"
METHOD, AUTO = "method", "auto"


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        name: without dashes.
        type: as in a signature, such as "int" or "Items"; see `option_types`.
        text: what it is.
        default: REQUIRED if there is none.
        choices: the values that it may have, if these are listed.
    """

    name: str
    type: str
    text: str
    default: Any = None
    choices: tuple[str, ...] = ()


class Part(NamedTuple):
    """Something of a question that is loaded when it is needed.

    Attributes:
        path: of the object, in `privstream.pipelines`.
        summary: what it does, in a line of a list.
    """

    path: str
    summary: str


class Excess(NamedTuple):
    """What a limit keeps out of the answers of a run, as its counters say.

    Attributes:
        left_out: the counter of what was left out.
        came: the counter of all that this limit was applied to.
        text: what a number of `left_out` is of.
        options: those that set the limit, of which a larger one leaves out less.
        lasting: whether what a person does in one window may be why later windows miss something.
        instead: what can be changed where no option sets the limit; of a limit of values, what the change does.
        of: what came, in the plural.
        repeats: whether what is left out may come again, and is then counted again.
        amounts: whether both counters are amounts, of which only the share is told.
    """

    left_out: str
    came: str
    text: str
    options: tuple[str, ...] = ()
    lasting: bool = False
    instead: str = ""
    of: str = "contributions"
    repeats: bool = False
    amounts: bool = False


WINDOWS = Excess(
    "holdings_over_limit",
    "holdings_before_limit",
    "times an item of a person was left out, who has taken part in as many windows as count",
    ("max_contributions",),
    lasting=True,
)
"""Of the windows of a person, for `Excess`."""

CHARGES = Excess(
    "charged_over_limit",
    "charged_before_limit",
    "times a person was left out, who has been charged --max_hits times",
    ("max_hits",),
    lasting=True,
    of="people who have something that may be reported",
)
"""Of people who are charged, for `Excess`; of those whose items may be reported."""


@dataclass(frozen=True, kw_only=True)
class QuestionSpec:
    """One question: what answers it, and what is its own on a command line. Importing it imports no Beam.

    Paths of functions are relative to `privstream.pipelines`; see `loaded`.

    Attributes:
        word: the command, such as "top-k".
        summary: what the command does, in a line of a list.
        description: the same in sentences.
        protected: what the guarantee protects.
        known_as: what it is called elsewhere, such as in dashboards or in SQL.
        transform: the path of the transform's class in `privstream.transforms`. Names, types, defaults and texts of
            options come from its signature and its docstring.
        parameters: the path of the class from which it has its arguments, its guarantee and its accuracy, if that needs
            no Beam: plans take that one, and options are those of its source.
        row: the NamedTuple in `privstream.transforms.row_types` that is published; see `row_type_of`.
        order: fields to sort rows by, `-` before a name for falling numbers; those without `-` are the `key` of a row.
        title: what the rows are, in the plural.
        published: the counter of what was published.
        why_nothing: why a run may publish nothing of usable events; without it, every run publishes something.
        user, item: what these fields of events are; the item is empty if none is read.
        items_with: options of which one must be given for the item to be read; empty if it is read always.
        value: what the number is that an event may have beside its item; empty if none is read.
        whole_values: whether it must be a whole number.
        values_with: the option with which it is read; empty if it is read always.
        units_without_users: units of privacy for which it does not matter whose an event is.
        unusable: counters of events that count in no answer, and how to say it, beside those of all commands.
        unanswered: counters of queries that are not answered, likewise.
        limits: what limits leave out, in the order in which they are applied.
        clipped: what limits of values change.
        beyond: counters of what else there is to say, and how to say it.
        only_by: counters of `beyond` that only one method has, and which.
        extras: options of the command beside, or instead of, the arguments of the transform.
        hidden: arguments of the transform that are no options, since `prepare` makes them.
        runs: the path of the class of what runs it, an `Asking`.
        prepare: the path of a function from the options to further arguments of the transform.
        settle: the path of a function from the options of a run to those that it has although they
            were not given; they enter what identifies the run.
        below: the path of a function from rows and their guarantee file to what a terminal shows
            below the rows.
        table: whether it shows the rows themselves above that.
        inputs: the path of a function from the options to further readers, by name. The transform then gets a
            dictionary of collections with these and `events`; each reader gives rows (`events`) and `dead_letters`.
        files: options that name further files to read.
        watched: the option whose files may come without an end.
        epilog: what stands below the help page, such as the form of a file.
        plan_epilog: what stands below the help page of the plan, such as the meaning of its numbers.
        planned: options of the plan beside, or instead of, those of the command.
        unplanned: options of the command that its plan does not have: they say nothing about accuracy.
        assumed: arguments of the transform that say nothing about accuracy, and what they are in plans.
        sizes: how a plan stands for lists that are not known yet: by argument, the option with the list's length, or
            with a path as in a run.
        columns: what a plan shows: names of numbers of the transform's `accuracy`, and their headings. The first is
            its `error`.
        error_unit: of the error, such as "people".
        error_means: what the error is, where that is not plain; as a part of a sentence.
        chart: the name of its chart in `show.charts.LOOKS`.
        simulation: the `Command` of `simulate`, and what it writes.
        audit: the attacks of `audit`, and what they are on.
    """

    word: str
    summary: str
    description: str
    protected: str
    known_as: str
    transform: str
    row: str
    order: tuple[str, ...]
    title: str
    published: str
    parameters: str = ""
    why_nothing: str = ""
    user: str = "person"
    item: str = "item"
    items_with: tuple[str, ...] = ()
    value: str = ""
    whole_values: bool = False
    values_with: str = ""
    units_without_users: tuple[str, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Excess, ...] = ()
    clipped: tuple[Excess, ...] = ()
    beyond: Mapping[str, str] = field(default_factory=dict)
    only_by: Mapping[str, str] = field(default_factory=dict)
    extras: tuple[Option, ...] = ()
    hidden: tuple[str, ...] = ()
    prepare: str | None = None
    runs: str = "questions.run.Run"
    settle: str | None = None
    below: str | None = None
    table: bool = True
    inputs: str | None = None
    files: tuple[str, ...] = ("domain",)
    watched: str = "input"
    epilog: str = ""
    plan_epilog: str = ""
    planned: tuple[Option, ...] = ()
    unplanned: tuple[str, ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Option] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    error_unit: str = "people"
    error_means: str = ""
    chart: str = ""
    simulation: Part | None = None
    audit: Part | None = None

    @cached_property
    def signature(self) -> Signature:
        """What the source of the transform says."""
        return read_signature(self.parameters or self.transform)

    @property
    def methods(self) -> tuple[str, ...]:
        """What may answer the question; none if there is but one way."""
        method = self.signature.arguments.get(METHOD)
        return () if method is None else tuple(name for name in method.choices if name != AUTO)

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that no two rows of a run have in common."""
        return tuple(name for name in self.order if not name.startswith("-"))

    @property
    def has_windows(self) -> bool:
        """Whether answers are about windows."""
        return "window" in self.signature.arguments

    @property
    def transform_class(self) -> Any:
        """The transform; imports Beam."""
        return resolve(f"{PACKAGE}.{self.transform}")

    @property
    def planned_class(self) -> Any:
        """The transform, or what is enough of it for plans; imports Beam where there is no such part."""
        return resolve(f"{PACKAGE}.{self.parameters or self.transform}")

    @property
    def row_type(self) -> Any:
        """What is published."""
        return resolve(f"{ROWS}.{self.row}")

    def row_type_of(self, transform: Any) -> Any:
        """Return what a transform publishes: `row`, unless its arguments ask for further fields."""
        return getattr(transform, "row_type", self.row_type)


def loaded(named: Any) -> Any:
    """Import what a path in `privstream.pipelines` names; what is no path is there already."""
    return resolve(f"{PIPELINES}.{named}") if isinstance(named, str) else named


def resolve(path: str) -> Any:
    """Import what a path names, without what other libraries have to say when they are loaded."""
    module, _, name = path.rpartition(".")
    logging.disable(logging.WARNING)
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        logging.disable(logging.NOTSET)
