"""Who does what the pages about Flink and Kafka say gets rows: every line of theirs is run, with shorter windows."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner_harness
from flink_cluster_jobs import Cluster

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how_to"
SECONDS = 150
SHORTER = {"--window 1m": "--window 2s", "--allowed_lateness 30s": "--allowed_lateness 2s"}
TOPICS = f"""#!{sys.executable}
import argparse
from confluent_kafka.admin import AdminClient, NewTopic

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--bootstrap-server", required=True)
parser.add_argument("--create", action="store_true", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--config", default="message.timestamp.type=LogAppendTime")
given = parser.parse_args()
topic = NewTopic(given.topic, 2, 1, config=dict([given.config.split("=")]))
client = AdminClient({{"bootstrap.servers": given.bootstrap_server}})
client.create_topics([topic])[given.topic].result(30)
"""
"""In the place of Kafka's own tool, which is not among the libraries of its broker."""


class Reader:
    """Somebody who runs the blocks of a page in a folder; what has to be another here is replaced in every line."""

    def __init__(self, page: str, folder: Path, others: dict[str, str]) -> None:
        text = (PAGES / page).read_text("utf-8")
        for shown, here in {**SHORTER, **others, "deploy/": f"{ROOT}/deploy/"}.items():
            assert shown in text, f"{page} no longer has {shown!r}"
            text = text.replace(shown, here)
        self.blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        self.folder = folder
        python = Path(sys.executable)
        self.environment = {**os.environ, "PATH": f"{folder}:{python.parent}:{os.environ['PATH']}"}
        (folder / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (folder / "privstream").write_text(
            f"#!{python}\nimport sys\nfrom privstream.pipelines.cli import main\nsys.exit(main())\n"
        )
        for program in (folder / "python", folder / "privstream"):
            program.chmod(0o755)

    def run(self, block: int) -> None:
        """Run a block; all of its lines must succeed."""
        subprocess.run(["bash", "-ec", self.blocks[block]], check=True, cwd=self.folder, env=self.environment)

    @contextlib.contextmanager
    def running(self, block: int) -> Iterator[subprocess.Popen]:
        """Run a block that goes on until it is ended."""
        command = ["bash", "-ec", self.blocks[block]]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def searches(second: int) -> list[str]:
    """Searches of a second: one item is in all of them."""
    return [json.dumps({"user": f"{second} {user}", "item": "rain", "time": time.time()}) for user in range(1000)]


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_the_page_about_flink_gives_rows(flink_cluster: Cluster, tmp_path: Path) -> None:
    """The cluster is one that other tests use too, and so is neither started nor stopped here, only looked at."""
    others = {"/tmp/": f"{tmp_path}/", "cluster.py start": "cluster.py status", "cluster.py stop": "cluster.py status"}
    reader = Reader("flink.md", tmp_path, others)
    of_this_test = rf"\1 --run={flink_cluster.run}"
    reader.blocks = [re.sub(r"(deploy/flink_cluster\.py \w+)", of_this_test, block) for block in reader.blocks]
    try:
        reader.run(0)  # in three places
        rows = {place: (tmp_path / f"{place}.jsonl").read_text() for place in ("here", "local", "cluster")}
        assert len(rows["here"].splitlines()) > 3 and len(set(rows.values())) == 1
        with reader.running(1) as process:
            deadline, sent = time.monotonic() + SECONDS, 0
            while not any(file.stat().st_size for file in (tmp_path / "windows").glob("*_*.jsonl")):
                assert process.poll() is None and time.monotonic() < deadline
                if (tmp_path / "incoming").is_dir():
                    (tmp_path / "new").write_text("\n".join(searches(sent)) + "\n")
                    (tmp_path / "new").rename(tmp_path / "incoming" / f"{sent}.jsonl")
                    sent += 1
                time.sleep(0.5)
    finally:
        flink_cluster.cancel_all()


@pytest.mark.slow
@pytest.mark.prism
def test_the_page_about_kafka_gives_rows(tmp_path: Path) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    runner_harness.require("prism")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    others = {"broker.py start --port 9092": f"broker.py start --run={tmp_path}/run --port {port}"}
    reader = Reader("kafka.md", tmp_path, others | {"127.0.0.1:9092": address})
    (tmp_path / "kafka-topics").write_text(TOPICS)
    (tmp_path / "kafka-topics").chmod(0o755)
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    stop = [sys.executable, f"{ROOT}/deploy/kafka/broker.py", "stop", f"--run={tmp_path}/run"]
    try:
        reader.run(0)
        producer = kafka.Producer({"bootstrap.servers": address})
        settings = {"bootstrap.servers": address, "group.id": "reader", "auto.offset.reset": "earliest"}
        consumer = kafka.Consumer(settings)
        consumer.subscribe(["trends"])
        with reader.running(1) as process:
            deadline, sent, found = time.monotonic() + SECONDS, 0, None
            while found is None:
                assert process.poll() is None and time.monotonic() < deadline
                for line in searches(sent):
                    producer.produce("searches", line.encode())
                producer.flush()
                sent += 1
                message = consumer.poll(1)
                found = message if message is not None and message.error() is None else None
        consumer.close()
        assert json.loads(found.value())["item"] == "rain"
        assert any(file.stat().st_size for file in (tmp_path / "copy").glob("*_*"))
    finally:
        subprocess.run(stop, check=False, capture_output=True)
