"""A rule that a record breaks: the reason in words, and a short code for counters."""

from __future__ import annotations

MISSING, TYPE, ENCODING, LONG, FINITE, RANGE = "missing", "type", "encoding", "long", "finite", "range"


class BrokenRuleError(ValueError):
    """Says which rule a record breaks, and never what is in the record.

    Attributes:
        code: the field and the kind of rule, such as `user_missing`: the name of a counter ends with it.
    """

    def __init__(self, field: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.code = f"{field}_{rule}"


def broken_by(error: Exception, what: str) -> BrokenRuleError:
    """Return the rule that a record breaks, from whatever was raised when it was read.

    Its values may be of any class, and what the code of such a class raises must not end the run.
    """
    if isinstance(error, BrokenRuleError):
        return error
    return BrokenRuleError(what, TYPE, f"{what} must hold values that can be read")
