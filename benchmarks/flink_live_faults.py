"""What breaks under jobs that never end, and how long until they have caught up: privstream, and Flink SQL beside it.

Usage: python benchmarks/flink_live_faults.py [--quick] [--seconds 40] [--only clock broker]

Counts of ten items in windows of five seconds, which are decided 30 seconds after their end, go from a topic of Kafka
through a Flink cluster of two task managers into a table of PostgreSQL, with a checkpoint every two seconds: those of
privstream, and at the same time those of a job of Flink SQL without privacy, with a watermark that is 30 seconds
behind the newest event. Each job has a slot of each task manager, so that a fault meets both at once. Twice a second
this looks how far the newest window in each table is behind the newest one that is due. A fault has been caught up
with when that is not more than a second above the longest that was seen while nothing happened, and stays so for 15
seconds. At the end the rows of windows that a fault can have touched, those that were open or not written yet, are
compared: with those of one run over all events, on one process, with the same key, or with plain counts.

The database is reached through a proxy, which can stop to pass on anything. Where root may mount a small file system
in memory, the copy of privstream's rows lies on one, which is filled. With a C compiler, the clock of all processes
of the cluster, Python workers included, is put an hour forward, and back; Kafka and PostgreSQL keep theirs. There are
no faults of Python workers and copies for Flink SQL, which has none.

Needs Java, Maven and PostgreSQL; Flink, the job server, Kafka and connectors are fetched on first use. Writes
flink_live_faults.csv to benchmarks/results.
"""

import argparse
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import _flink_sql
from _flink import DEPLOY, RunningCluster, call, cluster, job_server_jar
from _report import load_average, parser, print_table, results_folder, write_csv
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runners"))
from postgres_server import DATABASE, PASSWORD, USER, PostgresServer

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
PRIVSTREAM, FLINK_SQL = "privstream", "Flink SQL"
TABLES = {PRIVSTREAM: "counts", FLINK_SQL: "plain_counts"}
PLAIN_TABLE = """CREATE TABLE plain_counts (
    window_start TIMESTAMP, window_end TIMESTAMP, item TEXT, count BIGINT, PRIMARY KEY (window_start, item))"""
PLAIN = [
    """CREATE TABLE events (`user` STRING, item STRING, `time` DOUBLE,
        happened AS TO_TIMESTAMP_LTZ(CAST(`time` * 1000 AS BIGINT), 3),
        WATERMARK FOR happened AS happened - INTERVAL '{lateness}' SECOND) WITH (
        'connector' = 'kafka', 'topic' = 'events', 'properties.bootstrap.servers' = '{broker}',
        'scan.startup.mode' = 'earliest-offset', 'format' = 'json')""",
    """CREATE TABLE plain_counts (window_start TIMESTAMP(3), window_end TIMESTAMP(3), item STRING, `count` BIGINT,
        PRIMARY KEY (window_start, item) NOT ENFORCED) WITH (
        'connector' = 'jdbc', 'url' = 'jdbc:postgresql://{database}', 'table-name' = 'plain_counts',
        'username' = '{user}', 'password' = '{password}')""",
    """INSERT INTO plain_counts SELECT window_start, window_end, item, COUNT(DISTINCT `user`)
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(happened), INTERVAL '{window}' SECOND))
        GROUP BY window_start, window_end, item""",
]
"""The same counts as statements of Flink SQL."""

FORWARD = 3600
"""Seconds by which clocks are put forward."""


class Fault(NamedTuple):
    """What is broken, what breaks it and repairs it, and the engines that have such a part."""

    name: str
    happen: Callable[[], None]
    engines: tuple[str, ...] = (PRIVSTREAM, FLINK_SQL)


