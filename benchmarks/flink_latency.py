"""From the decision of a window to its file: heavy hitters on a Flink cluster of this machine, with checkpoints.

Usage: python benchmarks/flink_latency.py [--quick] [--seconds 120] [--checkpoints 10 2]

Events of the last second come once a second, as a file that gets its name or as records of a Kafka topic; windows have
five seconds and are decided three seconds after their end. The latency of a window is the time of its file less that of
its decision; the first windows, while the workers start, are left out.

Needs Java; Flink, the job server and Kafka are fetched on first use. Writes flink_latency.csv to benchmarks/results.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _flink import RunningCluster, cluster, job_server_jar, meanwhile
from _report import load_average, parser, print_table, results_folder, write_csv
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.append(str(Path(__file__).parents[1] / "tests" / "runners"))
from kafka_broker import Broker

WINDOW, LATENESS = 5, 3
EVENTS = 2_000  # a second
WARM_SECONDS = 45
MICROS = 1_000_000


def events(now: float, chance: np.random.Generator, number: int = EVENTS) -> pa.Table:
    """Return so many events of the last second."""
    users = [f"user {person}" for person in chance.integers(0, 3_000, number)]
    items = [f"item {item}" for item in (40 * chance.random(number) ** 3).astype(int)]
    times = ((now - chance.random(number)) * MICROS).astype("int64")
    return pa.table({"user": users, "item": items, "time": pa.array(times, pa.timestamp("us", tz="UTC"))})


def into_folder(folder: Path) -> Callable[[pa.Table], None]:
    """Return what lets a file appear whole."""
    folder.mkdir(parents=True)

    def send(table: pa.Table) -> None:
        pq.write_table(table, folder.with_suffix(".parquet"))
        os.rename(folder.with_suffix(".parquet"), folder / f"{time.time_ns()}.parquet")

    return send


def into_topic(broker: str, name: str) -> Callable[[pa.Table], None]:
    """Return what sends records."""
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    producer = Producer({"bootstrap.servers": broker})

    def send(table: pa.Table) -> None:
        for line in table.to_pandas().to_json(orient="records", lines=True, date_format="iso").splitlines():
            producer.produce(name, line.encode())
        producer.flush()

    return send


@contextmanager
def every_second(send: Callable[[pa.Table], None]) -> Iterator[None]:
    """Send events once a second, meanwhile."""
    chance = np.random.default_rng(1)

    def work(ended: threading.Event) -> None:
        while not ended.is_set():
            now = time.time()
            send(events(now, chance))
            ended.wait(max(0.0, now + 1 - time.time()))

    with meanwhile(work):
        yield


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a Kafka broker; give its address."""
    folder.mkdir()
    running = Broker(folder)
    running.start()
    try:
        yield running.address
    finally:
        running.stop()


def measure(
    running: RunningCluster, source: str, interval: int, seconds: int, scratch: Path, *reading: str
) -> dict[str, Any]:
    """Run a job for a while; reading is how it gets its input."""
    output = Path(tempfile.mkdtemp(dir=scratch))
    key = scratch / "noise.key"
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    start = int(time.time()) // WINDOW * WINDOW
    command = ["privstream", "heavy-hitters", *reading, f"--output={output}", f"--key={key}"]
    command += ["--epsilon=2", "--delta=1e-6", "--max_hits=64", "--max_per_window=2", "--method=clock"]
    command += [f"--window={WINDOW}", f"--allowed_lateness={LATENESS}", "--renew_every=1h", "--ledger=none"]
    command += [f"--start={datetime.fromtimestamp(start, UTC).isoformat()}", f"--run_id={source} {start}"]
    options = [option for option in running.options("--unbounded") if "checkpointing_interval" not in option]
    command += [*options, f"--checkpointing_interval={interval * 1000}"]
    with (scratch / "command.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as job:
        time.sleep(WARM_SECONDS)
        warm, before = time.time(), running.cpu_seconds()
        time.sleep(seconds)
        spent = running.cpu_seconds() - before
        running.cancel(running.newest_job()["jid"])
        job.wait()
    latencies = []
    for file in output.glob("*_*.jsonl"):
        end = datetime.strptime(file.stem.split("_")[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if end + LATENESS > warm:
            latencies.append(file.stat().st_mtime - end - LATENESS)
    low, median, high = np.quantile(latencies, [0.1, 0.5, 0.9])
    return {
        "source": source,
        "checkpoint_seconds": interval,
        "windows": len(latencies),
        "median_seconds": round(median, 2),
        "tenth_seconds": round(low, 2),
        "nine_tenths_seconds": round(high, 2),
        "cpu_seconds_per_second": round(spent / seconds, 2),
        "load_average": load_average(),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=int, default=120, help="for which each job is measured")
    arguments.add_argument("--checkpoints", type=int, nargs="+", default=[10, 2], help="seconds between two")
    options = arguments.parse_args()
    if options.quick:
        options.seconds, options.checkpoints = 20, [2]
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        scratch = Path(name)
        folder = scratch / "in"
        with (
            cluster(scratch / "cluster", job_server_jar()) as running,
            broker(scratch / "kafka") as address,
        ):
            for interval in options.checkpoints:
                topic = f"events-{interval}"
                for source, send, reading in (
                    (
                        "folder",
                        into_folder(folder / str(interval)),
                        [f"--input={folder / str(interval)}", "--watch=0.5"],
                    ),
                    ("Kafka", into_topic(address, topic), [f"--input=kafka://{address}/{topic}"]),
                ):
                    with every_second(send):
                        time.sleep(2)
                        rows.append(measure(running, source, interval, options.seconds, scratch, *reading))
                    print(rows[-1], flush=True)
    write_csv(results_folder(options) / "flink_latency.csv", rows)
    print_table("from decision to file", rows)


if __name__ == "__main__":
    main()
