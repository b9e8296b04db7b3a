"""Gives the tests of this folder a Flink cluster, a Kafka broker and a PostgreSQL server."""

import os
import subprocess

import pytest


def missing(reason: str):
    """Skip a test, or fail it where all servers must be there."""
    (pytest.fail if os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """A broker that runs."""
    import kafka_broker  # noqa: PLC0415

    try:
        started = kafka_broker.Broker(tmp_path_factory.mktemp("broker"))
        started.start()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        missing(f"no broker: {error}")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def broker(kafka):
    return kafka.address


@pytest.fixture(scope="session")
def flink_cluster(tmp_path_factory):
    """The cluster on which all tests run their jobs, one after the other; a test ends the jobs that it leaves."""
    import flink_cluster_jobs  # noqa: PLC0415 - takes Beam, which few tests of a run may need
    import runner_harness  # noqa: PLC0415

    runner_harness.require("flink")
    cluster = flink_cluster_jobs.Cluster.start(tmp_path_factory.mktemp("cluster") / "run")
    yield cluster
    assert cluster.call("stop").count(": stopped") == len(flink_cluster_jobs.PROCESSES)


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL server, whose password is in the environment."""
    made = pytest.importorskip("postgres_server")
    if made.program("initdb") is None:
        missing("no PostgreSQL: apt-get install postgresql")
    started = made.PostgresServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", made.PASSWORD)
        yield started
    started.remove()
