"""What is shown says what its intervals hold, and they hold it; where limits leave much out, the run warns."""

import importlib
import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import row_of, write
from privstream.pipelines import cli
from privstream.pipelines.pictures import counts
from privstream.pipelines.plot.chart import PAGE
from privstream.pipelines.plot.picture_spec import Given
from privstream.pipelines.plot.promise import EACH_BY_ITSELF, Promise, columns_in_words, meaning
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.spec import loaded
from privstream.pipelines.report.result import read_result
from privstream.pipelines.report.section import section
from privstream.pipelines.serve.page import newest
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms import rows as row_types

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HOLD, SCOPE = "the numbers of people <who> count", "every third by itself"
LEAVE = "of each person one thing counts (max_it)"
LEFT_OUT = f"but without what limits leave out: {LEAVE}."
NOTE = "Some are more equal."
INTERVALS = {"hold": HOLD, "scope": SCOPE, "leave_out": LEAVE, "note": NOTE}
WITHOUT = "the numbers of what counts within the limits of the run"
Span = tuple[float, float]
HELD = 0.8
"""Of full numbers at least, for this key: intervals of one run rest on one share, and are right or wrong together."""


def drawn(word: str, content: Promise) -> tuple[str, str]:
    """Return the caption and the drawing of some rows of a question with a guarantee file."""
    picture = loaded(question(word).picture.path)
    rows = [row_of(word, hour, "tea") for hour in range(3)]
    stream = io.BytesIO()
    picture.prepare(Given(stream="", rows=rows, promise=content, options=picture.options))(stream, PAGE)
    found = json.loads(stream.getvalue())
    return found["caption"], found["svg"]


def promise(**intervals: Any) -> Promise:
    """Return a guarantee file that says this of intervals."""
    accuracy = {"sentence": "All is well.", "detection_threshold": 90, "threshold": 80, "intervals": intervals}
    return Promise("", {"parameters": {"beta": 0.05}, "accuracy": accuracy})


LIMITED, UNLIMITED = promise(**INTERVALS), promise(**INTERVALS | {"leave_out": ""})
OLD = Promise("", {"parameters": {}, "accuracy": {"detection_threshold": 90}})


@pytest.mark.parametrize("word", [word for word in WORDS if word != "predecessor"])
def test_every_picture_says_what_its_intervals_hold(word: str) -> None:
    """All but that of `predecessor`, whose points have no intervals."""
    caption, _ = drawn(word, LIMITED)
    assert HOLD in caption and LEFT_OUT in caption and "95%" in caption
    of_rows = word in ("counts", "histogram", "ranges", "queries")
    assert ("95%, each by itself" if of_rows else "" if word == "flags" else SCOPE) in caption
    assert "true" not in caption
    assert NOTE in caption or word == "flags"
    unlimited, _ = drawn(word, UNLIMITED)
    assert HOLD in unlimited and "limits leave out" not in unlimited
    old, _ = drawn(word, OLD)
    assert WITHOUT in old and "limits leave out" not in old


@pytest.mark.parametrize("word", ["counts", "top-k", "alerts", "heavy-hitters", "cardinality"])
def test_axes_say_who_is_counted(word: str) -> None:
    assert re.search(r">people( in a window)? who count( in a window)?</text>", drawn(word, LIMITED)[1])
    unlimited = drawn(word, UNLIMITED)[1]
    assert re.search(r">people( in a window)?</text>", unlimited) and "who count" not in unlimited


def test_the_meaning_of_intervals_is_one_sentence() -> None:
    assert meaning(LIMITED, "Bars") == f"Bars: where {HOLD} are, with probability 95%, {SCOPE}, {LEFT_OUT} {NOTE}"
    assert meaning(promise(probability=0.5), "Bars").endswith("are, with probability 50%.")
    assert meaning(promise(hold=3, scope=None), "It") == f"It: where {WITHOUT} are, with probability 95%."
    assert meaning(None, "It") == f"It: where {WITHOUT} are, with probability as high as the run was asked for."
    assert "\\x1b" in meaning(promise(hold="a\x1bb"), "It"), "what no XML can have is escaped"


def in_columns(word: str, content: Promise = LIMITED) -> str:
    """Return what is said of the columns of a question's rows."""
    return columns_in_words(question(word).row_type, content)


