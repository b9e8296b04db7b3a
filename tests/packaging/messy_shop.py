"""A file of purchases as messy as those of shops are, and the truth about it: the example of the first page."""

import random
import statistics
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2025, 9, 29)
WEEKS = 13
PRODUCTS = {"Gartenstühle": 20, "Lampen": 15, "Bücher": 14, "Teppiche": 12, "Messer": 10, "Kerzen": 8, "Bettwäsche": 7,
            "Äpfel": 6, "Uhren": 5, "Spiegel": 3}  # fmt: skip
NEW = "Adventskalender"
FIRST_WEEK = 8
"""Since when the new product is sold."""

CUSTOMERS, PURCHASES = 5_155, 50_000
UNREADABLE = ("31.02.2025 10:00", "2025-11-05 10:00", "")
"""Times of lines at the end of the file that are none: no such day, a second form, and none at all."""


class Shop:
    """The file, and what is true of it.

    Attributes:
        customers: of each week and product, all of them; a week is its number.
        amounts: all that are known, in euros.
        months: of each month and product, the customers.
    """

    def __init__(self, path: Path) -> None:
        chance = random.Random(30)
        active = [chance.paretovariate(1.8) for _ in range(CUSTOMERS)]
        times = sorted(START + timedelta(minutes=chance.randrange(WEEKS * 7 * 24 * 60)) for _ in range(PURCHASES))
        self.customers: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
        self.months: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
        self.amounts: list[float] = []
        lines = ["Kundennummer;Produkt;Kaufdatum;Betrag"]
        for time, customer in zip(times, chance.choices(range(CUSTOMERS), active, k=PURCHASES), strict=True):
            week = (time - START) // timedelta(days=7)
            new = week >= FIRST_WEEK and chance.random() < 0.25
            product = NEW if new else chance.choices([*PRODUCTS], [*PRODUCTS.values()])[0]
            amount = ""
            if chance.random() < 0.97:
                self.amounts.append(round(min(chance.lognormvariate(3.1, 0.9), 4_000), 2))
                amount = f"{self.amounts[-1]:,.2f}".translate(str.maketrans(",.", ".,"))
            self.customers[week, product].add(customer)
            self.months[time.month, product].add(customer)
            space = chance.choice(["", " "])
            lines.append(f"{10_000 + customer};{product}{space};{time:%d.%m.%Y %H:%M};{amount}")
        self.first = lines[:4]
        lines += [lines[0], *(f"10001;Lampen;{time};1,00" for time in UNREADABLE)]
        path.write_bytes(("\r\n".join(lines) + "\r\n").encode("windows-1252"))

    @property
    def median(self) -> float:
        """The median amount."""
        return statistics.median(self.amounts)

    def leaders(self, month: int, number: int) -> list[str]:
        """The products of a month with most customers, in their order."""
        counts = {product: len(who) for (each, product), who in self.months.items() if each == month}
        return sorted(counts, key=lambda product: -counts[product])[:number]


if __name__ == "__main__":
    Shop(Path("kauf.csv"))
