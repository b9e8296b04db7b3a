"""What breaks under a job that never ends, and how long until it has caught up: one job, one fault after the other.

Usage: python benchmarks/flink_live_faults.py [--quick] [--seconds 40]

Counts of ten items in windows of five seconds, which are decided 30 seconds after their end, go from a topic of Kafka
through a Flink cluster of two task managers into a table of PostgreSQL, with a checkpoint every two seconds. Twice a
second this looks how far the newest window in the table is behind the newest one that is due. A fault has been caught
up with when that is not more than a second above the longest that was seen while nothing happened, and stays so for 15
seconds. At the end the rows of windows that a fault can have touched, those that were open or not written yet, are
compared with the rows of one run over all events, on one process, with the same key.

The database is reached through a proxy, which can stop to pass on anything. Where root may mount a small file system in
memory, the copy of the rows lies on one, which is filled.

Needs Java and PostgreSQL; Flink, the job server and Kafka are fetched on first use. Writes flink_live_faults.csv to
benchmarks/results.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _flink import DEPLOY, RunningCluster, call, cluster, job_server_jar
from _report import load_average, parser, print_table, results_folder, write_csv
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runners"))
from postgres_server import PASSWORD, PostgresServer

HOST = "127.0.0.1"
WINDOW, LATENESS = 5, 30
PEOPLE = 300  # a second, each with one event
ITEMS = 10
LOOK_SECONDS, STEADY_SECONDS = 0.5, 15
MOST_SECONDS = 300
SPAN = 3600  # of the windows of the run: the benchmark is over by then
DISK = "32m"
SETTINGS = {"reconnect.backoff.max.ms": 200}
"""Of the producer: what comes after a broker is back must not be late."""

RUN = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"


class Proxy:
    """Passes on connections to a port of this machine, unless it is cut: then all of them stall, and none is closed."""

    def __init__(self, port: int) -> None:
        self._port, self.passing = port, threading.Event()
        self.passing.set()
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self.passing.wait()
        with suppress(OSError), near, socket.create_connection((HOST, self._port)) as far:
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.passing.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


class Events(threading.Thread):
    """Sends events once a second, and keeps them; those that wait for a broker keep their time."""

    def __init__(self, broker: str, topic: str, kept: Path) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic, self._kept = Producer(SETTINGS | {"bootstrap.servers": broker}), topic, kept
        self._people = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Send until it is ended."""
        with self._kept.open("w") as kept:
            while not self.ended.is_set():
                now = time.time()
                for _ in range(PEOPLE):
                    self._people += 1
                    item = f"item {min(self._people % 17, self._people % ITEMS)}"
                    line = json.dumps({"user": f"u{self._people}", "item": item, "time": round(now, 3)})
                    self._producer.produce(self._topic, line.encode(), partition=self._people % 2)
                    kept.write(f"{line}\n")
                self._producer.flush()
                self.ended.wait(max(0.0, now + 1 - time.time()))


