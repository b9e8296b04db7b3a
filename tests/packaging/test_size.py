"""Size limits of folders, files and pages; they may only be lowered.

`python tests/packaging/test_size.py` prints the table as it is now, and writes the list of long files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLACK = 0.97
"""A ceiling that is more than so much higher than what stands under it is to be lowered."""

MOST_LINES = 500
"""Of a file, unless `LARGE` names it."""

CEILINGS: dict[str, tuple[int, int]] = {
    "mechanisms": (8_600, 41),
    "transforms": (7_955, 32),
    "pipelines": (12_970, 72),
    "tests": (27_996, 198),
    "benchmarks": (1_690, 7),
    "deploy": (450, 3),
}
"""Lines of Python, and files of Python, in each folder.

The last rise, of mechanisms by 10 and transforms by 70, is for unions of Arrow that share memory, and for limits whose
drop was not released: with Laplace noise, and since the start.
"""

WORDS = 57_050
"""Of all pages, *.md."""

WALK = (100, 20)
"""Functions on the way of a record from a line of CSV to its row, and files that have them."""

LARGE = {
    name: int(size)
    for name, size in map(str.split, Path(__file__).with_name("large_files.txt").read_text("utf-8").splitlines())
}
"""Files beyond `MOST_LINES`, and the lines that they may have."""


def files(ending: str, folder: str = ".") -> list[str]:
    """Return the paths of tracked files, from the root on."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", f"{folder}/*{ending}"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return sorted({name for name in found if (ROOT / name).exists()})


def lines(name: str) -> int:
    """Return how many lines a file has."""
    return len((ROOT / name).read_text("utf-8").splitlines())


def measured() -> dict[str, tuple[int, ...]]:
    """Return all that has a ceiling, but the walk."""
    sizes = {folder: files(".py", folder) for folder in CEILINGS}
    found: dict[str, tuple[int, ...]] = {name: (sum(map(lines, of)), len(of)) for name, of in sizes.items()}
    pages = [name for name in files(".md") if "/results/" not in name]
    return found | {"words": (sum(len((ROOT / name).read_text("utf-8").split()) for name in pages),)}


def walked() -> dict[str, list[str]]:
    """Return which functions a record meets, by their files."""
    from record_walk import walk  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        return walk(Path(folder))


def large() -> dict[str, int]:
    """Return the files beyond `MOST_LINES`."""
    sizes = {name: lines(name) for folder in CEILINGS for name in files(".py", folder)}
    return {name: size for name, size in sizes.items() if size > MOST_LINES}


def check(name: str, found: tuple[int, ...], ceilings: tuple[int, ...]) -> None:
    """Refuse what is above its ceiling, and a ceiling that is far above what it is for."""
    for one, ceiling in zip(found, ceilings, strict=True):
        assert one <= ceiling, f"{name} has {one:,}, at most {ceiling:,}: take something away"
        assert one >= SLACK * ceiling, f"{name} has {one:,} of {ceiling:,}: lower the ceiling"


@pytest.mark.parametrize("name", [*CEILINGS, "words"])
def test_folders_and_pages_keep_to_their_ceilings(name: str) -> None:
    check(name, measured()[name], CEILINGS.get(name, (WORDS,)))


def test_a_record_meets_few_functions_of_the_files_that_the_page_names() -> None:
    found = walked()
    check("the walk of a record", (sum(map(len, found.values())), len(found)), WALK)
    named = re.findall(r"^\| `([\w/.]+\.py)`", (ROOT / "docs" / "walk.md").read_text("utf-8"), re.MULTILINE)
    assert set(named) == set(found), "docs/walk.md must name the files on the way: run record_walk.py"


def test_no_file_is_long() -> None:
    found = large()
    assert found.keys() <= LARGE.keys(), f"at most {MOST_LINES} lines: {sorted(found.keys() - LARGE.keys())}"
    assert LARGE.keys() <= found.keys(), f"no longer long, take it out: {sorted(LARGE.keys() - found.keys())}"
    for name, size in found.items():
        check(name, (size,), (LARGE[name],))


def main() -> None:
    """Print the table as it is now, and write the list of large files."""
    for name, found in measured().items():
        print(name, *(f"{one:_}" for one in found))
    print("WALK", sum(map(len, (found := walked()).values())), len(found))
    text = "".join(f"{name} {size}\n" for name, size in large().items())
    Path(__file__).with_name("large_files.txt").write_text(text, "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main()
