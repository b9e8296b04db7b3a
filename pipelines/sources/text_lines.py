"""Reads text files in blocks of whole lines, each with the number of its first line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privstream.pipelines.sources.event_files import InputFileError, cut, open_file

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 26
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines of a file that are not blank, and the number of each (the file's first line is 1)."""

    numbers: list[int]
    texts: list[bytes]

    def position(self, row: int) -> str:
        """Say where a line stands."""
        return f"line {self.numbers[row]}"

    def record(self, row: int) -> str:
        """Quote a line for its dead letter."""
        return cut(self.texts[row].decode("utf-8", "backslashreplace"))

    def take(self, rows: Sequence[int]) -> "Lines":
        """Keep some of the lines."""
        return Lines([self.numbers[row] for row in rows], [self.texts[row] for row in rows])


def read_lines(path: str) -> Iterator[Lines]:
    """Read a file, compressed or not, in blocks of about a mebibyte."""
    first = 1
    with open_file(path) as stream:
        rest = stream.read(len(BYTE_ORDER_MARK)).removeprefix(BYTE_ORDER_MARK)
        while chunk := stream.read(BLOCK_BYTES):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise InputFileError(f"{path}: a line must be at most {MAX_LINE_BYTES} bytes")
            if newline:
                yield _split(whole, first)
                first += whole.count(b"\n") + 1
        if rest:
            yield _split(rest, first)


def _split(block: bytes, first: int) -> Lines:
    """Split a block into lines and leave out blank ones."""
    texts = [line.removesuffix(b"\r") for line in block.split(b"\n")]
    numbers = list(range(first, first + len(texts)))
    lines = Lines(numbers, texts)
    filled = [row for row, text in enumerate(texts) if text.strip()]
    return lines if len(filled) == len(texts) else lines.take(filled)