class Delay(threading.Thread):
    """Looks how far the table is behind the windows that are due, past the proxy."""

    def __init__(self, database: PostgresServer, start: float) -> None:
        super().__init__(daemon=True)
        self._database, self._newest = database, start
        self.seen: list[tuple[float, float]] = []
        """Times, and seconds behind."""

    def run(self) -> None:
        """Look again and again."""
        while True:
            with suppress(Exception):  # the database is away
                ((newest,),) = self._database.ask("SELECT extract(epoch FROM max(window_end))::float FROM counts")
                self._newest = newest or self._newest
            now = time.time()
            self.seen.append((now, now - LATENESS - self._newest))
            time.sleep(LOOK_SECONDS)

    def most(self, seconds: float) -> float:
        """Return the longest delay of so many seconds that pass meanwhile."""
        begin = time.time()
        time.sleep(seconds)
        return max(behind for at, behind in self.seen if at >= begin)

    def caught_up(self, since: float, usual: float) -> float | None:
        """Wait until the delay is as usual, and stays so; return the seconds since a fault, None if it never is."""
        while time.time() < since + MOST_SECONDS:
            time.sleep(LOOK_SECONDS)
            above = [at for at, behind in self.seen if at >= since and behind > usual + 1]
            last = above[-1] if above else since
            if time.time() - last > STEADY_SECONDS:
                return round(last - since, 1)
        return None


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Put a small file system in memory at a folder; tell whether that was possible."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def command(scratch: Path, source: str, start: int, *more: str) -> list[str]:
    """Return a run of counts, over the topic or over the events that were kept."""
    key, domain = scratch / "noise.key", scratch / "domain"
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    domain.write_text("".join(f"item {number}\n" for number in range(ITEMS)))
    own = [f"--input={source}", f"--domain={domain}", f"--noise_key_file={key}", "--ledger=none", "--run_id=faults"]
    own += [f"--window={WINDOW}", "--time_unit=s", f"--start={datetime.fromtimestamp(start, UTC).isoformat()}"]
    own += [f"--end={datetime.fromtimestamp(start + SPAN, UTC).isoformat()}", f"--allowed_lateness={LATENESS}"]
    own += ["--epsilon=1", "--delta=0", "--max_contributions=1", "--selection=first"]  # as streams have it
    return [sys.executable, "-c", RUN, "counts", *own, *more]


