"""What speaks against a ledger that is to have all runs about the same people: other ledgers, and lost lines."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape, glob
from typing import Any, NamedTuple

from privstream.pipelines.accounts.entries import Contents
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET

KNOWN = "another ledger has runs about these data, which a total must have, too: --ledger {}"
LIMITED = "another ledger has a limit of data set {!r}: --ledger {}"
LOST = "{} names a line that no ledger here has: lines were deleted, or a ledger elsewhere has it, too: --ledger"
PROMISES = ("*.guarantee.json", os.path.join("*", "_guarantee.json"))


class Doubt(NamedTuple):
    """A reason to think that a total has not all releases; and whether a limit is kept elsewhere."""

    text: str
    limited: bool


def doubts_about(
    dataset: str, data: str, path: str | None, contents: Contents, arguments: argparse.Namespace
) -> Sequence[Doubt]:
    """Return what is found in the folders of key, ledger, input and output of a run that is to be written down.

    Args:
        dataset: its data set.
        data: digest of its files, or its source.
        path: of its ledger, or None if it has none.
        contents: of its ledger.
        arguments: its options.
    """
    near = [arguments.noise_key_file, path, getattr(arguments, "input", None), arguments.output]
    places = [each for each in near if isinstance(each, str) and each and "://" not in each]
    folders = sorted({os.path.realpath(os.path.dirname(each) or ".") for each in places})
    ledgers = {} if path is None else {os.path.realpath(path): contents}
    for other in _files(folders, f"*{ENDING}"):
        with suppress(ValueError):
            ledgers.setdefault(os.path.realpath(other), Ledger(other).contents())
    own = None if path is None or is_database(path) else os.path.realpath(path)
    heads = {head for each in ledgers.values() for head in each.heads}
    lost = [Doubt(LOST.format(os.path.relpath(file)), False) for file in _lost(folders, dataset, heads)]
    return [doubt for other in ledgers if other != own for doubt in _about(dataset, data, other, ledgers[other])] + lost


def _about(dataset: str, data: str, path: str, other: Contents) -> Iterator[Doubt]:
    """Say what another ledger has about the same files or source, or about one data set that has a name."""
    same = {dataset} - {DEFAULT_DATASET}
    named = {one.dataset for one in other.entries if one.data == data or one.dataset in same}
    limited = not other.limits.keys().isdisjoint(named | {dataset})
    if named:
        yield Doubt(KNOWN.format(os.path.relpath(path)), limited)
    elif limited:
        yield Doubt(LIMITED.format(dataset, os.path.relpath(path)), True)


def _lost(folders: Sequence[str], dataset: str, heads: set[str]) -> Iterator[str]:
    """Give guarantee files of a data set whose line no ledger has; of each folder the first one."""
    for folder in folders:
        found = sorted(_files([folder], *PROMISES))
        yield from [each for each in found if (mark := _mark(each, dataset)) and mark.get("head") not in heads][:1]


def _files(folders: Sequence[str], *patterns: str) -> Iterator[str]:
    """Give the files of folders that match; nobody waits for a pipe that has such a name."""
    for folder in folders:
        for pattern in patterns:
            yield from filter(os.path.isfile, glob(os.path.join(escape(folder), pattern)))


def _mark(path: str, dataset: str) -> Mapping[str, Any] | None:
    """Return what a guarantee file says of the ledger, if it is of a data set and says something."""
    with suppress(OSError, ValueError, AttributeError, RecursionError), open(path, encoding="utf-8") as file:
        found = json.load(file)
        mark = found.get("ledger")
        return mark if found.get("parameters", {}).get("dataset") == dataset and isinstance(mark, dict) else None
    return None
