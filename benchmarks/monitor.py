"""Time and memory of one step of the threshold monitor, against the same counting with dict and Counter in one run.

Usage: python benchmarks/monitor.py [--largest 1000000] [--repeats 3]

Every person holds one of `people / 50` items, a fifth of the people hold one of two common ones, and a fifth of all
people have been charged before. The peer counts active holders per item and charges them, as a program without privacy
would: it draws no noise, and the detection threshold stands in for the hidden ones.

Writes monitor.csv and monitor.png to benchmarks/results.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from _measure import best_seconds
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.threshold_monitor import MonitorState, ThresholdMonitor
from privstream.mechanisms.noise.sources import KeyedNoise

COMMON = 2
MAX_HITS = 8


def make_monitor(items_per_step: int) -> ThresholdMonitor:
    return ThresholdMonitor(
        epsilon=1.0, delta=1e-6, max_hits=MAX_HITS, horizon=1000, first_step=0, items_per_step=items_per_step
    )


def make_holdings(people: int, step: int, items_per_step: int) -> Holdings:
    rng = np.random.default_rng(step)
    users = rng.integers(0, 2**64, people // items_per_step, dtype=np.uint64)
    items = rng.integers(COMMON, COMMON + people // 50, (items_per_step, len(users)), dtype=np.uint64)
    common = rng.random(len(users)) < 0.2
    items[0, common] = rng.integers(0, COMMON, int(common.sum()), dtype=np.uint64)
    for row in range(1, items_per_step):  # distinct items per person
        items[row] = items[0] + np.uint64(row * people)
    ranks = np.repeat(np.arange(items_per_step, dtype=np.uint16), len(users))
    return Holdings(step=step, users=np.tile(users, items_per_step), items=items.ravel(), ranks=ranks)


def charged_before(holdings: Holdings) -> UserCounters:
    """Charge a fifth of the people, in twenty steps."""
    people = np.unique(holdings.users)
    rng = np.random.default_rng(0)
    runs = (rng.choice(people, len(people) // 5 // 20 + 1, replace=False) for _ in range(20))
    return UserCounters.of(Charges.of(run) for run in runs)


def peer_step(charged: Counter[int], rows: list[tuple[int, int, int]], threshold: float) -> list[int]:
    """Decide a step with plain containers; charges in place."""
    counts: Counter[int] = Counter()
    for user, item, rank in rows:
        if rank < MAX_HITS - charged.get(user, 0):
            counts[item] += 1
    hits = {item for item, count in counts.items() if count >= threshold}
    for user, item, rank in rows:
        if item in hits and rank < MAX_HITS - charged.get(user, 0):
            charged[user] += 1
    return sorted(hits)


def measure(people: int, items_per_step: int, repeats: int) -> list[dict[str, Any]]:
    monitor, noise = make_monitor(items_per_step), KeyedNoise.random()
    holdings = make_holdings(people, 1, items_per_step)
    counters = charged_before(holdings)
    state = MonitorState(counters, 0)
    after, hits = monitor.step(state, holdings, noise)  # builds the tables
    rows = list(zip(holdings.users.tolist(), holdings.items.tolist(), np.asarray(holdings.ranks).tolist(), strict=True))
    compact = counters.compact()
    plain = Counter(dict(zip(compact.keys.tolist(), compact.values.tolist(), strict=True)))
    threshold = monitor.detection_threshold
    copies = [plain.copy() for _ in range(repeats)]
    peer_seconds, _ = best_seconds(lambda: peer_step(copies.pop(), rows, threshold), repeats)
    found = peer_step(plain, rows, threshold)
    assert set(range(COMMON)) <= set(found) & set(hits.items.tolist())
    items, counts = np.unique(holdings.items, return_counts=True)
    held = sum(run.keys.nbytes + run.values.nbytes for run in after.counters.runs)
    plain_bytes = sys.getsizeof(plain) + sum(sys.getsizeof(user) for user in plain)
    charged = len(plain)
    memory = {"privstream": held / charged, "dict and Counter": plain_bytes / charged}
    seconds = {
        ("privstream", "step"): best_seconds(lambda: monitor.step(state, holdings, noise), repeats)[0],
        ("privstream", "early test"): best_seconds(lambda: monitor.could_exceed(1, items, counts, noise), repeats)[0],
        ("dict and Counter", "step"): peer_seconds,
    }
    return [
        {
            "by": by,
            "what": what,
            "items_per_person": items_per_step,
            "holdings": people,
            "cpu_seconds": round(spent, 5),
            "counter_bytes_per_person": round(memory[by], 1),
            "load_average": load_average(),
        }
        for (by, what), spent in seconds.items()
    ]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for by, what, items in dict.fromkeys((row["by"], row["what"], row["items_per_person"]) for row in rows):
        chosen = [row for row in rows if (row["by"], row["what"], row["items_per_person"]) == (by, what, items)]
        style = "--" if by != "privstream" else ":" if what != "step" else "-"
        label = f"{by}, {what}, {items} item{'s' * (items > 1)} per person"
        sizes, seconds = [row["holdings"] for row in chosen], [row["cpu_seconds"] for row in chosen]
        axes.loglog(sizes, seconds, style, marker="o", label=label)
    axes.set(xlabel="holdings in the step", ylabel="CPU seconds", title="One step of the threshold monitor")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--largest", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    if options.quick:
        options.largest, options.repeats = 80_000, 1
    folder = results_folder(options)
    sizes = [options.largest // divisor for divisor in ((2, 1) if options.quick else (16, 4, 1))]
    rows = [row for items in (1, 4) for size in sizes for row in measure(size, items, options.repeats)]
    write_csv(folder / "monitor.csv", rows)
    plot(rows, folder / "monitor.png")
    print_table("monitor: one step", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