def test_tables_say_what_their_columns_hold() -> None:
    both = f"±: one standard deviation of the noise. {meaning(LIMITED, 'Number ± error bound')} {EACH_BY_ITSELF}"
    assert in_columns("counts") == both
    sure = f"with probability 95%, {SCOPE}"
    bound = f"Gap lower bound: {HOLD} pass the threshold by at least so much, {sure}, {LEFT_OUT} {NOTE}"
    assert in_columns("alerts").endswith(bound)
    assert in_columns("heavy-hitters").endswith(f"Counts: {HOLD}, {LEFT_OUT} {NOTE} {EACH_BY_ITSELF}")
    assert in_columns("quantiles").startswith(f"Lower, upper: where {HOLD}")
    assert f"is within it of the threshold, {sure}; these counts are {HOLD}, {LEFT_OUT}" in in_columns("flags")
    assert in_columns("predecessor").endswith(f"points lie between a query and its answers, {sure}.")
    assert in_columns("ranges", promise(hold="", scope="")) == "Error bound: none is stated."
    assert "Counts" not in in_columns("heavy-hitters", UNLIMITED)


def test_reports_and_live_pages_say_it_too(tmp_path: Path) -> None:
    for word in ("counts", "heavy-hitters", "alerts"):
        path = tmp_path / f"{word}.jsonl" if (tmp_path / f"{word}.jsonl").exists() else write(tmp_path, word)
        file = Path(f"{path}.guarantee.json")
        content = json.loads(file.read_text())
        content["accuracy"] |= {"intervals": INTERVALS}
        file.write_text(json.dumps(content))
        found = read_result(str(path))
        (picture,) = section(found, None)["pictures"]
        assert LEFT_OUT in picture["caption"]
        shown = newest(found)
        assert f"95%, {SCOPE if word == 'alerts' else 'each by itself'}, {LEFT_OUT}" in shown["bands"]
        assert HOLD in shown["bands"] and LEFT_OUT in shown["bands"]
        deviations = word == "alerts"
        assert shown["bands"].startswith("After ±: two standard deviations" if deviations else "In brackets: where")
        if word == "heavy-hitters":
            assert any("(between 90 and 200)" in cell for cell in shown["windows"][0]["rows"][0])


def test_a_live_page_says_what_stands_after_the_sign_of_sums_and_means(tmp_path: Path) -> None:
    path = write(tmp_path, "counts")
    write_row_file(str(path), row_types.KeySum, [row_types.KeySum(*row_of("counts", 0, "tea"), 500, 7.0, 5.0, 0.5)])
    shown = newest(read_result(str(path)))
    assert {"500 ± 14", "5 ± 0.5"} <= {*shown["windows"][0]["rows"][0]}
    assert "After ± of a sum: two standard deviations of its noise. After ± of a mean: how far" in shown["bands"]


def test_a_live_page_shows_no_bare_noise_of_what_limits_keep(tmp_path: Path) -> None:
    """Their sums stand above, in a sentence with an interval."""
    found = read_result(str(write(tmp_path, "counts")))
    told = {"kept": 547, "left_out": -171, "used_up": 34, "used_up_lower": 0, "used_up_upper": 147}
    shown = newest(replace(found, rows=[row._replace(**told) for row in found.rows]))
    assert "used up" in shown["fields"] and not {"kept", "left out"} & {*shown["fields"]}
    assert "34 (between 0 and 147)" in shown["windows"][0]["rows"][0]


@pytest.mark.parametrize("word", ["heavy-hitters", "counts"])
def test_an_empty_picture_says_which_limits_may_be_why(word: str) -> None:
    picture = loaded(question(word).picture.path)
    stream = io.BytesIO()
    picture.prepare(Given(stream="", rows=[], promise=LIMITED, options=picture.options))(stream, PAGE)
    assert f"Limits may be why: {LEAVE}." in json.loads(stream.getvalue())["caption"]


