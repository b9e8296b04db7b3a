"""What a lost task manager costs counts of a file on a Flink cluster of this machine, and whether rows stay the same.

Usage: python benchmarks/flink_faults.py [--quick] [--events 4000000]

The events of cores.py, on two task managers of one slot each. The job runs twice: nothing happens, and then one task
manager is killed when half of that time has passed, and is started again. Over files there are no checkpoints, and the
job begins again.

Seconds are those of the job as Flink has them, restarts included. CPU seconds and memory are those of all processes of
the cluster, Python workers included, looked at twice a second; of memory the largest sum.

Needs Java; what else it needs is fetched on first use. Writes flink_faults.csv to benchmarks/results.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _flink import DEPLOY, RunningCluster, cluster, job_server_jar
from _report import load_average, parser, print_table, results_folder, write_csv
from cores import LIMIT, PRIVSTREAM, START, WINDOW, WINDOWS, made_events

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
KILLED = "task-manager-1"
SCRIPT = runpy.run_path(str(DEPLOY / "flink_cluster.py"))


class Spent(threading.Thread):
    """Looks at the processes of a cluster, also at those that are killed later."""

    def __init__(self, running: RunningCluster) -> None:
        super().__init__(daemon=True)
        self.running, self.ended = running, threading.Event()
        self.ticks: dict[int, int] = {}
        self.peak_bytes = 0
        self.look()
        self.before = self.cpu_seconds

    @property
    def cpu_seconds(self) -> float:
        """What all of them have spent by themselves, those that are gone too."""
        return sum(self.ticks.values()) / TICKS

    def look(self) -> None:
        """Look at each of them."""
        size = 0
        for process, _, fields in self.running.processes():
            self.ticks[process] = sum(map(int, fields[11:13]))
            size += int(fields[21]) * PAGE
        self.peak_bytes = max(self.peak_bytes, size)

    def run(self) -> None:
        """Look again and again."""
        while not self.ended.wait(0.5):
            self.look()


@contextmanager
def watched(running: RunningCluster) -> Iterator[Spent]:
    spent = Spent(running)
    spent.start()
    try:
        yield spent
    finally:
        spent.ended.set()
        spent.join()
        spent.look()


def counting(running: RunningCluster, events: Path, output: Path) -> list[str]:
    """Return the command that counts."""
    key = events.with_name("noise.key")
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    own = [f"--input={events}", f"--output={output}", f"--key={key}", "--ledger=none", "--run_id=faults"]
    own += [f"--window={WINDOW}", f"--start={START}", f"--end={START + WINDOWS * WINDOW}", "--overwrite"]
    own += ["--epsilon=1", "--delta=1e-6", f"--max_contributions={LIMIT}"]
    return [sys.executable, "-c", PRIVSTREAM, "counts", *own, *running.options()]


def run(running: RunningCluster, events: Path, output: Path, kill_after: float | None) -> dict[str, Any]:
    """Run a job, and kill a task manager when it has run so many seconds."""
    before = {each["jid"] for each in running.rest("/jobs/overview")["jobs"]}
    log = output.with_suffix(".log")
    with watched(running) as spent, log.open("w") as stream:
        with subprocess.Popen(counting(running, events, output), stdout=stream, stderr=stream) as submitted:
            while not (new := [each for each in running.rest("/jobs/overview")["jobs"] if each["jid"] not in before]):
                if submitted.poll() is not None:
                    raise RuntimeError(f"the job failed: {log.read_text()[-2000:]}")
                time.sleep(0.2)
            if kill_after is not None:
                time.sleep(max(0.0, new[0]["start-time"] / 1000 + kill_after - time.time()))
                leader = (running.folder / f"{KILLED}.pid").read_text().split()[0]
                os.kill(int(leader), signal.SIGKILL)
                SCRIPT["start_process"](running.folder, KILLED)
        if submitted.returncode:
            raise RuntimeError(f"the job failed: {log.read_text()[-2000:]}")
    return {
        "seconds": round(running.newest_job()["duration"] / 1000, 1),
        "cpu_seconds": round(spent.cpu_seconds - spent.before, 1),
        "peak_gigabytes": round(spent.peak_bytes / 1e9, 2),
    }


def measure(events: Path, scratch: Path, number: int) -> Iterator[dict[str, Any]]:
    """Run the job without a fault and with one."""
    with cluster(scratch / "cluster", job_server_jar()) as running:
        outputs = [scratch / f"{name}.parquet" for name in ("warm", "quiet", "fault")]
        run(running, events, outputs[0], None)
        quiet = run(running, events, outputs[1], None)
        fault = run(running, events, outputs[2], quiet["seconds"] / 2)
    same = pq.read_table(outputs[1]) == pq.read_table(outputs[2])
    for what, cost in (("nothing", quiet), (f"{KILLED} killed", fault)):
        row = {"engine": "privstream counts", "fault": what, "events": number} | cost
        row |= {"times_quiet": round(cost["seconds"] / quiet["seconds"], 2), "same_rows": same}
        yield row | {"load_average": load_average()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    options = arguments.parse_args()
    if options.quick:
        options.events = 120_000
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        scratch = Path(name)
        path = scratch / "events.parquet"
        number = made_events(path, options.events, options.events // 10)
        rows = list(measure(path, scratch, number))
    write_csv(folder / "flink_faults.csv", rows)
    print_table("a task manager is lost", rows)


if __name__ == "__main__":
    main()
