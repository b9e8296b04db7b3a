"""Which runners let windows be decided while the input is still being read."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner


def moves_watermarks(pipeline: beam.Pipeline) -> bool:
    """Tell whether the watermark of a bounded input goes through a pipeline step by step.

    FnApiRunner, and Flink in batch mode, end one stage before the next begins: there is one watermark, the last.
    """
    if isinstance(pipeline.runner, PrismRunner):
        return True
    return isinstance(pipeline.runner, PortableRunner) and bool(pipeline.options.view_as(StandardOptions).streaming)
