"""A monitor in Python: all its questions about a frame."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from privstream.pipelines import Monitor, ask
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
    assert found["pages"].table.column_names[2:4] == ["country", "page"] and found["pages"].table.num_rows == 4
    assert abs(found["pages"].table["noisy"][0].as_py() - 60) < 20
    again = ask(monitor, frame, output="out")
    assert again["pages"].table.equals(found["pages"].table) and "a repetition" in again["present"].log
    assert Path("out/_guarantee.json").exists()
    assert len({entry.release for entry in Ledger("key.ledger.jsonl").contents().entries}) == 1
    with pytest.raises(ValueError, match="must name a field of the frame: no `country`"):
        ask(monitor, frame.drop(columns="country"))
    with pytest.raises(TypeError, match="epsilon must not be given with a monitor"):
        ask(monitor, frame, epsilon=1)
