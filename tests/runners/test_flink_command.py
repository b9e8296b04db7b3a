"""`privstream heavy-hitters` inside Flink's job server gives the same rows; on a cluster: test_server_pages.py."""

import json
import sys
from pathlib import Path

import flink_job_server
import pytest
from listening import elsewhere, run_and_look
from runner_harness import require

PRIVSTREAM = [sys.executable, "-c", "import sys; from privstream.pipelines.cli import main; sys.exit(main())"]
PRIVACY = ["--window=3600", "--epsilon=4", "--delta=1e-6", "--max_hits=4", "--horizon=4"]


def call(*command: str) -> None:
    """Run a command; neither it nor what it starts may listen to other machines."""
    answer, found = run_and_look([*PRIVSTREAM, *command])
    assert answer.returncode == 0, answer.stdout
    assert elsewhere(found) == []


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_rows_are_those_of_this_machine_and_nothing_listens_to_others(tmp_path: Path) -> None:
    """In batch mode; test_ordered_reading.py and test_watch_command.py have the streaming mode."""
    require("flink")
    events, key = tmp_path / "events.parquet", tmp_path / "noise.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    call("simulate", "heavy-hitters", "--users=5000", "--windows=4", "--seed=7", "--items=300", f"--output={events}")
    flink = [f"--flink_version={flink_job_server.FLINK_LINE}", f"--flink_job_server_jar={flink_job_server.jar()}"]
    local = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK", *flink]
    for name, runner in (("here", ["--runner=FnApiRunner"]), ("local", local)):
        files = [f"--input={events}", f"--output={tmp_path / name}.jsonl", f"--noise_key_file={key}", "--traceback"]
        call("heavy-hitters", *files, *PRIVACY, "--overwrite", *runner)
    rows = (tmp_path / "here.jsonl").read_text()
    assert len([json.loads(line) for line in rows.splitlines()]) > 3
    assert (tmp_path / "local.jsonl").read_text() == rows
