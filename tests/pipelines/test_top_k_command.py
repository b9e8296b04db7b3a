"""`privstream top-k`, with and without `--domain`, and its plan, plot and simulation, from file to file."""

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from privstream.mechanisms import FoundKeys, MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.pipelines import ask, cli
from privstream.pipelines.pictures.top_k import caption
from privstream.pipelines.report.result import read_result
from privstream.pipelines.report.section import section
from privstream.pipelines.serve.page import newest
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms import TopKWithGap
from privstream.transforms.events.domain import Domain
from privstream.transforms.rows import RankedItem

USERS, WINDOWS = 4000, 6
RUN = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-01T06:00", "--top", "4"]


class City(NamedTuple):
    """Simulated events with their truth, the public list and a noise key."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def truth(self) -> dict[tuple[str, object], int]:
        rows = read_row_file(self.path("truth.jsonl"), ItemHolders)
        return {(row.item, row.window_start): row.holders for row in rows}


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> City:
    made = City(tmp_path_factory.mktemp("city"))
    size = ["--users", str(USERS), "--windows", str(WINDOWS), "--items", "300", "--seed", "3"]
    files = [
        "--output",
        made.path("events.parquet"),
        "--truth",
        made.path("truth.jsonl"),
        "--domain",
        made.path("items"),
    ]
    assert cli.main(["simulate", "top-k", *size, *files]) == 0
    Path(made.path("key")).write_text("a key of this test alone\n")
    Path(made.path("key")).chmod(0o600)
    return made


def rank(city: City, output: object, *options: str) -> int:
    files = ["--input", city.path("events.parquet"), "--output", str(output), "--domain", city.path("items")]
    files += ["--noise_key_file", city.path("key"), "--runner", "FnApiRunner"]
    return cli.main(["top-k", *files, *RUN, *options])


def test_the_simulated_list_has_all_items_and_some_that_nobody_holds(city: City) -> None:
    domain = Domain.from_file(city.path("items"))
    held = {item for item, _ in city.truth()}
    assert len(domain) == 316
    assert held < {domain[place] for place in range(len(domain))}


def test_ranks_are_right_up_to_what_is_promised(city: City, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    assert rank(city, output, "--epsilon", "60", "--items_per_step", "20", "--beta", "1e-6") == 0
    rows = read_row_file(str(output), RankedItem)
    assert [row.rank for row in rows] == [1, 2, 3, 4] * WINDOWS
    promise = json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())
    assert promise["guarantee"]["epsilon"] == 60
    assert "one person over the whole run" in promise["guarantee"]["paragraph"]
    assert promise["accuracy"]["sentence"] in capsys.readouterr().err
    truth = city.truth()
    for row in rows:
        true = truth.get((row.item, row.window_start), 0)
        assert abs(row.estimate - true) <= row.error_bound + 10  # the truth leaves out whom less than 10 hold
        better = sorted((n for (_, start), n in truth.items() if start == row.window_start), reverse=True)
        assert true >= better[3] - promise["accuracy"]["selection_error"]
        assert row.error_bound >= promise["accuracy"]["least_error_bound"]


@pytest.mark.slow
def test_the_same_key_repeats_and_another_format_holds_the_same(city: City, tmp_path: Path) -> None:
    answers = []
    for name in ("a.jsonl", "b.avro"):
        assert rank(city, tmp_path / name, "--epsilon", "2", "--delta", "1e-6", "--participation_cap", "2") == 0
        answers.append(read_row_file(str(tmp_path / name), RankedItem))
    assert answers[0] == answers[1]
    assert rank(city, tmp_path / "d.jsonl", "--epsilon", "2", "--run_id", "other") == 0
    assert read_row_file(str(tmp_path / "d.jsonl"), RankedItem) != answers[0]


def test_streams_must_be_named(city: City, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events.jsonl"
    lines = [
        {"user": f"u{i}", "item": "library harbour", "time": "2024-01-01T00:30:00Z", "stream": "ab"[i % 2]}
        for i in range(40)
    ]
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "rows.jsonl"
    options = ["--input", str(events), "--output", str(output), "--domain", city.path("items"), *RUN, "--epsilon", "50"]
    options += ["--runner", "FnApiRunner"]
    assert cli.main(["top-k", *options, "--streams", "a,b,c"]) == 0
    rows = read_row_file(str(output), RankedItem)
    assert len(rows) == 3 * WINDOWS * 4
    assert [row.item for row in rows if row.rank == 1 and row.window_start.micros % 21_600_000_000 == 0][:2] == [
        "library harbour"
    ] * 2
    assert "Each person appears in at most 1 stream." in capsys.readouterr().err


@pytest.mark.slow
def test_plan_says_what_the_mechanism_says(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epsilon", "2", "--delta", "1e-6", "--items", "500", "--top", "8", "--windows", "24"]
    assert cli.main(["plan", "top-k", *options, "--json", "--items_per_step", "3"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["budgets"]
    assert answer["taken"] == "counts"
    counted = CountedTopK(epsilon=2.0, delta=1e-6, size=500, top=8, releases=24, items_per_release=3)
    assert answer["methods"]["counts"]["selection_error"] == counted.selection_error(500, 0.05)
    assert answer["methods"]["counts"]["least_error_bound"] == counted.measure_error(0.05)
    for law in ("exponential", "laplace"):
        mechanism = MeasuredTopK(epsilon=2.0, delta=1e-6, top=8, releases=24, items_per_release=3, noise_law=law)
        found = answer["methods"][f"{law}_gaps"]
        assert found["selection_error"] == mechanism.selection_error(500, 0.05)
        assert found["least_error_bound"] == mechanism.measure_error(0.05)
        assert found["estimate_stddev"] == pytest.approx(mechanism.estimate_variance**0.5)
    mechanism = MeasuredTopK(epsilon=2.0, delta=1e-6, top=8, releases=24)
    assert cli.main(["plan", "top-k", *options]) == 0
    shown = capsys.readouterr().out
    assert f"{mechanism.selection_error(500, 0.05):,.0f}" in shown
    headings = " ".join(re.sub(r"[^\w ]+", " ", shown).split())
    assert "least error bound" in headings and "clear" in headings  # they are not those of every count


def test_plan_of_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """A person is in one stream, as in a run, unless something else is said."""
    options = ["--epsilon", "2", "--items", "500", "--top", "8", "--windows", "24", "--json"]
    found = []
    for streams in ([], ["--streams", "3"], ["--streams", "3", "--streams_per_person", "2"]):
        assert cli.main(["plan", "top-k", *options, *streams]) == 0
        (answer,) = json.loads(capsys.readouterr().out)["budgets"]
        found.append(answer["methods"]["exponential_gaps"]["selection_error"])
    assert found[0] == found[1] < found[2]


def test_a_plan_needs_a_bound_on_what_a_person_takes_part_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "top-k", "--epsilon", "1", "--items", "99", "--top", "4"]) == 2
    assert "--windows or --participation_cap must be given: what one person takes part in" in capsys.readouterr().err


@pytest.mark.slow
def test_plot_draws_rows_with_and_without_truth(city: City, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.parquet"
    assert rank(city, rows, "--epsilon", "20", "--items_per_step", "20") == 0
    pictures = []
    for name, more in (("a.png", []), ("b.png", ["--truth", city.path("truth.jsonl")]), ("c.svg", ["--top", "2"])):
        assert cli.main(["plot", "top-k", "--input", str(rows), "--output", str(tmp_path / name), *more]) == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0][:4] == pictures[1][:4] == b"\x89PNG"
    assert pictures[0] != pictures[1]
    assert pictures[2].rstrip().endswith(b"</svg>")
    assert cli.main(["plot", "top-k", "--input", str(rows), "--output", str(tmp_path / "x.png"), "--top", "99"]) == 2
    assert "top must be <= 12, got 99" in capsys.readouterr().err


def test_plot_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    assert (
        cli.main(["plot", "top-k", "--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "p.png")]) == 0
    )


def test_caption_counts_what_is_outside(city: City, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    assert rank(city, output, "--epsilon", "60", "--items_per_step", "20", "--beta", "1e-6") == 0
    rows = read_row_file(str(output), RankedItem)
    truth = read_row_file(city.path("truth.jsonl"), ItemHolders)
    assert "; 0 of " in caption(rows, truth, "")
    known = {(row.item, row.window_start) for row in truth}
    moved = [row._replace(estimate=row.estimate + 1000) for row in rows]
    among = sum((row.item, row.window_start) in known for row in rows)
    assert f"; {among} of {among} estimates" in caption(moved, truth, "")
    assert "truth" not in caption(rows, None, "")


FOUND_WINDOWS = 8
WINDOW = ["--window", "3600", "--start", "2024-01-01", "--top", "3", "--items_per_step", "20"]
BUDGET = ["--epsilon", "30", "--delta", "1e-6"]
END = ["--end", "2024-01-01T08:00"]
Truth = dict[object, dict[str, int]]


class FoundCity(NamedTuple):
    """Simulated events with their truth, and a noise key."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def truth(self) -> Truth:
        found: Truth = defaultdict(lambda: defaultdict(int))
        for row in read_row_file(self.path("truth.jsonl"), ItemHolders):
            found[row.window_start][row.item] = row.holders
        return found


