"""What a run is: a digest of what it draws, of how it reads, and of its input. Noise and charge are derived from it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.entries import WATCHED, record_digest
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.sources.files import EventFile
from privstream.pipelines.sources.formats import COMPRESSED, InputFileError
from privstream.pipelines.stores import filesystems, opened, reason, scheme_of
from privstream.transforms.parameters import plain
from privstream.transforms.reading.times import zone_clock

EPOCH = 1
"""Goes up when all noise is drawn anew, or the same files and fields give other records."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What a run draws, and of which records."""

    # of each question by name, `release` of its transform; the name of a single question is empty
    releases: Mapping[str, Mapping[str, Any]]
    readings: Mapping[str, Any]  # of each question by name, all that says how records are read, as plain values
    data: str  # digest of the contents of all input files; or the source, if that has no end
    place: str = ""  # of the rows of an unbounded run, since elsewhere it would publish other answers

    @property
    def digest(self) -> str:
        """The same for the same releases about the same records only: the ledger charges each digest of a key once.

        Privacy: over files, who has all records but one could test guesses of that one. It stays in the ledger.
        """
        parts = [EPOCH, plain(self.releases), plain(self.readings), self.data, self.place]
        return record_digest(parts)

    def label(self, run_id: str | None) -> str:
        """Return what the noise of a run depends on, apart from its key: other digests have independent noise."""
        return f"{run_id or ''}:{self.digest}"


def public_name(noise: KeyedNoise) -> str:
    """Return what rows and guarantee files call a run that was given no run id: who has no key learns nothing of it."""
    return f"run-{int(noise.derive('public name of the run').words(1)[0, 0, 0]):016x}"


def data_digest(files: Iterable[EventFile]) -> str:
    """Return a digest of what is in files, and of their formats; neither their names nor their order count."""
    return record_digest(sorted([file.format, *content_digest(file.path)] for file in files))


def identify(
    monitor: Monitor,
    given: Mapping[str, Mapping[str, Any]],
    fields: Mapping[str, Any],
    files: Iterable[EventFile],
) -> RunIdentity:
    """Return what all questions draw, by the arguments of their transforms, and by which fields records are read."""
    data, releases, readings = monitor.data, {}, {}
    forms = {"watermark": data.watermark, "input_format": data.input_format} if data.unbounded else {}
    for name, question in monitor.questions.items():
        made = question.transform({**given[name], "noise": KeyedNoise.random()}, unbounded=data.unbounded)
        key = "" if monitor.single else name
        window = question.windows_in(monitor.windows).window
        zones = {data.time_zone, *str(window).split()[1:]} - {None}
        clocks = {zone: zone_clock(str(zone)).digest for zone in zones}
        releases[key], readings[key] = made.release, {"fields": fields[name], **forms, "clocks": clocks}
    if data.unbounded:
        source, place = f"{WATCHED}{_place(data.input)}", _place(monitor.output.path)
        return RunIdentity(releases=releases, readings=readings, data=source, place=place)
    return RunIdentity(releases=releases, readings=readings, data=data_digest(files))


STORES_WITH_MD5 = ("s3",)
"""Whose checksum tells contents apart: an MD5 sum, of an object that was uploaded in parts that of their MD5 sums.

The same content in other parts, or under another key of the store's encryption, is other data. Other stores have a
checksum of 32 bits, which who writes a part of a file can choose.
"""


def content_digest(path: str) -> list[str]:
    """Return how a file is compressed and a digest of its bytes; in S3 of its size and checksum."""
    compression = next((ending for ending in COMPRESSED if path.endswith(ending)), "")
    try:
        if scheme_of(path) in STORES_WITH_MD5:
            store = filesystems().get_filesystem(path)
            return [compression, record_digest([store.size(path), store.checksum(path)])]
        with opened(path) as stream:
            return [compression, hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=16)).hexdigest()]
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {reason(error)}") from None


def _place(path: str) -> str:
    """Return a path that says the same in any working directory; of a topic its name, whatever broker has it."""
    if path.startswith("kafka://"):
        return f"kafka topic {path.rpartition('/')[2]}"
    return path if scheme_of(path) is not None else os.path.realpath(path)


def noise_source(key: str | None, run_id: str) -> KeyedNoise:
    """Return the noise source whose key is in a file, or one with a new random key."""
    return KeyedNoise.random(run_id) if key is None else KeyedNoise.from_file(key, run_id)
