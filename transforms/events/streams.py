"""Public names of streams, and which of them each event is in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def stream_numbers(names: pa.Array, public: tuple[str, ...]) -> np.ndarray:
    """Return the number of each row's stream among the public ones, int64; -1 if it is none of them."""
    found = pc.index_in(names, pa.array(public, pa.string()))
    return np.asarray(pc.fill_null(found, -1).to_numpy().astype(np.int64))
