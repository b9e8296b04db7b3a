"""`privstream ranges` and `privstream predecessor`, from a file to a file to a picture, and their plans."""

import json
from pathlib import Path

import pytest
from privstream.mechanisms.points.range_counter import RangeCounter
from privstream.pipelines import cli
from privstream.pipelines.questions.point_options import any_ranges
from privstream.pipelines.questions.point_queries import read_point_queries
from privstream.pipelines.simulate.truths import NearestTrue, PointsInRange
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.rows import NearestPoints, PredecessorQuery, RangeCount, RangeQuery

WINDOWS = 6
RUN = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-01T06:00:00"]
RANGES = ["ranges", *RUN, "--universe", "256", "--delete_values", "leave", "--epsilon", "2", "--delta", "1e-6"]
NEAREST = ["predecessor", *RUN, "--universe", "65536", "--duplicates", "counted", "--epsilon", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("points")
    (made / "key").write_text("a key of these tests alone, long enough\n")
    (made / "key").chmod(0o600)
    for name, size, people in (("ranges", "--slots=256", "200"), ("predecessor", "--universe=65536", "3000")):
        options = ["--users", people, "--windows", str(WINDOWS), "--seed", "3", size]
        files = ["--output", str(made / f"{name}.parquet"), "--truth", str(made / f"{name}.truth.jsonl")]
        assert cli.main(["simulate", name, *options, *files, "--queries", str(made / f"{name}.queries")]) == 0
    return made


def watch(folder: Path, command: list[str], output: Path, *options: str) -> int:
    """Run a command; options that come later count."""
    name = command[0]
    files = ["--input", str(folder / f"{name}.parquet"), "--queries", str(folder / f"{name}.queries")]
    return cli.main([*command, *files, "--output", str(output), "--noise_key_file", str(folder / "key"), *options])


def test_counts_are_within_their_bounds_in_every_window(folder: Path, tmp_path: Path) -> None:
    assert watch(folder, RANGES, tmp_path / "rows.jsonl") == 0
    rows = read_row_file(str(tmp_path / "rows.jsonl"), RangeCount)
    truth = read_row_file(str(folder / "ranges.truth.jsonl"), PointsInRange)
    assert [row[:5] for row in rows] == sorted(row[:5] for row in truth)
    true = {row[:5]: row.points for row in truth}
    errors = [abs(row.estimate - true[row[:5]]) for row in rows]
    assert max(errors) > 0
    assert all(error <= row.error_bound for error, row in zip(errors, rows, strict=True))
    promised = json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())
    assert promised["guarantee"]["epsilon"] == 2
    assert promised["accuracy"]["error_bound"] == max(row.error_bound for row in rows)


def test_the_same_key_gives_the_same_counts_and_another_run_others(folder: Path, tmp_path: Path) -> None:
    for name, options in (("a", []), ("b", []), ("c", ["--run_id", "another"])):
        assert watch(folder, RANGES, tmp_path / f"{name}.jsonl", *options) == 0
    first, second, third = ((tmp_path / f"{name}.jsonl").read_bytes() for name in "abc")
    assert first == second != third


def test_consistent_counts_are_not_negative_and_add_up(folder: Path, tmp_path: Path) -> None:
    assert watch(folder, RANGES, tmp_path / "rows.jsonl", "--consistent") == 0
    rows = read_row_file(str(tmp_path / "rows.jsonl"), RangeCount)
    for end in {row.window_end for row in rows}:
        found = {(row.low, row.high): row for row in rows if row.window_end == end}
        whole = found.pop((1, 256)).estimate
        assert sum(row.estimate for row in found.values()) == whole
        assert all(row.estimate >= 0 and row.error_bound == -1 for row in found.values())


def test_what_is_near_has_few_points_between(folder: Path, tmp_path: Path) -> None:
    assert watch(folder, NEAREST, tmp_path / "rows.avro") == 0
    rows = read_row_file(str(tmp_path / "rows.avro"), NearestPoints)
    true = {
        (row.window_end, row.query): row for row in read_row_file(str(folder / "predecessor.truth.jsonl"), NearestTrue)
    }
    assert len(rows) == len(true)
    answered = [row for row in rows if row.predecessor]
    assert answered
    for row in answered:
        nearest = true[row.window_end, row.query]
        assert row.predecessor <= nearest.predecessor <= row.query  # something lies between


