"""Views of a monitor: how they are read, and what they make of published rows."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.views.counts import corrected_table
from privstream.pipelines.cli import main
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.run.asked import Answer
from privstream.pipelines.run.plan import arguments_of, with_budget
from privstream.pipelines.run.views import Table, answer_views, tables_of, views_of
from privstream.pipelines.run.views_stream import Follow, by_window, followed
from privstream.pipelines.sinks.row_files import plain_table, read_row_file, write_row_file
from privstream.pipelines.sinks.writers import WriteRows, file_name
from privstream.transforms.counts.transform import rows_of as rows_of_table
from privstream.transforms.row_types import CardinalityEstimate, KeyCount, QuantileEstimate
from privstream.transforms.timing.step_fn import STEP

HOUR = 3600
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
WINDOWS = 6
HEAD = """\
data: {input: clicks.csv, user: customer, item: page, time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T06:00}
privacy: {epsilon: 1, delta: 1e-6}
questions:
"""
PAGES = "  pages: {question: counts, max_contributions: 4}\n"
SITES = "  sites: {question: counts, item: [country, page], max_contributions: 4}\n"
ERRORS = "  errors: {question: counts, max_contributions: 4}\n"
SPEED = "  speed: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99], max_contributions: 4}\n"
PRESENT = "  present: {question: cardinality, timeout: 30m}\n"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Return transforms of questions by the lines that ask for them; they are made once."""
    return {}


def read(folder: Path, questions: str, views: str) -> tuple[Any, Any]:
    path = folder / "monitor.yaml"
    path.write_text(f"{HEAD}{questions}views:\n{views}")
    monitor = Monitor.from_file(path)
    return monitor, views_of(monitor)


def transform(monitor: Any, name: str, epsilon: float = 0.5, delta: float = 1e-7) -> Any:
    question = monitor.questions[name]
    given = with_budget(question, arguments_of(monitor, name, monitor.data.fields(question)), epsilon, delta)
    planned = question.info.planned_class(**given, noise=KeyedNoise.random())
    return planned if monitor.data.unbounded else planned.over_files()


def answered(
    folder: Path, questions: str, views: str, rows: Mapping[str, Sequence[Any]], made: dict[str, Any]
) -> dict[str, Table]:
    monitor, found = read(folder, questions, views)
    for name in monitor.questions:
        if (name, questions) not in made:
            made[name, questions] = transform(monitor, name)
    transforms = {name: made[name, questions] for name in monitor.questions}
    plain = {name: plain_table(monitor.questions[name].info.row_type, some) for name, some in rows.items()}
    answers = {name: Answer(table, table) for name, table in plain.items()}
    return answer_views(found, tables_of(monitor, transforms, answers))


def rows_of(table: Table) -> list[Any]:
    return rows_of_table(table.row_type, table.rows)


def window(number: int) -> tuple[Timestamp, Timestamp]:
    return Timestamp(START + number * HOUR), Timestamp(START + (number + 1) * HOUR)


def count(number: int, item: str, value: int, *, stddev: float = 10.0, smoothed: float | None = None) -> KeyCount:
    middle, reach = (value, math.ceil(1.96 * stddev)) if smoothed is None else (smoothed, 9)
    bounds = max(0.0, middle - reach), max(0.0, middle + reach)
    start, end = window(number)
    return KeyCount(start, end, item, middle, *bounds, value)


def series(item: str, values: Sequence[int]) -> list[KeyCount]:
    return [count(number, item, value) for number, value in enumerate(values)]


def test_names_and_circles_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"views\.pages: must not have the name of a question"):
        read(tmp_path, PAGES, "  pages: {of: pages, over: 2h}\n")
    with pytest.raises(ValueError, match=r"must not be made of itself: (a of b of a|b of a of b)"):
        read(tmp_path, PAGES, "  a: {of: b, largest: 2}\n  b: {of: a, largest: 3}\n")
    _, views = read(tmp_path, PAGES, "  top: {of: sums, largest: 2}\n  sums: {of: pages, over: 2h}\n")
    assert [view.name for view in views] == ["sums", "top"]


