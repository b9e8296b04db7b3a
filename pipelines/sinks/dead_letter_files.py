"""Writes the dead letters of a run without an end: files of JSON lines, each with those of about a minute."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from io import BytesIO
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.sinks.row_files import write_rows
from privstream.pipelines.sinks.whole_files import write_once
from privstream.pipelines.sinks.window_files import check_folder, moment
from privstream.transforms.events.dead_letters import DeadLetter
from privstream.transforms.timing.steps import END_OF_TIME

SECONDS = 60
LARGEST = 64 << 20  # bytes of a file; it is complete with the letter that reaches them

DIGEST_BYTES = 8


class WriteDeadLetterFiles(beam.PTransform[Any, Any]):
    """Writes dead letters into a folder: a file a minute after its first letter, or as soon as it has 64 MiB.

    The minute is one of the worker's clock: letters about late events have old times, and wait for nothing. A file's
    name is the time at which it was written, and a digest of what is in it, so that nothing is ever replaced. A run
    that goes back to a checkpoint may set the same record aside twice, in files of different names.

    *Privacy*: dead letters are records of people. On this machine's file system the files are for their owner alone.
    Guard the folder like the input.

    Args:
        folder: where, on any of Beam's filesystems; it must exist.
        seconds: for which a letter waits at most.
        largest: bytes with which a file is complete.

    Raises:
        ValueError: at once, naming `--dead_letter`, if files cannot be written there.
    """

    def __init__(self, folder: str, *, seconds: float = SECONDS, largest: int = LARGEST) -> None:
        super().__init__()
        self.folder, self.seconds, self.largest = folder, seconds, largest
        check_folder(folder, "--dead_letter")

    def expand(self, letters: Any) -> Any:
        """Gather letters, and write them."""
        return (
            letters
            | "Line" >> beam.Map(_line).with_output_types(tuple[bytes, bytes])
            | "Whenever"
            >> beam.WindowInto(GlobalWindows(), trigger=AfterWatermark(), accumulation_mode=AccumulationMode.DISCARDING)
            | "Write files" >> beam.ParDo(_WriteLetters(self.folder, self.seconds, self.largest))
        )


class _WriteLetters(beam.DoFn):
    """Keeps letters until their minute is over, they are many, or the input has ended; then writes them."""

    LINES = BagStateSpec("dead_letter_lines", BytesCoder())  # letters that are not yet in a file
    SIZE = ReadModifyWriteStateSpec("dead_letter_size", BytesCoder())  # their bytes, as a text
    MINUTE = TimerSpec("dead_letter_minute", TimeDomain.REAL_TIME)
    END = TimerSpec("dead_letter_end", TimeDomain.WATERMARK)

    def __init__(self, folder: str, seconds: float, largest: int) -> None:
        self.folder, self.seconds, self.largest = folder, seconds, largest

    def process(
        self,
        element: tuple[bytes, bytes],
        lines: Any = beam.DoFn.StateParam(LINES),
        size: Any = beam.DoFn.StateParam(SIZE),
        minute: Any = beam.DoFn.TimerParam(MINUTE),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[str]:
        """Keep a letter."""
        before = int(size.read() or b"0")
        lines.add(element[1])
        size.write(b"%d" % (before + len(element[1])))
        if not before:
            minute.set(Timestamp.now() + self.seconds)
            end.set(Timestamp(micros=END_OF_TIME))
        if before + len(element[1]) >= self.largest:
            yield self._write(lines, size)

    @on_timer(MINUTE)
    def on_minute(
        self, lines: Any = beam.DoFn.StateParam(LINES), size: Any = beam.DoFn.StateParam(SIZE)
    ) -> Iterator[str]:
        """Write what there is; nothing, if a large file has just been written."""
        if size.read():
            yield self._write(lines, size)

    @on_timer(END)
    def on_end(
        self,
        lines: Any = beam.DoFn.StateParam(LINES),
        size: Any = beam.DoFn.StateParam(SIZE),
        minute: Any = beam.DoFn.TimerParam(MINUTE),
    ) -> Iterator[str]:
        """Write the last ones."""
        minute.clear()
        if size.read():
            yield self._write(lines, size)

    def _write(self, lines: Any, size: Any) -> str:
        """Write a file, and forget its letters."""
        data = b"".join(sorted(lines.read()))
        lines.clear()
        size.clear()
        digest = blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
        second = Timestamp(seconds=int(Timestamp.now()))
        path: str = FileSystems.join(self.folder, f"{moment(second.micros)}_{digest}.jsonl")
        write_once(path, data, private=True)
        return path


def _line(letter: DeadLetter) -> tuple[bytes, bytes]:
    """Write a letter as a line, under the one key of all."""
    data = BytesIO()
    write_rows(data, DeadLetter, [letter], "jsonl")
    return b"", data.getvalue()
