"""Right values of faults that real use found in quantiles and set sizes, through the command line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from privstream.pipelines import cli

KEY = "0123456789abcdef"
DATES = ("--time_format", "%Y-%m-%d", "--time_zone", "UTC")
TRUE = (10, 10, 90)


def answers(folder: Path, rows: list[tuple[str, ...]], header: str, word: str, *options: str) -> list[dict[str, str]]:
    """Run a question on a file of rows, and return what it publishes."""
    (folder / "in.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    files = ("--input", f"{folder}/in.csv", "--output", f"{folder}/out.csv", "--noise_key_file", f"{folder}/key")
    assert cli.main([word, *files, "--ledger", "none", *options]) == 0
    with (folder / "out.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("limit", [(), ("--max_per_window", "10")])
@pytest.mark.parametrize("time", ["2024-01-01T00:00:00Z", "2024-01-01"])
def test_t7_equal_rows_of_a_person_do_not_collapse(tmp_path: Path, limit: tuple[str, ...], time: str) -> None:
    """Nine values of 10 and one of 90 in the same minute, or on the same day: nine tenths are at most 10."""
    rows = [(f"u{user}", "10" if n else "90", time) for user in range(3000) for n in range(10)]
    run = ("--window", "1d", "--start", "2024-01-01", "--end", "2024-01-02", "--epsilon", "1", "--delta", "1e-6")
    asked = (
        "--quantiles",
        "0.5,0.8,0.98",
        "--low",
        "0",
        "--high",
        "100",
        "--time_format",
        "%Y-%m-%d",
        "--time_zone",
        "UTC",
    )
    asked = asked if len(time) == 10 else asked[:-4]
    found = answers(tmp_path, rows, "user,value,time", "quantiles", *run, *asked, *limit)
    median, most, top = (float(row["estimate"]) for row in found)
    assert abs(median - 10) < 0.2 and abs(most - 10) < 0.2 and abs(top - 90) < 0.2
    assert all(
        float(row["lower"]) <= value <= float(row["upper"]) for row, value in zip(found, (10, 10, 90), strict=True)
    )


def test_t7_medians_of_receipts_are_held(tmp_path: Path) -> None:
    """Those of all purchases, of which heavy buyers have more and smaller ones, on dates without times."""
    draw = np.random.default_rng(1)
    rows, prices = [], [[] for _ in range(8)]
    for user in range(2000):
        number = int(draw.integers(1, 9))
        for week in range(8):
            for price in np.round(draw.lognormal(4 - 0.2 * number, 0.3, number), 2):
                prices[week].append(price)
                rows.append((f"u{user}", str(price), f"2024-{week + 1:02}-01"))
    run = ("--window", "1month", "--start", "2024-01-01", "--end", "2024-09-01", "--epsilon", "2", "--delta", "1e-6")
    asked = ("--low", "1", "--high", "500", "--scale", "log", "--max_per_window", "8", "--max_contributions", "64")
    found = answers(
        tmp_path, rows, "user,value,time", "quantiles", *run, *asked, "--time_format", "%Y-%m-%d", "--time_zone", "UTC"
    )
    true = [np.quantile(week, 0.5, method="inverted_cdf") for week in prices]
    held = [float(row["lower"]) <= value <= float(row["upper"]) for row, value in zip(found, true, strict=True)]
    assert sum(held) >= 7
    assert all(abs(float(row["estimate"]) / value - 1) < 0.05 for row, value in zip(found, true, strict=True))


def test_e2_quantiles_have_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.csv").write_text("user,value,time\nu,5,2024-01-01T00:00:00Z\n")
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    monitor = {
        "data": {"input": "in.csv", "user": "user", "time": "time"},
        "window": "1h",
        "start": "2024-01-01",
        "end": "2024-01-02",
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "questions": {"speed": {"question": "quantiles", "value": "value", "low": 1, "high": 9, "quantiles": [0.5]}},
        "output": {"folder": "rows"},
    }
    (tmp_path / "monitor.yaml").write_text(json.dumps(monitor))
    assert cli.main(["plan", str(tmp_path / "monitor.yaml")]) == 0
    monitor["questions"]["speed"]["ranks"] = monitor["questions"]["speed"].pop("quantiles")  # type: ignore[index]
    (tmp_path / "monitor.yaml").write_text(json.dumps(monitor))
    assert cli.main(["plan", str(tmp_path / "monitor.yaml")]) == 2
    assert "ranks" in capsys.readouterr().err