LISTED = PAGES.replace("4}", "4, domain: [a, b]}")
REFUSED = {
    "{of: present, over: 2h}": (PRESENT, "of must be a question `counts`"),
    "{of: present, largest: 2}": (PRESENT, "largest must be of rows with an item and a count"),
    "{of: pages, over: 90m}": (PAGES, "over must be a multiple of window"),
    "{of: pages, above: 2}": (PAGES, "item must be given for pages"),
    "{of: pages, item: c, above: 2}": (LISTED, "item must be on the list of items"),
    "{of: speed, quantile: 0.9, above: 2}": (SPEED, "quantile must be one of 0.5, 0.99, those of speed"),
    "{ratio: [pages, pages]}": (PAGES, "ratio must be of different questions"),
    "{ratio: [pages, sites]}": (PAGES + SITES, "ratio must be of tables with the same item columns"),
}


@pytest.mark.parametrize("view", REFUSED)
def test_what_a_question_cannot_give_is_refused_before_a_run(tmp_path, made, view):
    questions, message = REFUSED[view]
    with pytest.raises(WrongKeyError, match=re.escape(message)):
        answered(tmp_path, questions, f"  v: {view}\n", {}, made)


def test_sums_and_rises_are_those_of_the_question_with_these_options(tmp_path: Path, made: dict[str, Any]) -> None:
    """The same rows as of `counts --over` and `counts --rising`, which cost nothing either."""
    values = np.random.default_rng(1).integers(50, 300, (WINDOWS, 2))
    rows = [row for item, column in zip("ab", values.T, strict=True) for row in series(item, column.tolist())]
    views = "  sums: {of: pages, over: 3h}\n  top: {of: sums, largest: 1}\n  up: {of: pages, against: 2h}\n"
    found = answered(tmp_path, PAGES, views, {"pages": rows}, made)
    counts = {(row.window_start, row.item): row.noisy for row in rows_of(found["sums"])}
    for item, column in zip("ab", values.T, strict=True):
        for number in range(WINDOWS):
            assert counts[window(number)[0], item] == column[max(0, number - 2) : number + 1].sum()
    top = {row.window_start: row for row in rows_of(found["top"])}
    assert len(top) == len(found["top"].rows) == WINDOWS
    assert all(row.noisy <= top[row.window_start].noisy for row in rows_of(found["sums"]))
    assert all(row.rise_lower > 0 for row in rows_of(found["up"]))


def test_alerts_have_a_state_in_every_window(tmp_path: Path, made: dict[str, Any]) -> None:
    """By the smoothed number; between the two thresholds an alert goes on, and without data nothing is said."""
    levels = [310.0, 250.0, 190.0, 310.0, None, 250.0]
    rows = [count(number, "a", 0, smoothed=level) for number, level in enumerate(levels) if level is not None]
    views = (
        "  high: {of: pages, item: a, above: 300, clear_below: 200}\n"
        "  plain: {of: pages, item: a, above: 300}\n"
        "  twice: {of: pages, item: a, above: 200, for: 2}\n"
        "  low: {of: pages, item: a, below: 200}\n"
        "  none: {of: pages, item: b, above: 1}\n"
    )
    found = answered(tmp_path, PAGES, views, {"pages": rows}, made)
    states = {name: [row.state for row in rows_of(table)] for name, table in found.items()}
    assert states["high"] == ["alert", "alert", "clear", "alert", "no data", "alert"]
    assert states["plain"] == ["alert", "clear", "clear", "alert", "no data", "clear"]
    assert states["twice"] == ["clear", "alert", "clear", "clear", "no data", "clear"]
    assert states["low"] == ["clear", "clear", "alert", "clear", "no data", "clear"]
    assert states["none"] == ["no data"] * WINDOWS
    high = rows_of(found["high"])
    assert [row.since for row in high] == [window(number)[0] for number in (0, 0, 2, 3, 4, 5)]
    assert (high[0].value, high[0].lower, high[0].upper, high[0].threshold) == (310.0, 301.0, 319.0, 300.0)
    assert high[4].value is high[4].lower is None


