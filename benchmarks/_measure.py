"""Measures what functions cost, once in a process of its own or several times in this one, and what programs cost."""

import gc
import json
import logging
import multiprocessing
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

STATUS = Path("/proc/self/status")
Result = TypeVar("Result")


class Cost(NamedTuple):
    """Seconds of all cores together, seconds by the clock, and megabytes: at most, and before the start."""

    cpu_seconds: float
    wall_seconds: float
    peak_megabytes: int
    start_megabytes: int


def best_seconds(run: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Return the least CPU seconds of several runs, and what the last one gave."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def in_own_process(run: Callable[..., None], *arguments: Any) -> Cost:
    """Measure `run(*arguments)`, a function of a module, without its imports."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, run, arguments).result()


def of_program(command: Sequence[str]) -> Cost:
    """Measure a program from its start to its end, imports included; memory is that of its largest process.

    Raises:
        RuntimeError: it failed; with the last lines that it printed.
    """
    # By a process of its own, since Linux counts the memory of the one that starts a program as the program's.
    found = subprocess.run([sys.executable, __file__, *command], capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError("\n".join(found.stderr.splitlines()[-20:]))
    return Cost(*json.loads(found.stdout))


def _measure(run: Callable[..., None], arguments: tuple[Any, ...]) -> Cost:
    logging.disable(logging.WARNING)
    gc.collect()
    start_megabytes = megabytes("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    run(*arguments)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu, wall, megabytes("VmHWM"), start_megabytes)


def megabytes(field: str) -> int:
    """Return a field of Linux's account of this process; elsewhere the most that it has ever used."""
    if STATUS.exists():
        found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) // 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


if __name__ == "__main__":
    began = time.perf_counter()
    status = subprocess.run(sys.argv[1:], check=False, stdout=sys.stderr).returncode
    took, spent = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = spent.ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps([spent.ru_utime + spent.ru_stime, took, peak, 0]))
    sys.exit(status)
