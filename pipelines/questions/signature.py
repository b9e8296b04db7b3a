"""What the source of a transform says of its arguments: read without importing it, since Beam takes seconds to load."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

REQUIRED: Final[Any] = object()
"""The default of what must be given."""

PACKAGE = "privstream.transforms"


class Argument(NamedTuple):
    """An argument of a transform.

    Attributes:
        name: in the signature.
        types: what it may be, such as ("float", "None").
        choices: the values that it may have, if these are listed.
        default: REQUIRED if there is none.
        text: what the docstring says of it, in one line.
    """

    name: str
    types: tuple[str, ...]
    choices: tuple[str, ...]
    default: Any
    text: str


class Signature(NamedTuple):
    """What stands in the source of a transform.

    Attributes:
        summary: the first line of the docstring.
        arguments: by name, in the order of the signature.
    """

    summary: str
    arguments: dict[str, Argument]


@cache
def read_signature(path: str) -> Signature:
    """Return what the source says of a transform, all of whose arguments have names.

    Args:
        path: module and class, such as `top_k.top_k_with_gap.TopKWithGap`, in `privstream.transforms`.

    Raises:
        TypeError: the signature says too little, or says it in a way that cannot be read.
    """
    module, _, name = path.rpartition(".")
    found = next(each for each in _parse(module).body if isinstance(each, ast.ClassDef) and each.name == name)
    made = next(each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    docstring = inspect.cleandoc(ast.get_docstring(found) or "")
    texts = described(docstring)
    arguments = {}
    for each, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
        if each.annotation is None or each.arg not in texts:
            raise TypeError(f"{path}: {each.arg} must have a type and stand in the docstring")
        types, choices = _types(each.annotation)
        value = REQUIRED if default is None else ast.literal_eval(default)
        arguments[each.arg] = Argument(each.arg, types, choices, value, _followed(each.arg, texts[each.arg]))
    if made.args.kwarg is not None:
        for option in _window_options():
            arguments[option.name] = option._replace(text=texts.get(option.name, option.text))
    return Signature(docstring.partition("\n")[0], arguments)


@cache
def _window_options() -> tuple[Argument, ...]:
    """Return the options of windows, which transforms hand on unread: see `WindowOptions`."""
    classes = {each.name: each for each in _parse("timing.steps").body if isinstance(each, ast.ClassDef)}
    texts = described(ast.get_docstring(classes["WindowOptions"]) or "")
    made = next(each for each in classes["Steps"].body if isinstance(each, ast.FunctionDef) and each.name == "of")
    return tuple(
        Argument(each.arg, *_types(each.annotation), REQUIRED if default is None else ast.literal_eval(default), text)
        for each, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
        if each.annotation is not None and (text := texts.get(each.arg))
    )


def described(docstring: str, title: str = "Args") -> dict[str, str]:
    """Return what a docstring says of each argument, or of what another section lists; several may share a line."""
    section = inspect.cleandoc(docstring).partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5}.*)*)", section, re.M):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _followed(name: str, text: str) -> str:
    """Return the text of an argument, or that of another transform if it only says: see that one."""
    other = re.fullmatch(r"see `([\w.]+)`\.", text)
    return text if other is None else read_signature(other[1]).arguments[name].text


def _parse(module: str) -> ast.Module:
    """Return the syntax tree of a module of transforms."""
    package = importlib.util.find_spec(PACKAGE)
    assert package is not None and package.submodule_search_locations
    (folder,) = package.submodule_search_locations
    return ast.parse(Path(folder, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))


def _types(annotation: ast.expr) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the members of a union, `str` for a list of texts, and these texts."""
    if isinstance(annotation, ast.BinOp):
        (left, some), (right, others) = _types(annotation.left), _types(annotation.right)
        return left + right, some + others
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        chosen = ast.literal_eval(annotation.slice)
        return ("str",), chosen if isinstance(chosen, tuple) else (chosen,)
    return (ast.unparse(annotation),), ()
