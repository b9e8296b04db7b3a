"""Text files with and without one record more, plain and compressed."""

import bz2
import gzip
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import fuzz_csv
import fuzz_json_lines
import zstandard
from fuzz_cases import Case, Crowd, TimeForm, place_of, random_crowd

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".deflate": zlib.compress,
}
IN_PARTS = (".gz", ".bz2", ".zst")
"""Formats of which several may stand in one file, one after the other."""


def packed(data: bytes, ending: str, chance: random.Random) -> bytes:
    """Compress, sometimes in two parts."""
    compress = COMPRESSIONS[ending]
    if ending in IN_PARTS and chance.random() < 0.25:
        half = chance.randint(0, len(data))
        return compress(data[:half]) + compress(data[half:])
    return compress(data)


def text_case(chance: random.Random, folder: Path, format: str, crowd: Crowd | None = None) -> Case:
    """Return a case of JSON lines or CSV, of a given crowd or of a random one."""
    rules, honest = crowd or random_crowd(chance)
    times = TimeForm(chance, rules.time_unit)
    if format == "csv":
        layout = fuzz_csv.Layout(chance, rules)
        if layout.quoting == "never":
            honest = [event._replace(item=event.item.replace(",", " ").replace('"', " ")) for event in honest]
        if layout.lines_in_quotes and not rules.numbers:
            honest = [event._replace(item=chance.choice([event.item, 'a "b",\nc', '"', "x\ny"])) for event in honest]
        start = b",".join(fuzz_csv.quoted(name.encode(), chance.random() < 0.2) for name in layout.header)
        lines = fuzz_csv.encode(honest, rules, times, layout)
        record, meaning = fuzz_csv.hostile_record(chance, rules, layout)
        newline = layout.newline
    else:
        start, newline = None, chance.choice([b"\n", b"\n", b"\r\n"])
        lines = fuzz_json_lines.encode(honest, rules, times, chance)
        record, meaning = fuzz_json_lines.hostile_record(chance, rules)
    place = place_of(chance, len(lines))
    mark, last = chance.choice([b"", b"", BYTE_ORDER_MARK]), chance.choice([newline, newline, b""])
    if place == 0 and format == "jsonl" and not mark and record.startswith(BYTE_ORDER_MARK):
        meaning = fuzz_json_lines.of_json_line(record.removeprefix(BYTE_ORDER_MARK), rules)

    def write(name: str, records: list[bytes]) -> Path:
        whole = mark + newline.join(([] if start is None else [start]) + records) + last
        path = folder / f"{name}.{format}{ending}"
        path.write_bytes(packed(whole, ending, random.Random(1)))
        return path

    ending = chance.choice([*COMPRESSIONS, ""])
    added = write("added", [*lines[:place], record, *lines[place:]])
    note = f"record {place + 1} of {len(lines) + 1}"
    blank = not record.strip(b" \t\r\n\x0b\x0c")
    return Case(rules, honest, write("without", lines), added, meaning, record, blank, [note])