@pytest.fixture(scope="module")
def limits() -> ModuleType:
    """Return the benchmark of limits, whose shop and measures are those of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("limits")


@pytest.fixture(scope="module")
def shop(limits: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return limits.Shop(tmp_path_factory.mktemp("shop"), limits.Purchases())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "option", "limit", "warned", "false"),
    [
        ("counts", "--max_contributions", 10, (0.4, 0.5), 0.985),
        ("top-k", "--items_per_step", 1, (0.4, 0.5), 0.5),
        ("quantiles", "--max_contributions", 3, (0.7, 0.9), 1.01),
    ],
)
def test_intervals_hold_what_counts_and_the_run_warns(limits, shop, word, option, limit, warned, false):
    """They need not hold all there is, and do not where limits bind: else the test would say nothing.

    The key and the run id are fixed, so that all that is measured is the same in each run of the test.
    """
    found = limits.measured(shop, word, option, limit)
    assert found["hold_what_counts"] >= found["stated"]
    assert found["hold_all"] < false
    low, high = warned
    assert low < found["warned_of"] < high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "ends"),
    [
        ("top-k --top 10 --items_per_step 3", ("lower", "upper")),
        ("heavy-hitters --method counts --items_per_step 2", ("smoothed_lower", "smoothed_upper")),
    ],
)
def test_full_numbers_of_what_is_found_hold_all_people(
    limits: ModuleType, shop: Any, word: str, ends: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two or three items of a person count in a week: at most six of ten intervals of these hold the true number."""
    files = f"--input {shop.folder / 'purchases.parquet'} --output {tmp_path / 'rows.parquet'} --ledger none"
    when = f"--window {limits.WEEK} --start {limits.START} --end {shop.purchases.end} --run_id same"
    how = f"--epsilon 1 --delta 1e-6 --full_share 0.05 --noise_key_file {shop.folder / 'key'}"
    assert cli.main(f"{word} {files} {when} {how}".split()) == 0
    truth = shop.purchases.people()
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    found = [(row, truth.get(limits.place(row), 0)) for row in rows]
    many = [(row, people) for row, people in found if people >= 100]
    assert len(many) > 60 and all(row["full"] is not None for row, _ in many)
    assert sum(row["full_lower"] <= people <= row["full_upper"] for row, people in many) > HELD * len(many)
    assert sum(row[ends[0]] <= people <= row[ends[1]] for row, people in many) < 0.6 * len(many)
    said = capsys.readouterr().err
    assert re.search(r"WARNING: limits leave out about \d\d%|they leave out at most \d\d%, if anything", said)


@pytest.mark.slow
def test_without_limits_that_bind_there_is_no_warning_and_all_is_held(limits: ModuleType, shop: Any) -> None:
    """A limit that no customer reaches is named; one that nobody can reach, with this list, is not."""
    found = limits.measured(shop, "counts", "--max_contributions", 500)
    assert found["warned_of"] == 0 and found["hold_all"] >= found["stated"]
    _, said = shop.run("counts", f"--max_contributions {13 * 200}", 1.0)
    assert "WARNING" not in said and "leave out" not in said and "left out" not in said


@pytest.mark.slow
def test_the_share_that_is_left_out_is_exact(limits: ModuleType, shop: Any) -> None:
    table = shop.purchases.table.to_pylist()
    triples = {(row["user"], row["item"], (row["time"].timestamp() - limits.START) // limits.WEEK) for row in table}
    beyond = sum(max(0, number - 10) for number in Counter(user for user, _, _ in triples).values())
    _, said = shop.run("counts", "--max_contributions 10", 1.0)
    share = f"{100 * beyond / len(triples):.0f}%"
    told = f"limits have left out {share} of all contributions: --max_contributions ({beyond:,} of {len(triples):,}; "
    assert told in said
    first, last = re.findall(r"(\d+)% in the first quarter of the windows, (\d+)% in the last\)", said)[0]
    assert abs(int(first) - int(last)) < 10 and "decline" not in said
    assert "may be larger. A larger --max_contributions" in said
    lines = re.findall(r"^([\d,]+) times an item of a person was left out", said, re.M)
    assert sum(int(number.replace(",", "")) for number in lines) == beyond


@pytest.mark.slow
def test_a_table_on_the_terminal_says_what_it_holds(limits, shop, capsys, monkeypatch):
    monkeypatch.chdir(shop.folder)
    line = f"counts --input purchases.parquet --output - --window {limits.WEEK} --start {limits.START} --epsilon 8"
    line += f" --end {shop.purchases.end} --delta 1e-6 --max_contributions 10 --noise_key_file key --ledger none"
    line += " --full_share 0"
    assert cli.main(line.split()) == 0
    shown = capsys.readouterr()
    _, found, last = " ".join(shown.out.split()).rpartition("Between, by this model: ")
    assert found and last.startswith("where the numbers of people who count are, with probability 95%, each by itself")
    assert "at most 10 contributions in the whole run (max_contributions), chosen at random;" in last
    assert "\nWARNING: limits have left out" in shown.err


@pytest.mark.slow
def test_a_picture_beside_the_truth_says_which_part_it_shows(limits: ModuleType, shop: Any) -> None:
    shop.run("counts", "--max_contributions 10", 1.0)
    truth = [
        ItemHolders("", Timestamp(week), Timestamp(week + limits.WEEK), item, people)
        for (item, week), people in shop.purchases.people().items()
    ]
    (given,) = read_result(str(shop.folder / "rows.parquet")).given()
    stream = io.BytesIO()
    counts.PICTURE.prepare(replace(given, truth=truth))(stream, PAGE)
    caption = json.loads(stream.getvalue())["caption"]
    assert re.search(r"further from the truth than their band, and together they are [4-7]\d% of it\.", caption)
