"""Set cardinality: errors against K and T, and the time and memory of ten million updates.

Usage: python benchmarks/cardinality.py [--quick] [--updates 10000000]

Writes cardinality_errors.csv, cardinality_speed.csv and cardinality.png to benchmarks/results. Errors: what is promised
(error bounds, beta = 0.05) and the largest one seen in simulated runs, beside the orders of Theorem 3 of Henzinger,
Sricharan and Steiner (2023), with constant 1, the event-level counter and the answer that is always 0. Time is CPU
time of one core.
"""

import math
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms import SeededNoise, SetCardinality
from privstream.transforms.batches import EventBatch, HolderBatch, Names, StepKey, decode
from privstream.transforms.cardinality import set_cardinality as transforms
from privstream.transforms.cardinality.set_cardinality import CHANGE, SplitPresence, TrackMembers, last_presence
from privstream.transforms.events.event_columns import read_batch
from privstream.transforms.timing.clocked import STEP, parts_of

EPSILON, BETA, RUNS = 1.0, 0.05, 3
STEPS, UPDATES = 1024, 100_000
BATCHES = 100  # of updates whose time is taken: one in each step
COLOURS = ("#1f6fb4", "#0b8a8f", "#2b8a3e", "#b3261e", "#d1670b", "#8e4ec6", "#9a9a9a", "#222222")


def methods(steps: int, updates: int) -> dict[str, SetCardinality]:
    """Return the mechanisms that are compared."""
    known: dict[str, Any] = {"epsilon": EPSILON, "beta": BETA}
    length, most = {"horizon": steps}, {"max_updates": updates}
    return {
        "sparse": SetCardinality(**known, **length, **most, mode="sparse"),
        "sparse, K unknown": SetCardinality(**known, **length, mode="sparse"),
        "direct": SetCardinality(**known, **length, mode="direct"),
        "paper": SetCardinality(**known, **length, **most, mode="paper"),
        "paper, K unknown": SetCardinality(**known, **length, mode="paper"),
        "event-level counter": SetCardinality(**known, **length, unit="event"),
    }


def bounds(steps: int, updates: int) -> dict[str, float]:
    """Return the orders of Theorem 3, and the error of always 0."""
    root = math.sqrt(updates * math.log(steps / BETA) / EPSILON)
    # Who all come and go at once: the packing of Lemma 21 for subsets, m^2 = K / eps ln(T m / K).
    people = float(updates)
    for _ in range(100):
        people = math.sqrt(updates * max(0.0, math.log(max(1.0, steps * people / updates))) / EPSILON)
    return {
        "Theorem 3 (order), K known": min(float(updates), root),
        "Theorem 3 (order), K unknown": min(float(updates), math.log(updates) * root),
        "lower bound": min(float(updates), people) / 2,
        "always 0": float(updates),
    }


