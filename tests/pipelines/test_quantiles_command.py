"""`privstream quantiles`, with its plan: from a file to a file."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli
from privstream.pipelines.simulate import city, write_simulation
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import QuantileEstimate
from questions import overridden

WINDOWS = 6
RUN = ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-01T06:00", "--epsilon", "2", "--delta", "1e-6"]
LATENCY = ["--low", "1", "--high", "10000", "--scale", "log", "--quantiles", "0.1,0.5,0.9", "--value", "milliseconds"]


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("requests")
    for format in ("parquet", "csv"):
        write_simulation(str(folder / f"events.{format}"), city(12_000, WINDOWS, 3, trends=0))
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    return folder


def command(requests: Path, output: Path, *options: str, format: str = "parquet") -> int:
    files = ["--input", str(requests / f"events.{format}"), "--output", str(output)]
    return cli.main(["quantiles", *files, "--key", str(requests / "key"), *RUN, *LATENCY, *options])


@pytest.mark.slow
def test_intervals_contain_the_truth(requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for format in ("parquet", "csv"):
        output = tmp_path / f"{format}.jsonl"
        same = ["--max_contributions", "8", "--run_id", "same", "--ledger", "none"]
        assert command(requests, output, *same, format=format) == 0
        rows.append(read_row_file(str(output), QuantileEstimate))
    windows = city(12_000, WINDOWS, 3, trends=0)
    took = {window.end: window.events["milliseconds"].to_numpy() for window in windows}
    assert [row.quantile for row in rows[0]] == [0.1, 0.5, 0.9] * WINDOWS
    for row in rows[0]:  # one value per person and window counts: a fifth is dropped
        true = np.quantile(took[row.window_end.micros], row.quantile, method="inverted_cdf")
        assert row.lower * 0.95 <= true <= row.upper * 1.05
        assert abs(np.log(row.value / true)) < 0.1
    capsys.readouterr()
    promise = json.loads((tmp_path / "csv.jsonl.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one person over the whole run"
    assert promise["parameters"]["quantiles"] == [0.1, 0.5, 0.9]
    planned = [*RUN[:6], *LATENCY[:-2], "--max_contributions", "8", "--json"]
    assert cli.main(["plan", "quantiles", "--epsilon", "2", "--delta", "1e-6", *planned]) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    assert budget["accuracy"] == promise["accuracy"]


def test_events_alone(requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (requests / "events.csv").read_text().splitlines()
    lines = [
        "value,time",
        *(f"{line.split(',')[4]},{line.split(',')[2]}" for line in text[1:]),
        "slow,2024-01-01T00:00:00Z",
    ]
    lines += ["50000,2024-01-01T00:00:00Z"] * 3
    (tmp_path / "events.csv").write_text("\n".join(lines))
    call = ["quantiles", "--input", str(tmp_path / "events.csv"), "--output", str(tmp_path / "rows.parquet")]
    asked = [*RUN[:-2], *LATENCY[:-2], "--unit", "event", "--window", "6h"]
    assert cli.main(overridden([*call, *asked])) == 0
    rows = read_row_file(str(tmp_path / "rows.parquet"), QuantileEstimate)
    values = np.array([float(line.split(",")[0].strip('"')) for line in lines[1:] if not line.startswith("slow")])
    for row in rows[-3:]:
        assert row.lower <= np.quantile(values, row.quantile, method="inverted_cdf") <= row.upper
    told = capsys.readouterr().err
    assert "1 unusable" in told
    assert "one event" in told


def test_medians_of_a_shop_are_narrow(tmp_path: Path) -> None:
    """Those of 13 weeks, of 5,155 customers with ten purchases each, by the options of the documentation."""
    draw = np.random.default_rng(7)
    customers, weeks = np.repeat(np.arange(5_155), 10), 13
    week = draw.integers(0, weeks, len(customers))
    prices = np.round(draw.lognormal(3.0, 0.8, len(customers)), 2)
    events = {"user": customers.astype(str), "value": prices, "time": (week * 7 + 4) * 86_400_000_000}
    pq.write_table(
        pa.table(events).cast(
            pa.schema({"user": pa.string(), "value": pa.float64(), "time": pa.timestamp("us", "UTC")})
        ),
        tmp_path / "shop.parquet",
    )
    (tmp_path / "key").write_text("a key of this test alone\n")
    (tmp_path / "key").chmod(0o600)
    files = ["--input", f"{tmp_path}/shop.parquet", "--key", f"{tmp_path}/key", "--ledger", "none"]
    asked = [*files, "--value", "value", "--start", "1970-01-05", "--end", "1970-04-06", "--epsilon", "1"]
    asked += ["--delta", "1e-6", "--low", "1", "--high", "5000", "--scale", "log"]
    widths = {}
    for window, more in (("1w", []), ("13w", ["--max_contributions", "1"])):
        output = str(tmp_path / f"{window}.parquet")
        assert cli.main(["quantiles", *asked, "--window", window, "--output", output, *more]) == 0
        rows = read_row_file(output, QuantileEstimate)
        true = [np.median(prices[week == n]) for n in range(weeks)] if len(rows) > 1 else [np.median(prices)]
        held = [row.lower <= value <= row.upper for row, value in zip(rows, true, strict=True)]
        assert sum(held) >= 0.8 * len(rows)
        widths[window] = max(row.upper / row.lower for row in rows)
    assert widths["1w"] < 1.6 and widths["13w"] < 1.1, "once they went from 13.77 to 28.25"
