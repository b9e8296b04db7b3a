"""A shop whose customers buy things by the hour, as files for commands."""

import json
from collections.abc import Callable
from pathlib import Path


def open_shop(folder: Path, people: dict[str, list[int]], **fields: Callable[[int], object]) -> Path:
    """Write sales, a noise key and the list of items into a folder.

    Args:
        folder: where.
        people: how many people buy an item, by item and hour: the first ones of all.
        fields: what else a record has, as functions of the number of its person.
    """
    sales = [
        {"user": f"u{person}", "item": item, "time": f"2024-01-01T0{hour}:{person % 60:02}:00Z"}
        | {name: value(person) for name, value in fields.items()}
        for item, numbers in people.items()
        for hour, number in enumerate(numbers)
        for person in range(number)
    ]
    (folder / "sales.jsonl").write_text("".join(f"{json.dumps(sale)}\n" for sale in sales))
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    (folder / "items").write_text("cake\nmilk\ntea\n")
    return folder
