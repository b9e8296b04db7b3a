"""A server of S3 on this machine, which Beam's filesystems reach as a user's would."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

HOST = "127.0.0.1"
SECRET = "xyzzy of nobody"


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


class Store(NamedTuple):
    """A store with a bucket, or folder, `events`."""

    scheme: str
    files: S3Files
    options: list[str]
    """With which a command reaches it."""

    @property
    def root(self) -> str:
        return f"{self.scheme}://events"


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