def faults(
    running: RunningCluster, kafka: Path, database: PostgresServer, proxy: Proxy, disk: Path | None, away: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what is broken, and what breaks it and repairs it."""

    def kill(name: str) -> None:
        os.kill(int((running.folder / f"{name}.pid").read_text().split()[0]), signal.SIGKILL)
        call("repair", f"--run={running.folder}")

    def worker() -> None:
        pool = int((running.folder / "worker-pool.pid").read_text().split()[0])
        workers = [pid for pid, leads, fields in running.processes() if not leads and int(fields[3]) == pool]
        os.kill(max(workers), signal.SIGKILL)

    def broker() -> None:
        os.kill(int((kafka / "broker.pid").read_text().split()[0]), signal.SIGKILL)
        time.sleep(away)
        broker_script("start", kafka)

    def server() -> None:
        os.kill(int((database.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        time.sleep(away)
        database.start()

    def cut() -> None:
        proxy.passing.clear()
        time.sleep(6 * away)
        proxy.passing.set()

    def frozen() -> None:
        leader = int((running.folder / "task-manager-0.pid").read_text().split()[0])
        os.kill(leader, signal.SIGSTOP)
        time.sleep(6 * away)
        os.kill(leader, signal.SIGCONT)

    def full() -> None:
        assert disk is not None
        filling = disk / "filling"
        with suppress(OSError), filling.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        time.sleep(away)
        filling.unlink()

    yield "a Python worker killed", worker
    yield "a task manager killed", lambda: kill("task-manager-1")
    yield "the job manager killed", lambda: kill("job-manager")
    yield f"the broker killed, back after {away} s", broker
    yield f"the database killed, back after {away} s", server
    yield f"the network to the database cut for {6 * away} s", cut
    yield f"a task manager frozen for {6 * away} s", frozen
    if disk is not None:
        yield f"the disk of the output full for {away} s", full


def broker_script(what: str, folder: Path) -> str:
    script = [sys.executable, str(DEPLOY / "kafka" / "broker.py"), what, f"--run={folder}"]
    return subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]


def table(database: PostgresServer) -> list[tuple[Any, ...]]:
    """Return the rows in the table: the time of the window, the item and the count."""
    return database.ask("SELECT extract(epoch FROM window_start)::float, item, count FROM counts ORDER BY 1, 2")


def expected(scratch: Path, start: int) -> set[tuple[Any, ...]]:
    """Return the rows of a run over all events on one process; windows that have not come have rows, too."""
    output = scratch / "expected.jsonl"
    subprocess.run(command(scratch, str(scratch / "events.jsonl"), start, f"--output={output}"), check=True)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return {(datetime.fromisoformat(row["window_start"]).timestamp(), row["item"], row["count"]) for row in rows}


@contextmanager
def submitted(scratch: Path, running: RunningCluster, database: PostgresServer, run: list[str]) -> Iterator[None]:
    """Submit the job, and wait until it has written to the table."""
    with (scratch / "job.log").open("w") as log, subprocess.Popen(run, stdout=log, stderr=log) as job:
        try:
            while not _answers(database):
                if job.poll() is not None:
                    raise RuntimeError(f"the job has ended: {(scratch / 'job.log').read_text()[-2000:]}")
                time.sleep(1)
            yield
            running.cancel(running.newest_job()["jid"])
        finally:
            job.kill()


def measure(scratch: Path, quiet_seconds: float, away: int) -> Iterator[dict[str, Any]]:
    """Run the job, and break one thing after the other."""
    os.environ["PGPASSWORD"] = PASSWORD
    database, kafka, disk = PostgresServer(), scratch / "kafka", scratch / "disk"
    with ExitStack() as stack:
        stack.callback(database.remove)
        broker = broker_script("start", kafka)
        stack.callback(broker_script, "stop", kafka)
        small = stack.enter_context(small_disk(disk))
        proxy = Proxy(database.port)
        running = stack.enter_context(cluster(scratch / "cluster", job_server_jar(), "--task-manager-memory=1500m"))
        admin = AdminClient({"bootstrap.servers": broker})  # ends what it has begun when it goes
        admin.create_topics([NewTopic("events", 2)])["events"].result(30)
        start = int(time.time()) // WINDOW * WINDOW
        events = Events(broker, "events", scratch / "events.jsonl")
        events.start()
        url = database.url("counts").replace(f":{database.port}/", f":{proxy.port}/")
        (disk / "rows").mkdir()
        options = [one for one in running.options("--unbounded") if "checkpointing_interval" not in one]
        more = [f"--output={url}", f"--copy={disk / 'rows'}", *options]
        run = command(scratch, f"kafka://{broker}/events", start, *more, "--checkpointing_interval=2000")
        stack.enter_context(submitted(scratch, running, database, run))
        delay = Delay(database, start)
        delay.start()
        delay.caught_up(time.time(), 2.0 * WINDOW)
        usual = delay.most(quiet_seconds)
        rows = [{"fault": "nothing", "most_behind_seconds": round(usual, 1), "caught_up_seconds": 0.0}]
        spans = [(0.0, time.time())]
        print(rows[-1], flush=True)
        for name, fault in faults(running, kafka, database, proxy, disk if small else None, away):
            since = time.time()
            fault()
            seconds = delay.caught_up(since, usual)
            most = max(behind for at, behind in delay.seen if at >= since)
            rows.append({"fault": name, "most_behind_seconds": round(most, 1), "caught_up_seconds": seconds})
            spans.append((since, time.time()))
            print(rows[-1], flush=True)
        events.ended.set()
        events.join()
        found = table(database)
        right = expected(scratch, start)
        for row, (since, until) in zip(rows, spans, strict=True):
            touched = {row for row in found if since - WINDOW - LATENESS <= row[0] <= until}
            compared = {"rows": len(touched), "different_rows": len(touched - right)}
            yield row | compared | {"load_average": load_average()}
        if {row[0] for row in found} != set(range(start, int(found[-1][0]) + WINDOW, WINDOW)):
            raise RuntimeError("a window is missing in the table")


def _answers(database: PostgresServer) -> bool:
    with suppress(Exception):
        return bool(table(database))
    return False


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=40, help="for which nothing happens at first")
    arguments.add_argument("--away", type=int, default=10, help="seconds for which broker and database are away")
    options = arguments.parse_args()
    if options.quick:
        options.seconds, options.away = 10, 2
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        rows = list(measure(Path(name), options.seconds, options.away))
    write_csv(results_folder(options) / "flink_live_faults.csv", rows)
    print_table("faults of a running job", rows)


if __name__ == "__main__":
    main()
