"""Which runner keeps time: refused are those whose clocks run ahead of other timers."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, SwitchingDirectRunner
from apache_beam.runners.direct.direct_userstate import DirectRuntimeState
from apache_beam.testing.test_stream import TestStream
from typing_extensions import override

RULE = (
    "runner must not be BundleBasedDirectRunner: its clocks run ahead of its other timers, so that events would not "
    "count. DirectRunner takes it for a TestStream and for processing-time timers: name PrismRunner"
)


class _FindTestStream(PipelineVisitor):
    """Tells whether a pipeline has a TestStream so far."""

    found = False

    @override
    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.found = self.found or isinstance(transform_node.transform, TestStream)


def check_runner(pipeline: beam.Pipeline) -> None:
    """Refuse the runner when a pipeline is built, as far as one can see by then.

    Raises:
        ValueError: with the rule, and what to do.
    """
    refused = isinstance(pipeline.runner, BundleBasedDirectRunner)
    if isinstance(pipeline.runner, SwitchingDirectRunner):
        visitor = _FindTestStream()
        pipeline.visit(visitor)
        refused = visitor.found
    if refused:
        raise ValueError(RULE)


def check_state(state: Any) -> None:
    """Refuse the runner when a stage runs: what is added to a pipeline later may have made Beam choose it.

    Args:
        state: a state of the stage, as the runner hands it over.
    """
    if isinstance(state, DirectRuntimeState):
        raise ValueError(RULE)
