"""Writes the tables of the documentation that the code knows: `make tables`."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from privstream.pipelines.model.catalogue import WORDS, Suggest, question
from privstream.pipelines.report.result import described
from privstream.pipelines.yaml.transforms import KINDS
from privstream.transforms import AlertState, KeyRise, KeySum, RatioEstimate

ROOT = Path(__file__).parents[1]
SPECS = [question(word) for word in WORDS]
COMMON = ("window_start", "window_end")
VIEWS = {"ratios": RatioEstimate, "alerts": AlertState}
"""Rows of views of a monitor; those of others are rows of their question."""


def table(*rows: Sequence[str]) -> str:
    """Return a table; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def code(names: Iterable[str]) -> str:
    """Return names as code."""
    return ", ".join(f"`{name}`" for name in names)


def columns(row: type[Any], names: Iterable[str]) -> str:
    """Return a list of columns, with what the docstring of their row says of them."""
    texts = described(row.__doc__ or "", "Attributes")
    return "\n".join(f"- {code(several)}: {_meaning(text)}" for text, several in groupby(names, texts.__getitem__))


def _meaning(text: str) -> str:
    """Return a text of a docstring with links to rows."""
    return re.sub(r"`([A-Z]\w+)`", lambda found: _linked(found[1]), text)


def _linked(name: str) -> str:
    """Return a name as code; that of a row as a link to the question that publishes it."""
    words = [spec.word for spec in SPECS if spec.row_type.__name__ == name]
    return f"[`{words[0]}`](#{words[0]})" if words else f"`{name}`"


def rows_of(word: str) -> str:
    """Return the columns of the rows of a question, and those that its sums have in addition."""
    row = question(word).row_type
    listed = columns(row, [name for name in row._fields if name not in COMMON])
    if row._fields != KeySum._fields[: len(row._fields)]:
        return listed
    more = {"max_value": KeySum, "rising": KeyRise}
    parts = [
        f"With `--{name.replace('_', '-')}` also:\n\n{columns(each, each._fields[len(row._fields) :])}"
        for name, each in more.items()
    ]
    return "\n\n".join([listed, *parts])


def suggest_rows() -> str:
    """Return the columns of the rows of `suggest`."""
    return columns(Suggest.info.row_type, Suggest.info.row_type._fields)


def view_rows() -> str:
    """Return the columns of views of a monitor that are not those of a question."""
    return "\n\n".join(
        f"### {what.capitalize()}\n\n{columns(row, [name for name in row._fields if name not in COMMON])}"
        for what, row in VIEWS.items()
    )


def question_table() -> str:
    """Return what each command is for."""
    return table(
        ("command", "use it to"),
        *((f"[`{spec.word}`](docs/questions.md#{spec.word})", spec.summary.partition(";")[0]) for spec in SPECS),
    )


def method_table() -> str:
    """Return what each command protects, and its methods, the one that a run takes first."""
    return table(
        ("command", "the guarantee protects", "methods"),
        *((f"[`{spec.word}`](#{spec.word})", spec.protected, code(spec.methods)) for spec in SPECS),
    )


def yaml_table() -> str:
    """Return the transforms of Beam YAML."""
    return table(
        ("transform", "its keys are the options of, and its rows those of"),
        *((f"`{name}`", f"[`{kind.info.word}`](questions.md#{kind.info.word})") for name, kind in KINDS.items()),
    )


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"Questions": question_table},
    "docs/questions.md": {
        "Questions": method_table,
        **{word: partial(rows_of, word) for word in WORDS},
        "Limits that nobody can guess": suggest_rows,
    },
    "docs/beam_yaml.md": {"Transforms": yaml_table},
    "docs/how_to/monitor.md": {"Columns of views": view_rows},
}
"""What makes the tables of a page, by the heading that each stands under."""

PLACE = re.compile(
    r"(?<=^<!-- written by make tables -->\n\n).*?(?=\n\n<!-- end -->)|^#+ ([^\n]+)$", re.DOTALL | re.MULTILINE
)
"""What is between the marks of a table, or a heading."""


def page(name: str) -> str:
    """Return the text of a page with its tables as they should be."""
    heading, missing = "", dict(TABLES[name])

    def filled(found: re.Match[str]) -> str:
        nonlocal heading
        if found[1] is None:
            return missing.pop(heading)()
        heading = found[1]
        return found[0]

    text = PLACE.sub(filled, (ROOT / name).read_text("utf-8"))
    if missing:
        raise ValueError(f"{name} must have a place for a table under each of {', '.join(missing)}")
    return text


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name), "utf-8")