def swings(steps: int, updates: int) -> np.ndarray:
    """Return changes of a set that fills and empties twice, with so many updates in all."""
    each = np.diff(np.linspace(0, updates, steps + 1).astype(np.int64))
    signs = np.where(np.arange(steps) * 4 // steps % 2, -1, 1)
    changes = each * signs
    low = np.cumsum(changes).min()
    changes[0] += max(0, -low)
    return np.asarray(changes)


def errors(points: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return promised and observed errors of all methods."""
    rows = []
    for steps, updates in points:
        changes = swings(steps, updates)
        sizes = np.cumsum(changes)
        for name, mechanism in methods(steps, updates).items():
            seen = []
            for seed in range(RUNS):
                published = mechanism.run(mechanism.initial_state(), changes, SeededNoise(seed))[1]
                seen.append(np.abs(published.estimates - sizes))
            rows.append(
                {
                    "steps": steps,
                    "updates": updates,
                    "method": name,
                    "promised": mechanism.error(steps, updates),
                    "largest_seen": int(np.max(seen)),
                    "mean_seen": round(float(np.mean(seen)), 1),
                }
            )
        for name, bound in bounds(steps, updates).items():
            seen_zero = int(sizes.max()) if name == "always 0" else ""
            mean = round(float(sizes.mean()), 1) if name == "always 0" else ""
            row = {"steps": steps, "updates": updates, "method": name, "promised": round(bound)}
            rows.append(row | {"largest_seen": seen_zero, "mean_seen": mean})
    return rows


def single_updates(updates: int) -> float:
    """Return the CPU seconds of the mechanism where each update is a step of its own."""
    mechanism = SetCardinality(epsilon=EPSILON, horizon=updates, max_updates=updates, mode="sparse")
    changes = swings(updates, updates)
    noise = SeededNoise(1)
    mechanism.run(mechanism.initial_state(), changes[:1000], noise)  # makes the laws
    start = time.process_time()
    mechanism.run(mechanism.initial_state(), changes, noise)
    return time.process_time() - start


def door_batches(updates: int) -> list[pa.RecordBatch]:
    """Return one Arrow batch for each step: people of whom half are in at any time, and come and go at random."""
    rng = np.random.default_rng(1)
    each, people = updates // BATCHES, max(10, updates // 10)
    batches = []
    for step in range(BATCHES):
        users = pa.array(rng.integers(people, size=each).astype("U7"), pa.string())
        items = pa.array(np.array(["in", "out"])[rng.integers(2, size=each)], pa.string())
        times = pa.array(step * 10_000_000 + rng.integers(10_000_000, size=each), pa.timestamp("us", "UTC"))
        batches.append(pa.RecordBatch.from_arrays([users, items, times], names=["user", "item", "time"]))
    return batches


def membership(updates: int) -> tuple[dict[str, float], int, int]:
    """Return CPU seconds by stage, people remembered, and bytes of the encoded ledger, from Arrow to estimates."""
    noise = SeededNoise(1)
    made = transforms.SetCardinality(
        epsilon=EPSILON, window=10, start=0, end=10 * BATCHES, enter_values=("in",), leave_values=("out",), noise=noise,
        max_updates=updates, shards=1,
    )  # fmt: skip
    split = SplitPresence(steps=made.steps, rules=made.rules, noise=noise, shards=1)
    split.setup()
    track = TrackMembers(steps=made.steps, rules=made.rules, noise=noise, timer_offset=2)
    ledger, state = track.decode(b"", []), made.mechanism.initial_state()
    seconds = {"split and hash": 0.0, "last moves": 0.0, "membership": 0.0, "mechanism": 0.0}
    clock = time.process_time
    for step, batch in enumerate(door_batches(updates)):
        marks = [clock()]
        ((_, (_, data)),) = split.process(read_batch(batch, made.event_fields)[0])
        marks.append(clock())
        events = decode(EventBatch, data)
        rows = last_presence(events.users, events.items, events.times)
        kinds = (events.items[rows] & np.uint64(1)).astype(np.int64)
        stay = made.rules.stay(made.steps, step, kinds, events.times[rows])
        holders = HolderBatch(events.users[rows], events.items[rows] >> np.uint64(1), stay, Names.none())
        marks.append(clock())
        handled = track.handle(b"", step, [(StepKey("", step, 0), holders)], ledger)
        ledger = handled.state
        marks.append(clock())
        parts = [part for _, record in handled.outputs for _, part in parts_of(record[STEP.size :])]
        change = sum(CHANGE.unpack(part)[0] for part in parts)
        state, _ = made.mechanism.step(state, change, noise)
        marks.append(clock())
        for stage, took in zip(seconds, np.diff(marks).tolist(), strict=True):
            seconds[stage] += took
    return seconds, len(ledger.membership), sum(map(len, track.encode(ledger)))


def speed(updates: int) -> list[dict[str, Any]]:
    """Return the table of times."""
    alone = single_updates(updates)
    rows = [{"what": "mechanism, each update a step", "cpu_seconds": alone}]
    stages, people, ledger = membership(updates)
    rows += [{"what": f"{BATCHES} steps: {stage}", "cpu_seconds": took} for stage, took in stages.items()]
    rows.append({"what": f"{BATCHES} steps: all, from Arrow batches", "cpu_seconds": sum(stages.values())})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    shared = {"updates": updates, "people_remembered": people, "ledger_bytes": ledger, "peak_memory_mb": peak}
    return [
        {"what": row["what"], "cpu_seconds": round(row["cpu_seconds"], 3)}
        | {"updates_per_cpu_second": round(updates / row["cpu_seconds"])}
        | shared
        | {"load_average": load_average()}
        for row in rows
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw promised errors, and the largest ones seen, against K and against T."""
    figure = Figure(figsize=(12, 5.5), dpi=130, layout="constrained")
    names = list(dict.fromkeys(row["method"] for row in rows))
    for axes, by, fixed, value in zip(
        figure.subplots(1, 2), ("updates", "steps"), ("steps", "updates"), (STEPS, UPDATES), strict=True
    ):
        chosen = [row for row in rows if row[fixed] == value]
        for name, colour in zip(names, (*COLOURS, "#5c5fc8", "#6b4f3a"), strict=False):
            line = sorted(
                (row[by], row["promised"], row["largest_seen"])
                for row in chosen
                if row["method"] == name and row["promised"]
            )
            places, promised = [x for x, _, _ in line], [y for _, y, _ in line]
            order = "(order)" in name or name in ("always 0", "lower bound")
            axes.plot(places, promised, color=colour, label=name, linestyle=":" if order else "-", linewidth=1.6)
            if not order:
                axes.plot(places, [max(1, y) for _, _, y in line], ".", color=colour, markersize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        letter = "K, updates in the whole run" if by == "updates" else "T, steps"
        axes.set_xlabel(f"{letter}; {'T' if by == 'updates' else 'K'} = {value:,}")
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("error: promised (lines), largest seen (dots)")
    figure.axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"How many people are in it now, epsilon = {EPSILON:g}", x=0.01, ha="left")
    figure.savefig(path)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--updates", type=int, default=10_000_000, help="for time and memory (default: 10000000)")
    options = made.parse_args()
    folder = results_folder(options)
    by_updates = [100, 10_000] if options.quick else [100, 1000, 10_000, UPDATES, 1_000_000, 10_000_000]
    by_steps = [64] if options.quick else [64, 256, 4096, 65_536]
    points = [(STEPS, updates) for updates in by_updates] + [(steps, UPDATES) for steps in by_steps]
    found = errors(points)
    write_csv(folder / "cardinality_errors.csv", found)
    draw(found, folder / "cardinality.png")
    print_table("Errors", found)
    timed = speed(100_000 if options.quick else options.updates)
    write_csv(folder / "cardinality_speed.csv", timed)
    print_table("Time", timed)


if __name__ == "__main__":
    main()
