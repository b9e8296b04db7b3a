import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.prf import Prf

KEY = bytes(range(32))
MASK = (1 << 64) - 1


def keyed_hash(key, purpose, message):
    return hashlib.blake2b(message, key=key, person=purpose, digest_size=32).digest()


def aes(key, block):
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def scalar_hash(key, string):
    """The hash of one string, written out once more without arrays."""
    if len(string) > 63:
        long_key = keyed_hash(key, b"key", b"long strings")
        return int.from_bytes(hashlib.blake2b(string, key=long_key, digest_size=8).digest(), "little")
    cipher_key = keyed_hash(key, b"key", b"short strings")
    state = aes(cipher_key, string[:15].ljust(15, b"\0") + bytes([len(string)]))
    for start in range(15, len(string), 16):
        block = string[start : start + 16].ljust(16, b"\0")
        state = aes(cipher_key, bytes(a ^ b for a, b in zip(state, block, strict=True)))
    return int.from_bytes(state[:8], "little")


def arrow(strings, prefix=b""):
    data = np.frombuffer(prefix + b"".join(strings), dtype=np.uint8)
    return data, len(prefix) + np.cumsum([0, *map(len, strings)], dtype=np.int64)


def drawn(prf):
    """Return what depends on the key alone: equal for equal keys."""
    return tuple(prf.encrypt("lane 0", np.array([[1, 2]], np.uint64))[0].tolist())


def test_encrypt_is_aes_256_of_little_endian_words():
    blocks = np.array([[1, 2], [MASK, 0], [3 << 60, 5]], dtype=np.uint64)
    image = Prf(KEY).encrypt("lane 0", blocks)
    key = keyed_hash(KEY, b"key", b"lane 0")
    for block, got in zip(blocks.tolist(), image.tolist(), strict=True):
        expected = aes(key, b"".join(word.to_bytes(8, "little") for word in block))
        assert got == [int.from_bytes(expected[:8], "little"), int.from_bytes(expected[8:], "little")]


def test_known_answer_of_aes():
    # FIPS 197, appendix C.3: pins the cipher that the other tests take for granted.
    assert aes(KEY, bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_purposes_are_independent_permutations():
    blocks = np.array([[7, 7]], dtype=np.uint64)
    images = {tuple(Prf(KEY).encrypt(purpose, blocks)[0].tolist()) for purpose in ("lane 0", "lane 1", "bind")}
    assert len(images) == 3


def test_child_goes_part_by_part():
    assert drawn(Prf(KEY).child("a", 1)) == drawn(Prf(KEY).child("a").child(1))
    assert drawn(Prf(KEY).child("a")) == drawn(Prf(keyed_hash(KEY, b"path", b"sa")))


paths = st.lists(st.one_of(st.text(max_size=4), st.integers(-300, 300), st.binary(max_size=4)), max_size=3)


@given(paths, paths)
def test_different_paths_have_different_keys(one, other):
    same = len(one) == len(other) and all(type(a) is type(b) and a == b for a, b in zip(one, other, strict=True))
    assert (drawn(Prf(KEY).child(*one)) == drawn(Prf(KEY).child(*other))) == same


def test_types_are_told_apart():
    keys = {drawn(Prf(KEY).child(*path)) for path in [("1",), (b"1",), (1,), (0x1,), ("0x1",), ("1", ""), ("", "1")]}
    assert len(keys) == 6  # 1 and 0x1 are one integer


def test_numpy_integers_are_integers():
    assert drawn(Prf(KEY).child(np.int64(5))) == drawn(Prf(KEY).child(5))


@pytest.mark.parametrize("part", [True, 1.5, None, ("a",)])
def test_other_types_are_refused(part):
    with pytest.raises(TypeError, match="path must consist of str, int or bytes, got"):
        Prf(KEY).child(part)


def test_secrets_of_any_length():
    roots = {drawn(Prf.from_secret(b"x" * length, "")) for length in (16, 32, 63, 64, 65, 1000)}
    assert len(roots) == 6
    assert drawn(Prf.from_secret(KEY, "a")) != drawn(Prf.from_secret(KEY, "b"))


@given(st.lists(st.binary(max_size=90), max_size=12), st.binary(max_size=3))
def test_hash_is_the_scalar_definition(strings, prefix):
    got = Prf(KEY).hash_bytes(*arrow(strings, prefix))
    assert got.tolist() == [scalar_hash(KEY, string) for string in strings]


@pytest.mark.parametrize("length", [0, 1, 14, 15, 16, 30, 31, 32, 47, 48, 62, 63, 64, 65, 1 << 20])
def test_hash_at_block_borders(length):
    strings = [b"ab", bytes([length % 251]) * length, b"c" * 31]
    assert Prf(KEY).hash_bytes(*arrow(strings)).tolist() == [scalar_hash(KEY, string) for string in strings]


def test_hash_tells_padding_from_data():
    strings = [b"a" + b"\0" * zeros for zeros in range(80)]
    assert len(set(Prf(KEY).hash_bytes(*arrow(strings)).tolist())) == 80


def test_hash_of_nothing():
    assert Prf(KEY).hash_bytes(np.empty(0, np.uint8), np.zeros(1, np.int64)).shape == (0,)
    assert Prf(KEY).hash_bytes(np.empty(0, np.uint8), np.zeros(3, np.int64)).tolist() == [scalar_hash(KEY, b"")] * 2


def test_pickle_and_repr():
    prf = Prf(KEY)
    blocks = np.arange(6, dtype=np.uint64).reshape(3, 2)
    image = prf.encrypt("lane 0", blocks)  # fills the cipher cache, which must not be pickled
    assert (pickle.loads(pickle.dumps(prf)).encrypt("lane 0", blocks) == image).all()
    assert repr(prf) == "Prf(<key>)"


def test_threads_that_draw_at_once_draw_the_same():
    """A cipher context is used again, but never by two at once."""
    prf, blocks = Prf(bytes(32)), np.arange(2_000, dtype=np.uint64).reshape(-1, 2)
    expected = prf.encrypt("p", blocks).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: prf.encrypt("p", blocks).tolist(), range(200)))
    assert all(one == expected for one in found)
