"""What a page says of the method that ran, and of that one alone; and the public rules that it tested."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.pipelines.questions.spec import METHOD
from privstream.pipelines.report.result import Result

SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
NAMED = re.compile(r'\bmethods? ("\w+"(?:(?:, | and | or )"\w+")*)')
ABSENT = re.compile(r"\bNone\b")

RULE_COLUMNS = ("name", "at_least", "at_most", "until", "windows", "items")


def method_of(result: Result) -> str:
    """Return which method ran; empty where there is but one, or the guarantee file does not say it."""
    found = result.promise.maybe("accuracy", METHOD)
    return found if isinstance(found, str) else ""


def of_method(text: str, method: str) -> str:
    """Return a text without the sentences that are about other methods, with a dash as the word for what is absent."""
    kept = [sentence for sentence in SENTENCE_END.split(text) if _concerns(sentence, method)]
    return ABSENT.sub('"-"', " ".join(kept))


def rules_of(result: Result) -> dict[str, Any] | None:
    """Return the public rules of a run as a table; None if it has none."""
    rules = result.promise.maybe("public", "rules")
    if not isinstance(rules, Sequence) or not all(isinstance(rule, Mapping) for rule in rules):
        return None
    names = [name for name in RULE_COLUMNS if any(name in rule for rule in rules)]
    return {"names": names, "rows": [[_shown(rule, name) for name in names] for rule in rules]}


def _concerns(sentence: str, method: str) -> bool:
    """Tell whether a sentence names no method, or this one."""
    named = NAMED.search(sentence)
    return not method or named is None or f'"{method}"' in named[1]


def _shown(rule: Mapping[str, Any], name: str) -> str:
    """Write a field of a rule."""
    value = rule.get(name)
    if name == "items":
        return "any" if value is None else ", ".join(map(str, value))
    if value is None:
        return "1" if name == "windows" else "-"
    return str(value) if isinstance(value, str) else f"{value:,}"
