"""Lets the tests of this folder import the harness, and gives them a Kafka broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

BROKER = [sys.executable, str(Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py")]


def missing(reason: str):
    """Skip a test, or fail it where all servers must be there."""
    (pytest.fail if os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS") else pytest.skip)(reason)


@pytest.fixture(scope="module")
def broker_run(tmp_path_factory):
    return f"--run={tmp_path_factory.mktemp('broker') / 'run'}"


@pytest.fixture(scope="module")
def broker(broker_run):
    started = subprocess.run([*BROKER, "start", broker_run], capture_output=True, text=True, check=False)
    if started.returncode:
        missing(f"no broker: {started.stderr}")
    yield started.stdout.strip()
    stopped = subprocess.run([*BROKER, "stop", broker_run], capture_output=True, text=True, check=True).stdout
    assert "broker: stopped" in stopped
