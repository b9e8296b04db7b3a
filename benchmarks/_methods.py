"""Ways to report heavy hitters of a stream, all with the same (epsilon, delta), each as one item array per step.

The monitors run as they are. The standard methods get every advantage: exact composition, the least threshold that
keeps unheld items out, and, for the sparse vector, facts about the data that nobody could know.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
from _standard_methods import histogram_per_step, sparse
from _streams import Step
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.continuous import Gaussian
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.sparse_vector.query_mechanism import HiddenThreshold, Progress

MONITORS = {"clock": "clock", "target_charging": "target charging", "paper": "monitor of the paper"}
Reports = Iterator[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be kept and watched.

    Attributes:
        domain_size: items 0, 1, .. of a public list, all tested at every step; None if only held items can be tested.
        tests: tests for the accuracy with probability 1 - beta.
    """

    epsilon: float
    delta: float
    beta: float
    steps: int
    tests: int
    domain_size: int | None = None

    def budget(self) -> MonitorBudget:
        """Return the budget of the standard methods, to which `max_hits` says nothing."""
        known = self.domain_size is not None
        return MonitorBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            max_hits=1,
            tests=self.tests,
            beta=self.beta,
            domain="known" if known else "unknown",
            tests_per_person=None if known else self.steps,
        )


@dataclass(frozen=True)
class Method:
    """A way to report: its name, the count that it finds with probability 1 - beta, and what it reports."""

    name: str
    finds: int
    report: Callable[[Iterable[Step], int], Reports]


def monitor(task: Task, calibration: str, max_hits: int) -> Method:
    """Return a threshold monitor with per-user counters."""
    made = ThresholdMonitor(
        epsilon=task.epsilon,
        delta=task.delta,
        max_hits=max_hits,
        calibration=calibration,
        domain_size=task.domain_size,
        horizon=task.steps,
        first_step=0,
        beta=task.beta,
        tests=task.tests,
        count_share=0.0,
    )

    def report(stream: Iterable[Step], seed: int) -> Reports:
        state, noise = made.initial_state(), SeededNoise(seed)
        for number, step in enumerate(stream):
            state, hits = made.step(state, Holdings(step=number, users=step.users, items=step.items), noise)
            yield hits.items

    return Method(f"{MONITORS[calibration]}, {max_hits} hits each", made.detection_threshold, report)


def sparse_vector(task: Task, total_hits: int, told: str, least_threshold: float = 0) -> Method:
    """Return AboveThreshold, run again after each hit; it stops after `total_hits` hits of whomever."""
    plan = sparse(task.budget(), total_hits=total_hits)
    threshold = max(plan.threshold, ceil(least_threshold))
    tests = HiddenThreshold(scale=plan.noise_scale / 2, max_hits=total_hits, integer=True)

    def report(stream: Iterable[Step], seed: int) -> Reports:
        state, noise = Progress(), SeededNoise(seed)
        for step in stream:
            items, counts = everything(task, step)
            if state.hits >= total_hits:
                yield items[:0]
                continue
            state, hits = tests.test(state, counts - threshold, noise)
            yield items[: len(hits)][hits]

    return Method(f"sparse vector, {told}", threshold + plan.detection_threshold - plan.threshold, report)


def histogram(task: Task) -> Method:
    """Return a fresh Gaussian histogram at every step."""
    plan = histogram_per_step(task.budget(), steps=task.steps)

    def report(stream: Iterable[Step], seed: int) -> Reports:
        noise = SeededNoise(seed)
        for number, step in enumerate(stream):
            items, counts = everything(task, step)
            drawn = Gaussian(plan.noise_scale).draw(noise.derive("histogram", number), len(counts))
            yield items[counts + drawn >= plan.threshold]

    return Method("histogram at every step", plan.detection_threshold, report)


def everything(task: Task, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """Return the items that are tested, and their counts."""
    items, counts = step.counts
    if task.domain_size is None:
        return items, counts
    of_all = np.zeros(task.domain_size, np.int64)
    of_all[items.astype(np.int64)] = counts
    return np.arange(task.domain_size, dtype=np.uint64), of_all
