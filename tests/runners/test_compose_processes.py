"""What compose.yaml describes gives rows, as processes without containers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import flink_job_server
import pytest
import runner_harness

UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def may_unshare() -> bool:
    """Tell whether this user may make a network of its own."""
    tools = all(shutil.which(name) for name in ("unshare", "ip"))
    return tools and subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
@pytest.mark.timeout(900)
def test_what_compose_describes_gives_rows(tmp_path: Path) -> None:
    runner_harness.require("flink")
    if not may_unshare():
        pytest.skip("needs the right to make a network of its own, and the commands unshare and ip")
    script = Path(__file__).with_name("compose_processes.py")
    command = [*UNSHARE, sys.executable, str(script), str(tmp_path / "run"), str(flink_job_server.jar())]
    (tmp_path / "run").mkdir()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows and all(row["item"] == "rain" for row in rows)
