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
    docstring = inspect.cleandoc(ast.get_docstring(_classes(module)[name]) or "")
    return Signature(docstring.partition("\n")[0], _arguments(module, name, "__init__", docstring))


def _arguments(module: str, name: str, method: str, docstring: str) -> dict[str, Argument]:
    """Return the arguments of a method: its own, and those that it hands on unread, which `WindowOptions` describe.

    Where it hands on the options of the class that it derives from, `FieldOptions` for example, they come first.
    """
    kind, texts, own = _classes(module)[name], described(docstring), {}
    made = next(each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == method)
    for each, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
        if each.annotation is None or each.arg not in texts:
            raise TypeError(f"{module}.{name}: {each.arg} must have a type and stand in the docstring")
        value = REQUIRED if default is None else ast.literal_eval(default)
        own[each.arg] = Argument(each.arg, *_types(each.annotation), value, texts[each.arg])
    if made.args.kwarg is None or made.args.kwarg.annotation is None:
        return own
    options = ast.unparse(made.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
    if options == "WindowOptions":
        return own | {each.name: each._replace(text=texts.get(each.name, each.text)) for each in _window_options()}
    described_there = inspect.cleandoc(ast.get_docstring(_classes(module)[options]) or "")
    return _arguments(module, ast.unparse(kind.bases[0]), method, described_there) | own


@cache
def _window_options() -> tuple[Argument, ...]:
    """Return the options of windows: see `WindowOptions`."""
    classes = _classes("timing.steps")
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


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the syntax trees of the classes in a module of transforms."""
    package = importlib.util.find_spec(PACKAGE)
    assert package is not None and package.submodule_search_locations
    (folder,) = package.submodule_search_locations
    tree = ast.parse(Path(folder, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def _types(annotation: ast.expr) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the members of a union, `str` for a list of texts, and these texts."""
    if isinstance(annotation, ast.BinOp):
        (left, some), (right, others) = _types(annotation.left), _types(annotation.right)
        return left + right, some + others
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        chosen = ast.literal_eval(annotation.slice)
        return ("str",), chosen if isinstance(chosen, tuple) else (chosen,)
    return (ast.unparse(annotation),), ()
