"""Which heavy hitters are found: the threshold monitors, the sparse vector technique and a histogram at every step.

Usage: python benchmarks/heavy_hitters_accuracy.py [--quick] [--epsilon 1] [--people 100000 1000000] [--seeds 3]

All methods keep the same (epsilon, delta) for one person over the whole run, and fail with the same probability beta.

Example 1.4 (Kaplan, Mansour, Stemmer 2020): everybody is in a small group A, a larger one B and a large one C, each
with one item at one step. Nothing is known of the items before. The sparse vector technique is told how many hits to
pay for: only the groups C, B and C, or all; and, in the first two cases, to aim halfway between two sizes.

Zipf: a public list of items, of which everybody who is active holds one. The sparse vector technique is told
with how many hits it finds most.

Writes to benchmarks/results: heavy_hitters_example_1_4.csv (found groups), heavy_hitters_thresholds.csv (the
least group that each method finds, by number of people), both in heavy_hitters_example_1_4.png, and
heavy_hitters_zipf.csv and .png.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from _accuracy_plots import plot_example, plot_zipf
from _methods import Method, Task, histogram, monitor, sparse_vector
from _report import parser, print_table, results_folder, write_csv
from _streams import Example14, Step, Zipf

BETA = 0.05
EXAMPLE_HITS = 3  # groups of one person
ZIPF_HITS = {"clock": (4, 16, 64), "target_charging": (16,), "paper": (16,)}
TOTAL_HITS = (1, 3, 10, 30, 100, 300, 1000, 3000)  # what the sparse vector technique may be told
SIZES = tuple((100 * 2 ** np.arange(0, 7, 1 / 3)).round().tolist())  # holders: lower edges of the bins
SHOWN_SIZES = (200, 400, 800, 1600, 3200)
Row = dict[str, Any]


def side_by_side(stream: Iterable[Step], methods: Sequence[Method], seed: int) -> Iterator[tuple[Step, list[Any]]]:
    """Yield each step with what each method reports."""
    first, *copies = itertools.tee(stream, len(methods) + 1)
    reports = [method.report(copy, seed) for method, copy in zip(methods, copies, strict=True)]
    for step, *reported in zip(first, *reports, strict=True):
        yield step, reported


def example_methods(example: Example14, epsilon: float) -> list[Method]:
    """Return all methods, with delta = 1 / (1000 people)."""
    task = Task(epsilon=epsilon, delta=1e-3 / example.users, beta=BETA, steps=example.steps, tests=example.steps)
    a, b, c = example.group_sizes.values()
    number = example.group_counts
    return [
        *(monitor(task, calibration, EXAMPLE_HITS) for calibration in ZIPF_HITS),
        sparse_vector(task, number["C"], "told of C", (b + c) / 2),
        sparse_vector(task, number["B"] + number["C"], "told of B and C", (a + b) / 2),
        sparse_vector(task, example.steps, "told of A, B and C"),
        histogram(task),
    ]


def run_example(example: Example14, epsilon: float, seeds: int) -> Iterator[Row]:
    """Yield for each method and kind of group how many were found."""
    methods = example_methods(example, epsilon)
    kinds = example.kinds()
    found = np.zeros((len(methods), len(kinds)), np.int64)
    alone = np.zeros(len(methods), np.int64)
    for seed in range(seeds):
        for _, reported in side_by_side(example.stream(seed), methods, seed):
            for place, items in enumerate(reported):
                groups = items[items < len(kinds)].astype(np.int64)
                found[place, groups] += 1
                alone[place] += len(items) - len(groups)
    for place, method in enumerate(methods):
        for kind, size in example.group_sizes.items():
            number = example.group_counts[kind] * seeds
            hits = int(found[place, kinds == kind].sum())
            yield {
                "people": example.users,
                "epsilon": epsilon,
                "method": method.name,
                "finds_groups_of": method.finds,
                "group": kind,
                "group_size": round(size),
                "groups": number,
                "found": hits,
                "share": round(hits / number, 4),
                "items_of_one_person_reported": int(alone[place]),
            }


def thresholds(group_factor: float, epsilon: float, people: Iterable[float]) -> Iterator[Row]:
    """Yield what each method finds for sure, beside the sizes of the groups, for more people than can be simulated."""
    for users in people:
        example = Example14(users=round(users), group_factor=group_factor)
        sizes = {f"group_{kind}": round(size) for kind, size in example.group_sizes.items()}
        for method in example_methods(example, epsilon):
            yield {"people": example.users, "epsilon": epsilon, "method": method.name, "finds": method.finds} | sizes


def zipf_methods(zipf: Zipf, epsilon: float) -> list[Method]:
    """Return all methods; the sparse vector gets the number of hits with which it finds most of the first stream."""
    delta = 1e-3 / zipf.users
    tests = zipf.items * zipf.steps
    task = Task(epsilon=epsilon, delta=delta, beta=BETA, steps=zipf.steps, tests=tests, domain_size=zipf.items)
    held = np.concatenate([step.counts[1] for step in zipf.stream(0)])
    told = [(hits, sparse_vector(task, hits, f"told of the best {hits:,}")) for hits in TOTAL_HITS]
    _, best = max(told, key=lambda pair: min(pair[0], np.count_nonzero(held >= pair[1].finds)))
    monitors = [monitor(task, name, hits) for name, several in ZIPF_HITS.items() for hits in several]
    return [*monitors, best, histogram(task)]


def run_zipf(zipf: Zipf, epsilon: float, seeds: int) -> Iterator[Row]:
    """Yield for each method how many of the items with so many holders were found."""
    methods = zipf_methods(zipf, epsilon)
    pairs = np.zeros(len(SIZES) + 1, np.int64)
    found = np.zeros((len(methods), len(SIZES) + 1), np.int64)
    nobody = np.zeros(len(methods), np.int64)
    for seed in range(seeds):
        for step, reported in side_by_side(zipf.stream(seed), methods, seed):
            items, counts = step.counts
            pairs += np.bincount(np.searchsorted(SIZES, counts, side="right"), minlength=len(pairs))
            for place, hits in enumerate(reported):
                held = counts[np.isin(items, hits)]
                found[place] += np.bincount(np.searchsorted(SIZES, held, side="right"), minlength=len(pairs))
                nobody[place] += len(hits) - len(held)
    for place, method in enumerate(methods):
        for size, number, hits in zip(SIZES, pairs[1:].tolist(), found[place, 1:].tolist(), strict=True):
            yield {
                "epsilon": epsilon,
                "method": method.name,
                "finds_items_of": method.finds,
                "holders_from": int(size),
                "items": number,
                "found": hits,
                "share": round(hits / number, 4) if number else None,
                "items_of_nobody_reported": int(nobody[place]),
            }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--epsilon", type=float, default=1.0)
    arguments.add_argument("--people", type=int, nargs="+", default=[100_000, 1_000_000], help="of Example 1.4")
    arguments.add_argument("--group_factor", type=float, default=50.0, help="groups A have about this times ln(people)")
    arguments.add_argument("--zipf_people", type=int, default=1_000_000)
    arguments.add_argument("--zipf_steps", type=int, default=1_000)
    arguments.add_argument("--seeds", type=int, default=3, help="streams of each kind")
    options = arguments.parse_args()
    if options.quick:
        options.people, options.zipf_people, options.zipf_steps, options.seeds = [20_000], 100_000, 10, 1
    folder = results_folder(options)
    found: list[Row] = []
    for users in options.people:
        found += run_example(Example14(users=users, group_factor=options.group_factor), options.epsilon, options.seeds)
        print(f"Example 1.4 with {users:,} people: done", flush=True)
    people = np.geomspace(1e4, 1e12, 5 if options.quick else 33)
    limits = list(thresholds(options.group_factor, options.epsilon, people))
    write_csv(folder / "heavy_hitters_example_1_4.csv", found)
    write_csv(folder / "heavy_hitters_thresholds.csv", limits)
    plot_example(found, limits, folder / "heavy_hitters_example_1_4.png")
    zipf = Zipf(users=options.zipf_people, items=50_000, steps=options.zipf_steps)
    bins = list(run_zipf(zipf, options.epsilon, options.seeds))
    write_csv(folder / "heavy_hitters_zipf.csv", bins)
    plot_zipf(bins, folder / "heavy_hitters_zipf.png")
    print_table("Example 1.4: groups found", example_summary(found))
    print_table("Zipf: items found, of those with so many holders", zipf_summary(bins))
    print(f"results: {folder}")


def example_summary(found: Sequence[Row]) -> list[Row]:
    """Return one row per number of people and method, with what it found of each kind of group."""
    rows: dict[tuple[int, str], Row] = {}
    for of_kind in found:
        row = rows.setdefault((of_kind["people"], of_kind["method"]), {})
        row |= {name: of_kind[name] for name in ("people", "method", "finds_groups_of")}
        row[of_kind["group"]] = f"{of_kind['found']:,} of {of_kind['groups']:,} (of {of_kind['group_size']:,})"
        row["of_one_person"] = of_kind["items_of_one_person_reported"]
    return list(rows.values())


def zipf_summary(bins: Sequence[Row]) -> list[Row]:
    """Return one row per method, with the part found of the items that so many people hold or more."""
    rows: list[Row] = []
    for method, several in itertools.groupby(bins, key=lambda row: row["method"]):
        of_method = list(several)
        row: Row = {"method": method, "finds items of": of_method[0]["finds_items_of"]}
        for least in SHOWN_SIZES:
            large = [bin for bin in of_method if bin["holders_from"] >= least]
            items = sum(bin["items"] for bin in large)
            row[f">= {least}"] = f"{sum(bin['found'] for bin in large) / items:.1%} of {items:,}" if items else "-"
        rows.append(row | {"nobody's": of_method[0]["items_of_nobody_reported"]})
    return rows


if __name__ == "__main__":
    main()
