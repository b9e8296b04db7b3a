"""Reads text files in blocks of whole lines, each with the number of its first line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privstream.pipelines.sources.event_files import MAX_RECORD_CHARACTERS, Damage, cut
from privstream.pipelines.sources.text_pieces import BYTE_ORDER_MARK, read_pieces

MAX_LINE_BYTES = 1 << 24


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
        return quote(self.texts[row])

    def take(self, rows: Sequence[int]) -> "Lines":
        """Keep some of the lines."""
        return Lines([self.numbers[row] for row in rows], [self.texts[row] for row in rows])


def read_lines(path: str) -> Iterator[Lines | Damage]:
    """Read a file, compressed or not, in blocks of about a mebibyte; lines that are too long are reported."""
    first, rest, passing = 1, b"", False
    for number, piece in enumerate(read_pieces(path)):
        text = piece if number else piece.removeprefix(BYTE_ORDER_MARK)
        if passing:
            _, newline, text = text.partition(b"\n")
            first, passing = first + len(newline), not newline
        whole, newline, rest = (rest + text).rpartition(b"\n")
        if newline:
            yield from _split(whole, first)
            first += whole.count(b"\n") + 1
        if len(rest) > MAX_LINE_BYTES + 1:  # a carriage return at the end does not count
            yield too_long("line", first, rest)
            rest, passing = b"", True
    if rest:
        yield from _split(rest, first)


def quote(text: bytes) -> str:
    """Quote a piece of a file for its dead letter."""
    return cut(text[: 4 * MAX_RECORD_CHARACTERS + 4].decode("utf-8", "backslashreplace"))


def too_long(what: str, number: int, text: bytes) -> Damage:
    """Report a line or record that is not read to its end; `text` is at least its beginning."""
    return Damage(
        "long_line", f"{what} must be at most {MAX_LINE_BYTES} bytes", f"line {number}", quote(text[:MAX_LINE_BYTES])
    )


def _split(block: bytes, first: int) -> Iterator[Lines | Damage]:
    """Split a block into lines and leave out blank ones."""
    texts = [line.removesuffix(b"\r") for line in block.split(b"\n")]
    lines = Lines(list(range(first, first + len(texts))), texts)
    kept = [row for row, text in enumerate(texts) if text.strip()]
    if len(block) > MAX_LINE_BYTES:
        for row in [row for row in kept if len(texts[row]) > MAX_LINE_BYTES]:
            kept.remove(row)
            yield too_long("line", lines.numbers[row], texts[row])
    if kept:
        yield lines if len(kept) == len(texts) else lines.take(kept)
