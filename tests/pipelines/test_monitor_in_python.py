"""A monitor in Python: about a frame, and in a pipeline of one's own."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import pandas as pd
import pytest
from apache_beam.pipeline import PipelineVisitor
from apache_beam.testing.util import assert_that
from privstream.pipelines import Monitor, PrivateMonitor, ask
from privstream.pipelines.accounts.ledger import Ledger

DAY = """\
data: {input: of no account, user: customer, time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T02:00}
privacy: {epsilon: 8, delta: 0}
questions:
  pages:   {question: counts, item: [country, page], max_contributions: 4, domain: ["de,/a", "fr,/b"], where: ms > 1}
  present: {question: cardinality, timeout: 30m}
account: {key: key}
"""


def clicks() -> list[dict[str, Any]]:
    """Return events."""
    start = pd.Timestamp("2026-01-01", tz="UTC")
    return [
        {
            "customer": f"c{number}",
            "country": "de" if number % 2 else "fr",
            "page": "/a" if number % 2 else "/b",
            "ts": start + pd.Timedelta(minutes=number % 100),
            "ms": number,
        }
        for number in range(200)
    ]


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a monitor and a key."""
    monkeypatch.chdir(tmp_path)
    Path("day.yaml").write_text(DAY)
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


@pytest.mark.slow
def test_a_frame_is_asked_all_questions_at_once() -> None:
    """Results come by name; the same again is a repetition, and one entry of the ledger is of all."""
    monitor, frame = Monitor.from_file("day.yaml"), pd.DataFrame(clicks())
    found = ask(monitor, frame)
    assert set(found) == {"pages", "present"}
    assert found["pages"].table.column_names[2:4] == ["country", "page"] and len(found["pages"].rows) == 4
    assert abs(found["pages"].rows[0].noisy - 60) < 20
    again = ask(monitor, frame, output="out")
    assert again["pages"].rows == found["pages"].rows and "a repetition" in again["present"].log
    assert Path("out/_guarantee.json").exists()
    assert len({entry.release for entry in Ledger("key.ledger.jsonl").read()}) == 1
    with pytest.raises(ValueError, match="must name a field of the frame: no `country`"):
        ask(monitor, frame.drop(columns="country"))
    with pytest.raises(TypeError, match="epsilon must not be given with a monitor"):
        ask(monitor, frame, epsilon=1)


@pytest.mark.slow
def test_a_pipeline_gets_a_table_for_each_question() -> None:
    """Its run is in the ledger before."""
    monitor = PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine"))
    assert monitor.record(data="clicks of a day").line == 1
    (entry,) = Ledger("key.ledger.jsonl").read()
    assert entry.promises(monitor.guarantee)
    assert (monitor.guarantee.epsilon, set(monitor.guarantees)) == (8, {"pages", "present"})

    def whole(rows: list[Any]) -> None:
        assert len(rows) == 4 and {row.item for row in rows} == {"de, /a", "fr, /b"}

    def sizes(rows: list[Any]) -> None:
        assert len(rows) == 2 and all(10 < row.people < 200 for row in rows)

    with beam.Pipeline("FnApiRunner") as pipeline:
        tables = pipeline | beam.Create(clicks()) | monitor
        assert_that(tables["pages"], whole, label="pages")
        assert_that(tables["present"], sizes, label="present")
    changed = PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine", ledger="key.ledger.jsonl"))
    Path("day.yaml").write_text(DAY.replace("timeout: 30m", "timeout: 20m"))
    assert changed.record(data="clicks of a day").repeats
    assert not PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine")).record(data="clicks of a day").repeats


def test_what_is_recorded_of_counts_is_what_runs_whether_the_input_ends_or_not() -> None:
    """Nothing else in an entry could tell paced contributions of a person from sampled ones."""
    Path("day.yaml").write_text(DAY.replace("max_contributions: 4", "max_contributions: 3"))
    monitor = PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine"))
    monitor.record(data="clicks")
    ends, goes_on = beam.Pipeline("FnApiRunner"), beam.Pipeline("FnApiRunner")
    unbounded = goes_on | beam.Create(clicks())
    unbounded.is_bounded = False
    for name, events in {"ends": ends | beam.Create(clicks()), "goes on": unbounded}.items():
        _ = events | name >> monitor
    stages = [{label.partition("/")[2] for label in _labels(each)} for each in (ends, goes_on)]
    assert stages[0] == stages[1]
    assert any("CountContributions" in label for label in stages[0])


def _labels(pipeline: beam.Pipeline) -> set[str]:
    """Return the full labels of all transforms of a pipeline."""
    found: set[str] = set()

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: Any) -> None:
            found.add(node.full_label)

    pipeline.visit(Visitor())
    return found


def test_a_pipeline_is_refused_that_nobody_counts() -> None:
    """Unless it is asked for by name; and a run has a name."""
    pipeline = beam.Pipeline("FnApiRunner")
    events = pipeline | beam.Create(clicks())
    with pytest.raises(ValueError, match=r"^record must be called before"):
        _ = events | "one" >> PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine"))
    with pytest.raises(ValueError, match=r"^run_id must be given"):
        PrivateMonitor(Monitor.from_file("day.yaml")).record(data="clicks")
    with pytest.raises(ValueError, match=r"^ledger must be given, or key"):
        PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine", ledger="none")).record(data="clicks")
    assert set(events | "two" >> PrivateMonitor(Monitor.from_file("day.yaml", run_id="mine", ledger="none"))) == {
        "pages",
        "present",
    }
