"""Shards of people lie evenly in the slots of a Flink cluster: its two hashes of keys, computed here as Flink does."""

from collections import Counter

import mmh3
import pytest
from privstream.transforms.events.split import EVENLY_SPREAD, MOST_SHARDS, people_key

GROUPS = 128  # of keys, in Flink's jobs of up to 85 slots


def slot(key: bytes, slots: int) -> int:
    """Return the slot that handles a key: Beam hashes its coded form, Flink that hash, and each slot has a range."""
    coded = bytes([len(key)]) + key
    return murmur_of_one_word(mmh3.hash64(coded, signed=False)[0] & 0xFFFFFFFF) % GROUPS * slots // GROUPS


def murmur_of_one_word(word: int) -> int:
    """Return Flink's `MathUtils.murmurHash`."""
    word = rotated(word * 0xCC9E2D51, 15) * 0x1B873593
    word = (rotated(word, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF ^ 4
    word = (word ^ word >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    word = (word ^ word >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    word ^= word >> 16
    return min(word, 2**32 - word)  # the absolute value of a word with a sign


def rotated(word: int, bits: int) -> int:
    word &= 0xFFFFFFFF
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


def test_the_hashes_are_those_of_a_cluster() -> None:
    """On a cluster with two slots the keys 0 to 15 were handled like this, 5 and 11 of them."""
    assert Counter(slot(number.to_bytes(4, "big"), 2) for number in range(16)) == {0: 5, 1: 11}


@pytest.mark.parametrize("slots", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("times", [2, 3, 8])
def test_every_slot_has_its_share(slots: int, times: int) -> None:
    """No slot has two shards more than its share; all have the same where both numbers are powers of two."""
    shards = min(slots * times, len(EVENLY_SPREAD))
    counted = Counter(slot(people_key(shard), slots) for shard in range(shards))
    assert sorted(counted) == list(range(slots))
    assert max(counted.values()) - shards / slots < (2 if shards & (shards - 1) or slots & (slots - 1) else 1e-9)


def test_names_differ() -> None:
    """No two shards are under one key."""
    assert len({people_key(shard) for shard in range(MOST_SHARDS)}) == MOST_SHARDS
