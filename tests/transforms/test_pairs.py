"""Numbers of pairs of a stream and a key: a dictionary that grows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.counts.publishing import Pairs

KEYS = st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 7, 2**63, 2**64 - 1]))


def columns(pairs):
    return np.array([code for code, _ in pairs], np.int64), np.array([key for _, key in pairs], np.uint64)


@given(st.lists(st.sets(KEYS, max_size=12), max_size=6), st.sets(KEYS))
def test_pairs_keep_their_numbers(steps, asked):
    pairs, known = Pairs(*columns([])), {}
    for step in [*steps, asked]:
        several = sorted(step)
        numbers = pairs.numbers(*columns(several))
        assert numbers.tolist() == [known.get(pair, -1) for pair in several]
        new = [pair for pair in several if pair not in known]
        pairs = pairs.with_more(*columns(new))
        known |= {pair: len(known) + i for i, pair in enumerate(new)}
        assert Pairs(pairs.codes, pairs.keys).numbers(*columns(several)).tolist() == [known[pair] for pair in several]
