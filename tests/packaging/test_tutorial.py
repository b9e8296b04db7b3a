"""The tutorial's programs read the faults that files of shops have."""

import csv
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from documents import ROOT, blocks

LINES = """Customer No;Page viewed;Visited at;Basket
1;Lamps;04/03/2030 10:40;12,50
2;Lamps;2030-03-05 10:40:09;1,999
3;Lam\u200bps\u00a0 ;04/03/2030 10:40;
4;NaN;04/03/2030 10:40;1
nan;Lamps;04/03/2030 10:40;1
5;\u200b;04/03/2030 10:40;1
6;Lamps;soon;1
7;Lamps;04/03/2030 10:40;inf
8;Lamps;04/03/2030 10:40;much
"""


def cleaned(folder: Path, *changes: tuple[str, str]) -> tuple[list[list[str]], str]:
    """Run the program of the page, with other first lines, on a file of a shop."""
    (folder / "visits.csv").write_text(LINES, "utf-8-sig")
    page = blocks((ROOT / "docs" / "tutorial.md").read_text("utf-8"), "python")
    (program,) = (text for _, text in page if text.startswith("# clean.py"))
    for old, new in changes:
        assert program.count(old) == 1
        program = program.replace(old, new)
    (folder / "clean.py").write_text(program)
    said = subprocess.run([sys.executable, "clean.py"], cwd=folder, check=True, capture_output=True, text=True).stdout
    with open(folder / "events.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file)), said


def test_two_forms_of_times_and_what_cannot_be_seen_are_read(tmp_path: Path) -> None:
    (_, *rows), said = cleaned(tmp_path)
    assert [row[0] for row in rows] == ["1", "2", "3", "7", "8"]
    assert {row[1] for row in rows} == {"Lamps"}
    assert rows[1][2] == datetime(2030, 3, 5, 10, 40, 9).isoformat() + "+01:00"
    assert "5 events in events.csv\n4 rows have no user" in said


def test_a_row_without_a_price_is_counted_or_left_out_as_is_said(tmp_path: Path) -> None:
    price = ('VALUE, DECIMAL = ""', 'VALUE, DECIMAL = "Basket"')
    (header, *rows), _ = cleaned(tmp_path, price)
    assert header == ["user", "item", "time", "value"]
    assert [(row[0], row[3]) for row in rows] == [("1", "1250"), ("2", "200"), ("3", "0")]
    (_, *rows), _ = cleaned(tmp_path, price, ("NO_PRICE = 0", "NO_PRICE = None"))
    assert [row[0] for row in rows] == ["1", "2"]