def test_an_alert_reads_its_item_as_items_of_events_are_read(tmp_path: Path, made: dict[str, Any]) -> None:
    for item in ("Glühwein", "' glu\u0308hwein'"):
        monitor, _ = read(tmp_path, PAGES, f"  high: {{of: pages, item: {item}, above: 300}}\n")
        data = monitor.data.model_copy(update={"fold_case": True, "normalize": True, "trim": True})
        (view,) = views_of(monitor.model_copy(update={"data": data}))
        shown = plain_table(KeyCount, [count(0, "glühwein", 310)])
        tables = tables_of(monitor, {"pages": transform(monitor, "pages")}, {"pages": Answer(shown, shown)})
        assert view.answered(tables).rows["state"][0].as_py() == "alert"


def test_alerts_are_about_quantiles_and_sizes_of_sets_too(tmp_path: Path, made: dict[str, Any]) -> None:
    views = "  slow: {of: speed, quantile: 0.99, above: 500}\n  empty: {of: present, below: 5}\n"
    quantiles = [
        QuantileEstimate(*window(number), rank, value, value - 5, value + 5, value)
        for number, values in enumerate([(20.0, 400.0), (30.0, 600.0)])
        for rank, value in zip((0.5, 0.99), values, strict=True)
    ]
    sizes = [CardinalityEstimate(*window(0), 3, 0, 7, 3, 4), CardinalityEstimate(*window(1), 9, None, None, 9, -1)]
    found = answered(tmp_path, SPEED + PRESENT, views, {"speed": quantiles, "present": sizes}, made)
    slow, empty = rows_of(found["slow"]), rows_of(found["empty"])
    states = [("0.99", 400.0, "clear"), ("0.99", 600.0, "alert")]
    assert [(row.item, row.value, row.state) for row in slow[:2]] == states
    states = [(3.0, 0.0, 7.0, "alert"), (None, None, None, "no data")]
    assert [(row.value, row.lower, row.upper, row.state) for row in empty[:2]] == states


def test_intervals_of_ratios_hold_with_corrected_numbers(tmp_path: Path, made: dict[str, Any]) -> None:
    """Limits drop 12% of the people of each count, by a share that is known up to noise of its own."""
    rng, stddev, dropped, items, held, known = np.random.default_rng(5), 9.0, 0.12, 400, 0, 0
    for _ in range(5):
        truth = rng.integers(60, 300, items), rng.integers(400, 900, items)
        rows = {}
        for name, true in zip(("errors", "pages"), truth, strict=True):
            noisy = np.rint(rng.binomial(true, 1 - dropped) + rng.normal(0, stddev, items)).astype(int)
            share = dropped + rng.normal(0, 0.01)
            limits = {"share": share, "lower": share - 0.02, "upper": share + 0.02}
            counts = [count(0, f"{n}", int(one), stddev=stddev) for n, one in enumerate(noisy)]
            rows[name] = rows_of_table(KeyCount, corrected_table(plain_table(KeyCount, counts), limits))
        found = answered(tmp_path, ERRORS + PAGES, "  rate: {ratio: [errors, pages]}\n", rows, made)["rate"]
        ratios, found = truth[0] / truth[1], rows_of(found)
        held += sum(row.lower <= ratios[int(row.item)] <= row.upper for row in found if row.ratio is not None)
        known += sum(row.ratio is not None for row in found)
    assert known == 5 * items and 0.93 <= held / known <= 0.995


