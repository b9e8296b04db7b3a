"""Purchases of a shop: some customers buy far more than others, and some products are bought far more often."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

WEEK = 7 * 86400
START = 1_725_840_000  # Monday, 9 September 2024, UTC
MOST_BOUGHT = 50_000


@dataclass(frozen=True)
class Purchases:
    """Purchases of many customers in some weeks.

    Attributes:
        customers: who bought something.
        products: on the list; the first is the most popular one, by Zipf's law.
        weeks: from `START` on; every fourth week sells a quarter more.
        mean: purchases of a customer on average; their number has a gamma law of shape 0.55, so that a tenth of all
            customers make half of the purchases.
        largest: None, or the most that a customer buys: then the number has a Pareto law of shape 1.6 in place of the
            gamma law, and a few customers buy so much.
        tail: None, or "pareto" or "lognormal": then the number has a Pareto law of shape 1.1, or a lognormal law of
            sigma 2, and a few customers make most purchases.
        heavy_alone: None, or from how many purchases on a customer prefers other products: the other half of the list.
        seed: of the draw.
    """

    customers: int = 5_155
    products: int = 200
    weeks: int = 13
    mean: float = 10.0
    largest: int | None = None
    tail: str | None = None
    heavy_alone: int | None = None
    seed: int = 7

    @cached_property
    def table(self) -> pa.Table:
        """The events: user, item, time, and the price as value, in the order of time."""
        rng = np.random.default_rng(self.seed)
        if self.tail is not None:
            pareto = self.tail == "pareto"
            numbers = 1 + rng.pareto(1.1, self.customers) if pareto else rng.lognormal(0.0, 2.0, self.customers)
            each = np.clip(numbers, 1, MOST_BOUGHT).astype(np.int64)
        elif self.largest is None:
            each = np.maximum(1, rng.poisson(rng.gamma(0.55, self.mean / 0.55, self.customers)))
        else:
            each = np.clip(rng.poisson(1 + 0.6 * (self.mean - 1) * rng.pareto(1.6, self.customers)), 1, self.largest)
        users = np.repeat(np.arange(self.customers), each)
        season = np.where(np.arange(self.weeks) % 4 == 3, 1.25, 1.0)
        weeks = rng.choice(self.weeks, len(users), p=season / season.sum())
        popular = 1 / np.arange(1, self.products + 1)
        items = rng.choice(self.products, len(users), p=popular / popular.sum())
        if self.heavy_alone is not None:
            others = each[users] > self.heavy_alone
            items[others] = (items[others] + self.products // 2) % self.products
        times = START + weeks * WEEK + rng.integers(0, WEEK, len(users))
        prices = np.round(rng.lognormal(3.0, 0.8, len(users)), 2)
        order = np.argsort(times, kind="stable")
        names = np.array(self.names)
        return pa.table(
            {
                "user": pa.array([f"customer {number}" for number in users[order].tolist()]),
                "item": pa.array(names[items[order]]),
                "time": pa.array(times[order] * 1_000_000, pa.timestamp("us", tz="UTC")),
                "value": pa.array(prices[order]),
            }
        )

    @property
    def names(self) -> list[str]:
        """The list of products."""
        return [f"product {number:03d}" for number in range(self.products)]

    @property
    def end(self) -> int:
        """The end of the last week, in seconds since 1970 UTC."""
        return START + self.weeks * WEEK

    def people(self) -> Mapping[tuple[str, int], int]:
        """Return how many customers bought each product in each week, by name and start in seconds; 0 is left out."""
        table = self.table
        week = (table["time"].cast(pa.int64()).to_numpy() // 1_000_000 - START) // WEEK
        pairs = pa.table({"user": table["user"], "item": table["item"], "week": week})
        distinct = pairs.group_by(["user", "item", "week"]).aggregate([])
        counted = distinct.group_by(["item", "week"]).aggregate([([], "count_all")]).to_pylist()
        return {(row["item"], START + row["week"] * WEEK): row["count_all"] for row in counted}

    def medians(self) -> Mapping[int, float]:
        """Return the median price of all purchases of each week, by its start."""
        week = (self.table["time"].cast(pa.int64()).to_numpy() // 1_000_000 - START) // WEEK
        prices = self.table["value"].to_numpy()
        return {START + number * WEEK: float(np.median(prices[week == number])) for number in range(self.weeks)}
