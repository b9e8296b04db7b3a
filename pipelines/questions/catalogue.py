"""All questions."""

from __future__ import annotations

import importlib

from privstream.pipelines.questions.spec import ROOMS, QuestionSpec

WORDS = (
    *("heavy-hitters", "counts", "top-k", "alerts", "histogram", "quantiles", "flags", "cardinality"),
    *("ranges", "predecessor", "queries"),
)
"""The questions, in the order of help pages; each has a room of its name."""


def question(word: str) -> QuestionSpec:
    """Return the description of a question."""
    spec: QuestionSpec = importlib.import_module(f"{ROOMS}.{word.replace('-', '_')}.question").SPEC
    return spec
