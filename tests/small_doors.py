"""People, or points, who enter and leave, with the truth about them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from privstream.pipelines.simulate import SCHEMA, START_MICROS, Window


def doors(
    users: int, windows: int, seconds: int = 3600, ranges: tuple[tuple[int, int], ...] = (), seed: int = 3
) -> Iterator[Window]:
    """Yield who comes and goes; some events come twice. Users are numbers from 1; more are in at the middle.

    The truth is how many are in at the end of each window, or how many of each range.
    """
    draw, inside, length = np.random.default_rng(seed), np.zeros(users + 1, bool), seconds * 1_000_000
    for number in range(windows):
        start, full = START_MICROS + number * length, 0.05 + 0.6 * np.sin(np.pi * number / windows)
        changed = np.flatnonzero(draw.random(users) < np.where(inside[1:], 1 - full, full) / 5) + 1
        inside[changed] = ~inside[changed]
        who = draw.permutation(np.concatenate([changed, changed[: len(changed) // 20]]))
        columns = [
            [str(user) for user in who],
            ["enter" if inside[user] else "leave" for user in who],
            pa.array(np.sort(draw.integers(length, size=len(who))) + start).cast(SCHEMA.field("time").type),
            ["centre"] * len(who),
            np.zeros(len(who), int),
        ]
        truth = {f"{low} to {high}": int(inside[low : high + 1].sum()) for low, high in ranges}
        batch = pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)
        yield Window(start, start + length, batch, truth or {"": int(inside.sum())})
