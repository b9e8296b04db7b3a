"""Views of a monitor on pages: a section for each, with its rows, its picture and what all results promise together."""

import json
from pathlib import Path
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import HOSTILE, HOUR, PERSONS, START, arrow_table, row_of, write
from privstream.mechanisms.privacy.guarantee import guarantee_record
from privstream.pipelines import cli
from privstream.pipelines.report.commands import LivePage
from privstream.pipelines.report.page import section
from privstream.pipelines.report.result import read_result
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.pipelines.stores import fingerprint
from privstream.transforms.row_types import AlertState, KeyCount, KeyRise, RatioEstimate

ITEMS = ["tea", HOSTILE[0]]


def window(hour: int) -> tuple[Timestamp, Timestamp]:
    return Timestamp(START + hour * HOUR), Timestamp(START + (hour + 1) * HOUR)


def rows_of_views() -> dict[str, tuple[type, list[Any], dict[str, Any], list[str]]]:
    states = [(None, None, None, "no data"), (90.0, 80.0, 100.0, "clear"), (130.0, 110.0, 150.0, "alert")]
    alerts = [
        AlertState(*window(hour), "tea", *numbers, 120.0, state, window(hour)[0])
        for hour, (*numbers, state) in enumerate(states)
    ]
    ratios = [RatioEstimate(*window(hour), item, 0.25 + hour / 8, 0.2, 0.7) for hour in range(3) for item in ITEMS]
    sums = [
        row_of("counts", hour, item)._replace(people=90.0, lower=80.0, upper=99.0)
        for hour in range(3)
        for item in ITEMS
    ]
    risers = [KeyRise(*row, 12.0, 3.0, 21.0) for row in sums[2:]]
    return {
        "busy": (AlertState, alerts, {"of": "pages", "item": "tea", "above": 120}, ["window_start", "item"]),
        "rate": (RatioEstimate, ratios, {"ratio": ["errors", "pages"]}, ["window_start", "-ratio", "item"]),
        "sums": (KeyCount, sums, {"of": "pages", "over": "2h"}, ["window_start", "-people", "item"]),
        "top": (KeyCount, sums[::2], {"of": "sums", "largest": 1}, ["window_start", "-people", "item"]),
        "up": (KeyRise, risers, {"of": "pages", "against": "1h"}, ["window_start", "-rise", "item"]),
    }


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("pages", "errors"):
        made = write(tmp_path, "counts", ("tea", "coffee"))
        made.rename(folder / f"{name}.jsonl")
        Path(f"{made}.guarantee.json").rename(folder / f"{name}.jsonl.guarantee.json")
    views = {}
    for name, (row_type, rows, keys, order) in rows_of_views().items():
        path = folder / f"{name}.jsonl"
        write_row_file(str(path), row_type, rows)
        questions = ["errors", "pages"] if "ratio" in keys else ["pages"]
        views[name] = {"output": path.name, "view": keys, "questions": questions, "rows": row_type.__name__}
        views[name] |= {"order": order, "columns": ["page"], "sha256": fingerprint(str(path))}
    whole = {
        "made_by": {"command": "privstream run", "version": "1.0.0"},
        "parameters": {"run_id": "run-counts", "dataset": "shop", "monitor": "monitor.yaml"},
        "guarantee": guarantee_record(PERSONS) | {"paragraph": "All of it <together>."},
        "questions": {name: {"output": f"{name}.jsonl"} for name in ("pages", "errors")},
        "views": views,
    }
    (folder / "_guarantee.json").write_text(json.dumps(whole))
    return folder


def test_a_page_has_a_section_for_each_view(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(output.parent)
    assert cli.main(["report", "out", "--output", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert page.count("Made of what ") == 5 and page.count("<figure") == 7 and "All results together" in page
    assert "tea, 1 January 02:00 to 03:00" in page, "alerts are a list"
    assert "<script>document.title" not in page


@pytest.mark.parametrize("name", rows_of_views())
def test_each_view_is_read_and_drawn(output: Path, name: str) -> None:
    """With the guarantee of the whole; a file that has changed is refused."""
    result = read_result(str(output / f"{name}.jsonl"))
    row_type, rows = rows_of_views()[name][:2]
    assert sorted(result.table.to_pylist(), key=repr) == sorted(arrow_table(row_type, rows).to_pylist(), key=repr)
    assert result.guarantee == PERSONS and result.made_of
    shown = section(result)
    begins = {"busy": "Alerts", "rate": "Ratios", "sums": "Contributions", "top": "Contributions", "up": "Rise in"}
    assert shown["title"].startswith(begins[name]), "what its numbers are, not those of its question"
    assert "svg" in shown["image"] and shown["explained"]["view"] and shown["sentence"].endswith(".")
    lines = (output / f"{name}.jsonl").read_text().splitlines(keepends=True)
    (output / f"{name}.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match="has changed"):
        read_result(str(output / f"{name}.jsonl"))


@pytest.mark.parametrize(
    "change",
    [{"rows": "Nothing"}, {"order": ["missing"]}, {"questions": ["missing"]}, {"questions": []}, {"output": "o.jsonl"}],
)
def test_views_that_are_not_described_well_are_refused(output: Path, change: dict[str, Any]) -> None:
    whole = json.loads((output / "_guarantee.json").read_text())
    whole["views"]["busy"] |= change
    (output / "_guarantee.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="busy"):
        read_result(str(output / "busy.jsonl"))
    assert LivePage(str(output)).page().count("<figure") >= 6, "no other result is hidden"
