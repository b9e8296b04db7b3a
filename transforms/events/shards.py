"""How many parts a stage may share its work out to."""

from privstream.mechanisms import checks

MOST_SHARDS = 32_768
"""As many as Flink has groups of keys: more cannot work side by side, and a stage goes through them for each batch."""


def check_shards(shards: int) -> int:
    """Return a number of shards, at least one and not too many."""
    if checks.integer("shards", shards, minimum=1) > MOST_SHARDS:
        raise ValueError(f"shards must be <= {MOST_SHARDS}, got {shards}")
    return shards
