"""Which sockets of which processes wait for connections, as Linux tells it."""

import os
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LISTENS = "0A"
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
PAUSE_SECONDS = 0.1


class Listener(NamedTuple):
    """A socket that waits for connections, and the program that has it."""

    program: str
    host: str
    port: int


def descendants(pid: int) -> list[int]:
    """Return a process and all that it, and they, have started."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:  # it has ended meanwhile
        return []
    return [pid, *(found for child in children for found in descendants(child))]


def listeners(pids: Iterable[int]) -> set[Listener]:
    """Return the sockets of processes on which they wait for connections."""
    owners = {inode: pid for pid in pids for inode in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in owners:
                found.add(Listener(_program(owners[fields[9]]), *_address(fields[1])))
    return found


def elsewhere(found: Iterable[Listener]) -> list[Listener]:
    """Return those that can be reached from other machines."""
    return [each for each in found if each.host not in LOOPBACK]


def run_and_look(
    command: list[str], folder: Path | None = None, *beside: int
) -> tuple[subprocess.CompletedProcess, set[Listener]]:
    """Run a command to its end; return what it said, and what was listened to meanwhile.

    Args:
        command: the program and its arguments.
        folder: where it runs; None is here.
        beside: processes that are looked at too, with all that they start, as the command is.
    """
    found: set[Listener] = set()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None:
            found |= listeners(pid for root in (process.pid, *beside) for pid in descendants(root))
            time.sleep(PAUSE_SECONDS)
        told = process.stdout.read()
    return subprocess.CompletedProcess(command, process.returncode, told), found


def _sockets(pid: int) -> list[str]:
    """Return the numbers of the sockets that a process has open."""
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    return [link.removeprefix("socket:[").rstrip("]") for link in map(_link, opened) if link.startswith("socket:[")]


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0].rpartition("/")[2]
    except OSError:
        return ""


def _address(text: str) -> tuple[str, int]:
    """Return host and port; hosts are written word by word, each with its last byte first."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)), int(port, 16)