def live(folder: Path, views: str, rows: Sequence[Any], made: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    monitor, found = read(folder, PAGES, views)
    made.setdefault(("pages", PAGES), transform(monitor, "pages"))
    tables = tables_of(monitor, {"pages": made["pages", PAGES]})
    output = folder / "written"
    output.mkdir()
    for end in {end for _, end in rows}:
        name = file_name(end.micros - HOUR * 1_000_000, end.micros, "jsonl")
        write_row_file(str(output / name), KeyCount, [row for row, reported in rows if reported == end])
    return {each.name: each for each in followed(found, tables, answer_views(found, tables))}, output


def follow(view: Any, output: Path) -> list[Any]:
    stamped = [TimestampedValue(str(path), Timestamp(START)) for path in output.glob("*.jsonl")]
    found: list[Any] = []
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        paths = pipeline | beam.Create(stamped) | beam.Map(lambda one: one)
        rows = {"pages": paths} | view
        written = rows | WriteRows(str(output / "found.avro"), view.table.row_type, order=view.table.order)
    assert written is not None
    found = read_row_file(str(output / "found.avro"), view.table.row_type)
    return found


def found_later(item: str, values: Sequence[int], at: int = 0) -> list[tuple[KeyCount, Timestamp]]:
    """Return the rows of an item that is found in a window, and then has those of the windows before, too."""
    return [(row, max(row.window_end, window(at)[1])) for row in series(item, values)]


def test_views_of_a_run_that_goes_on_say_what_was_known_by_each_window(tmp_path: Path, made: dict[str, Any]) -> None:
    """Rows that are published later count from then on; windows without rows have states; an alert needs two."""
    rows = [*found_later("a", [40, 50, 60, 70, 20, 90], 2), *found_later("b", [10, 20, 30, 40, 50])]
    views = (
        "  sums: {of: pages, over: 3h}\n  top: {of: sums, largest: 1}\n"
        "  high: {of: pages, item: a, above: 55, clear_below: 30, for: 2}\n  b: {of: pages, item: b, below: 25}\n"
    )
    by_name, output = live(tmp_path, views, rows, made)
    sums = {(row.window_start, row.item): row.noisy for row in follow(by_name["sums"], output)}
    assert sums == {
        **{(window(number)[0], "a"): value for number, value in ((2, 150), (3, 180), (4, 150), (5, 180))},
        **{(window(number)[0], "b"): value for number, value in enumerate((10, 30, 60, 90, 120))},
    }
    assert [row.item for row in follow(by_name["top"], output)] == ["b", "b", "a", "a", "a", "a"]
    states = [(row.value, row.state, row.since) for row in follow(by_name["high"], output)]
    values = (None, None, 60, 70, 20, 90)
    names = ("no data", "no data", "clear", "alert", "clear", "clear")
    begun = (0, 0, 2, 3, 4, 4)
    assert states == [(value, name, window(at)[0]) for value, name, at in zip(values, names, begun, strict=True)]
    assert [row.state for row in follow(by_name["b"], output)] == ["alert"] * 2 + ["clear"] * 3 + ["no data"]


def test_what_a_view_remembers_can_be_restored(tmp_path: Path, made: dict[str, Any]) -> None:
    """In any window: the rows and the state after it are those of a run that has not been interrupted."""
    rows = found_later("a", [40, 50, 60, 70, 20, 90], 2)
    views = "  sums: {of: pages, over: 3h}\n  high: {of: pages, item: a, above: 55}\n"
    by_name, output = live(tmp_path, views, rows, made)
    for name in ("sums", "high"):
        stage = Follow(by_name[name])
        batches: dict[int, list[bytes]] = {}
        for path in output.glob("*.jsonl"):
            _, record = by_window(str(path), "pages", by_name[name].steps)
            batches[STEP.unpack_from(record)[0]] = [record[STEP.size :]]
        state, published = stage.initial(b""), 0
        for step in range(stage.steps.first or 0, stage.steps.end or 0):
            other = Follow(by_name[name])
            again = other.restore(stage.snapshot(state))
            found = other.step(b"", step, batches.get(step, []), again)
            state, expected, _ = stage.step(b"", step, batches.get(step, []), state)
            assert found[:2] == (state, expected)
            published += len([*expected])
        assert published == {"sums": 4, "high": WINDOWS}[name]


RUN = """\
data: {input: clicks.csv, user: customer, item: [country, page], time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T06:00}
privacy: {epsilon: 8, delta: 1e-6}
questions:
  pages: {question: counts, max_contributions: 12}
views:
  sums: {of: pages, over: 3h}
  outage: {of: pages, item: [de, /a], above: 20}
  lands: {of: pages, largest: 2}
account: {key: noise.key}
output: {path: out}
"""


def shop(folder: Path) -> None:
    lines = ["customer,country,page,ts"]
    for number in range(60 * WINDOWS * 2):
        person, rest = divmod(number, WINDOWS * 2)
        at = datetime.fromtimestamp(START + rest // 2 * HOUR + person, UTC).isoformat()
        lines.append(f"c{person},{'de' if person % 3 else 'fr'},/{'ab'[rest % 2]},{at}")
    (folder / "clicks.csv").write_text("\n".join(lines) + "\n")
    (folder / "noise.key").write_bytes(bytes(range(32)))
    (folder / "noise.key").chmod(0o600)


def ran(folder: Path, text: str, *words: str) -> int:
    (folder / "monitor.yaml").write_text(text)
    return main(["run", "monitor.yaml", *words])


def test_a_run_says_of_views_without_rows_what_that_means(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shop(tmp_path)
    views = "views:\n  trending: {of: pages, against: 1h}\n  best: {of: pages, largest: 1}\n"
    end = "account: {key: noise.key, run_id: one}\noutput: {path: out}\n"  # else noise is another with each change
    text = (
        HEAD.replace("epsilon: 1", "epsilon: 4") + PAGES.replace("contributions: 4", "contributions: 12") + views + end
    )
    assert ran(tmp_path, text) == 0
    shown = capsys.readouterr().out
    assert "No item surely rose." in shown and "best: people per item" in shown
    assert len((tmp_path / "out" / "trending.csv").read_text().splitlines()) == 1
    assert main(["explain", "out/trending.csv"]) == 0 and " rise_lower, rise_upper: " in capsys.readouterr().out
    assert ran(tmp_path, text, "--dry-run") == 0, "it replaces nothing"
    assert ran(tmp_path, text, "--overwrite", "--quiet") == 0 and capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_run_writes_views_beside_its_rows(tmp_path, monkeypatch, capsys):
    """With the columns of items; a further view is no further cost."""
    monkeypatch.chdir(tmp_path)
    shop(tmp_path)
    assert ran(tmp_path, RUN) == 0
    assert "views      " in capsys.readouterr().err
    outage = (tmp_path / "out" / "outage.csv").read_text().splitlines()
    assert outage[0] == "window_start,window_end,country,page,value,lower,upper,threshold,state,since"
    assert len(outage) == 1 + WINDOWS and all(",de,/a," in line and ",alert," in line for line in outage[1:])
    whole = json.loads((tmp_path / "out" / "_guarantee.json").read_text())
    assert [each["output"] for each in whole["views"].values()] == ["sums.csv", "outage.csv", "lands.csv"]
    assert whole["views"]["sums"]["sha256"] == hashlib.sha256((tmp_path / "out" / "sums.csv").read_bytes()).hexdigest()
    assert whole["views"]["outage"]["view"] == {"of": "pages", "item": ["de", "/a"], "above": 20}
    capsys.readouterr()
    more = RUN.replace("sums: {of: pages, over: 3h}", "top: {of: pages, largest: 1}")
    assert ran(tmp_path, more, "--overwrite") == 0
    assert "a repetition" in capsys.readouterr().err
    assert len((tmp_path / "out" / "top.csv").read_text().splitlines()) == 1 + WINDOWS


def test_a_run_refuses_views_before_it_spends_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shop(tmp_path)
    (tmp_path / "out").mkdir()
    assert ran(tmp_path, RUN.replace("over: 3h", "over: 90m")) == 2
    assert "line 7: views.sums.over: must be a multiple of window" in capsys.readouterr().err
    (tmp_path / "out" / "lands.csv").write_text("mine")
    assert ran(tmp_path, RUN) == 2
    assert "output.path: must not have the rows of lands yet, but out/lands.csv exists" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.ledger.jsonl")) and (tmp_path / "out" / "lands.csv").read_text() == "mine"


def test_windows_of_a_calendar_are_counted_in_its_units(tmp_path: Path, made: dict[str, Any]) -> None:
    """Months are added up and compared by their number; days are not."""
    months = PAGES.replace("4}", "4, windows: {window: 1month, end: 2026-07-01}}")
    starts = [Timestamp(datetime(2026, month, 1, tzinfo=UTC).timestamp()) for month in range(1, 8)]
    rows = [KeyCount(*ends, "a", 10, 0, 20, 10) for ends in pairwise(starts)]
    found = answered(tmp_path, months, "  sums: {of: pages, over: 3months}\n", {"pages": rows}, made)
    assert [row.noisy for row in rows_of(found["sums"])] == [10, 20, 30, 30, 30, 30]
    for span in ("90d", "3weeks"):
        with pytest.raises(ValueError, match=r"over:? must be a multiple of window, got"):
            answered(tmp_path, months, f"  sums: {{of: pages, over: {span}}}\n", {}, made)
