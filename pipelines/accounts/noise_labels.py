"""What noise is drawn from, as a digest: two runs without an end that have the same one repeat each other's noise."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import KeyedNoise, NoiseSource, PrfNoise
from privstream.pipelines.accounts.build import modules

DIGEST_BYTES = 8

PUBLIC = KeyedNoise(bytes(range(32)), "what noise is drawn from")
"""A source whose key everybody knows: what it gives for a label stands for the label, and tells nothing of real noise.
"""

DERIVES, NAMED = "derive", "noise_label"
DESCRIBES = ("label", "_described", "_source")
"""Ends of names of functions that make labels, or parts of them."""


def drawn_from(transforms: Mapping[str, Callable[[NoiseSource], Any]]) -> str:
    """Return a digest of what the noise of transforms is drawn from.

    It has the labels and the parameters of all mechanisms and sources that a transform holds, and all labels that stand
    in the modules that it needs. So a change of code that touches no label changes nothing here, and one that raises
    the version of a label does.

    Args:
        transforms: by the name of the question, what makes its transform with a source of noise.
    """
    found = blake2b(digest_size=DIGEST_BYTES)
    for name, make in sorted(transforms.items()):
        made = make(PUBLIC)
        held = sorted(_held(made, set()))
        for text in (name, *held, *labels_in(type(made).__module__)):
            found.update(f"{len(text)} {text}\n".encode())
    return found.hexdigest()


def _held(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield a text for every mechanism and every source of noise that an object of privstream holds."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, PrfNoise):
        yield _words(value)
        return
    if isinstance(value, Mechanism) and hasattr(value, NAMED):
        yield _words(value._source(PUBLIC))
    elif is_dataclass(value) and _is_ours(value, "mechanisms."):
        plain = {each.name: getattr(value, each.name) for each in fields(value)}
        yield f"{type(value).__name__} { {name: one for name, one in plain.items() if _is_plain(one)} }"
    for each in _parts(value):
        yield from _held(each, seen)


def _parts(value: Any) -> list[Any]:
    """Return what an object of privstream was made with; nothing that it has worked out and kept."""
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, dict):
        return [*value.values()]
    if not _is_ours(value):
        return []
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value)]
    kept = {name for name in dir(type(value)) if isinstance(getattr(type(value), name), cached_property)}
    return [one for name, one in getattr(value, "__dict__", {}).items() if name not in kept]


def _words(source: NoiseSource) -> str:
    """Return what a source that comes from the public key gives first."""
    return source.words(1).tobytes().hex()


def _is_plain(value: Any) -> bool:
    """Tell whether a value is the same text on every machine."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _is_ours(value: Any, below: str = "") -> bool:
    """Tell whether the class of an object is one of privstream."""
    return type(value).__module__.startswith(f"privstream.{below}")


def labels_in(module: str) -> tuple[str, ...]:
    """Return all labels in the code of a module, and of those of privstream that it needs; sorted, each as often as is.

    Where they stand does not matter, nor what else is there.
    """
    needed, waiting = {module}, [module]
    while waiting:
        more = _read(waiting.pop()).imports - needed
        needed |= more
        waiting += more
    code = [_read(name) for name in needed]
    names = {name for each in code for name in each.names}
    named = [f"{name} = {value}" for each in code for name, value in each.constants if name in names]
    return tuple(sorted([*named, *(label for each in code for label in each.labels)]))


class Code:
    """What a module has that is about labels.

    Attributes:
        imports: the modules of privstream that it needs, of those that shape noise.
        labels: a text for each place where a label is made: the constants there.
        names: what else is named at these places.
        constants: pairs of the name and the constants of what is assigned once, for the module.
    """

    def __init__(self, text: str) -> None:
        tree, known = ast.parse(text), modules()
        self.imports = {
            f"{node.module}.{each.name}" if f"{node.module}.{each.name}" in known else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in known
            for each in node.names
        }
        places = [place for node in ast.walk(tree) if (place := _place(node))]
        self.labels = [repr(found) for place in places if (found := _constants(*place))]
        self.names = {
            one.id for place in places for each in place for one in ast.walk(each) if isinstance(one, ast.Name)
        }
        self.constants = [
            (target.id, repr(found))
            for node in tree.body
            if isinstance(node, ast.Assign) and (found := _constants(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        ]


@cache
def _read(module: str) -> Code:
    """Return what a module has that is about labels."""
    return Code(modules()[module].read_text("utf-8"))


def _place(node: ast.AST) -> list[Any]:
    """Return the parts of a node in which a label is made; none if it makes none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == DERIVES:
        return [*node.args]
    if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == NAMED for one in node.targets):
        return [node.value]
    if isinstance(node, ast.FunctionDef) and node.name.endswith(DESCRIBES):
        return [*node.body[ast.get_docstring(node) is not None :]]
    return []


def _constants(*nodes: ast.AST) -> list[str | bytes | int | float]:
    """Return the texts and numbers that stand in parts of a program, in their order."""
    found = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return [one.value for one in found if isinstance(one.value, str | bytes | int | float)]