@pytest.fixture(scope="module")
def city_found(tmp_path_factory: pytest.TempPathFactory) -> FoundCity:
    made = FoundCity(tmp_path_factory.mktemp("city"))
    size = ["--users", "4000", "--windows", str(FOUND_WINDOWS), "--items", "300", "--seed", "3"]
    files = ["--output", made.path("events.parquet"), "--truth", made.path("truth.jsonl")]
    assert cli.main(["simulate", "top-k", *size, *files]) == 0
    Path(made.path("key")).write_text("a key of this test alone\n")
    Path(made.path("key")).chmod(0o600)
    return made


def rank_found(city_found: FoundCity, output: object, *options: str, events: str = "events.parquet") -> int:
    files = ["--input", city_found.path(events), "--output", str(output), "--noise_key_file", city_found.path("key")]
    return cli.main(["top-k", *files, "--ledger", "none", "--runner", "FnApiRunner", *WINDOW, *options])


def test_found_items_are_ranked_by_estimates(city_found, tmp_path, capsys):
    output = tmp_path / "rows.jsonl"
    assert rank_found(city_found, output, *BUDGET, *END) == 0
    said = capsys.readouterr().err
    promise = json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())
    assert promise["accuracy"]["method"] == "counts" and promise["accuracy"]["sentence"] in said
    assert "Proof: docs/proofs/keyed_counts.md, Theorem 4." in said and "Public: all parameters; the windows" in said
    assert "rest on a model" in promise["accuracy"]["intervals"]["note"]
    rows, truth = read_row_file(str(output), RankedItem), city_found.truth()
    assert [row.rank for row in rows] == [1, 2, 3] * FOUND_WINDOWS
    held, threshold = 0, promise["accuracy"]["detection_threshold"]
    for one, following in zip(rows, [*rows[1:], None], strict=True):
        true = truth[one.window_start][one.item]
        assert abs(one.estimate - true) <= one.error_bound + 10  # the truth leaves out whom less than 10 hold
        assert one.lower <= one.estimate <= one.upper
        held += one.lower <= true <= one.upper
        if following is not None and following.rank > 1:
            assert one.gap == round(one.estimate - following.estimate) >= 0
    assert held >= 0.8 * len(rows)
    for start, numbers in truth.items():
        if max(numbers.values()) >= threshold:  # found for certain, so also ranked, where it leads by far
            first = next(row for row in rows if row.window_start == start and row.rank == 1)
            assert numbers[first.item] >= max(numbers.values()) - 2 * first.error_bound


