"""`privstream queries`, and its plan and plot, from file to file."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.mechanisms.selection.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.pipelines import cli
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms import QueryAnswer
from questions import overridden

USERS, NUMBER = 20_000, 60
DOMAIN = tuple(f"{region} {age}0s" for region in ("north", "east", "south", "west") for age in range(10))
OPTIONS = ["--epsilon", "20", "--records", str(USERS), "--alpha", "0.2"]


class Country(NamedTuple):
    folder: Path

    def __getitem__(self, name):
        return str(self.folder / name)


@pytest.fixture(scope="module")
def country(tmp_path_factory):
    made = Country(tmp_path_factory.mktemp("country"))
    draw = np.random.default_rng(4)
    groups = draw.choice(len(DOMAIN), size=USERS, p=draw.dirichlet(np.full(len(DOMAIN), 0.05)))
    people = {"user": np.arange(USERS).astype(str), "item": np.array(DOMAIN)[groups]}
    pq.write_table(pa.table(people), made["events.parquet"])
    asked = {f"query {number:02}": draw.random(len(DOMAIN)) < draw.uniform(0.2, 1) for number in range(NUMBER)}
    named = {name: [item for item, one in zip(DOMAIN, chosen, strict=True) if one] for name, chosen in asked.items()}
    Path(made["queries"]).write_text("".join(f"{json.dumps({'name': n, 'items': i})}\n" for n, i in named.items()))
    Path(made["truth"]).write_text(json.dumps({name: int(chosen[groups].sum()) for name, chosen in asked.items()}))
    Path(made["domain"]).write_text("\n".join(DOMAIN))
    Path(made["key"]).write_text("a key of this test alone\n")
    Path(made["key"]).chmod(0o600)
    return made


def ask(country, output, *options, events="events.parquet"):
    files = ["--input", country[events], "--output", str(output), "--queries", country["queries"]]
    words = ["queries", *files, "--domain", country["domain"], "--key", country["key"], *OPTIONS, *options]
    return cli.main(overridden(words))


@pytest.mark.slow
def test_answers_keep_their_promise(country, tmp_path):
    output = tmp_path / "answers.jsonl"
    same = ["--run_id", "three", "--ledger", "none"]
    assert ask(country, output, *same) == 0
    rows = read_row_file(str(output), QueryAnswer)
    truth = json.loads(Path(country["truth"]).read_text())
    assert [row.query for row in rows] == list(truth)
    for row in rows:
        assert abs(row.estimate - truth[row.query]) <= row.error_bound < USERS
        assert row.lower <= row.estimate <= row.upper if row.source == "measured" else row.lower is row.upper is None
    assert {row.source for row in rows} - {"guess"} == {"measured", "hypothesis"}
    promise = json.loads(Path(f"{output}.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one person over the whole run"
    assert promise["accuracy"]["limits"] == [{"option": "", "most": 1, "thing": "item", "where": ""}]
    largest = max(row.error_bound for row in rows)
    assert promise["accuracy"]["records_needed"] == 1
    assert largest == pytest.approx(promise["accuracy"]["error_bound"], abs=1.1)


def test_refusals_say_so(country, tmp_path, capsys):
    output = tmp_path / "answers.jsonl"
    assert ask(country, output, "--alpha", "0.99", "--epsilon", "0.001") == 0
    rows = read_row_file(str(output), QueryAnswer)
    refused = [row for row in rows if row.source == "refused"]
    assert 0 < len(refused) < len(rows) and rows[0].source in ("guess", "measured")
    assert all(row.error_bound == -1 and row.measurements_left == 0 for row in refused)
    error = capsys.readouterr().err
    assert f"{len(refused)} queries are refused, since the budget is spent" in error
    assert cli.main(["plot", str(output), "--output", str(tmp_path / "p.svg")]) == 0


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("nonsense", "line must be one JSON object"),
        ('{"name": "q", "items": ["a"], "time": 3}', "time: unknown key"),
        ('{"name": "q", "items": "a"}', "items of query 'q' must be a list"),
        ('{"items": ["a"]}', "name of a query must be a text"),
    ],
)
def test_a_line_that_is_no_query_is_refused_before_the_charge(line, rule, country, tmp_path, capsys):
    (tmp_path / "queries").write_text(json.dumps({"name": "good", "items": DOMAIN[:1]}) + f"\n{line}\n")
    ledger = ["--ledger", str(tmp_path / "ledger")]
    assert ask(country, tmp_path / "a.jsonl", "--queries", str(tmp_path / "queries"), *ledger) == 2
    assert f"--queries, line 2 of {tmp_path}/queries: {rule}" in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists() and not (tmp_path / "ledger").exists()


def test_lines_are_answered_in_their_order_and_what_is_beyond_the_domain_is_refused(country, tmp_path, capsys):
    def of(*names):
        asked = [{"name": name, "items": [name] if name == "elsewhere" else DOMAIN[:1]} for name in names]
        (tmp_path / "queries").write_text("".join(f"{json.dumps(each)}\n" for each in asked))
        more = ["--queries", str(tmp_path / "queries"), "--ledger", str(tmp_path / "ledger")]
        return ask(country, tmp_path / "answers.jsonl", *more)

    assert of("z", "elsewhere") == 2
    said = "domain (read as utf-8), and 'elsewhere' of query 'elsewhere' is none"
    assert f"--queries must be about items of the {said}" in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
    assert of("z", "b", "a") == 0
    rows = read_row_file(str(tmp_path / "answers.jsonl"), QueryAnswer)
    assert [(row.number, row.query) for row in rows] == [(1, "z"), (2, "b"), (3, "a")]


def test_the_data_set_must_have_an_end(country, tmp_path, capsys):
    for more, rule in (
        (["--input", "kafka://localhost:1/topic"], "--input must have an end: queries is about one data set"),
        (["--watch", "1"], "unknown option --watch"),
    ):
        assert ask(country, tmp_path, *more, "--run_id", "r") == 2
        assert rule in capsys.readouterr().err


class TestPlan:
    SIZE = ("--records", "1000000", "--epsilon", "1")

    def accuracy(self, capsys, country, *options):
        files = ["--domain", country["domain"], "--queries", country["queries"]]
        assert cli.main(["plan", "queries", *files, *self.SIZE, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["budgets"][0]["accuracy"]

    def test_says_what_the_mechanism_says(self, capsys, country):
        made = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=len(DOMAIN), records=10**6, alpha=0.2)
        found = self.accuracy(capsys, country, "--alpha", "0.2")
        assert found["error_bound"] == made.accuracy(NUMBER, 0.05)
        assert found["records_needed"] == made.records_needed(NUMBER, 0.05)
        assert found["max_measurements"] == made.max_updates

    def test_a_run_without_an_alpha_promises_what_the_plan_does(self, capsys, country, tmp_path):
        output = tmp_path / "answers.jsonl"
        files = ["--input", country["events.parquet"], "--output", str(output), "--queries", country["queries"]]
        assert cli.main(["queries", *files, *self.SIZE, "--domain", country["domain"]]) == 0
        capsys.readouterr()
        known = json.loads(Path(f"{output}.guarantee.json").read_text())["accuracy"]
        assert known == self.accuracy(capsys, country)
        assert known["error_bound"] <= self.accuracy(capsys, country, "--alpha", "0.2")["error_bound"]
