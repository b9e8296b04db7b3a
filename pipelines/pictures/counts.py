"""`privstream plot counts`: the items that most people have, as lines with error bands, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from privstream.pipelines.pictures.truth import found_and_missed, share_of_truth
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import UTC, plural
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec, is_smoothed
from privstream.pipelines.plot.promise import Promise, held, of_each_row, without_limits
from privstream.pipelines.questions.risers import before, cells, newest, none_rose, risers, window_of
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.transforms.row_types import KeyCount

NOTHING = "There are no rows."
MOST_LINES = 30
"""Items that are drawn, those with the largest counts: of more, nobody sees the lines."""


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    last = newest_rises(given) if given.rows and given.options.get("rising") else None
    risen = None if last is None else risers(last, given.top)
    names = None if risen is None else [row.item for row in risen]
    found = bands(given.rows, given.truth or [], each=given.of_windows, names=names)
    means = by_model(given) if is_smoothed(given.rows) else of_each_row(given.promise, given.bands)
    text = caption(given.rows, found, means) if given.rows else given.empty(NOTHING)
    text += judged(given)
    if last is not None and risen is not None:
        text = f"{rises_in_words(last, risen, given.promise)} {text}"
    elif (counted := newest(given.rows)) and not risers(counted, given.top):
        text += f" {rises_in_words(counted, [], given.promise)}"
    text += given.when
    if any(np.isnan(band.estimates).any() for band in found):
        text += _gaps(given.promise)
    over = None if given.promise is None else given.promise.maybe("parameters", "over")
    of_people = over in (None, "window", "start")  # else a person has a contribution in each of several windows
    title = given.title("People with each item" if of_people else "Contributions of people to each item")
    title = title if risen is None else f"{title}: what rose most"
    values = given.counted("people") if of_people else given.counted("contributions", "that count")
    return partial(
        draw_bands,
        found,
        values=values,
        title=title,
        caption=text,
        top=given.top,
        renewals=given.renewals,
        clocks=given.clocks,
    )


def judged(given: Given) -> str:
    """Say what was found and what was missed, where the truth and what is enough to be found are known."""
    sure = None if given.promise is None else given.promise.maybe("accuracy", "detection_threshold")
    if not given.truth or not given.of_windows or not isinstance(sure, int):
        return ""
    return f" {found_and_missed((row.item for row in given.rows), given.truth, sure)}"


def newest_rises(given: Given) -> list[KeyCount]:
    """Return the rows of the last window in which rows say how much their items rose.

    Raises:
        ValueError: no row does; the message says why.
    """
    if last := newest(given.rows):
        return last
    back = None if given.promise is None else given.promise.maybe("parameters", "rising")
    if given.promise is not None and back is None:
        raise ValueError("rising must be given to the run of the rows: these have no rises")
    either = "" if back is not None else "the run was not given it, or "
    raise ValueError(
        f"rising must not be given for these rows, which have no rises: {either}there is no count to compare with, of "
        f"{before(back)}"
    )


def rises_in_words(last: Sequence[KeyCount], risen: Sequence[KeyCount], promise: Promise | None) -> str:
    """Say what surely rose in a window, of all whose rows are given, between what, and how likely it is."""
    back = None if promise is None else promise.maybe("parameters", "rising")
    clocks = UTC if promise is None else promise.clocks
    if not risen:
        return none_rose(last, back, clocks)
    told = [f"{row.item} {rise} ({between})" for row in risen for rise, between in [cells(row)]]
    return f"Rises {window_of(last, clocks)}, against {before(back)}, with 95% intervals: {'; '.join(told)}."


def by_model(given: Given) -> str:
    """Say what bands of smoothed counts mean, and what dots are; of a single window there are no lines."""
    lines = "Lines: counts smoothed over windows. In colour, dots: the counts with noise; bands"
    points = "Points: counts, smoothed by what counts may be; bars"
    return (
        f"{lines if len({row.window_start for row in given.rows}) > 1 else points}: where {held(given.promise)} are, "
        "with probability 95%, each by itself, if they stay near levels that move"
        f"{without_limits(given.promise)}."
    )


def _gaps(promise: Promise | None) -> str:
    """Say why lines have gaps."""
    if promise is not None and (top := promise.maybe("parameters", "top")) is not None:
        what = "that rose most" if promise.maybe("parameters", "rising") is not None else "largest of the window"
        return f" Where a line has a gap, the item was not among the {top} {what}."
    if promise is not None and (least := promise.maybe("parameters", "at_least")) is not None:
        return f" Where a line has a gap, the published number is below {least:,}, and not shown; that is not zero."
    threshold = None if promise is None else promise.maybe("accuracy", "threshold")
    below = f"below the threshold of {threshold:,} people" if threshold else "below the threshold of the run"
    return f" Where a line has a gap, the item's count with noise was {below}, and is not published."


def bands(
    rows: Sequence[KeyCount],
    truth: Iterable[ItemHolders],
    *,
    each: bool,
    names: Sequence[str] | None = None,
) -> list[Band]:
    """Return one band for each of the items with the largest counts, or smoothed ones, with gaps where it is missing.

    Args:
        rows: what is published.
        truth: what is true.
        each: whether counts are those of each window by itself.
        names: the items to draw, if not the largest.
    """
    published: dict[str, dict[int, KeyCount]] = defaultdict(dict)
    smoothed = is_smoothed(rows)
    starts: dict[int, int] = {}
    for row in rows:
        published[row.item][int(row.window_end.micros)] = row
        starts[int(row.window_end.micros)] = int(row.window_start.micros)
    moments = np.array(sorted(starts), np.int64)
    begins = np.array([starts[moment] for moment in moments.tolist()], np.int64) if each else None

    def largest(item: str) -> float:
        return max((row.smoothed if smoothed else row.count) or 0 for row in published[item].values())

    ranked = sorted(published, key=lambda item: (-largest(item), item))
    true: dict[str, dict[int, int]] = defaultdict(dict)
    for known in truth:
        true[known.item][int(known.window_end.micros)] = known.holders

    def band(item: str) -> Band:
        points = [published[item].get(moment) for moment in moments.tolist()]

        def column(name: str) -> np.ndarray:
            return np.array([np.nan if point is None else getattr(point, name) for point in points], np.float64)

        kind = "smoothed" if smoothed else "count"
        estimates, dots = column(kind), column("count") if smoothed else None
        ends = np.array([column("lower"), column("upper")])
        holders = np.array([true[item].get(moment, np.nan) for moment in moments.tolist()], np.float64)
        return Band(
            name=item,
            times=moments,
            estimates=estimates,
            error_bounds=ends[1] - estimates,
            truth=holders if np.isfinite(holders).any() else None,
            points=dots,
            starts=begins,
            ends=ends,
        )

    return [band(item) for item in (ranked[:MOST_LINES] if names is None else names)]


def caption(rows: Sequence[KeyCount], found: list[Band], meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return NOTHING
    items, windows = len({row.item for row in rows}), len({row.window_start for row in rows})
    drawn = f", {len(found):,} of them drawn" if items > len(found) else ""
    text = f"{plural(items, 'item')} in {plural(windows, 'window')}{drawn}.{tell_bounds(found, meaning)}"
    judged = [
        (number, true)
        for band in found
        if band.truth is not None
        for number, true in zip(band.estimates.tolist(), band.truth.tolist(), strict=True)
        if np.isfinite(number - true)
    ]
    if not judged:
        return text
    outside = sum(band.outside for band in found)
    kind = f"{'smoothed ' * is_smoothed(rows)}counts"
    together = share_of_truth(judged)
    return (
        f"{text} Dashed: true numbers, as far as they are known, of all people, before any limits; {outside:,} of "
        f"{len(judged):,} {kind} are further from the truth than their band{together}."
    )


PICTURE = PictureSpec(
    description="Draws how many people have the items over time, with bands for the error and, given the truth, the "
    "true numbers; with --rising, of the items that rose most in the last window with rises.",
    truth=ItemHolders,
    shows="draws true counts, dashed",
    prepare=prepare,
    top=8,
    rising=True,
)
