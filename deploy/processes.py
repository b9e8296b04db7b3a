"""Background processes with pid files: each in a session of its own, ended only while it is the one we started."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 15


def start(folder: Path, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Start a command that outlives this one; its output goes to `<name>.out` and its identity to `<name>.pid`."""
    with (folder / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    (folder / f"{name}.pid").write_text(f"{process.pid} {_birth(process.pid)}\n")


def alive(pid_file: Path) -> int | None:
    """Return the process id if the process that wrote this file still runs: same id and same time of birth."""
    pid_text, _, birth = pid_file.read_text().strip().partition(" ")
    return int(pid_text) if birth and _birth(int(pid_text)) == birth else None


def stop(pid_file: Path) -> bool:
    """End the process and what it started, kindly and then by force; say whether it was still running."""
    pid = alive(pid_file)
    if pid is not None:
        _signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while alive(pid_file) and time.monotonic() < deadline:
            time.sleep(0.1)
        if alive(pid_file):
            _signal_group(pid, signal.SIGKILL)
    pid_file.unlink()
    return pid is not None


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)  # the leader of its own session leads a group of the same number


def _birth(pid: int) -> str:
    """Return when a process was born, in the system's own words; empty for none and for a finished one."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return ""
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        listing = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return listing.stdout.strip()
    return "" if state in "ZX" else fields[18]