class Clock:
    """The clock of the processes of a cluster that begin with an environment; there is none without a C compiler.

    Args:
        folder: for the library, and for the file that says how far the clock is ahead.
    """

    def __init__(self, folder: Path) -> None:
        self._library, self._ahead = folder / "jumping_clock.so", folder / "seconds_ahead"
        self._ahead.write_bytes(bytes(8))
        compiler, source = shutil.which("cc"), Path(__file__).with_name("jumping_clock.c")
        if compiler is not None:
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, source, "-ldl"], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return what processes need to follow this clock; what has passed they measure as before."""
        found = self._library.exists()
        return {"LD_PRELOAD": str(self._library), "SECONDS_AHEAD": str(self._ahead)} if found else {}

    def put(self, seconds: int) -> None:
        """Put the clock ahead, at once for all processes that run."""
        with self._ahead.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder))


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
    """Looks how far a table is behind the windows that are due, past the proxy."""

    def __init__(self, database: PostgresServer, table: str, start: float) -> None:
        super().__init__(daemon=True)
        self._database, self._table, self._newest = database, table, start
        self.seen: list[tuple[float, float]] = []
        """Times, and seconds behind."""

    def run(self) -> None:
        """Look again and again."""
        while True:
            with suppress(Exception):  # the database is away
                newest_window = f"SELECT extract(epoch FROM max(window_end))::float FROM {self._table}"
                ((newest,),) = self._database.ask(newest_window)
                self._newest = newest or self._newest
            now = time.time()
            self.seen.append((now, now - LATENESS - self._newest))
            time.sleep(LOOK_SECONDS)

    def most(self, since: float) -> float:
        """Return the longest delay that was seen since then."""
        return max(behind for at, behind in self.seen if at >= since)

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
    running: RunningCluster,
    kafka: Path,
    database: PostgresServer,
    proxy: Proxy,
    clock: Clock,
    disk: Path | None,
    away: int,
) -> Iterator[Fault]:
    """Yield what happens."""

    def kill(name: str) -> None:
        os.kill(int((running.folder / f"{name}.pid").read_text().split()[0]), signal.SIGKILL)
        call("repair", f"--run={running.folder}", more=clock.environment)

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

    yield Fault("a Python worker killed", worker, (PRIVSTREAM,))
    yield Fault("a task manager killed", lambda: kill("task-manager-1"))
    yield Fault("the job manager killed", lambda: kill("job-manager"))
    yield Fault(f"the broker killed, back after {away} s", broker)
    yield Fault(f"the database killed, back after {away} s", server)
    yield Fault(f"the network to the database cut for {6 * away} s", cut)
    yield Fault(f"a task manager frozen for {6 * away} s", frozen)
    if disk is not None:
        yield Fault(f"the disk of the output full for {away} s", full, (PRIVSTREAM,))
    if clock.environment:
        yield Fault("the clock of the cluster put forward by an hour", lambda: clock.put(FORWARD))
        yield Fault("the clock of the cluster put back by an hour", lambda: clock.put(0))


def broker_script(what: str, folder: Path) -> str:
    script = [sys.executable, str(DEPLOY / "kafka" / "broker.py"), what, f"--run={folder}"]
    return subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]


def rows_of(database: PostgresServer, engine: str) -> list[tuple[Any, ...]]:
    """Return the rows in the table of an engine: the time of the window, the item and the count."""
    columns = "extract(epoch FROM window_start)::float, item, count"
    return database.ask(f"SELECT {columns} FROM {TABLES[engine]} ORDER BY 1, 2")


def expected(scratch: Path, start: int) -> set[tuple[Any, ...]]:
    """Return the rows of a run over all events on one process; windows that have not come have rows, too."""
    output = scratch / "expected.jsonl"
    subprocess.run(command(scratch, str(scratch / "events.jsonl"), start, f"--output={output}"), check=True)
    return read_rows(output)


def read_rows(path: Path) -> set[tuple[Any, ...]]:
    """Return the rows of a file: the time of the window, the item and the count."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(datetime.fromisoformat(row["window_start"]).timestamp(), row["item"], row["count"]) for row in rows}


