"""What people who have been charged cost: state, checkpoint, restore and the next window, up to ten million people.

Usage: python benchmarks/scaling.py [--largest 10000000] [--streams 1 10 100] [--repeats 3]

The monitor's stage itself runs, on state as it is kept: a log of charges. One window with 100,000 holdings comes after
so many people have been charged: what is written for it, the checkpoint of the whole state (the log after compaction,
what a savepoint holds), decoding it as after a restart, and the window with the state decoded. With several streams the
people are spread over them, and so are the holdings. The peer keeps a dictionary per stream and pickles it.

What a real cluster does with this state is measured by flink_checkpoints.py and flink_throughput.py, which need Java.

Writes scaling.csv and scaling.png to benchmarks/results. The table with its law is in docs/scaling.md.
"""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _measure import best_seconds
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import HolderBatch, Names, StepKey
from privstream.transforms.heavy_hitters.by_monitor import MonitorStream
from privstream.transforms.timing.ordered import Handled
from privstream.transforms.timing.steps import Steps

HOLDINGS = 100_000
HEAVY = 0.1  # share of the holdings that are of the heavy item
MAX_HITS = 8
MOST_FOR_PEER = 1_000_000


def make_stage() -> MonitorStream:
    monitor = ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=MAX_HITS, horizon=1000, first_step=0)
    return MonitorStream(
        monitor=monitor, steps=Steps(size=10**6, period=10**6), noise=KeyedNoise.random(), timer_offset=3
    )


def charged(people: np.ndarray) -> UserCounters:
    """Everybody has been charged once or a few times."""
    amounts = (1 + people % np.uint64(MAX_HITS - 2)).astype(np.uint16)
    return UserCounters.of([Charges(people, amounts)])


def window(people: np.ndarray, number: int, rng: np.random.Generator) -> HolderBatch:
    """Holdings of people of whom half have been charged before: one heavy item, and many that few hold."""
    old = rng.choice(people, min(number // 2, len(people)), replace=False)
    users = np.unique(np.concatenate([old, rng.integers(0, 2**64, number - len(old), dtype=np.uint64)]))
    items = rng.integers(1, 1 + max(1, len(users) // 50), len(users)).astype(np.uint64)
    items[rng.random(len(users)) < HEAVY] = 0
    distinct = np.unique(items)
    texts = Names.of(distinct, pa.array([f"item {item}" for item in distinct.tolist()]))
    return HolderBatch(users, items, np.zeros(len(users), np.uint16), texts)


def measure(people: int, streams: int, repeats: int) -> dict[str, Any]:
    """Measure the streams one after the other, as one core would handle them."""
    stage, rng = make_stage(), np.random.default_rng(people + streams)
    spread = np.array_split(rng.permutation(np.unique(rng.integers(0, 2**64, people, dtype=np.uint64))), streams)
    totals: Counter[str] = Counter()
    for number, mine in enumerate(spread):
        ledger = charged(np.sort(mine))
        held = window(np.sort(mine), HOLDINGS // streams, rng)
        key = StepKey(f"stream {number}", 1, 0)
        stage.handle(key.stream.encode(), 1, [(key, held)], ledger)  # builds the tables
        checkpoint, segments = best_seconds(lambda: stage.encode(ledger), repeats)  # noqa: B023
        restore, _ = best_seconds(lambda: stage.decode(b"", segments), repeats)  # noqa: B023
        decide, handled = best_seconds(
            lambda: stage.handle(key.stream.encode(), 1, [(key, held)], ledger),  # noqa: B023
            repeats,
        )
        assert isinstance(handled, Handled)
        totals.update(
            state_bytes=sum(map(len, segments)),
            written_bytes=len(handled.segment or b""),
            holdings=len(held.users),
            checkpoint_seconds=checkpoint,
            restore_seconds=restore,
            window_seconds=decide,
        )
    return {"by": "privstream", "people": people, "streams": streams} | describe(totals, people)


def measure_peer(people: int, repeats: int) -> dict[str, Any]:
    """One dictionary from person to charges, pickled: what a step without columns would keep."""
    rng = np.random.default_rng(people)
    users = np.unique(rng.integers(0, 2**64, people, dtype=np.uint64))
    counters = dict.fromkeys(users.tolist(), 3)
    held = window(users, HOLDINGS, rng)
    rows = list(zip(held.users.tolist(), held.items.tolist(), strict=True))

    def decide() -> dict[int, int]:
        counts = Counter(item for user, item in rows if counters.get(user, 0) < MAX_HITS)
        return {user: counters.get(user, 0) + 1 for user, item in rows if counts[item] > HOLDINGS * HEAVY / 2}

    checkpoint, data = best_seconds(lambda: pickle.dumps(counters), repeats)
    restore, _ = best_seconds(lambda: pickle.loads(data), repeats)
    spent, charges = best_seconds(decide, repeats)
    assert charges
    totals: Counter[str] = Counter(
        state_bytes=len(data),
        written_bytes=len(data),
        holdings=len(rows),
        checkpoint_seconds=checkpoint,
        restore_seconds=restore,
        window_seconds=spent,
    )
    return {"by": "dictionary, pickled", "people": people, "streams": 1} | describe(totals, people)


def describe(totals: Counter[str], people: int) -> dict[str, Any]:
    return {
        "state_megabytes": round(totals["state_bytes"] / 1e6, 3),
        "bytes_per_person": round(totals["state_bytes"] / people, 1),
        "written_kilobytes": round(totals["written_bytes"] / 1e3, 1),
        "checkpoint_seconds": round(totals["checkpoint_seconds"], 6),
        "restore_seconds": round(totals["restore_seconds"], 6),
        "window_seconds": round(totals["window_seconds"], 6),
        "holdings_per_second": round(totals["holdings"] / totals["window_seconds"]),
        "load_average": load_average(),
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    sizes, times = figure.subplots(1, 2)
    for by, style in (("privstream", "-o"), ("dictionary, pickled", "--s")):
        mine = [row for row in rows if row["by"] == by and row["streams"] == 1]
        people = [row["people"] for row in mine]
        sizes.loglog(people, [row["state_megabytes"] for row in mine], style, label=f"{by}, state")
        sizes.loglog(people, [row["written_kilobytes"] / 1e3 for row in mine], style, alpha=0.4, label=f"{by}, written")
        for what in ("checkpoint", "restore", "window"):
            times.loglog(people, [row[f"{what}_seconds"] for row in mine], style, label=f"{by}, {what}")
    sizes.set(xlabel="people charged so far", ylabel="megabytes", title="State, and what one window writes")
    times.set(xlabel="people charged so far", ylabel="CPU seconds", title="Time")
    for axes in (sizes, times):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--largest", type=int, default=10_000_000)
    arguments.add_argument("--streams", type=int, nargs="+", default=[1, 10, 100])
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    if options.quick:
        options.largest, options.streams, options.repeats = 100_000, [1, 4], 1
    folder = results_folder(options)
    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= options.largest]
    rows = [measure(people, 1, options.repeats) for people in sizes]
    rows += [measure(sizes[-1] // 10, streams, options.repeats) for streams in options.streams if streams > 1]
    rows += [measure_peer(people, options.repeats) for people in sizes if people <= MOST_FOR_PEER]
    write_csv(folder / "scaling.csv", rows)
    plot(rows, folder / "scaling.png")
    print_table("the monitor's state", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