def test_queries_with_a_time_are_answered_once(folder: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"low": 3, "high": 90, "time": "2024-01-01T02:30:00Z"}\n{"low": 5, "high": 6}\n')
    assert watch(folder, RANGES, tmp_path / "rows.jsonl", "--queries", str(asked)) == 0
    rows = read_row_file(str(tmp_path / "rows.jsonl"), RangeCount)
    assert [row.low for row in rows] == [5, 5, 3, 5, 5, 5, 5]
    assert rows[2].window_start.to_rfc3339() == "2024-01-01T02:00:00Z"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "--queries, line 1: line must be one JSON object"),
        ('{"low": 1}', "--queries, line 1: high must be a whole number"),
        ('{"low": 1, "high": 2, "width": 3}', "--queries, line 1: fields must be low, high, time, stream, got 'width'"),
        ('{"low": 1, "high": 2, "stream": "a"}', "--queries, line 1: stream must not be given without a time"),
        ('{"low": 1, "high": true}', "--queries, line 1: high must be a whole number"),
        ('{"low": 9, "high": 2}', "standing queries: high must be >= low"),
        ('{"low": 0, "high": 2}', "standing queries: low must be in 1 .. 256"),
    ],
)
def test_bad_queries_are_refused(line, message, folder, tmp_path, capsys):
    (tmp_path / "asked.jsonl").write_text(f"{line}\n")
    assert watch(folder, RANGES, tmp_path / "rows.jsonl", "--queries", str(tmp_path / "asked.jsonl")) == 2
    assert f"privstream ranges: error: {message}\n" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_queries_are_read_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"point": 7}\n{"point": 8, "time": "2024-01-01", "stream": "x"}\n')
    found = read_point_queries(str(file), PredecessorQuery)
    assert found.standing == [(7,)]
    assert [(query.point, query.stream) for query in found.timed] == [(8, "x")]
    file.write_text("")
    assert read_point_queries(str(file), RangeQuery) == ([], [])


def planned(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> int:
    """Return the error bound that a plan gives."""
    budget = ["--epsilon", "4", "--universe", "256", "--windows", str(WINDOWS), "--duplicates", "counted"]
    assert cli.main(["plan", name, *budget, *options, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["budgets"][0]["methods"].values()
    error: int = found["error_bound"]
    return error


def promised(folder: Path, command: list[str], asked: Path, output: Path, *options: str) -> int:
    """Return the error bound that a run with the parameters of the plan promises."""
    run = [*command, "--epsilon", "4", "--delta", "0", "--universe", "256", "--duplicates", "counted"]
    assert watch(folder, run, output, "--queries", str(asked), "--overwrite", *options) == 0
    error: int = json.loads(output.with_name(f"{output.name}.guarantee.json").read_text())["accuracy"]["error_bound"]
    return error


def test_a_plan_says_what_a_run_with_the_same_ranges_promises(capsys, folder, tmp_path):
    whole = folder / "ranges.queries"  # 5 ranges, each a dyadic interval
    known = promised(folder, RANGES, whole, tmp_path / "rows.jsonl")
    assert planned(capsys, "ranges", "--queries", str(whole)) == known
    assert planned(capsys, "ranges", "--ranges", "5") > 2 * known


def test_a_plan_for_any_ranges_bounds_the_errors_of_the_worst(capsys, folder, tmp_path):
    worst = tmp_path / "asked"  # 2 to 255 consists of as many dyadic intervals as any range does
    worst.write_text("".join(f'{{"low": {low}, "high": 255}}\n' for low in range(2, 7)))
    bound = planned(capsys, "ranges", "--ranges", "5")
    others = promised(folder, RANGES, worst, tmp_path / "rows.jsonl", "--answers", "1")  # for which some of beta is
    assert bound <= others < 1.2 * bound
    assert bound > 3 * promised(folder, RANGES, worst, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("answers", [[], ["--answers", "10"]])
def test_a_plan_says_what_a_run_with_as_many_points_promises(answers, capsys, folder, tmp_path):
    asked = tmp_path / "asked"
    asked.write_text('{"point": 9}\n')
    known = promised(folder, NEAREST, asked, tmp_path / "rows.jsonl", *answers)
    assert planned(capsys, "predecessor", "--queries", str(asked), *answers) == known
    assert planned(capsys, "predecessor") > known  # all points in all windows


def test_plans_print_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "ranges", "--epsilon", "1,2", "--universe", "9", "--windows", "4", "--ranges", "2"]) == 0
    assert cli.main(["plan", "predecessor", "--epsilon", "1", "--universe", "9"]) == 0
    assert cli.main(["plan", "ranges", "--error", "50", "--universe", "9", "--windows", "4", "--ranges", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("all counts of a stream are within") == 2
    assert "in all answers of a stream in the first 1,000 windows" in shown
    assert "Least epsilon, rounded up: " in shown


@pytest.mark.parametrize("universe", [1, 2, 3, 5, 8, 11, 16, 23, 31, 32])
def test_the_ranges_of_a_plan_are_as_wide_as_any(universe: int) -> None:
    counter = RangeCounter(epsilon=1.0, universe=universe, horizon=1)
    every = [(low, high) for high in range(1, universe + 1) for low in range(1, high + 1)]
    widest = max(counter.widest([low], [high]) for low, high in every)
    for number in (1, 3, len(every), len(every) + 1):
        found = any_ranges(number, universe)
        assert len(set(found)) == len(found) == min(number, len(every))
        assert set(found) <= set(every)
        assert counter.widest(*zip(*found, strict=True)) == widest
