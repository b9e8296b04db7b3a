"""What histograms and flags must publish, computed event by event in plain Python; noise comes from the mechanism."""

from collections import Counter

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.rows import CategoryFlag, HistogramEstimate

Event = tuple[str, str, int, str]  # user, categories with separators, microseconds, stream


def categories_of(made, item: str) -> list[str]:
    """The categories of an event that count, in order."""
    known = set(made.categories.domain.texts.to_pylist())
    parts = item.split(made.categories.separator) if made.categories.limit > 1 else [item]
    return list(dict.fromkeys(part for part in parts if part in known))[: made.categories.limit]


def counted(made, events: list[Event]) -> list[tuple[str, int, str, str]]:
    """All (user, step, stream, category) that count, after limits."""
    steps, names = made.steps, made.categories.domain.texts.to_pylist()
    rows = []
    for user, item, time, stream in events:
        step = time // steps.size
        if stream in made.categories.streams and steps.first <= step and (steps.end is None or step < steps.end):
            order = made.categories.streams.index(stream)
            rows += [(user, step, time, order, names.index(c)) for c in categories_of(made, item)]
    if made.unit == "person":
        rows.sort(key=lambda row: row[1:])
        in_window, in_run, kept = Counter(), Counter(), []
        for user, step, time, order, category in rows:
            if in_run[user] < made.max_contributions and in_window[user, step] < (made.max_per_window or 10**9):
                kept.append((user, step, time, order, category))
                in_run[user] += 1
                in_window[user, step] += 1
        rows = kept
    return [(user, step, made.categories.streams[order], names[c]) for user, step, _, order, c in rows]


def matrices(made, events: list[Event]) -> dict[str, np.ndarray]:
    """Counts per stream, int64 (windows, columns)."""
    names = made.categories.domain.texts.to_pylist()
    found = {stream: np.zeros((made.windows, len(names)), np.int64) for stream in made.categories.streams}
    for _, step, stream, category in counted(made, events):
        found[stream][step - made.steps.first, names.index(category)] += 1
    return found


def histogram(made, events: list[Event]) -> list[HistogramEstimate]:
    names, mechanism, rows = made.categories.domain.texts.to_pylist(), made.mechanism, []
    for stream, matrix in matrices(made, events).items():
        state, noise = mechanism.initial_state(), made._noise().derive("stream", stream)
        for number, vector in enumerate(matrix):
            state, answer = mechanism.step(state, vector, noise)
            bound = mechanism.error_bound(number + 1, state.interval)
            found = []
            for place, question in enumerate(made.questions):
                if len(answer) == len(made.questions) and len(mechanism.queries) == len(made.questions) != 1:
                    found.append((question.name, "", answer[place]))
                elif question.name == "histogram":
                    found += [("histogram", name, answer[i]) for i, name in enumerate(names)]
                elif question.name.startswith("top"):
                    order = sorted(range(len(names)), key=lambda i: (-answer[i], i))[: question.query.k]
                    found += [(question.name, names[i], answer[i]) for i in order]
                else:
                    found.append((question.name, "", question.query.values(answer[None, :])[0, 0]))
            rows += [_row(made, stream, number, name, c, int(e), bound) for name, c, e in found]
    return sorted(rows)


def _row(made, stream, number, name, category, estimate, bound) -> HistogramEstimate:
    start, end = made.steps.bounds(made.steps.first + number)
    ends = max(0, estimate - bound), max(0, estimate + bound)
    return HistogramEstimate(stream, start, end, name, category, estimate, bound, *ends)


def flags(made, events: list[Event]) -> list[CategoryFlag]:
    names, mechanism, rows = made.categories.domain.texts.to_pylist(), made.mechanism, []
    for stream, matrix in matrices(made, events).items():
        state, noise = mechanism.initial_state(), made._noise().derive("stream", stream)
        for number, vector in enumerate(matrix):
            state, raised = mechanism.step(state, vector, noise)
            bound = mechanism.error_bound(number + 1, state.interval)
            start = Timestamp(micros=(made.steps.first + number) * made.steps.size)
            end = Timestamp(micros=start.micros + made.steps.size)
            for name, threshold, up in zip(names, mechanism.thresholds, raised.tolist(), strict=True):
                rows.append(CategoryFlag(stream, start, end, name, up, threshold, bound))
    return sorted(rows)
