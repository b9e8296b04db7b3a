"""Writes the tables of the documentation that list questions, from their descriptions: `make tables`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.yaml.transforms import TRANSFORMS

ROOT = Path(__file__).parents[1]
SPECS = [question(word) for word in WORDS]


def table(*rows: Sequence[str]) -> str:
    """Return a table; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def code(names: Iterable[str]) -> str:
    """Return names as code."""
    return ", ".join(f"`{name}`" for name in names)


TABLES = {
    "README.md": table(
        ("command", "use it to", "you may know it as", "the guarantee protects"),
        *((f"`{spec.word}`", spec.summary, spec.known_as, spec.protected) for spec in SPECS),
    ),
    "docs/commands.md": table(
        ("command", "`--method auto` takes the most accurate of"),
        *(
            (f"`{spec.word}`", code(name for name in spec.methods if name not in spec.by_name))
            for spec in SPECS
            if spec.methods
        ),
    ),
    "docs/beam_yaml.md": table(
        ("transform", "its keys are the options of", "fields of its rows"),
        *((f"`{name}`", f"`privstream {to.spec.word}`", code(to.fields)) for name, to in TRANSFORMS.items()),
    ),
}


def page(name: str) -> str:
    """Return the text of a page with its table as it should be."""
    text = (ROOT / name).read_text("utf-8")
    between = r"(?<=<!-- written by make tables -->\n\n).*?(?=\n\n<!-- end -->)"
    written, number = re.subn(between, lambda _: TABLES[name], text, flags=re.DOTALL)
    if number != 1:
        raise ValueError(f"{name} must have one place for a table, got {number}")
    return written


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name), "utf-8")
