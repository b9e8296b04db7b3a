"""What a subcommand of `privstream` is, how it reads its options, and help that fits on a terminal."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from privstream.pipelines.terminal import did_you_mean, one_line
from typing_extensions import override


class CommandError(Exception):
    """A command that does not end well: the message says why, and `status` is what its process returns."""

    status = 1


class UsageError(CommandError):
    """The command cannot be started as given: the message says which option is wrong, and the rule."""

    status = 2


class RunError(CommandError):
    """The command was started and failed: the message says what happened, and what to do."""


class NothingUsableError(CommandError):
    """The command has written its rows, but nothing that it has read could be used: the message counts the reasons."""

    status = 3


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand: what it says of itself, its options, and what it does."""

    description: str
    run: Callable[..., None]  # gets the values of options by their names
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what argparse needs to know of each
    keys: Sequence[Any] | None = None  # keys of a monitor; `run` gets what they give, or its file, as `given`
    kind: Any = None  # the question whose options these are; None of a monitor, which is in a `file`
    takes_beam_options: bool = False  # whether `run` gets all other arguments as `beam`; other commands have none
    epilog: str | None = None


SUBJECT = re.compile(r"\w+(?:(?:, | and | or )\w+)*(?= must )")
WITH_DASHES = re.compile(r"(?<![\w-])--([a-z][a-z_-]*)")
CHOICE = re.compile(r"(.*invalid choice: '(.*)') \(choose from (.*)\)")


class HelpPage(argparse.HelpFormatter):
    """Help whose paragraphs are wrapped, but for those with lines that begin with spaces."""

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (part.strip("\n") for part in text.split("\n\n"))
        return "\n\n".join(part if "\n " in part else textwrap.fill(part, width) for part in paragraphs)


def without_dashes(message: str) -> str:
    """Return a message about options as one about keys: `--max-value must be ..` becomes `max_value must be ..`."""
    return WITH_DASHES.sub(lambda found: found[1].replace("-", "_"), message)


def spelled(message: str, names: Mapping[str, str]) -> str:
    """Return a message whose subject is an option: `max_hits must be >= 1` becomes `--max-hits must be >= 1`."""
    subject = SUBJECT.match(message)
    end = subject.end() if subject else 0
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), message[:end]) + message[end:]


class Help(argparse.Action):
    """Prints the options that most people need, or with `all` every option, and ends."""

    @override
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        more = [each for each in parser._actions if getattr(each, "advanced", False) and each.help != argparse.SUPPRESS]
        if more and values != "all":
            for action in more:
                action.help = argparse.SUPPRESS
            number = f"{len(more)} more option{'s' * (len(more) > 1)}"
            parser.epilog = f"{parser.epilog or ''}\n\n{number}: {parser.prog} --help all".strip()
        parser.print_help()
        parser.exit()


class Once(argparse.Action):
    """Takes the value of an option that is given once: of two, one would not be seen."""

    is_given = False

    @override
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if self.is_given and option is not None:
            parser.error(f"{option} must not be given twice")
        self.is_given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Takes options by their full names only, with dashes or underscores, and reports a mistake in one line."""

    def __init__(self, **given: Any) -> None:
        page = partial(HelpPage, max_help_position=28)
        super().__init__(**{"allow_abbrev": False, "formatter_class": page, **given, "add_help": False})
        self.register("action", None, Once)
        self.add_argument(
            "-h", "--help", action=Help, nargs="?", choices=["all"], metavar="all", default=argparse.SUPPRESS,
            help="print this page, or with `all` every option",
        )  # fmt: skip

    @override
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args([self._with_dashes(word) for word in args], namespace)

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")  # options of Beam have underscores
        return f"{dashed}{equals}{value}" if dashed in self._option_string_actions else word

    @override
    def format_help(self) -> str:
        """Begin with the shortest call that can be."""
        if self.usage is None and self._subparsers is None:
            needed = [" ".join([*each.option_strings, str(each.metavar)]) for each in self._actions if each.required]
            self.usage = " ".join(["%(prog)s", *needed, "[OPTION]..."])
        return super().format_help()

    @override
    def error(self, message: str) -> NoReturn:
        if choice := CHOICE.search(message):
            hint = did_you_mean(choice[2], re.findall(r"[\w-]+", choice[3]))
            message = f"{choice[1]}{hint}" if hint else message
        self.exit(2, f"{self.prog}: error: {one_line(message)}; see {self.prog} --help\n")
