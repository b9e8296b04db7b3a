"""What histograms and flags must publish, computed event by event in plain Python; noise comes from the mechanism."""

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.row_types import CategoryFlag, HistogramEstimate

Event = tuple[str, str, int]  # user, category, microseconds


def matrix(made, events: list[Event]) -> np.ndarray:
    """Counts, int64 (windows, columns)."""
    steps, names = made.steps, made.domain.texts.to_pylist()
    found = np.zeros((steps.count, len(names)), np.int64)
    for _, item, time in events:
        if item in names and steps.first <= time // steps.size < steps.end:
            found[time // steps.size - steps.first, names.index(item)] += 1
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
