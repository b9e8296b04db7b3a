"""Timers that hold back the watermark of what a stage emits at an earlier time than the one at which they fire."""

from __future__ import annotations

from typing import Any

from apache_beam.transforms.userstate import RuntimeTimer, Timer
from apache_beam.utils.timestamp import Timestamp
from apache_beam.version import __version__


def set_timer(timer: Any, fire: Timestamp, *, hold: Timestamp, tag: str) -> None:
    """Set an event-time timer for `fire` that holds the output watermark at `hold` until it has fired.

    Beam's protocol and its portable runners know such timers; Beam's `set` for Python always holds at the time at which
    the timer fires. So the timer is encoded here, the way `set` of `bundle_processor.OutputTimer` does it.
    BundleBasedDirectRunner, the one runner with other timers, holds the watermark for none.

    Raises:
        RuntimeError: Beam writes timers in another way than the release that privstream is pinned to.
    """
    if isinstance(timer, RuntimeTimer):
        timer.set(fire, dynamic_timer_tag=tag)
        return
    try:
        record = Timer(
            user_key=timer._key,
            dynamic_timer_tag=tag,
            windows=(timer._window,),
            clear_bit=False,
            fire_timestamp=fire,
            hold_timestamp=hold,
            paneinfo=timer._paneinfo,
        )
        timer._timer_coder_impl.encode_to_stream(record, timer._output_stream, True)
        timer._output_stream.maybe_flush()
    except (AttributeError, TypeError) as error:
        raise RuntimeError(f"apache-beam must write timers as release 2.77 does, got {__version__}: {error}") from error