@pytest.mark.slow
def test_items_that_are_not_found_have_no_place(city_found, tmp_path, capsys):
    """An empty file is a result; and a missing gap is the same in all formats."""
    assert rank_found(city_found, tmp_path / "none.jsonl", "--epsilon", "0.02", "--delta", "1e-9", *END) == 0
    assert (tmp_path / "none.jsonl").read_text() == ""
    assert "no item was found, so nothing is published" in capsys.readouterr().err
    found = []
    for name in ("few.jsonl", "few.avro", "few.parquet", "few.csv"):
        assert rank_found(city_found, tmp_path / name, *BUDGET, *END, "--top", "5000", "--run_id", "few") == 0
        found.append(read_row_file(str(tmp_path / name), RankedItem))
    assert found[0] == found[1] == found[2] == found[3]
    last = [one for one, other in zip(found[0], [*found[0][1:], found[0][0]], strict=True) if other.rank == 1]
    assert {row.gap for row in last} == {None} and len(last) == FOUND_WINDOWS
    assert sum(row.gap is None for row in found[0]) == FOUND_WINDOWS


@pytest.mark.slow
def test_a_watched_folder_has_rows_that_are_not_finished(city_found, tmp_path, monkeypatch):
    """Also where periods follow each other, and after a file that comes late."""
    renewed = [*BUDGET, "--renew_every", "4h", "--run_id", "same"]
    assert rank_found(city_found, tmp_path / "finished.jsonl", *renewed, *END) == 0
    with monkeypatch.context() as patched:
        patched.setattr(TopKWithGap, "to_finish", lambda transform: transform)
        assert rank_found(city_found, tmp_path / "rows.jsonl", *renewed, *END) == 0
    incoming, rows, letters = tmp_path / "in", tmp_path / "rows", tmp_path / "letters"
    for folder in (incoming, rows, letters):
        folder.mkdir()
    (incoming / "events.parquet").write_bytes(Path(city_found.path("events.parquet")).read_bytes())
    for name in ("_UNTIL_20240101T080001Z", "_END"):
        (incoming / name).touch()
    watch = ["--input_format", "parquet", "--watch", "0.3", "--watermark", "marks", "--dead_letter", str(letters)]
    assert rank_found(city_found, rows, *renewed, *END, *watch, events=str(incoming)) == 0
    shown = [row for file in sorted(rows.glob("*.jsonl")) for row in read_row_file(str(file), RankedItem)]
    assert shown == read_row_file(str(tmp_path / "rows.jsonl"), RankedItem)
    finished = read_row_file(str(tmp_path / "finished.jsonl"), RankedItem)
    assert [(row.window_start, row.rank) for row in finished] == [(row.window_start, row.rank) for row in shown]
    assert [row.estimate for row in finished] != [row.estimate for row in shown], "a file is smoothed both ways"
    assert len({row.window_start for row in shown}) == FOUND_WINDOWS, "the second period goes on with what was found"


