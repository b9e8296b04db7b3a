"""`privstream histogram` and `flags`, with plan, plot and simulate: from a file to a file."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from grids import some_quick
from privstream.mechanisms import HistogramQueries, KaryTreeCounter, KeyedNoise, WideTreeCounter
from privstream.pipelines import cli
from privstream.pipelines.questions.catalogue import HISTOGRAM as SPEC
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.simulate.truths import CategoryCount
from privstream.pipelines.simulate.worlds import category_names, simulate_trips
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.rows import CategoryFlag, HistogramEstimate

WINDOWS = 30
MODES = {"direct_counters": "direct", "anchored_counters": "anchored", "henzinger_sricharan_steiner": "paper"}
RUN = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-02T06:00"]


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trips")
    for format in ("parquet", "jsonl", "csv", "avro"):
        files = ["--output", str(folder / f"events.{format}"), "--truth", str(folder / "truth.jsonl")]
        files += ["--domain", str(folder / "domain.txt")]
        assert cli.main(["simulate", "histogram", "--users", "500", "--windows", "30", "--seed", "3", *files]) == 0
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    return folder


def command(trips: Path, name: str, output: object, *options: str, format: str = "parquet") -> int:
    files = ["--input", str(trips / f"events.{format}"), "--output", str(output), "--domain", str(trips / "domain.txt")]
    return cli.main([name, *files, "--noise_key_file", str(trips / "key"), *RUN, "--epsilon", "1", *options])


def truth_of(trips: Path) -> dict[tuple[int, str], int]:
    rows = read_row_file(str(trips / "truth.jsonl"), CategoryCount)
    return {(row.window_end.micros, row.category): row.events for row in rows}


@pytest.mark.slow
def test_all_formats_give_the_same_rows_which_keep_their_promise(trips: Path, tmp_path: Path) -> None:
    answers = []
    endings = ("parquet", "avro", "jsonl", "jsonl")
    for format, ending in zip(("parquet", "jsonl", "csv", "avro"), endings, strict=True):
        output = tmp_path / f"{format}.{ending}"
        asked = ["--queries", "histogram,max,top:3,quantile:0.9", "--run_id", "same", "--ledger", "none"]
        assert command(trips, "histogram", output, *asked, format=format) == 0
        answers.append(read_row_file(str(output), HistogramEstimate))
    assert answers[0] == answers[1] == answers[2] == answers[3]
    rows, truth = answers[0], truth_of(trips)
    assert len(rows) == WINDOWS * (12 + 1 + 3 + 1)
    counter = KaryTreeCounter(epsilon=1.0, horizon=WINDOWS, columns=12, row_columns=1)
    assert {row.error_bound for row in rows} == {counter.error(WINDOWS, 0.05)}
    for row in rows:
        counts = [truth[row.window_end.micros, name] for name in category_names(12)]
        if row.category:
            true = truth[row.window_end.micros, row.category]
        else:
            true = max(counts) if row.query == "max" else sorted(counts)[10]
        assert abs(row.estimate - true) <= row.error_bound
    assert [(r.window_start, r.query) for r in rows] == sorted((r.window_start, r.query) for r in rows)
    promise = json.loads((tmp_path / "parquet.parquet.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one event"
    assert promise["accuracy"]["error_bound"] == counter.error(WINDOWS, 0.05)
    assert promise["accuracy"]["method"] == "direct_counters"
    assert promise["parameters"]["queries"] == ["histogram", "max", "top:3", "quantile:0.9"]


@pytest.mark.slow
def test_users_are_limited(trips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--unit", "person", "--max_contributions", "2", "--epsilon", "100", "--max_per_window", "1"]
    for shards in ("1", "3"):
        assert command(trips, "histogram", tmp_path / f"{shards}.jsonl", *options, "--shards", shards) == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "3.jsonl").read_bytes()
    last = read_row_file(str(tmp_path / "1.jsonl"), HistogramEstimate)[-12:]
    assert sum(row.estimate for row in last) <= 1000 + 12 * last[0].error_bound < sum(truth_of(trips).values())
    assert "categories of people left out, who had reached --max_contributions" in capsys.readouterr().err
    promise = json.loads((tmp_path / "1.jsonl.guarantee.json").read_text())["guarantee"]
    assert promise["unit"] == "one person over the whole run"
    assert "first 2 categories count in the whole run" in promise["paragraph"]


def test_quantiles_and_flags(trips: Path, tmp_path: Path) -> None:
    assert command(trips, "histogram", tmp_path / "q.jsonl", "--queries", "quantile:0.5,quantile:1") == 0
    rows, truth = read_row_file(str(tmp_path / "q.jsonl"), HistogramEstimate), truth_of(trips)
    assert [row.query for row in rows] == ["quantile:0.5", "quantile:1"] * WINDOWS
    for row in rows:
        counts = sorted(truth[row.window_end.micros, name] for name in category_names(12))
        assert abs(row.estimate - counts[5 if row.query == "quantile:0.5" else 11]) <= row.error_bound
    thresholds = dict.fromkeys(category_names(12), 10**9) | {"walk": 1}
    (tmp_path / "t.json").write_text(json.dumps(thresholds))
    options = ["--thresholds", str(tmp_path / "t.json"), "--epsilon", "500"]
    assert command(trips, "flags", tmp_path / "f.parquet", *options) == 0
    flags = read_row_file(str(tmp_path / "f.parquet"), CategoryFlag)
    assert len(flags) == WINDOWS * 12
    assert [row.category for row in flags if row.raised and row.window_end.micros == flags[-1].window_end.micros] == [
        "walk"
    ]


def plan(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> dict[str, Any]:
    assert cli.main(["plan", name, "--epsilon=1", *options, "--json"]) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    return budget


@pytest.mark.slow
def test_plan_says_what_each_method_promises(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--categories", "12", "--windows", "30"]
    answer = plan(capsys, "histogram", *options)
    assert answer["taken"] == "direct_counters"
    assert answer["methods"].keys() == MODES.keys()
    for method, mode in MODES.items():
        made = HistogramQueries(epsilon=1.0, columns=12, horizon=30, row_columns=1, mode=mode)
        assert answer["methods"][method]["error_bound"] == made.error(30)
    beyond = plan(capsys, "histogram", *options, "--delta", "1e-6", "--epsilon", "4")["methods"]
    assert beyond["henzinger_sricharan_steiner"] == {
        "reason": "--epsilon must be < 3 in mode paper with delta > 0, got 4.0"
    }
    assert cli.main(["plan", "histogram", *options, "--epsilon=1", "--unit=person", "--max_contributions=5"]) == 0
    assert "for one person over the whole run" in capsys.readouterr().out
    assert cli.main(["plan", "histogram", *options, "--epsilon=1", "--largest=7"]) == 0
    cells = [re.findall(r"[\w,-]+", line) for line in capsys.readouterr().out.splitlines() if "_counters" in line]
    assert [row[-1] for row in cells[:2]] == ["-", "7"]  # only the second method has a condition
    assert cli.main(["plan", "histogram", *options, "--epsilon=1", "--unit=person"]) == 2
    assert "max_contributions must be given" in capsys.readouterr().err


@pytest.mark.slow
def test_plan_finds_the_least_epsilon_for_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--categories", "12", "--windows", "30"]
    options += ["--queries", "quantile:0.5"]
    assert cli.main(["plan", "histogram", *options, "--error", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["epsilons"]["direct_counters"]
    errors = [plan(capsys, "histogram", *options, f"--epsilon={epsilon}") for epsilon in (found, found * 0.98)]
    enough, too_little = (answer["methods"]["direct_counters"]["error_bound"] for answer in errors)
    assert enough <= 50 < too_little


def test_plan_of_flags_is_what_a_run_promises(trips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "flags", "--categories", "12", "--windows", "30")
    assert found["taken"] == "direct_counters"
    published, planned = (found["methods"][name] for name in ("henzinger_sricharan_steiner", "direct_counters"))
    assert planned["error_bound"] < published["error_bound"] / 10
    assert command(trips, "flags", tmp_path / "f.jsonl", "--thresholds", "7") == 0
    promised = json.loads((tmp_path / "f.jsonl.guarantee.json").read_text())
    assert promised["accuracy"] == planned | {"method": "direct_counters"}
    assert promised["parameters"]["thresholds"] == 7


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (["--windows=1000", "--restartable"], {"horizon": 1000, "repeatable": True}),
        (
            ["--windows=30", "--neighbouring=replace_one"],
            {"horizon": 30, "neighbouring": "replace_one", "rows_per_unit": 1},
        ),
        ([], {"repeatable": True}),
    ],
)
@pytest.mark.slow
def test_plan_knows_what_is_assumed(capsys: pytest.CaptureFixture[str], options, changes) -> None:
    found = plan(capsys, "histogram", "--categories=5", *options)["methods"]["direct_counters"]["error_bound"]
    largest = changes.get("horizon", 100_000)
    made = HistogramQueries(epsilon=1.0, columns=5, row_columns=1, mode="direct", **changes)
    assert found == made.error(largest)
    usual = HistogramQueries(epsilon=1.0, columns=5, row_columns=1, mode="direct", horizon=changes.get("horizon"))
    assert found > 1.1 * usual.error(largest)


@pytest.mark.slow
def test_the_command_protects_against_replacement(trips: Path, tmp_path: Path) -> None:
    promises = {}
    for neighbouring in ("add_remove", "replace_one"):
        output = tmp_path / f"{neighbouring}.jsonl"
        assert command(trips, "histogram", output, "--neighbouring", neighbouring) == 0
        promises[neighbouring] = json.loads(Path(f"{output}.guarantee.json").read_text())
    assert "replac" in json.dumps(promises["replace_one"])
    assert promises["replace_one"]["accuracy"]["error_bound"] > promises["add_remove"]["accuracy"]["error_bound"]


def test_noise_is_bound_where_a_run_may_be_repeated(trips: Path) -> None:
    parser = argparse.ArgumentParser()
    run_command(SPEC).add_arguments(parser)
    files = ["--input", str(trips), "--output", str(trips / "rows"), "--domain", str(trips / "domain.txt")]
    options = [*files, "--noise_key_file", str(trips / "key"), *RUN, "--epsilon", "1"]
    later = "--end=2024-03-01"
    kinds = {
        ("--watch=5",): WideTreeCounter,
        ("--restartable", later): WideTreeCounter,
        (later,): KaryTreeCounter,
        ("--shards=4",): WideTreeCounter,  # in short runs the better one anyway
    }
    for given_too, kind in kinds.items():
        given = arguments_of(SPEC, vars(parser.parse_args([*options, *given_too])), streams=False)
        made = SPEC.transform_class(**given, noise=KeyedNoise.random())
        assert type(made.mechanism.counter) is kind


def test_simulated_trips_are_repeatable_and_their_truth_is_true() -> None:
    first, second = (list(simulate_trips(users=50, windows=5, seed=9, categories=14)) for _ in range(2))
    assert [w.events for w in first] == [w.events for w in second]
    items = [item for window in first for item in window.events["item"].to_pylist()]
    true = {row.category: row.events for row in first[-1].truth}
    assert true == {name: items.count(name) for name in category_names(14)}
    assert category_names(14)[-2:] == ("route 13", "route 14")


@some_quick("name", ["histogram", "flags"], "flags")
def test_events_are_counted_whether_they_have_a_user_or_not(tmp_path: Path, capsys, name: str) -> None:
    users = ['"user": "u", ', "", '"user": null, ', '"user": "", ', '"user": [1], ', '"user": 1.5, ']
    lines = [f'{{{user}"item": "tea", "time": "2024-01-01T00:00:01Z"}}\n' for user in users for _ in range(10)]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    (tmp_path / "items").write_text("tea\ncoffee\n")
    (tmp_path / "events.csv").write_text("item,time\n" + "tea,2024-01-01T00:00:01Z\n" * 60)
    clock = ["--window", "60", "--start", "2024-01-01", "--end", "2024-01-01T00:01"]
    common = [*clock, "--epsilon", "1", "--domain", str(tmp_path / "items"), "--output", "-"]
    common += ["--thresholds", "5"] if name == "flags" else []
    for format in ("jsonl", "csv"):
        assert cli.main([name, "--input", str(tmp_path / f"events.{format}"), *common]) == 0
        assert "60 of 60 events usable" in capsys.readouterr().err
    people = ["--unit", "person", "--max_contributions", "100"]
    assert cli.main([name, "--input", str(tmp_path / "events.jsonl"), *common, *people]) == 0
    assert "10 of 60 events usable" in capsys.readouterr().err
    assert cli.main([name, "--input", str(tmp_path / "events.csv"), *common, *people]) == 2
    assert "--user_field must name a field" in capsys.readouterr().err
    assert cli.main([name, "--input", str(tmp_path / "events.csv"), *common, *people, "--user_field", ""]) == 2
    assert "user_field must not be empty" in capsys.readouterr().err
