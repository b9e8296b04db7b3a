"""Serves privstream to pipelines in other languages, and runs its workers, on loopback only.

Beam's own `expansion_service_main` listens on every interface, and whoever reaches it can run programs and read files
as its user. Workers started here run this Python, so privstream must be installed in it.
"""

import argparse
import logging
from concurrent import futures

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_expansion_api_pb2_grpc, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.transforms.fully_qualified_named_transform import FullyQualifiedNamedTransform
from worker_pool import WORKER, WorkerPool

NAMES = "privstream.pipelines.yaml.external.*"
STATE_CACHE_BYTES = 100 << 20
# Prism 2.77 has one table per job for the short ids of metrics, and workers of two languages would use the same ids.
OWN_SHORT_IDS = """
import random
from apache_beam.runners.worker import sdk_worker
sdk_worker.SHORT_ID_CACHE._last_short_id = random.getrandbits(62)
"""


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    address = f"127.0.0.1:{parser.parse_args().port}"
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    flags = ["--environment_type=EXTERNAL", f"--environment_config={address}", "--sdk_location=container"]
    options = PipelineOptions([*flags, "--pickle_library=cloudpickle"])
    pool = WorkerPool(STATE_CACHE_BYTES, OWN_SHORT_IDS + WORKER)
    server = grpc.server(futures.ThreadPoolExecutor())
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    beam_expansion_api_pb2_grpc.add_ExpansionServiceServicer_to_server(ExpansionServiceServicer(options), server)
    with FullyQualifiedNamedTransform.with_filter(NAMES):
        server.add_insecure_port(address)
        server.start()
        logging.info("Serving on %s", address)
        server.wait_for_termination()


if __name__ == "__main__":
    main()
