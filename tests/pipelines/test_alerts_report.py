"""The page about alerts: its rules, the method that ran, and no word about what that method does not do."""

import json
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.questions.public_lists import write_rules
from privstream.pipelines.report.result import read_result
from privstream.pipelines.report.section import of_method, words_of
from privstream.transforms import AlertRule

RULES = [
    AlertRule(name="kettle", at_least=60, items=("fever", "cough")),
    AlertRule(name="all", at_least=150),
]
DAYS = AlertRule(name="three hours", at_most=20, windows=3)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinic")
    given = ["--users", "2000", "--windows", "24", "--seed", "3", "--output", str(folder / "e.avro")]
    assert cli.main(["simulate", "alerts", *given]) == 0
    return folder


def run(clinic, name, rules, *more):
    write_rules(str(clinic / "rules"), rules)
    given = ["--input", str(clinic / "e.avro"), "--rules", str(clinic / "rules"), "--output", str(clinic / name)]
    given += ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-02", "--epsilon", "4", "--delta", "1e-6"]
    assert cli.main(["alerts", *given, *more]) == 0
    return words_of(read_result(str(clinic / name)), None)


@pytest.mark.parametrize(
    ("method", "words", "others"),
    [
        ("counts", "paid for before the run", ("stops, and", "continues and ends")),
        ("status", "people are charged", ("stops, and", "paid for before the run")),
        ("sparse_vector", "its last row says so", ("people are charged", "paid for before")),
    ],
)
def test_the_page_is_about_the_method_that_ran(clinic, method, words, others):
    page = run(clinic, f"{method}.jsonl", RULES, "--method", method)
    assert words in page["question"] and not any(other in page["question"] for other in others)
    costs = method == "sparse_vector"
    names = [name for name, _ in page["columns"]]
    assert ("stopped" in names) == ("epsilon_left" in names) == costs
    assert page["rows"] and all(len(row) == len(names) for row in page["rows"])
    assert any("budget is spent" in text for text in page["left_out"]) == costs
    text = dict(page["columns"])["status"]
    assert ('says "ended"' in text) == (method == "status") and "None" not in text


def test_the_page_shows_the_rules(clinic):
    page = run(clinic, "rules.jsonl", [*RULES, DAYS])
    assert page["rules"] == {
        "names": ["name", "at_least", "at_most", "windows", "items"],
        "rows": [
            ["kettle", "60", "-", "1", "fever, cough"],
            ["all", "150", "-", "1", "any"],
            ["three hours", "-", "20", "3", "any"],
        ],
    }
    assert ("window", "1 hour") in page["parameters"]
    shown = clinic / "page.html"
    assert cli.main(["report", str(clinic / "rules.jsonl"), "--output", str(shown)]) == 0
    assert "<h3>The rules</h3>" in shown.read_text() and "<td>fever, cough</td>" in shown.read_text()


def test_hostile_promises_have_no_rules(clinic):
    run(clinic, "hostile.jsonl", RULES)
    file = Path(f"{clinic / 'hostile.jsonl'}.guarantee.json")
    content = json.loads(file.read_text())
    for rules in ("rule", [1], {"a": 1}):
        file.write_text(json.dumps(content | {"public": {"rules": rules}}))
        assert words_of(read_result(str(clinic / "hostile.jsonl")), None)["rules"] is None


def test_sentences_about_other_methods_are_left_out():
    text = 'A number. With the method "status" it is None. With the methods "counts" and "pairs" it is 1; None is rare.'
    assert of_method(text, "status") == 'A number. With the method "status" it is "-".'
    assert of_method(text, "pairs") == 'A number. With the methods "counts" and "pairs" it is 1; "-" is rare.'
    assert of_method(text, "").count("With the method") == 2
