"""Flink SQL on one core, without privacy: a Table API job in a process of its own, with Flink's cluster inside of it.

Tuned as its documentation advises: windows by TUMBLE, two phases of aggregation, split distinct aggregation,
mini-batches of 50,000 rows, state on the heap, and Java's second compiler, which pays from some million events on.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _flink import DEPLOY

sys.path.insert(0, str(DEPLOY))
SOURCES = Path(__file__).with_name("flink_sql")
CACHE = Path(__file__).parents[1] / ".cache" / "flink-sql"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
SETTINGS = {
    "execution.target": "local",
    "parallelism.default": "1",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.memory.managed.size": "1g",  # of batch jobs, which spill beyond
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "5 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
EVENTS = """CREATE TABLE events (`user` STRING, item STRING, `time` TIMESTAMP(3), WATERMARK FOR `time` AS `time`) WITH (
    'connector' = 'filesystem', 'path' = 'file://{}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')"""
COUNTS = """CREATE TABLE counts (window_start TIMESTAMP(3), item STRING, people BIGINT) WITH (
    'connector' = 'filesystem', 'path' = 'file://{}', 'format' = 'csv')"""
WINDOWS = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(`time`), INTERVAL '1' HOUR))"
QUERIES = {
    "counts": f"""
        INSERT INTO counts SELECT window_start, item, COUNT(DISTINCT `user`) FROM {WINDOWS}
        GROUP BY window_start, window_end, item""",
    "last item": f"""
        INSERT INTO counts SELECT window_start, item, COUNT(*) FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, `user` ORDER BY `time` DESC) AS place
            FROM {WINDOWS}) WHERE place = 1
        GROUP BY window_start, window_end, item""",
}


def missing() -> str | None:
    """Return what this machine lacks for it, or None."""
    lacking = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
    return f"{' and '.join(lacking)} not found" if lacking else None


def command(
    mode: str, question: str, events: str, output: str, others: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return the command that runs a query in the mode `streaming` or `batch`; `output` becomes a folder.

    With other settings it may run on a cluster.
    """
    statements = [EVENTS.format(events), COUNTS.format(output), QUERIES[question]]
    return statements_command(statements, {"execution.runtime-mode": mode} | others)


def statements_command(statements: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the command that runs statements and waits for the last one.

    A cluster gets what it needs to read Parquet and Kafka, and to write into a database.
    """
    from flink_distribution import JAVA_OPTIONS  # noqa: PLC0415

    classes = _classpath()
    jars = ";".join(jar.as_uri() for jar in sorted((CACHE / "lib").glob("*.jar")))
    remote = {"pipeline.jars": jars} if settings.get("execution.target") == "remote" else {}
    java = [option for option in JAVA_OPTIONS if not option.startswith("-XX:")]
    given = [f"{name}={value}" for name, value in (SETTINGS | remote | settings).items()]
    return ["java", "-Xmx4g", *java, "-cp", classes, "FlinkSql", *given, "--", *statements]


def _classpath() -> str:
    """Return Flink's jars, those of formats and connectors, and the job; what is not there is fetched and compiled."""
    from flink_distribution import install  # noqa: PLC0415

    flink = f"{install()}/lib/*"
    made, asked = CACHE / "FlinkSql.class", SOURCES / "pom.xml"
    if not made.exists() or made.stat().st_mtime < asked.stat().st_mtime:
        _run("mvn", "-B", "-q", "--strict-checksums", "-f", asked, COPY, f"-DoutputDirectory={CACHE}/lib")
        _run("javac", "-cp", flink, "-d", CACHE, SOURCES / "FlinkSql.java")
    return f"{CACHE}:{flink}:{CACHE}/lib/*"


def _run(*arguments: Any) -> None:
    subprocess.run([str(argument) for argument in arguments], check=True, stdout=sys.stderr)
