"""How good are full numbers at suggested limits? Do their intervals hold, and do weeks keep their level?

Usage: python benchmarks/full_counts.py [--quick] [--keys 10]

Purchases of 5,000 customers in 13 weeks, heavy-tailed (at most 300 of one customer), 200 products by Zipf's law, every
fourth week a quarter more. Tastes are alike, or customers with more than 40 purchases prefer the other half of the
list. For each noise key `privstream suggest` chooses `--max_contributions` with its default epsilon of 0.05, and
`counts` runs with it on the public list: epsilon 1, delta 1e-6 for one customer over all weeks, with two sizes of
`--full_share`, and without or with `--max_contributions_per_window` of the limit divided by 13, rounded up.

Of the rows that at least 100 customers are in, in truth: how many have a full number, and how many of these intervals
hold the truth; how many of `lower .. upper` of counts do. Of each week, over all these rows: the sum of full numbers
over that of the truth. `level` is the mean of the weeks, `weekly` how far the week that is farthest off is from that
mean. `weekly_noise` is what `weekly` would be if the share that counts were known exactly: noise of counts alone.
`used_up_holds`: of the intervals of how many people have used up their limit by the last week, how many hold that
number. Means over keys. Random contributions of a customer count, as over files.

Writes full_counts.csv and full_counts.png to benchmarks/results.
"""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _purchases import START, WEEK, Purchases
from _report import parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.pipelines import cli

MANY = 100
HEAVY = 40
TASTES = {"alike": None, "by activity": HEAVY}
CASES = ((0.05, False), (0.05, True), (0.2, False), (0.2, True))
EPSILON = 1.0