def plain_counts(scratch: Path) -> set[tuple[Any, ...]]:
    """Return the rows without privacy; everybody has one event."""
    events = map(json.loads, (scratch / "events.jsonl").read_text().splitlines())
    counts = Counter((event["time"] // WINDOW * WINDOW, event["item"]) for event in events)
    return {(window, item, count) for (window, item), count in counts.items()}


def plain_command(running: RunningCluster, broker: str, database: str) -> list[str]:
    """Return the job of Flink SQL."""
    given = {"broker": broker, "database": f"{database}/{DATABASE}", "user": USER, "password": PASSWORD}
    statements = [text.format(window=WINDOW, lateness=LATENESS, **given) for text in PLAIN]
    settings = {"execution.target": "remote", "rest.address": HOST, "rest.port": str(running.port)}
    settings |= {"execution.runtime-mode": "streaming", "parallelism.default": "2"}
    return _flink_sql.statements_command(statements, settings | {"execution.checkpointing.interval": "2 s"})


@contextmanager
def submitted(
    scratch: Path, running: RunningCluster, database: PostgresServer, engine: str, run: list[str]
) -> Iterator[None]:
    """Submit a job, and wait until it has written to its table."""
    output = scratch / f"{TABLES[engine]}.log"
    with output.open("w") as log, subprocess.Popen(run, stdout=log, stderr=log) as job:
        try:
            while not _answers(database, engine):
                if job.poll() is not None:
                    raise RuntimeError(f"the job has ended: {output.read_text()[-2000:]}")
                time.sleep(1)
            number = running.newest_job()["jid"]
            yield
            call("cancel", number, f"--run={running.folder}")
        finally:
            job.kill()


def measure(scratch: Path, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the jobs, and break one thing after the other."""
    os.environ["PGPASSWORD"] = PASSWORD
    database, kafka, disk = PostgresServer(), scratch / "kafka", scratch / "disk"
    clock = Clock(scratch)
    with ExitStack() as stack:
        stack.callback(database.remove)
        broker = broker_script("start", kafka)
        stack.callback(broker_script, "stop", kafka)
        small = stack.enter_context(small_disk(disk))
        proxy = Proxy(database.port)
        size = ("--slots=2", "--task-manager-memory=2g")
        running = stack.enter_context(cluster(scratch / "cluster", job_server_jar(), *size, more=clock.environment))
        admin = AdminClient({"bootstrap.servers": broker})  # ends what it has begun when it goes
        admin.create_topics([NewTopic("events", 2)])["events"].result(30)
        database.ask(PLAIN_TABLE)
        start = int(time.time()) // WINDOW * WINDOW
        events = Events(broker, "events", scratch / "events.jsonl")
        events.start()
        url = database.url("counts").replace(f":{database.port}/", f":{proxy.port}/")
        (disk / "rows").mkdir()
        options = [
            one for one in running.options("--unbounded", "--parallelism=2") if "checkpointing_interval" not in one
        ]
        more = [f"--output={url}", f"--copy={disk / 'rows'}", *options, "--checkpointing_interval=2000"]
        runs = {
            PRIVSTREAM: command(scratch, f"kafka://{broker}/events", start, *more),
            FLINK_SQL: plain_command(running, broker, f"{HOST}:{proxy.port}"),
        }
        delays = {}
        for engine, run in runs.items():
            stack.enter_context(submitted(scratch, running, database, engine, run))
            delays[engine] = Delay(database, TABLES[engine], start)
            delays[engine].start()
        for delay in delays.values():
            delay.caught_up(time.time(), 2.0 * WINDOW)
        began = time.time()
        time.sleep(chosen.seconds)
        usual = {engine: delay.most(began) for engine, delay in delays.items()}
        seen = [(engine, "nothing", 0.0, usual[engine], (0.0, time.time())) for engine in runs]
        for fault in faults(running, kafka, database, proxy, clock, disk if small else None, chosen.away):
            if not any(word in fault.name for word in chosen.only):
                continue
            since = time.time()
            fault.happen()
            for engine in fault.engines:
                seconds = delays[engine].caught_up(since, usual[engine])
                span = (since, time.time())
                seen.append((engine, fault.name, seconds, delays[engine].most(since), span))
                print(seen[-1], flush=True)
        events.ended.set()
        events.join()
        found = {engine: rows_of(database, engine) for engine in runs}
        right = {PRIVSTREAM: expected(scratch, start), FLINK_SQL: plain_counts(scratch)}
        for engine, name, seconds, most, (since, until) in seen:
            newest = max(row[0] for row in found[engine])

            def touched(
                rows: Iterable[tuple[Any, ...]], first: float = since, last: float = min(until, newest)
            ) -> set[tuple[Any, ...]]:
                return {row for row in rows if first - WINDOW - LATENESS <= row[0] <= last}

            ours, theirs = touched(found[engine]), touched(right[engine])
            yield {
                "engine": engine,
                "fault": name,
                "most_behind_seconds": round(most, 1),
                "caught_up_seconds": seconds,
                "rows": len(theirs),
                "different_rows": len(theirs - ours),
                "further_rows": len(ours) - len(theirs),
                "load_average": load_average(),
            }


def _answers(database: PostgresServer, engine: str) -> bool:
    with suppress(Exception):
        return bool(rows_of(database, engine))
    return False


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=40, help="for which nothing happens at first")
    arguments.add_argument("--away", type=int, default=10, help="seconds for which broker and database are away")
    arguments.add_argument("--only", nargs="+", default=[""], help="faults that have one of these words in their name")
    options = arguments.parse_args()
    if options.quick:
        options.seconds, options.away = 10, 2
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        rows = list(measure(Path(name), options))
    write_csv(results_folder(options) / "flink_live_faults.csv", rows)
    print_table("faults of a running job", rows)


if __name__ == "__main__":
    main()
