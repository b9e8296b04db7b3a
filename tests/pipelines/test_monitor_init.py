"""What helps to write a monitor: `init` from a file's fields, and the JSON schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from privstream.pipelines.cli import main
from privstream.pipelines.commands.schema import schema
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.yaml_file import read_document

FILLED = {"user": "u", "item": "i", "time": "t", "start": "2026-01-01", "end": "2026-02-01", "max_contributions": "30"}
SECRET = "anna-lives-here"


def written(folder: Path, name: str, *words: str) -> str:
    """Write a monitor about a file; return it."""
    assert main(["init", str(folder / name), "--output", str(folder / "monitor.yaml"), *words]) == 0
    return (folder / "monitor.yaml").read_text()


def filled(text: str, **more: str) -> str:
    """Return a monitor with everything filled in that is marked."""
    for key, value in (FILLED | more).items():
        text = text.replace(f"{key}: FILL_IN", f"{key}: {value}")
    assert ": FILL_IN" not in text
    return text


def test_a_written_monitor_plans_when_it_is_filled_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clicks.csv").write_text(f"Customer_ID,pageUrl,ts\n{SECRET},{SECRET},2026-01-01\n")
    text = written(tmp_path, "clicks.csv")
    assert SECRET not in text and "#   Customer_ID, pageUrl, ts\n" in text
    assert main(["plan", str(tmp_path / "monitor.yaml")]) == 2
    assert "must be filled in" in capsys.readouterr().err
    (tmp_path / "monitor.yaml").write_text(filled(text))
    assert main(["plan", str(tmp_path / "monitor.yaml"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert set(plan["questions"]) == {"items"} and plan["views"] == ["largest"]


def test_keys_of_json_lines_are_the_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that YAML would read as something else stand in quotes."""
    line = json.dumps({"user": SECRET, "true": SECRET, "a: b": 1, "time": 2, "page": 3})
    (tmp_path / "events.jsonl").write_text(f"{line}\n")
    text = written(tmp_path, "events.jsonl")
    assert SECRET not in text and '#   user, "true", "a: b", time, page' in text
    assert main(["init", str(tmp_path / "events.jsonl"), "--output", "-"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    "first", ["anna@example.org,2026-01-01", "4711,x", "a,,b", "a,2026-01-01T10:00:00Z", "a," + "x" * 65]
)
def test_what_may_be_data_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str) -> None:
    """A file whose first line is an event has no header; what stands there is in no message either."""
    (tmp_path / "events.csv").write_text(f"{first}\n{first}\n")
    assert main(["init", str(tmp_path / "events.csv"), "--output", str(tmp_path / "monitor.yaml")]) == 2
    told = capsys.readouterr().err
    assert "INPUT must begin with the names of its fields" in told and not (tmp_path / "monitor.yaml").exists()
    assert not any(len(part) > 1 and part in told.replace(str(tmp_path), "") for part in first.split(","))


@pytest.fixture(scope="module")
def valid() -> Any:
    """Return what checks a monitor against the schema."""
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


EVERYTHING = """\
data: {input: clicks.csv, user: customer, time: ts, where: ms > 3, null: [NA], trim: true, watch: 10}
windows: {window: 3600, start: 2026-01-01, end: 2026-02-01, renew_every: 30d}
privacy: {epsilon: 1, delta: 1.0e-6}
questions:
  pages:   {question: counts, item: [country, page], share: 3, rising: 1, max_contributions: 200}
  latency: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99]}
  present: {question: cardinality, timeout: 30m}
views:
  weekly:  {of: pages, over: 7d, largest: 5}
  top:     {of: pages, largest: 10}
  risers:  {of: pages, against: 1d}
  outage:  {of: pages, item: [de, /error], above: 300, clear_below: 200, for: 3}
  slow:    {of: latency, quantile: 0.99, above: 500}
  few:     {of: present, below: 5}
  rate:    {ratio: [top, latency]}
account: {key: key}
output: {path: out, format: csv}
"""


def test_what_is_read_is_valid(tmp_path: Path, valid: Any) -> None:
    """The example of all keys, and what `init` writes."""
    path = tmp_path / "monitor.yaml"
    path.write_text(EVERYTHING)
    Monitor.from_file(path)
    valid.validate(read_document(str(path)).content)
    (tmp_path / "clicks.csv").write_text("user,page,time,ms\n")
    path.unlink()
    path.write_text(filled(written(tmp_path, "clicks.csv")))
    valid.validate(read_document(str(path)).content)
