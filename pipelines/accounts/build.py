"""Which code answers: the version of privstream, and a digest of all that shapes answers and noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

SHAPING = ("privstream.mechanisms", "privstream.transforms", "privstream.pipelines.sources")
"""Packages whose code shapes answers or noise."""

DIGEST_BYTES = 8


def build() -> str:
    """Return the version with a digest of the code that shapes answers and noise, such as "0.3.0+1f0c..".

    Two states of one version may differ in the noise that a label stands for, or in how events are limited: what one
    of them publishes does not repeat what the other one has published.
    """
    return f"{version('privstream')}+{code_digest()}"


@cache
def code_digest() -> str:
    """Return a digest of all source files of `SHAPING`, with their names."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for package in SHAPING:
        for name, file in sorted(_sources(files(package), package)):
            found.update(f"{name}\n".encode() + blake2b(file.read_bytes()).digest())
    return found.hexdigest()


@cache
def modules() -> dict[str, Traversable]:
    """Return the files of all modules whose code shapes answers or noise, by the names of these."""
    found = {name: file for package in SHAPING for name, file in _sources(files(package), package)}
    return {name.removesuffix(".py").removesuffix(".__init__"): file for name, file in found.items()}


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Yield all modules below a folder, with their names."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _sources(each, f"{name}.{each.name}")
        elif each.name.endswith(".py"):
            yield f"{name}.{each.name}", each
