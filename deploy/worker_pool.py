"""Serves Python workers to a cluster on this machine (environment type EXTERNAL), on loopback only.

Beam's own `worker_pool_main` listens on every interface and hands each worker a pipe that nobody reads, which stops a
worker that prints much. It also goes by the worker's number, which each task manager counts for itself, and so ends the
workers of others. Workers started here run this Python, so the pipeline's packages must be installed in it.
"""

import argparse
import logging
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
SdkHarness(sys.argv[1], worker_id=sys.argv[2], state_cache_size=int(sys.argv[3])).run()
"""
STOP_SECONDS = 10
BIRTH_SECONDS = 30  # a worker that dies younger may not have reached the cluster, which would wait for it for ever
BIRTHS = 5


class Worker:
    """A worker process, started again if it dies before the cluster can have heard of it.

    One that dies later is left to the cluster, which sees its connection end, restarts the job and asks for a new one.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        self._name, self._command = name, command
        self._lock = threading.Lock()
        self._stopped = False
        self._start()
        threading.Thread(target=self._attend, daemon=True).start()

    def stop(self) -> None:
        """End the process, kindly and then by force."""
        with self._lock:
            self._stopped = True
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _start(self) -> None:
        self._born = time.monotonic()
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)

    def _attend(self) -> None:
        """Wait for the end, and start again what died young."""
        for birth in range(1, BIRTHS + 1):
            code = self._process.wait()
            with self._lock:
                again = code != 0 and not self._stopped and time.monotonic() - self._born < BIRTH_SECONDS
                again = again and birth < BIRTHS
                logging.info("%s ended with code %d%s", self._name, code, ", starting again" if again else "")
                if not again:
                    return
                self._start()


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts one worker process per request and ends it when the same client asks, if it has not ended by itself."""

    def __init__(self, state_cache_bytes: int, program: str = WORKER) -> None:
        self._state_cache_bytes, self._program = state_cache_bytes, program
        self._workers: dict[tuple[str, str], Worker] = {}  # by client and worker id

    def StartWorker(self, request, context):  # noqa: N802 (the protocol's name)
        """Start a worker for the cluster's control endpoint; its output goes to this process's output."""
        control = request.control_endpoint.url
        logging.info("Starting worker %s for %s", request.worker_id, control)
        command = [sys.executable, "-c", self._program, control, request.worker_id, str(self._state_cache_bytes)]
        worker = Worker(f"Worker {request.worker_id} for {control}", command)
        self._workers[context.peer(), request.worker_id] = worker
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request, context):  # noqa: N802 (the protocol's name)
        """End a worker."""
        worker = self._workers.pop((context.peer(), request.worker_id), None)
        if worker is not None:
            worker.stop()
        return beam_fn_api_pb2.StopWorkerResponse()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--state_cache_bytes", type=int, default=100 << 20, help="per worker; 0 asks the runner each time"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    server = grpc.server(futures.ThreadPoolExecutor())
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(WorkerPool(arguments.state_cache_bytes), server)
    server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
