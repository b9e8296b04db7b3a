"""What processes of a crew are told in tests; apart, for they import it."""

import os
import signal
import time

from privstream.pipelines.command import RunError
from privstream.transforms.spill import SMALLEST, fetch, keep


def square(task: object) -> object:
    """Be told a number, how to fail, or how to end."""
    if task == "fail":
        raise RunError("this is said")
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "wait":
        time.sleep(60)
    if task == "file":
        return keep(bytes(range(256)) * (SMALLEST // 128))
    if isinstance(task, bytes):
        return len(fetch(task))
    assert isinstance(task, int)
    return task * task
