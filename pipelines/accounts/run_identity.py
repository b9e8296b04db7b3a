"""What a run is, a fingerprint of everything that shapes its answers or its noise; its noise key, and its account."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.build import build
from privstream.pipelines.accounts.entries import WATCHED
from privstream.pipelines.file_digests import DIGEST_BYTES, digest_of, local_digest
from privstream.pipelines.locations import DEFAULT_FORMAT
from privstream.pipelines.sources.event_files import COMPRESSED, InputFileError
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.stores import filesystems, opened, scheme_of

VIEWS = ("rising", "at_least")
"""Options that say what is shown of the same published counts."""

FORMER = {"windows": "horizon"}
"""Options that had another name once, under which they identify a run."""

NOT_SHAPING: Mapping[str, str] = {
    "command": "it enters by itself, beside the options",
    "run_id": "it takes the place of the fingerprint",
    "traceback": "it is about error messages",
    "input": "files enter by their contents; a source without an end is named by the run id",
    "query": "its rows enter by their contents, in their order",
    "output": "it says where rows go; it enters where the input has no end, see `identify`",
    "output_format": "it says how rows are written; it enters where the input has no end, see `identify`",
    "copy": "it says where rows go; where the input has no end it enters as the output",
    "overwrite": "it says where rows go",
    "dry_run": "it publishes nothing",
    "dead_letter": "it says where dead letters go, which are not published",
    "noise_key_file": "the key is the other part of what noise depends on",
    "noise_key_variable": "the key is the other part of what noise depends on",
    "kafka_setting": "it says how to reach the broker, and may contain a password",
    "watch": "it says how often the folder is polled, not what is read",
    "ledger": "it is about accounts",
    "dataset": "it is about accounts",
    "budget_limit": "it is about accounts",
    "shards": "it shares out the work",
    "workers": "it shares out the work",
    "rising": "it says what is reckoned from published counts; it enters where the input has no end, see `identify`",
    "at_least": "it says which published counts are shown; it enters where the input has no end, see `identify`",
    "beta": "it is about error bounds; where it decides thresholds it is a parameter of the mechanism, which the noise "
    "is bound to in any case, and accounts count a run with another one as a further release",
}
"""Options that shape neither true answers nor noise, and why."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What shapes the true answers and the noise of a run.

    Attributes:
        command: such as "histogram".
        version: of privstream, with a digest of its code, since another one may read or limit events
            differently, or have other noise.
        parameters: by name, all options that shape something, but `NOT_SHAPING`; files by a digest of their contents.
        data: digest of the contents of all input files, whatever their names and order; or the source, if that has no
            end.
        labels: digest of what its noise is drawn from, if it has no end; empty if it has one, and `version` says more.
    """

    command: str
    version: str
    parameters: Mapping[str, Any]
    data: str
    labels: str = ""

    @property
    def run_id(self) -> str:
        """The run id of a run over files that was given none: the same for the same identity only.

        Privacy: who has all records but one could test guesses of that one. It stays in the ledger; see `public_name`.
        """
        return f"data-{_digest([self.command, self.version, self.parameters, self.data])}"


def public_name(noise: KeyedNoise) -> str:
    """Return what rows and guarantee files call a run that was given no run id: who has no key learns nothing of it."""
    return f"run-{int(noise.derive('public name of the run').words(1)[0, 0, 0]):016x}"


def identify(
    arguments: argparse.Namespace, files: Sequence[EventFile], named_files: Iterable[str], watched: str | None
) -> RunIdentity:
    """Return the identity of a run.

    Without an end nothing distinguishes the data of two runs, so the files to be written are a part of it, too: a run
    that starts again finds those that it has published, and leaves them. Elsewhere it would publish other answers about
    the same windows with the same noise.

    Args:
        arguments: all options.
        files: the input files.
        named_files: options that name further files.
        watched: the option whose files have no end, if there is one; it enters by its place.

    Raises:
        InputFileError: a file cannot be read.
    """
    data = data_of(arguments, files, watched)
    parameters = shaping_parameters(arguments, named_files, watched)
    return RunIdentity(command=arguments.command, version=build(), parameters=parameters, data=data)


def data_of(arguments: argparse.Namespace, files: Sequence[EventFile], watched: str | None) -> str:
    """Return a digest of the input files, or the source if that is what is watched; see `identify`."""
    return f"{WATCHED}{_source(arguments.input)}" if watched == "input" else data_digest(files)


def shaping_parameters(
    arguments: argparse.Namespace, named_files: Iterable[str], watched: str | None
) -> dict[str, Any]:
    """Return what shapes true answers or noise, by option; see `identify`."""
    parameters = {name: value for name, value in vars(arguments).items() if name not in NOT_SHAPING}
    parameters = {FORMER.get(name, name): value for name, value in parameters.items() if value is not None}
    for name in named_files:
        if isinstance(value := parameters.get(name), str):
            parameters[name] = _place(value) if name == watched else _named(value)
    if watched is not None:
        parameters["output"] = _place(arguments.output)
        parameters["output_format"] = arguments.output_format or DEFAULT_FORMAT
        parameters |= {name: value for name in VIEWS if (value := getattr(arguments, name, None)) is not None}
    return parameters


def data_digest(files: Iterable[EventFile]) -> str:
    """Return a digest of what is in files, and how each is read; neither their names nor their order count."""
    return _digest(sorted([file.format, *content_digest(file.path)] for file in files))


STORES_WITH_MD5 = ("s3",)
"""Whose checksum tells contents apart: an MD5 sum, of an object that was uploaded in parts that of their MD5 sums.

The same content in other parts, or under another key of the store's encryption, is other data. Other stores have a
checksum of 32 bits, which who writes a part of a file can choose.
"""


def content_digest(path: str) -> list[str]:
    """Return how a file is compressed and a digest of its bytes; in S3 of its size and checksum.

    Raises:
        InputFileError: it cannot be read.
    """
    compression = next((ending for ending in COMPRESSED if path.endswith(ending)), "")
    try:
        if scheme_of(path) in STORES_WITH_MD5:
            store = filesystems().get_filesystem(path)
            return [compression, _digest([store.size(path), store.checksum(path)])]
        if scheme_of(path) is None:
            return [compression, local_digest(path)]
        with opened(path) as stream:
            return [compression, digest_of(stream)]
    except OSError as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputFileError(f"cannot read {path}: {reason}") from None


def _named(value: str) -> Any:
    """Return what is in the file that an option names, or the option's value if it names none."""
    if scheme_of(value) is None and not os.path.isfile(value):
        return value
    return content_digest(value)


def _source(path: str) -> str:
    """Return the name of a source without an end: a topic, whatever broker has it, or a folder."""
    if path.startswith("kafka://"):
        return f"kafka topic {path.rpartition('/')[2]}"
    return _place(path)


def _place(path: str) -> str:
    """Return a path that says the same in any working directory."""
    return path if scheme_of(path) is not None else os.path.realpath(path)


def _digest(value: Any) -> str:
    """Return a digest of plain values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def noise_source(file: str | None, variable: str | None, run_id: str) -> KeyedNoise:
    """Return the noise source whose key is in a file or an environment variable, or one with a new random key.

    Raises:
        ValueError: both are named, or the key cannot be read or used.
    """
    if file is not None and variable is not None:
        raise ValueError("noise_key_file and noise_key_variable must not both be given")
    if file is not None:
        return KeyedNoise.from_file(file, run_id)
    if variable is not None:
        return KeyedNoise.from_environment(variable, run_id)
    return KeyedNoise.random(run_id)