@dataclass(frozen=True)
class Shop:
    """A folder with purchases, and runs over them."""

    folder: Path
    purchases: Purchases

    def prepare(self) -> None:
        """Write the purchases and the list of products."""
        pq.write_table(self.purchases.table, self.folder / "purchases.parquet")
        (self.folder / "products.txt").write_text("\n".join(self.purchases.names))

    def command(self, line: str, key: int) -> str:
        """Run a command with a noise key, and return what it prints."""
        file = self.folder / f"key{key}"
        if not file.exists():
            file.write_bytes(bytes((key + 7 * place) % 256 for place in range(32)))
            file.chmod(0o600)
        when = f"--window {WEEK} --start {START} --windows {self.purchases.weeks} --noise_key_file {file} --ledger none"
        words = f"{line} --input {self.folder / 'purchases.parquet'} {when} --run_id same"
        with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as said:
            if cli.main(shlex.split(words)):
                raise RuntimeError(said.getvalue())
        return printed.getvalue()

    def suggested(self, key: int) -> int:
        """Return the limit that is suggested."""
        printed = self.command(f"suggest --output - --for_epsilon {EPSILON}", key)
        words = printed.replace("`", " ").split()
        return int(words[words.index("--max_contributions") + 1].strip(".,"))

    def counted(self, limit: int, share: float, in_window: int | None, key: int) -> list[dict[str, Any]]:
        """Return the rows of a run."""
        rows = self.folder / "rows.parquet"
        limits = f"--max_contributions {limit} --full_share {share}"
        limits += f" --max_contributions_per_window {in_window}" if in_window is not None else ""
        listed = f"--domain {self.folder / 'products.txt'} --output {rows} --overwrite"
        self.command(f"counts {listed} --epsilon {EPSILON} --delta 1e-6 {limits}", key)
        return list(pq.read_table(rows).to_pylist())

    @cached_property
    def truth(self) -> Mapping[tuple[str, int], int]:
        """How many customers bought each product in each week, where these are many."""
        return {place: people for place, people in self.purchases.people().items() if people >= MANY}

    @cached_property
    def contributions(self) -> np.ndarray:
        """How many products each customer bought in each week, int64 (customers, weeks)."""
        table = self.purchases.table
        users = table["user"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        items = table["item"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        weeks = (table["time"].cast("int64").to_numpy() // 1_000_000 - START) // WEEK
        held = np.unique(np.stack([users, items, weeks]), axis=1)
        found = np.zeros((users.max() + 1, self.purchases.weeks), np.int64)
        np.add.at(found, (held[0], held[2]), 1)
        return found

    def used_up(self, limit: int, in_window: int | None) -> int:
        """Return how many customers have used up their limit by the last week."""
        each = self.contributions if in_window is None else np.minimum(self.contributions, in_window)
        return int((each.sum(axis=1) >= limit).sum())

    def kept(self, limit: int, in_window: int | None) -> np.ndarray:
        """Return which part of the contributions counts in each week, on average over what is chosen at random."""
        each = self.contributions if in_window is None else np.minimum(self.contributions, in_window)
        part = np.minimum(1.0, limit / np.maximum(each.sum(axis=1), 1))
        kept: np.ndarray = (each * part[:, None]).sum(axis=0) / self.contributions.sum(axis=0)
        return kept


def place(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return what a row is about."""
    return row["item"], int(row["window_start"].timestamp())


def figures(shop: Shop, limit: int, in_window: int | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of one run."""
    some = [(row, shop.truth[place(row)]) for row in rows if place(row) in shop.truth]
    known = [(row, true) for row, true in some if row["full"] is not None]
    weeks = np.array([(place(row)[1] - START) // WEEK for row, _ in some])
    true = np.bincount(weeks, [people for _, people in some])
    shares = shop.kept(limit, in_window)
    full = np.bincount(weeks, [np.nan if row["full"] is None else row["full"] for row, _ in some]) / true
    exact = np.bincount(weeks, [row["count"] / shares[week] for (row, _), week in zip(some, weeks, strict=True)]) / true
    last = max(rows, key=lambda row: place(row)[1])
    return {
        "left_out": 1 - float(shares @ shop.contributions.sum(axis=0)) / shop.contributions.sum(),
        "counts_hold": np.mean([row["lower"] <= people <= row["upper"] for row, people in some]),
        "have_full": len(known) / len(some),
        "full_holds": np.mean([row["full_lower"] <= people <= row["full_upper"] for row, people in known]),
        "half_width": np.median([(row["full_upper"] - row["full_lower"]) / 2 / people for row, people in known]),
        "level": np.nanmean(full),
        "weekly": np.nanmax(np.abs(full / np.nanmean(full) - 1)),
        "weekly_noise": np.max(np.abs(exact / exact.mean() - 1)),
        "used_up_holds": last["used_up_lower"] <= shop.used_up(limit, in_window) <= last["used_up_upper"],
    }


def results(shop: Shop, tastes: str, keys: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each way to count."""
    limits = [shop.suggested(key) for key in range(1, keys + 1)]
    for share, limited in CASES:
        each = []
        for key, limit in enumerate(limits, start=1):
            in_window = -(-limit // shop.purchases.weeks) if limited else None
            each.append(figures(shop, limit, in_window, shop.counted(limit, share, in_window, key)))
        means = {name: round(float(np.mean([one[name] for one in each])), 3) for name in each[0]}
        common = {"tastes": tastes, "limit": f"{min(limits)} to {max(limits)}", "full_share": share}
        yield {**common, "window_limit": limited, **means}


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw how many intervals hold the truth: those of counts, and those of full numbers."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    by_week = ["" if str(line["window_limit"]) != "True" else ", limit by week" for line in lines]
    names = [f"{line['tastes']}, share {line['full_share']}{more}" for line, more in zip(lines, by_week, strict=True)]
    for shift, name, colour in ((-0.2, "counts_hold", "#d55e00"), (0.2, "full_holds", "#0072b2")):
        label = "lower to upper" if name == "counts_hold" else "full_lower to full_upper"
        axes.barh(
            np.arange(len(lines)) + shift, [100 * float(line[name]) for line in lines], 0.4, color=colour, label=label
        )
    axes.set_yticks(range(len(lines)), names)
    axes.invert_yaxis()
    axes.axvline(95, color="#555555", linewidth=0.8)
    axes.set_xlabel("intervals that hold the number of all people, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run all."""
    options = parser(__doc__)
    options.add_argument("--keys", type=int, default=10, help="noise keys")
    arguments = options.parse_args()
    lines = []
    for tastes, heavy in list(TASTES.items())[: 1 if arguments.quick else None]:
        with tempfile.TemporaryDirectory() as scratch:
            customers = 1_500 if arguments.quick else 5_000
            shop = Shop(Path(scratch), Purchases(customers=customers, mean=21.0, largest=300, heavy_alone=heavy))
            shop.prepare()
            lines += list(results(shop, tastes, 1 if arguments.quick else arguments.keys))
    print_table("full numbers at suggested limits", lines)
    folder = results_folder(arguments)
    write_csv(folder / "full_counts.csv", lines)
    draw(lines, folder / "full_counts.png")


if __name__ == "__main__":
    main()
