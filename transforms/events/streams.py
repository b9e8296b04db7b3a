"""Public names of streams, and which of them each event is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def stream_numbers(names: pa.Array, public: tuple[str, ...]) -> np.ndarray:
    """Return the number of each row's stream among the public ones, int64; -1 if it is none of them."""
    found = pc.index_in(names, pa.array(public, pa.string()))
    return np.asarray(pc.fill_null(found, -1).to_numpy().astype(np.int64))


def check_texts(name: str, values: Any, what: str = "texts") -> None:
    """Refuse what are no distinct texts, at least one. Messages quote none of many: they may be of a wrong file."""
    if isinstance(values, str) or not values or (distinct := len(set(values))) < len(values):
        got = (
            repr(values) if isinstance(values, str) or not values else f"{len(values):,}, {distinct:,} of them distinct"
        )
        raise ValueError(f"{name} must be distinct {what}, at least one, got {got}")
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} must be texts")
