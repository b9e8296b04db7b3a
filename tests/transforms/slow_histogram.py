"""What histograms and flags must publish, computed event by event in plain Python; noise comes from the mechanism."""

from collections import Counter

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.row_types import CategoryFlag, HistogramEstimate

Event = tuple[str, str, int]  # user, category, microseconds


def counted(made, events: list[Event]) -> list[tuple[str, int, str]]:
    """All (user, step, category) that count, after limits."""
    steps, names = made.steps, made.domain.texts.to_pylist()
    rows = []
    for user, item, time in events:
        step = time // steps.size
        if item in names and steps.first <= step and (steps.end is None or step < steps.end):
            rows.append((user, step, time, names.index(item)))
    if made.unit == "person":
        rows.sort(key=lambda row: row[1:])
        in_window, in_run, kept = Counter(), Counter(), []
        for user, step, time, category in rows:
            if in_run[user] < made.max_contributions and in_window[user, step] < (made.max_per_window or 10**9):
                kept.append((user, step, time, category))
                in_run[user] += 1
                in_window[user, step] += 1
        rows = kept
    return [(user, step, names[c]) for user, step, _, c in rows]


def matrix(made, events: list[Event]) -> np.ndarray:
    """Counts, int64 (windows, columns)."""
    names = made.domain.texts.to_pylist()
    found = np.zeros((made.steps.count, len(names)), np.int64)
    for _, step, category in counted(made, events):
        found[step - made.steps.first, names.index(category)] += 1
    return found


def histogram(made, events: list[Event]) -> list[HistogramEstimate]:
    names, mechanism, rows = made.domain.texts.to_pylist(), made.mechanism, []
    state, noise = mechanism.initial_state(), made.publishing_noise
    for number, vector in enumerate(matrix(made, events)):
        state, answer = mechanism.step(state, vector, noise)
        bound = mechanism.error_bound(number + 1, state.interval)
        found = []
        for place, (asked, query) in enumerate(made.queries.items()):
            if len(answer) == len(made.queries) and len(mechanism.queries) == len(made.queries) != 1:
                found.append((asked, "", answer[place]))
            elif asked == "histogram":
                found += [("histogram", name, answer[i]) for i, name in enumerate(names)]
            elif asked.startswith("top"):
                order = sorted(range(len(names)), key=lambda i: (-answer[i], i))[: query.k]
                found += [(asked, names[i], answer[i]) for i in order]
            else:
                found.append((asked, "", query.values(answer[None, :])[0, 0]))
        rows += [_row(made, number, name, c, int(e), bound) for name, c, e in found]
    return sorted(rows)


def _row(made, number, name, category, estimate, bound) -> HistogramEstimate:
    start, end = made.steps.bounds(made.steps.first + number)
    ends = max(0, estimate - bound), max(0, estimate + bound)
    return HistogramEstimate(start, end, name, category, estimate, bound, *ends)


def flags(made, events: list[Event]) -> list[CategoryFlag]:
    names, mechanism, rows = made.domain.texts.to_pylist(), made.mechanism, []
    state, noise = mechanism.initial_state(), made.publishing_noise
    for number, vector in enumerate(matrix(made, events)):
        state, raised = mechanism.step(state, vector, noise)
        bound = mechanism.error_bound(number + 1, state.interval)
        start = Timestamp(micros=(made.steps.first + number) * made.steps.size)
        end = Timestamp(micros=start.micros + made.steps.size)
        for name, threshold, up in zip(names, mechanism.thresholds, raised.tolist(), strict=True):
            rows.append(CategoryFlag(start, end, name, up, threshold, bound))
    return sorted(rows)
