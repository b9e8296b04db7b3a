"""Twenty renewal periods on a cluster: checkpoints stop growing, and nothing of a period is in the next one."""

from __future__ import annotations

import pytest
from flink_cluster_jobs import Cluster
from paced_stream import LASTING, START, WINDOW, Stream, dead, kept
from runner_harness import require

PERIODS, WINDOWS = 20, 2
SHOWN = range(2, PERIODS, 4)
"""Periods after which sizes of checkpoints are compared."""

SUSPENDED = 14.5
"""Windows until a savepoint is taken: half of them are behind the boundary of a period."""


def test_periods(tmp_path_factory):
    import time
    t=time.time()
    require("flink")
    stream = Stream(tmp_path_factory.mktemp("stream"), windows=PERIODS * WINDOWS, renewal=WINDOWS)
    cluster = Cluster.start(tmp_path_factory.mktemp("cluster") / "run")
    print("cluster", time.time()-t)
    stream.release(0)
    job = cluster.submit(stream)
    print("submitted", time.time()-t)
    print([v["name"] for v in cluster.jobs.rest(f"/jobs/{job.number}")["vertices"]])
    for period in range(1, PERIODS + 1):
        stream.release(period * WINDOWS)
        job.wait_for_windows(period * WINDOWS)
        print("windows", period, time.time()-t)
        if period % 2 == 0:
            job.wait_for_checkpoint()
            print("checkpoint", time.time()-t, {m: job.state_bytes(m) for m in ("Hitters clock", "Hitters status", "Hitters lasting", "")})
    rows = kept(stream.folder)
    cluster.call("stop")
    print(len(rows), dead(stream.folder)[:2])
    for m in stream.methods:
        print(m, [(str(r.window_start)[-12:], r.status, r.count, r.since[-12:]) for of, r in rows if of == m and r.item == "favourite"][:10])
