"""What intervals hold where limits leave something out: the numbers of what counts, and of all there is.

Usage: python benchmarks/limits.py [--quick]

Purchases of 5,155 customers in 13 weeks: 51,000, half of them by a tenth of the customers. epsilon = 1, delta = 1e-6
for one customer over all weeks; `counts` and `top-k` know the list of 200 products. For each limit: the share that it
leaves out, as far as the run warns of it; which part of the intervals hold the number of what counts within the limits,
which is what they promise; which hold the number of all, which they do not; and what the first and the last week of the
most popular product look like beside what is true. What counts is measured by the same run with epsilon 400, whose
noise is nearly always 0.

Writes limits.csv and a picture of it to benchmarks/results.
"""

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _purchases import START, WEEK, Purchases
from _report import parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.pipelines import cli

EXACT = 400.0
CASES = (
    ("counts", "--max_contributions", (15, 30, 60, 2600)),
    ("top-k", "--items_per_step", (1, 2, 4, 20)),
    ("quantiles", "--max_contributions", (5, 13)),
)
FURTHER = {
    "counts": "--domain products.txt --full_share 0",
    "top-k": "--domain products.txt",
    "quantiles": "--low 1 --high 500 --scale log",
}
STATED = {"counts": 0.99, "top-k": 0.95, "quantiles": 0.95}


class Shop:
    """A folder with the purchases, and runs over them."""

    def __init__(self, folder: Path, purchases: Purchases) -> None:
        self.folder, self.purchases = folder, purchases
        pq.write_table(purchases.table, folder / "purchases.parquet")
        (folder / "products.txt").write_text("\n".join(purchases.names))
        (folder / "key").write_text("00112233445566778899aabbccddeeff" * 2)
        (folder / "key").chmod(0o600)

    def run(self, question: str, options: str, epsilon: float) -> tuple[list[dict[str, Any]], str]:
        """Return the rows of a run, and what it says."""
        files = f"--input purchases.parquet --output rows.parquet --overwrite {FURTHER[question]}"
        when = f"--window {WEEK} --start {START} --end {self.purchases.end}"
        how = f"--epsilon {epsilon} --delta 1e-6 --noise_key_file key --run_id same --ledger none"
        line = shlex.split(f"{question} {files} {when} {how} {options}")
        known = {"purchases.parquet", "rows.parquet", "products.txt", "key"}
        with redirect_stderr(StringIO()) as printed:
            status = cli.main([str(self.folder / word) if word in known else word for word in line])
        if status:
            raise RuntimeError(printed.getvalue())
        return pq.read_table(self.folder / "rows.parquet").to_pylist(), printed.getvalue()


def place(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return what a row is about: an item, if there is one, and the start of a week."""
    return row.get("item", ""), int(row["window_start"].timestamp())


def interval(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval of a row."""
    if "lower" in row and "error_bound" not in row:
        return row["lower"], row["upper"]
    number = row.get("count", row.get("estimate", 0.0))
    return number - row["error_bound"], number + row["error_bound"]


def inside(rows: list[dict[str, Any]], truth: Mapping[tuple[str, int], float]) -> float:
    """Return which part of the intervals hold what is true; what is not listed is 0."""
    held = [low <= truth.get(place(row), 0.0) <= high for row in rows for low, high in [interval(row)]]
    return sum(held) / len(held)


def warned_of(printed: str) -> float:
    """Return the share that limits have left out, as a run says in its warning; 0 without one."""
    found = re.search(r"limits have left out (\d+)%", printed)
    return int(found[1]) / 100 if found else 0.0


def measured(shop: Shop, question: str, option: str, limit: int) -> dict[str, Any]:
    """Return the figures of one limit."""
    options, all_ranks = f"{option} {limit}", f"--top {shop.purchases.products - 1}"
    top = question == "top-k"
    rows, printed = shop.run(question, f"{options} --top 3" if top else options, 1.0)
    exact, _ = shop.run(question, f"{options} {all_ranks}" if top else options, EXACT)
    counted = {place(row): row.get("count", row.get("estimate", 0.0)) for row in exact}
    medians = {("", week): median for week, median in shop.purchases.medians().items()}
    true = medians if question == "quantiles" else dict(shop.purchases.people())
    first, last = START, shop.purchases.end - WEEK
    item = "" if question == "quantiles" else shop.purchases.names[0]
    shown = {place(row): row.get("count", row.get("estimate", 0.0)) for row in rows}
    return {
        "question": question,
        "limit": options,
        "warned_of": warned_of(printed),
        "intervals": len(rows),
        "stated": STATED[question],
        "hold_what_counts": round(inside(rows, counted), 3),
        "hold_all": round(inside(rows, true), 3),
        "first_week": round(shown.get((item, first), 0.0), 2),
        "last_week": round(shown.get((item, last), 0.0), 2),
        "true_first_week": round(true.get((item, first), 0.0), 2),
        "true_last_week": round(true.get((item, last), 0.0), 2),
    }


def compare(shop: Shop, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of all limits, or of the first of each question."""
    for question, option, limits in CASES:
        for limit in limits[:1] if quick else limits:
            yield measured(shop, question, option, limit)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw which part of intervals hold what counts, and all, by the share that limits leave out."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for question, marker in (("counts", "o"), ("top-k", "s"), ("quantiles", "^")):
        some = [row for row in rows if row["question"] == question]
        shares = [100 * row["warned_of"] for row in some]
        for name, colour in (("hold_what_counts", "#0072b2"), ("hold_all", "#d55e00")):
            label = f"{question}: {'what counts' if name == 'hold_what_counts' else 'all'}"
            axes.plot(shares, [100 * row[name] for row in some], marker, color=colour, label=label)
    axes.set_xlabel("left out by limits, %")
    axes.set_ylabel("intervals that hold the number of .., %")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run."""
    options = parser(__doc__).parse_args()
    results = results_folder(options)
    purchases = Purchases(customers=1_000) if options.quick else Purchases()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(compare(Shop(Path(folder), purchases), options.quick))
    print_table("intervals that hold what counts, and all", rows)
    write_csv(results / "limits.csv", rows)
    draw(rows, results / "limits.png")


if __name__ == "__main__":
    main()
