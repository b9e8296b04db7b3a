"""Errors of their own for what a caller may want to catch: a spent budget, a passed horizon, a bad snapshot."""


class BudgetSpent(RuntimeError):  # noqa: N818 (a state that the design foresees)
    """The mechanism has given all the answers that its privacy budget pays for; it must not be asked again."""


class HorizonExceeded(RuntimeError):  # noqa: N818
    """The stream is longer than the public horizon that the guarantee was stated for."""


class SnapshotError(ValueError):
    """The bytes are no snapshot of this mechanism: wrong magic, kind, version or parameters, or damaged."""
