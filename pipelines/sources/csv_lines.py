"""Reads CSV with a header: one record on each line, commas, double quotes.

All fields are read as text, so that `007` stays what it is. A block of lines is parsed at once by Arrow; where that
fails the block is halved until the lines at fault stand alone, so the time lost grows with their number only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pa_csv
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part, RawEvents
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.text_lines import Lines, read_lines


def schema(path: str) -> pa.Schema | None:
    """Return the header's fields, all of them text; None if the file is empty."""
    for lines in read_lines(path):
        if lines.texts:
            names = _parse_header(lines.texts[0], path)
            return pa.schema([(name, pa.string()) for name in names], metadata={NAMES_MAY_BE_DATA: "no header"})
    return None


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part: the numbers of its lines are known only from its beginning."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str]) -> Iterator[RawEvents | Damage]:
    """Read some fields; lines that do not have the header's number of fields are reported with their number."""
    parser: _Parser | None = None
    for block in read_lines(path):
        lines = block
        if parser is None and lines.texts:
            parser = _Parser(_parse_header(lines.texts[0], path), list(fields))
            lines = lines.take(range(1, len(lines.texts)))
        if parser is not None and lines.texts:
            yield from parser.parse(lines)


@dataclass(frozen=True)
class _Parser:
    """Parses lines under a header."""

    header: list[str]
    fields: list[str]

    def parse(self, lines: Lines) -> Iterator[RawEvents | Damage]:
        """Parse lines at once or, if that fails, in halves."""
        table = self._parse(lines.texts)
        if table is not None:
            columns = {name: table.column(name).combine_chunks() for name in self.fields}
            yield RawEvents(columns, lines.position, lines.record)
        elif len(lines.texts) == 1:
            reason = f"line must be one CSV record with {len(self.header)} fields"
            yield Damage("malformed_line", reason, lines.position(0), lines.record(0))
        else:
            half = len(lines.texts) // 2
            yield from self.parse(lines.take(range(half)))
            yield from self.parse(lines.take(range(half, len(lines.texts))))

    def _parse(self, texts: list[bytes]) -> pa.Table | None:
        """Parse lines at once; None if they are not one record each."""
        block = b"\n".join(texts) + b"\n"
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(block),
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self.header),
                convert_options=pa_csv.ConvertOptions(
                    include_columns=self.fields,
                    column_types=dict.fromkeys(self.fields, pa.binary()),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        # A line break inside quotes joins lines: then there are fewer records than lines.
        return table if table.num_rows == len(texts) else None


def _parse_header(line: bytes, path: str) -> list[str]:
    """Return the names in the header."""
    try:
        table = pa_csv.read_csv(pa.BufferReader(line + b"\n"))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise InputFileError(f"{path}: the first line must be a CSV header in UTF-8") from None
    return list(table.column_names)
