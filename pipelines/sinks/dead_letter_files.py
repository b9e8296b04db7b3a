"""Writes the dead letters of a run without an end: a file of JSON lines for each minute in which there were any."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from io import BytesIO
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration
from privstream.pipelines.sinks.row_files import write_rows
from privstream.pipelines.sinks.whole_files import write_once
from privstream.pipelines.sinks.window_files import check_folder, moment
from privstream.transforms.events.dead_letters import DeadLetter

SECONDS = 60
LATE_SECONDS = 3600
"""Letters about what comes late are themselves late; so long they are waited for."""

DIGEST_BYTES = 8


class WriteDeadLetterFiles(beam.PTransform[Any, Any]):
    """Writes dead letters into a folder, by the minute of the watermark in which they were set aside.

    A file's name ends in a digest of what is in it, so that nothing is ever replaced. A run that goes back to a
    checkpoint may set the same record aside twice, in files of different names.

    *Privacy*: dead letters are records of people. On this machine's file system the files are for their owner alone.
    Guard the folder like the input.

    Args:
        folder: where, on any of Beam's filesystems; it must exist.

    Raises:
        ValueError: at once, naming `--dead_letter`, if files cannot be written there.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        check_folder(folder, "--dead_letter")

    def expand(self, letters: Any) -> Any:
        """Gather the letters of a minute, and write them."""
        return (
            letters
            | "Plain" >> beam.Map(_together).with_output_types(tuple[bytes, Any])
            | "Minute"
            >> beam.WindowInto(
                FixedWindows(SECONDS),
                trigger=AfterWatermark(late=AfterCount(1)),
                accumulation_mode=AccumulationMode.DISCARDING,
                allowed_lateness=Duration(LATE_SECONDS),
            )
            | "Gather" >> beam.GroupByKey()
            | "Write file" >> beam.Map(_write_letters, self.folder)
        )


def _together(letter: DeadLetter) -> tuple[bytes, tuple[str, ...]]:
    """Give all letters one key."""
    return b"", tuple(letter)


def _write_letters(
    element: tuple[bytes, Iterable[tuple[str, ...]]], folder: str, window: Any = beam.DoFn.WindowParam
) -> str:
    """Write the letters of one minute."""
    data = BytesIO()
    write_rows(data, DeadLetter, (DeadLetter(*letter) for letter in sorted(element[1])), "jsonl")
    digest = blake2b(data.getvalue(), digest_size=DIGEST_BYTES).hexdigest()
    path = FileSystems.join(folder, f"{moment(window.start.micros)}_{digest}.jsonl")
    write_once(path, data.getvalue(), private=True)
    return path