def test_streams_are_ranked_by_themselves(city_found: FoundCity, tmp_path: Path) -> None:
    lines = [
        {"user": f"u{i}", "item": "ab"[i % 3 == 0], "time": f"2024-01-01T0{i // 2 % 8}:30:00Z", "stream": "xy"[i % 2]}
        for i in range(2400)
    ]
    (city_found.folder / "streams.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "rows.jsonl"
    assert rank_found(city_found, output, *BUDGET, *END, "--streams", "x,y,z", events="streams.jsonl") == 0
    rows = read_row_file(str(output), RankedItem)
    assert {(row.stream, row.rank, row.item) for row in rows} == {
        (stream, rank_found, item) for stream in "xy" for rank_found, item in ((1, "a"), (2, "b"))
    }


@pytest.mark.slow
def test_pages_say_that_intervals_rest_on_a_model(city_found: FoundCity, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    assert rank_found(city_found, output, *BUDGET, *END) == 0
    found = read_result(str(output))
    (picture,) = section(found, None)["pictures"]
    live = newest(found)
    for text in (picture["caption"], live["bands"]):
        assert "with probability 95%, each by itself" in text and "rest on a model" in text
        assert "The order is that of estimates" in text
    assert live["bands"].startswith("In brackets: where")
    assert "(between " in live["windows"][0]["rows"][0][live["fields"].index("estimate")]
    assert not {"lower", "upper", "error bound"} & {*live["fields"]}


def test_python_asks_without_a_list(city_found: FoundCity) -> None:
    people = [(f"u{i}", "tea" if i % 3 else "cake") for i in range(120)]
    users, items = zip(*people, strict=True)
    times = [datetime(2024, 1, 1, i % 2, tzinfo=UTC) for i in range(120)]
    frame = pa.table({"user": users, "item": items, "time": pa.array(times, pa.timestamp("us", "UTC"))})
    given = {"window": "1h", "start": "2024-01-01", "end": "2024-01-01T02", "epsilon": 20, "delta": 1e-6, "top": 2}
    found = ask("top-k", frame, **given, noise_key_file=Path(city_found.path("key")), ledger="none")
    rows = found.table.to_pylist()
    assert {(row["rank"], row["item"]) for row in rows} == {(1, "tea"), (2, "cake")}
    assert all(row["lower"] <= row["estimate"] <= row["upper"] for row in rows)


@pytest.mark.slow
def test_plan_says_how_many_people_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epsilon", "1", "--delta", "1e-6", "--top", "10", "--windows", "64", "--items_per_step", "3"]
    assert cli.main(["plan", "top-k", *options, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["budgets"]
    assert answer["taken"] == "counts"
    planned = answer["methods"]["counts"]
    found = FoundKeys(epsilon=1.0, delta=1e-6, contributions=192, horizon=64, listed=4, at_end=True)
    for windows in (1, 4, 16, 64):
        assert planned[f"needed_in_{windows}"] == round(found.people_needed(windows))
    assert planned["stddev"] == pytest.approx(found.stddev(1))
    reasons = {name: answer["methods"][name]["reason"] for name in ("exponential_gaps", "laplace_gaps")}
    assert reasons["laplace_gaps"] == "method must be counts without a domain, got 'laplace_gaps'"
    assert cli.main(["plan", "top-k", *options]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{planned['needed_in_16']} people in each of 16 windows" in shown
    listed = [f"{people} in the first {windows}" for windows, people in found.listed_people.items()]
    assert f"by so many people in so many windows: {', '.join(listed)}. There a person counts for the first 4" in shown
    assert "items_per_step), the last ones; who has 6 counts with half of them" in shown, "what the limit leaves out"
    assert "ranking" not in shown, "a column without numbers"
    assert cli.main(["plan", "top-k", *options, "--items", "50"]) == 0
    assert "even chance" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "1", *END], "--delta must be > 0 without a domain, got 0"),
        (BUDGET, "end or --renew_every must be given without a domain: items are found in a known number of windows"),
        (
            [*BUDGET, *END, "--method", "exponential_gaps"],
            "--method must be counts without a domain, got 'exponential_",
        ),
    ],
)
def test_what_needs_a_list_is_refused(city_found, tmp_path, options, message, capsys):
    assert rank_found(city_found, tmp_path / "rows.jsonl", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()
