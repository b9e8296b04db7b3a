"""Serves Python workers to a cluster on this machine (environment type EXTERNAL), on loopback only.

Beam's own `worker_pool_main` listens on every interface, hands each worker a pipe that nobody reads, and goes by the
worker's number, which each task manager counts for itself. Workers run this Python: packages must be installed in it.
"""

import argparse
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

WORKER = """
import sys
from apache_beam.runners.worker.sdk_worker import SdkHarness
SdkHarness(sys.argv[1], worker_id=sys.argv[2], state_cache_size=100 << 20).run()
"""
EARLY_SECONDS, MAX_STARTS = 30, 5


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts a process for each request and ends it when the same client asks.

    A worker that exits within 30 s is started again: it may not have reached the cluster, which would wait for ever.
    """

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str], subprocess.Popen[bytes]] = {}  # by client and worker id

    def StartWorker(self, request, context):  # noqa: N802 (the protocol's name)
        """Start a worker for the cluster's control endpoint; its output goes to this process's output."""
        command = [sys.executable, "-c", WORKER, request.control_endpoint.url, request.worker_id]
        threading.Thread(target=self._attend, args=((context.peer(), request.worker_id), command), daemon=True).start()
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request, context):  # noqa: N802
        """End a worker."""
        worker = self._workers.pop((context.peer(), request.worker_id), None)
        if worker is not None:
            worker.terminate()
        return beam_fn_api_pb2.StopWorkerResponse()

    def _attend(self, key: tuple[str, str], command: list[str]) -> None:
        for _ in range(MAX_STARTS):
            born = time.monotonic()
            worker = self._workers[key] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            if not worker.wait() or self._workers.get(key) is not worker or time.monotonic() - born > EARLY_SECONDS:
                return


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    server = grpc.server(futures.ThreadPoolExecutor())
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(WorkerPool(), server)
    server.add_insecure_port(f"127.0.0.1:{parser.parse_args().port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
