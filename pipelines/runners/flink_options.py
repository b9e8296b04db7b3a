"""Options of Beam's Flink runner that its Python side does not know by itself: checkpoints, savepoints, bundles."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

CHECKPOINT_TIMEOUT_MILLIS = 120_000
"""A checkpoint that hangs restarts the job after so long; Flink's own default is ten minutes."""

CHECKPOINT_PAUSE_MILLIS = 1_000
"""Where checkpoints take longer than their interval, Flink begins the next one at once. It may overtake the notice that
the last one is complete; an incremental checkpoint of RocksDB then refers to files that are deleted by now ("Attempt to
reference unknown state" in the job manager's log), and hangs."""

BUNDLE_MILLIS = 100
"""A step passes the watermark on when its bundle ends. Beam's own default, a second, adds up over some ten steps."""


class FlinkJobOptions(PipelineOptions):
    """What the Flink runner takes beside `--flink_master` and `--parallelism`; other runners ignore it."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        """Add the options, under the names that the job server gives them."""
        parser.add_argument(
            "--checkpointing_interval", type=int, help="milliseconds between two checkpoints; needs --streaming"
        )
        parser.add_argument(
            "--finish_bundle_before_checkpointing",
            default=False,
            action="store_true",
            help="always on with checkpoints: without it events are lost as late",
        )
        parser.add_argument(
            "--operator_chaining",
            choices=["true", "false"],
            help="false with checkpoints, unless given: a savepoint then fits any parallelism",
        )
        for name in ("externalized_checkpoints_enabled", "retain_externalized_checkpoints_on_cancellation"):
            parser.add_argument(
                f"--{name}",
                default=False,
                action="store_true",
                help="always on with checkpoints: the last one stays when a job is cancelled",
            )
        parser.add_argument(
            "--checkpoint_timeout_millis",
            type=int,
            help=f"a checkpoint that takes longer restarts the job (default here: {CHECKPOINT_TIMEOUT_MILLIS})",
        )
        parser.add_argument(
            "--min_pause_between_checkpoints",
            type=int,
            help=f"milliseconds from the end of one to the next (default here: {CHECKPOINT_PAUSE_MILLIS})",
        )
        parser.add_argument("--savepoint_path", help="folder of the savepoint or checkpoint to go on from")
        parser.add_argument(
            "--allow_non_restored_state",
            default=False,
            action="store_true",
            help="go on also if the savepoint has state of steps that no longer exist",
        )
        parser.add_argument(
            "--shutdown_sources_after_idle_ms",
            type=int,
            help="lets a bounded run with checkpoints end; no checkpoint is taken from then on",
        )
        parser.add_argument("--max_bundle_size", type=int, help="elements that are handled together at most")
        parser.add_argument(
            "--max_bundle_time_mills",
            type=int,
            help=f"milliseconds for which a bundle waits at most (default here with checkpoints: {BUNDLE_MILLIS})",
        )


def prepare_for_checkpoints(options: PipelineOptions) -> None:
    """Turn on what makes checkpoints lose nothing, outlive their job, and fit another parallelism, and short bundles.

    Otherwise a bundle that a checkpoint cuts short keeps its output back until the next bundle begins, while the
    watermark goes on: events become late, or wait for ever. And steps that Flink chains, which depends on parallelism,
    go by other names in a savepoint.
    """
    flink = options.view_as(FlinkJobOptions)
    if flink.checkpointing_interval is not None:
        flink.finish_bundle_before_checkpointing = True
        flink.externalized_checkpoints_enabled = True
        flink.retain_externalized_checkpoints_on_cancellation = True
        flink.checkpoint_timeout_millis = flink.checkpoint_timeout_millis or CHECKPOINT_TIMEOUT_MILLIS
        if flink.min_pause_between_checkpoints is None:
            flink.min_pause_between_checkpoints = CHECKPOINT_PAUSE_MILLIS
        if flink.max_bundle_time_mills is None:
            flink.max_bundle_time_mills = BUNDLE_MILLIS
        flink.operator_chaining = flink.operator_chaining or "false"
