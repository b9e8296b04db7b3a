"""Workers inside the command, for Prism and for Flink inside its job server: they listen on loopback alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker import worker_pool_main
from apache_beam.utils import thread_pool_executor

HOST = "127.0.0.1"
PINGS = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]


class LoopbackWorkers(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    """Beam's pool of workers for environment type LOOPBACK, which by itself listens on every interface."""

    @classmethod
    def start(
        cls,
        use_process: bool = False,
        port: int = 0,
        state_cache_size: int = 0,
        data_buffer_time_limit_ms: int = -1,
        container_executable: str | None = None,
    ) -> tuple[str, grpc.Server]:
        """Start to listen, on loopback; return the address and the server."""
        server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=PINGS)
        bound = server.add_insecure_port(f"{HOST}:{port}")
        pool = cls(use_process, container_executable, state_cache_size, data_buffer_time_limit_ms)
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
        server.start()
        return f"{HOST}:{bound}", server


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let pipelines that are started meanwhile have workers that listen on loopback alone."""
    module: Any = worker_pool_main  # its class is replaced, which mypy refuses
    theirs = module.BeamFnExternalWorkerPoolServicer
    module.BeamFnExternalWorkerPoolServicer = LoopbackWorkers
    try:
        yield
    finally:
        module.BeamFnExternalWorkerPoolServicer = theirs
