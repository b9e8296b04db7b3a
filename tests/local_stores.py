"""Servers on this machine of the stores that Beam's filesystems reach: S3, Google Cloud Storage and HDFS.

Each is a context in which this process reaches the server as a user's would, and gives a `Store`.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
import requests

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
START_SECONDS = 60
SECRET = "xyzzy of nobody"

sys.path.insert(0, str(ROOT / "deploy"))
from maven_jars import JarsError, fetch_jars  # noqa: E402


class Files(Protocol):
    """What is in a store, by the names of buckets or folders and files."""

    def put(self, name: str, content: bytes) -> None: ...

    def read(self, name: str) -> bytes: ...

    def names(self) -> list[str]: ...

    def make_bucket(self) -> None: ...

    def remove_bucket(self) -> None: ...


class Store(NamedTuple):
    """A store with a bucket, or folder, `events`."""

    scheme: str
    files: Files
    options: list[str]
    """With which a command reaches it."""

    @property
    def root(self) -> str:
        return f"{self.scheme}://events"


class S3Files:
    def __init__(self) -> None:
        self.client = pytest.importorskip("boto3").client("s3")

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket="events", Key=name, Body=content)

    def read(self, name: str) -> bytes:
        return self.client.get_object(Bucket="events", Key=name)["Body"].read()

    def names(self) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket="events").get("Contents", [])]

    def make_bucket(self) -> None:
        self.client.create_bucket(Bucket="events")

    def remove_bucket(self) -> None:
        for name in self.names():
            self.client.delete_object(Bucket="events", Key=name)
        self.client.delete_bucket(Bucket="events")


class GoogleFiles:
    def __init__(self) -> None:
        storage = pytest.importorskip("google.cloud.storage")
        self.bucket = storage.Client.create_anonymous_client().bucket("events")

    def put(self, name: str, content: bytes) -> None:
        self.bucket.blob(name).upload_from_string(content)

    def read(self, name: str) -> bytes:
        return self.bucket.blob(name).download_as_bytes()

    def names(self) -> list[str]:
        return [blob.name for blob in self.bucket.list_blobs()]

    def make_bucket(self) -> None:
        self.bucket.create()

    def remove_bucket(self) -> None:
        self.bucket.delete(force=True)


class HadoopFiles:
    def __init__(self, port: int) -> None:
        self.client = pytest.importorskip("hdfs").InsecureClient(f"http://{HOST}:{port}", user="somebody")

    def put(self, name: str, content: bytes) -> None:
        self.client.write(f"/events/{name}", content, overwrite=True)

    def read(self, name: str) -> bytes:
        with self.client.read(f"/events/{name}") as stream:
            return stream.read()

    def names(self) -> list[str]:
        found = self.client.walk("/events")
        return sorted(f"{folder}/{name}".removeprefix("/events/") for folder, _, files in found for name in files)

    def make_bucket(self) -> None:
        self.client.makedirs("/events")

    def remove_bucket(self) -> None:
        self.client.delete("/events", recursive=True)


@contextmanager
def s3_server(folder: Path) -> Iterator[Store]:
    """A server of S3 in this process; its address and key are in the environment."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    started = moto.ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    started.start()
    given = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*started.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        shared = boto3.session.Session()  # each one reads what all services are, and Beam makes one for each call
        patch.setattr(boto3.session, "Session", lambda: shared)
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        yield Store("s3", S3Files(), [])
    started.stop()


@contextmanager
def google_server(folder: Path) -> Iterator[Store]:
    """A server of Google Cloud Storage in a process of its own, which asks nobody who they are.

    In this process it could wait for itself: a broken upload that is thrown away on one of its threads is sent again.
    """
    pytest.importorskip("gcp_storage_emulator")
    auth, nobody = pytest.importorskip("google.auth"), pytest.importorskip("google.auth.credentials")
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", f"--host={HOST}", f"--port={port}", "--in-memory"]
    with running(command, folder, lambda: bool(get(port, "/"))), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{HOST}:{port}")
        patch.setattr(auth, "default", lambda **_: (nobody.AnonymousCredentials(), None))
        yield Store("gs", GoogleFiles(), [])


@contextmanager
def hadoop_server(folder: Path) -> Iterator[Store]:
    """A NameNode and a DataNode of Hadoop in one process, which speak WebHDFS on loopback."""
    pytest.importorskip("hdfs")
    try:
        jars = fetch_jars(ROOT / "tests" / "hadoop" / "pom.xml", ROOT / ".cache" / "hadoop" / "lib", "Hadoop (90 MB)")
    except JarsError as error:
        (pytest.fail if os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS") else pytest.skip)(str(error))
    port = free_port()
    command = ["java", "-Xmx256m", f"-Dtest.build.data={folder}", "-cp", f"{jars}/*"]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-httpport", str(port)]
    command += ["-D", "dfs.permissions.enabled=false"]

    def takes_files() -> bool:
        state = json.loads(get(port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState") or "{}").get("beans")
        return bool(state) and state[0]["NumLiveDataNodes"] == 1 and state[0]["FSState"] == "Operational"

    with running(command, folder, takes_files):
        options = [f"--hdfs_host={HOST}", f"--hdfs_port={port}", "--hdfs_user=somebody"]
        yield Store("hdfs", HadoopFiles(port), options)


@contextmanager
def running(command: list[str], folder: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """Let a server run in a folder from when it is ready to the end of the block."""
    output = folder / "server.out"
    with output.open("wb") as out:
        started = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if time.monotonic() > deadline or started.poll() is not None:
                pytest.fail(f"{command[0]} did not start: {output.read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        started.kill()
        started.wait()


def get(port: int, path: str) -> bytes:
    """Return what a server on loopback answers; nothing while it does not."""
    try:
        return requests.get(f"http://{HOST}:{port}{path}", timeout=5).content
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
