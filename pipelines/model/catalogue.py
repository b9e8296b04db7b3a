"""All questions by the words of their commands. Imports no Beam."""

from __future__ import annotations

from collections.abc import Mapping

from privstream.pipelines.model.continual import Flags, Histogram, Predecessor, Queries, Ranges
from privstream.pipelines.model.counted import Alerts, Cardinality, Counts, HeavyHitters, Quantiles, TopK
from privstream.pipelines.model.question import Question, QuestionInfo

CLASSES: tuple[type[Question], ...] = (
    *(HeavyHitters, Counts, TopK, Alerts, Histogram, Quantiles, Flags, Cardinality),
    *(Ranges, Predecessor, Queries),
)
"""In the order of help pages."""

MODELS: Mapping[str, type[Question]] = {kind.info.word: kind for kind in CLASSES}
QUESTIONS: Mapping[str, QuestionInfo] = {word: kind.info for word, kind in MODELS.items()}
WORDS = tuple(MODELS)


def question(word: str) -> QuestionInfo:
    """Return what a question is to a user."""
    return QUESTIONS[word]
