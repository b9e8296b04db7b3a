"""Lets the statistics of a Parquet file state what is not so."""

import struct
from pathlib import Path


def lie(path: Path, stated: int, instead: int) -> None:
    """Replace a 64-bit number that the footer of a file states."""
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    told = data[footer:].replace(struct.pack("<q", stated), struct.pack("<q", instead))
    assert told != data[footer:]
    path.write_bytes(data[:footer] + told)
