"""A monitor on every runner: over files, and over a folder that is watched, with rows as windows close."""

import os
from pathlib import Path

import pytest
import runner_harness
import test_watch_command
from privstream.pipelines import cli

FILES = """\
data: {{input: {input}, user: customer, time: ts{watch}}}
window: 1h
start: 2026-01-01
end: 2026-01-01T04:00
privacy: {{epsilon: 8, delta: 1.0e-6}}
questions:
  pages:   {{question: counts, item: [country, page], share: 3, max_contributions: 20}}
  latency: {{question: quantiles, value: ms, low: 1, high: 60000, max_contributions: 4}}
  present: {{question: cardinality, timeout: 30m}}
output: {{folder: {output}}}
noise_key_file: noise.key
ledger: none
run_id: clicks
"""
RUNNERS = [
    pytest.param("prism", marks=[pytest.mark.prism, pytest.mark.slow]),
    pytest.param("flink", marks=[pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]),
]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with events of four hours in a folder, and what one runner makes of them."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for hour in range(4):
        rows = [
            f"c{number},{'de' if number % 2 else 'fr'},/{number % 3},2026-01-01T0{hour}:{number % 60:02}:00Z,{number}"
            for number in range(1, 200)
        ]
        Path(f"in/{hour}.csv").write_text("\n".join(["customer,country,page,ts,ms", *rows, "c1,de,/a,,5"]) + "\n")
    Path("noise.key").write_bytes(bytes(range(32)))
    os.chmod("noise.key", 0o600)
    Path("files.yaml").write_text(FILES.format(input="in", watch="", output="expected"))
    assert cli.main(["run", "files.yaml", "--runner=FnApiRunner"]) == 0
    return tmp_path


def rows_of(folder: Path) -> list[str]:
    """Return the rows of windows, but for columns that only the end of a run knows."""
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else [folder.with_suffix(".csv")]
    return [",".join(line.split(",")[:6]) for file in files for line in file.read_text().splitlines()[1:]]


@pytest.mark.parametrize("runner", RUNNERS)
def test_files_give_the_same_rows(runner: str, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("monitor.yaml").write_text(FILES.format(input="in", watch="", output="found"))
    assert cli.main(["run", "monitor.yaml", *test_watch_command.options(runner)]) == 0
    for name in ("pages", "latency", "present"):
        assert Path(f"found/{name}.csv").read_bytes() == Path(f"expected/{name}.csv").read_bytes()
    assert capsys.readouterr().err.count("present: 796 of 800 events usable, 4 estimates published") == 1


@pytest.mark.parametrize("runner", [pytest.param("fn_api", marks=pytest.mark.slow), *RUNNERS])
def test_a_watched_folder_gives_the_same_rows(runner: str, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner_harness.require(runner)
    text = FILES.format(input="in", watch=", watch: 0.2, watermark: marks", output="found")
    Path("monitor.yaml").write_text(text.replace("folder: found", "folder: found, dead_letter: bad"))
    for name in ("_UNTIL_20260101T040000Z", "_END"):
        Path("in", name).touch()
    Path("bad").mkdir()
    chosen = ["--runner=FnApiRunner"] if runner == "fn_api" else test_watch_command.options(runner)
    assert cli.main(["run", "monitor.yaml", *chosen]) == 0
    for name in ("pages", "latency", "present"):
        assert sorted(rows_of(Path("found", name))) == sorted(rows_of(Path("expected", name)))
        assert Path("found", name, "_END").exists() and Path("found", name, "_guarantee.json").exists()
    assert Path("found/_guarantee.json").exists()
    assert sum(len(file.read_text().splitlines()) for file in Path("bad").glob("*.jsonl")) == 4
    assert runner == "flink" or "present: 796 of 800 events usable" in capsys.readouterr().err
    for end in Path("found").glob("*/_END"):
        end.unlink()  # as if the run had stopped before
    Path("monitor.yaml").write_text(text.replace("high: 60000", "high: 50000"))
    assert cli.main(["run", "monitor.yaml", *chosen]) == 2
    assert "found/latency/_guarantee.json promises something else" in capsys.readouterr().err
