"""Who does what the README, the tutorial and the pages say, line by line, gets what they show."""

import ast
import csv
import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import runner_harness
from documents import PAGES, ROOT, blocks, command_lines, follow
from messy_shop import FIRST_WEEK, NEW, WEEKS, Shop
from privstream.pipelines.cli import main

SERVERS = {"flink.md", "kafka.md"}
"""What starts servers has tests of its own, and each word is checked here."""
GUIDES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how_to").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if page.name not in SERVERS], ids=lambda page: page.stem)
def test_a_page_can_be_followed(page, tmp_path, monkeypatch, capfd):
    if "get_prism.sh" in page.read_text("utf-8"):
        runner_harness.require("prism")
    monkeypatch.chdir(tmp_path)
    follow(page, lambda: capfd.readouterr().out)


def test_programs_in_pages_compile() -> None:
    for page in PAGES:
        for _, block in blocks(page.read_text("utf-8"), "python"):
            compile(block, page.name, "exec")


README = (ROOT / "README.md").read_text()


def test_the_library_example_runs(tmp_path, monkeypatch, capfd):
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks(README, "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    printed = capfd.readouterr().out
    assert "(epsilon = 1, delta = 1e-06)-differential privacy for one person over the whole run" in printed
    assert "item='rain'" in printed


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The file of the first page, and a key, in the folder of this process."""
    monkeypatch.chdir(tmp_path)
    Path("key").write_text("0123456789abcdef" * 2)
    Path("key").chmod(0o600)
    return Shop(Path("kauf.csv"))


@pytest.mark.slow
def test_the_first_answer_is_right_and_takes_one_call(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    ((_, sample),) = blocks(README, "csv")
    assert sample.splitlines()[0] == shop.first[0] and ";29.09.2025 00:0" in shop.first[1]
    (command,) = command_lines("".join(f"```sh\n{block}```\n" for _, block in blocks(README, "sh")))
    assert main([*command, "--dead-letter", "letters.jsonl", "--output", "week.csv"]) == 0
    printed, told = capfd.readouterr()
    ((_, answer),) = blocks(README, "text")
    assert [line.split() for line in printed.splitlines()[:2]] == [line.split() for line in answer.splitlines()[:2]]
    assert "50,000 of 50,004 rows used" in told
    positions = [json.loads(line)["position"] for line in Path("letters.jsonl").read_text().splitlines()]
    assert positions == [f"line {number}" for number in range(50_002, 50_006)]
    rows = list(csv.DictReader(Path("week.csv").read_text().splitlines()))
    starts = sorted({row["window_start"] for row in rows})
    assert len(starts) == WEEKS and starts[0].startswith("2025-09-29T00:00:00+02:00"), "Mondays in Berlin"
    held = [
        float(row["lower"])
        <= len(shop.customers[starts.index(row["window_start"]), row["item"]])
        <= float(row["upper"])
        for row in rows
    ]
    assert len(rows) > 130 and sum(held) > 0.86 * len(rows)  # 90 to 97% in twelve runs: limits drop 1.6%


@pytest.mark.slow
def test_the_monitor_of_the_first_page_answers_five_questions(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    ((_, text),) = blocks(README, "yaml")
    Path("shop.yaml").write_text(text)
    assert main(["plan", "shop.yaml"]) == 0
    assert main(["run", "shop.yaml"]) == 0
    assert len(Path("key.ledger.jsonl").read_text().splitlines()) == 1
    written = {path.stem: path.read_text().replace(",", ".").splitlines() for path in Path("answers").glob("*.csv")}
    found = {name: list(csv.DictReader(lines, delimiter=";")) for name, lines in written.items()}
    assert set(found) == {"customers", "amounts", "leaders", "trending", "lamps"}
    starts = sorted({row["window_start"] for row in found["customers"]})
    held = [
        float(row["lower"])
        <= len(shop.customers[starts.index(row["window_start"]), row["item"]])
        <= float(row["upper"] or "inf")
        for row in found["customers"]
    ]
    assert len(held) > 130 and sum(held) > 0.87 * len(held)  # 93% in the mean, and three deviations below
    (median,) = found["amounts"]
    lower, upper = float(median["lower"]), float(median["upper"])
    width = upper - lower  # one draw of noise, and an interval of 95%: nearly all are as near as half a width to it
    assert width < 12 and lower - width / 2 <= shop.median <= upper + width / 2
    months = {"2025-10-01T00:00:00+02:00": 10, "2025-11-01T00:00:00+01:00": 11, "2025-12-01T00:00:00+01:00": 12}
    for start, month in months.items():
        ranked = [row["item"] for row in found["leaders"] if row["window_start"] == start]
        assert ranked[0] == shop.leaders(month, 1)[0] and len({*ranked} & {*shop.leaders(month, 5)}) >= 4
    within = [
        float(row["lower"])
        <= len(shop.months[months[row["window_start"]], row["item"]])
        <= float(row["upper"] or "inf")
        for row in found["leaders"]
    ]
    assert len(within) == 15 and sum(within) >= 10  # 11 to 15 in seven runs; with six products of a month it was eight
    rose = [(row["item"], starts.index(row["window_start"])) for row in found["trending"]]
    assert (NEW, FIRST_WEEK) in rose and len(rose) <= 3  # of 130 rows
    assert all(len(shop.customers[week, item]) > len(shop.customers[week - 1, item]) for item, week in rose)
    alerts = {starts.index(row["window_start"]) for row in found["lamps"] if row["state"] == "alert"}
    sure = {week for week in range(WEEKS) if len(shop.customers[week, "Lampen"]) > 360}
    assert sure and sure <= alerts


LINES = """Customer No;Page viewed;Visited at;Basket
1;Lamps;04/03/2030 10:40;12,50
2;Lamps;2030-03-05 10:40:09;1,99
3;Lamps\u00a0 ;04/03/2030 10:40;
;Lamps;04/03/2030 10:40;1
5;\u200b;04/03/2030 10:40;1
6;Lamps;soon;1
7;Lamps;31/03/2030 02:30;1
8;Lamps;04/03/2030 10:40;much
"""


@pytest.mark.parametrize("sums", [False, True])
def test_the_tutorial_reads_the_faults_that_files_of_shops_have(sums, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text(LINES, "utf-8-sig")
    Path("key").write_text("0123456789abcdef" * 2)
    Path("key").chmod(0o600)
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    (command,) = (words for words in command_lines(page) if words[0] == "counts")
    money = re.search(r"`(--value Basket [^`]*)`", page)
    assert money is not None
    assert main([*command, "--dead_letter", "dead.jsonl", *(shlex.split(money[1]) if sums else [])]) == 0
    assert f"{2 if sums else 3} of 8 rows used" in capsys.readouterr().err
    lines = [json.loads(line)["position"] for line in Path("dead.jsonl").read_text().splitlines()]
    assert lines == [f"line {number}" for number in ((3, 5, 6, 7, 8, 9) if sums else (3, 5, 6, 7, 8))]


DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = json.loads((DOCS / "notebook.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(codes: list[str], name: str) -> tuple[dict[str, Any], list[Any]]:
    """Run code piece by piece, as a notebook does; return what is there then, and what each piece shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for code in codes:
        *statements, last = ast.parse(code).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    return names, shown


@pytest.mark.slow
def test_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "key").chmod(0o600)
    names, _ = run(BLOCKS, "python.md")
    assert (folder / "visitors.parquet.guarantee.json").exists()
    printed = capsys.readouterr()
    assert "(epsilon = 1, delta = 1e-06)-differential privacy" in printed.out and not printed.err
    sorted_visits = names["visits"].sort_values(["at", "visitor", "page"])
    assert names["ordered"].reset_index(drop=True).equals(sorted_visits.reset_index(drop=True))


@pytest.mark.slow
def test_the_notebook_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, shown = run(CELLS, "notebook.ipynb")
    assert shown[1] is names["found"] and re.fullmatch(
        r"<people per item[^:]*: \d+ rows, epsilon = 1, delta = 1e-06>", repr(shown[1])
    )
    counts, visits = names["counts"], names["visits"]
    truth = visits[visits.page == "home"].groupby(visits["at"].dt.floor("D")).visitor.nunique()
    home = counts[counts.item == "home"]
    assert len(home) == 7 and (abs(home["people"].to_numpy() - truth.to_numpy()) <= 110).all()
    assert shown[3]._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")
    assert not capsys.readouterr().err


TABLES_ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(TABLES_ROOT / "docs" / "tables.py"))


@pytest.mark.parametrize("name", SCRIPT["TABLES"])
def test_tables_are_as_the_code_gives_them(name: str) -> None:
    assert (TABLES_ROOT / name).read_text("utf-8") == SCRIPT["page"](name), "run: make tables"
