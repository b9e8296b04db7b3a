"""A slot that is added while a job runs: how soon is it used, what does the job carry then, and are rows the same?

Usage: python benchmarks/flink_added_slots.py [--quick] [--events 8000000]

Counts of items in windows of five seconds over a topic of Kafka with four partitions, which holds all events before the
job begins. The cluster is adaptive, and has one task manager with one slot, and one core for all of its processes; the
job could use two slots. After `--seconds` it gets another task manager and another core. Rates are those at which
events come in, by the counters of the job, over so many seconds before and after, without the time in between. In the
end the rows are compared with those of one run over all events on one process.

Needs Java and two cores; Flink, the job server and Kafka are fetched on first use. Writes flink_added_slots.csv to
benchmarks/results.
"""

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _flink import RunningCluster, call, cluster, job_server_jar
from _report import load_average, parser, print_table, results_folder, write_csv
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from flink_live_faults import ITEMS, WINDOW, broker_script, command, expected, read_rows

PARTITIONS, MEMORY = 4, "2g"
MOST_SECONDS = 300
READ = re.compile(r"^flink_taskmanager_job_task_operator_privstream_events\{.*\} (\S+)$", re.MULTILINE)


def send(broker: str, kept: Path, number: int) -> None:
    """Fill the topic, and keep the events in a file."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    with kept.open("w") as file:
        for each in range(number):
            item = f"item {min(each % 17, each % ITEMS)}"
            line = json.dumps({"user": f"u{each}", "item": item, "time": round(time.time(), 3)})
            while True:
                try:
                    producer.produce("events", line.encode(), partition=each % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            file.write(f"{line}\n")
            if each % 10_000 == 0:
                producer.poll(0)
    producer.flush()


def events_read(running: RunningCluster) -> int:
    """Return how many events have come in since the last start of the job."""
    ports = json.loads((running.folder / "cluster.json").read_text())["metrics"]
    pages = [f"http://127.0.0.1:{port}/metrics" for name, port in ports.items() if name.startswith("task")]
    texts = [urllib.request.urlopen(page, timeout=10).read().decode() for page in pages]
    return int(sum(float(found) for text in texts for found in READ.findall(text)))


def rate(running: RunningCluster, seconds: float) -> int:
    """Return the events that come in within a second."""
    before, began = events_read(running), time.monotonic()
    time.sleep(seconds)
    return round((events_read(running) - before) / (time.monotonic() - began))


def slots_used(running: RunningCluster, job: str) -> int:
    """Return in how many slots a job runs; none while it does not."""
    vertices = running.rest(f"/jobs/{job}")["vertices"]
    runs = all(each["status"] == "RUNNING" for each in vertices)
    return max(each["parallelism"] for each in vertices) if vertices and runs else 0


def wait_for(condition: Any, what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {MOST_SECONDS} s in vain for {what}")
        time.sleep(0.5)


def rows_in(scratch: Path, last: float) -> set[tuple[Any, ...]] | None:
    """Return the rows of all windows, or None before that of the last event has been written."""
    files = sorted((scratch / "rows").glob("[!_.]*.jsonl"))
    found = set().union(*map(read_rows, files))
    return found if found and max(window for window, _, _ in found) + WINDOW > last else None


def measure(scratch: Path, number: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Run the job in one slot, and then in two."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        broker = broker_script("start", scratch / "kafka")
        stack.callback(broker_script, "stop", scratch / "kafka")
        size = ("--adaptive", "--task-managers=1", f"--task-manager-memory={MEMORY}")
        running = stack.enter_context(cluster(scratch / "cluster", job_server_jar(), *size))
        admin = AdminClient({"bootstrap.servers": broker})  # ends what it has begun when it goes
        admin.create_topics([NewTopic("events", PARTITIONS)])["events"].result(30)
        start = int(time.time()) // WINDOW * WINDOW
        send(broker, scratch / "events.jsonl", number)
        last = time.time()
        (scratch / "rows").mkdir()
        options = running.options("--unbounded", "--parallelism=2")
        run = command(scratch, f"kafka://{broker}/events", start, f"--output={scratch / 'rows'}", *options)
        log = stack.enter_context((scratch / "job.log").open("w"))
        job = stack.enter_context(subprocess.Popen(run, stdout=log, stderr=log))
        stack.callback(job.kill)
        wait_for(lambda: running.rest("/jobs/overview")["jobs"], "the job")
        jid = running.newest_job()["jid"]
        wait_for(lambda: slots_used(running, jid) == 1, "the job to run")
        running.use_cores(set(cores[:1]))
        wait_for(lambda: events_read(running), "the first events")
        running.use_cores(set(cores[:1]))  # Python workers have come
        rates = {1: rate(running, seconds)}
        added = time.monotonic()
        call("scale", f"--run={running.folder}", "--task-managers=2")
        wait_for(lambda: slots_used(running, jid) == 2, "the second slot")
        wait_for(lambda: events_read(running), "events in two slots")
        used = time.monotonic() - added
        running.use_cores(set(cores))
        rates[2] = rate(running, seconds)
        wait_for(lambda: rows_in(scratch, last) is not None, "the last window")
        found = rows_in(scratch, last) or set()
        right = {row for row in expected(scratch, start) if row[0] <= max(window for window, _, _ in found)}
        for slots, events in rates.items():
            yield {
                "slots": slots,
                "events_per_second": events,
                "times_one_slot": round(events / rates[1], 2),
                "seconds_until_used": round(used, 1) if slots == 2 else 0.0,
                "rows": len(found),
                "different_rows": len(found ^ right),
                "load_average": load_average(),
            }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--events", type=int, default=8_000_000)
    arguments.add_argument("--seconds", type=float, default=25, help="over which rates are measured")
    options = arguments.parse_args()
    if options.quick:
        options.events, options.seconds = 1_500_000, 5
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        rows = list(measure(Path(name), options.events, options.seconds))
    write_csv(results_folder(options) / "flink_added_slots.csv", rows)
    print_table("a slot that is added", rows)


if __name__ == "__main__":
    main()
