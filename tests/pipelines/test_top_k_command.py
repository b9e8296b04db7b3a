"""`privstream top-k`, `plan top-k`, `plot top-k` and `simulate top-k`, from file to file."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from privstream.mechanisms import MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.pipelines import cli
from privstream.pipelines.pictures.top_k import caption
from privstream.pipelines.simulate.simulation import ItemHolders
from privstream.pipelines.sinks.row_files import read_row_file
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
        {"user": f"u{i}", "item": "library harbour", "time": "2024-01-01T00:30:00", "stream": "ab"[i % 2]}
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
