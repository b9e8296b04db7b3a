"""Which cases are run: one integer makes everything, and a case that fails can be run again alone.

`PRIVSTREAM_FUZZ_SEED` (default: 0) chooses the cases, `PRIVSTREAM_FUZZ_CASES` multiplies their number (0.5 and 20 are
fine), `PRIVSTREAM_FUZZ_CASE` runs the one case of that number in each test. What fails is kept in `.cache/fuzz`.
"""

import os
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SEED = int(os.environ.get("PRIVSTREAM_FUZZ_SEED", "0"))
TIMES = float(os.environ.get("PRIVSTREAM_FUZZ_CASES", "1"))
ONLY = os.environ.get("PRIVSTREAM_FUZZ_CASE")
KEPT = Path(__file__).parents[2] / ".cache" / "fuzz"


def chance_of(kind: str, number: int, seed: int = SEED) -> random.Random:
    """Return the generator of one case, which depends on nothing but its arguments."""
    return random.Random(f"{seed} {kind} {number}")


def numbers(cases: int) -> Iterator[int]:
    """Return the numbers of the cases to run."""
    return iter([int(ONLY)] if ONLY else range(max(1, round(cases * TIMES))))


def run_cases(kind: str, cases: int, check: Callable[[random.Random, Path], None], folder: Path) -> None:
    """Check many cases, each in a folder of its own; fail at the first that breaks a rule, and keep its folder."""
    for number in numbers(cases):
        place = folder / f"{kind.replace(' ', '-')}-{number}"
        place.mkdir()
        broken = failure_of(check, chance_of(kind, number), place)
        if broken:
            pytest.fail(f"{broken}\n{how_to_repeat(kind, number)}\nfiles: {keep(place)}", pytrace=False)
        remove(place)


def failure_of(check: Callable[[random.Random, Path], None], chance: random.Random, place: Path) -> str:
    """Return what is wrong with one case, or nothing."""
    try:
        check(chance, place)
    except AssertionError as error:
        return str(error)
    except Exception:  # no property fails, but the product or the fuzzer: where it happened says which
        return traceback.format_exc()[-2500:]
    return ""


def how_to_repeat(kind: str, number: int) -> str:
    """Say how one case is run again."""
    return f"{kind}: PRIVSTREAM_FUZZ_SEED={SEED} PRIVSTREAM_FUZZ_CASE={number}"


def keep(place: Path) -> Path:
    """Move the files of a case to where they stay."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"{SEED}-{place.name}"
    remove(kept)
    kept.mkdir()
    for file in place.iterdir():
        if file.is_file():
            (kept / file.name).write_bytes(file.read_bytes())
    return kept


def remove(place: Path) -> None:
    if place.is_dir():
        for inner in place.iterdir():
            remove(inner) if inner.is_dir() else inner.unlink()
        place.rmdir()
