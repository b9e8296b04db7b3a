"""All questions by the words of their commands: what the modules of models define. Imports no Beam."""

from __future__ import annotations

from collections.abc import Mapping

from privstream.pipelines.model import continual, counted
from privstream.pipelines.model.question import Question, QuestionInfo

CLASSES: tuple[type[Question], ...] = tuple(
    kind
    for module in (counted, continual)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Question) and "info" in vars(kind) and kind is not counted.Suggest
)
"""In the order of help pages."""

MODELS: Mapping[str, type[Question]] = {kind.info.word: kind for kind in CLASSES}
QUESTIONS: Mapping[str, QuestionInfo] = {word: kind.info for word, kind in MODELS.items()}
WORDS = tuple(MODELS)


def question(word: str) -> QuestionInfo:
    """Return what a question is to a user."""
    return QUESTIONS[word]
