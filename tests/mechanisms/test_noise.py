"""Sources of noise: by key and label, many at once, and the functions that they are made of."""

import copy
import hashlib
import os
import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise, PrfNoise, SeededNoise
from scipy import stats

SECRET = b"test key, 24 bytes long."
NOISE = KeyedNoise(SECRET, "golden")
FALSE_ALARM = 1e-10

words = st.integers(0, 2**64 - 1)
label_lists = st.lists(st.tuples(words, words), max_size=20)


def as_labels(pairs):
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


@given(label_lists, st.integers(1, 3), st.integers(0, 20))
def test_words_do_not_depend_on_the_batch(pairs, lanes, cut):
    labels = as_labels(pairs)
    whole = NOISE.words(labels, lanes)
    assert whole.shape == (len(pairs), lanes, 2)
    assert whole.dtype == np.uint64
    parts = [NOISE.words(labels[:cut], lanes), NOISE.words(labels[cut:], lanes)]
    assert (np.concatenate(parts) == whole).all()
    assert (NOISE.words(labels[::-1], lanes)[::-1] == whole).all()
    assert (NOISE.words(labels, lanes + 1)[:, :lanes] == whole).all()


@given(label_lists, st.data())
def test_bind_does_not_depend_on_the_batch(pairs, data):
    labels = as_labels(pairs)
    values = np.array([data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in pairs], dtype=np.int64)
    whole = NOISE.bind(labels, values)
    for i in range(len(pairs)):
        assert (NOISE.bind(labels[i : i + 1], values[i : i + 1]) == whole[i]).all()
    assert (NOISE.bind(labels[::-1], values[::-1])[::-1] == whole).all()


def test_everything_that_must_differ_differs():
    values = np.zeros(1, np.int64)
    sources = [
        NOISE,
        NOISE.derive("a"),
        NOISE.derive("a", "b"),
        NOISE.derive("ab"),
        NOISE.derive(1),
        NOISE.derive("1"),
        KeyedNoise(SECRET),
        KeyedNoise(SECRET + b"x", "golden"),
        SeededNoise(0),
        SeededNoise(1),
        KeyedNoise.random(),
        KeyedNoise.random(),
    ]
    seen = [tuple(pair) for source in sources for pair in source.words(2, 3).reshape(-1, 2).tolist()]
    seen += [tuple(source.bind(1, values + v)[0].tolist()) for source in sources for v in (0, 1, -1)]
    assert len(set(seen)) == len(seen) == 12 * 9


def p_value_of_bytes(sample):
    counts = np.bincount(np.ascontiguousarray(sample).view(np.uint8).ravel(), minlength=256)
    return stats.chisquare(counts).pvalue


def test_bits_are_uniform_and_uncorrelated():
    n = 100_000
    sample = NOISE.derive("uniform").words(n, 2)
    bound = NOISE.derive("uniform").bind(n, np.zeros(n, np.int64))
    assert p_value_of_bytes(sample) > FALSE_ALARM
    assert p_value_of_bytes(bound) > FALSE_ALARM
    # Neighbouring labels, the two words, the two lanes, neighbouring values.
    moved = NOISE.derive("uniform").bind(n, np.ones(n, np.int64))
    for a, b in [
        (sample[1:], sample[:-1]),
        (sample[..., 0], sample[..., 1]),
        (sample[:, 0], sample[:, 1]),
        (bound, moved),
        (sample[:, 0], bound),
    ]:
        assert p_value_of_bytes(a ^ b) > FALSE_ALARM
    # A test of the test: one bit in a hundred set too often is seen.
    biased = sample.copy()
    biased[::50] |= np.uint64(0x0101010101010101)
    assert p_value_of_bytes(biased) < FALSE_ALARM


def test_threads_share_a_source():
    expected = NOISE.derive("threads").words(1000, 2)
    shared, wrong = NOISE.derive("threads"), []

    def work():
        wrong.extend(1 for _ in range(50) if not (shared.words(1000, 2) == expected).all())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_from_file_and_environment(tmp_path, monkeypatch, ending):
    path = tmp_path / "key"
    path.write_bytes(SECRET + ending)
    path.chmod(0o600)
    monkeypatch.setenv("PRIVSTREAM_TEST_KEY", (SECRET + ending).decode())
    for noise in (KeyedNoise.from_file(path, "golden"), KeyedNoise.from_environment("PRIVSTREAM_TEST_KEY", "golden")):
        assert (noise.words(3) == NOISE.words(3)).all()


@pytest.mark.parametrize("key", [b"k" * 16, b"k" * 64, b"hunter2" * 5, bytes(32)])
def test_a_key_that_cannot_be_random_is_refused(tmp_path, monkeypatch, key):
    path = tmp_path / "key"
    path.write_bytes(key)
    path.chmod(0o600)
    rule = "must be random, with at least 8 different bytes, got"
    with pytest.raises(ValueError, match=f"secret_key {rule}") as caught:
        KeyedNoise(key)
    assert key.decode() not in repr(caught.value)
    with pytest.raises(ValueError, match=f"key {rule}"):
        KeyedNoise.from_file(path)
    monkeypatch.setenv("PRIVSTREAM_TEST_KEY", "k" * 16)
    with pytest.raises(ValueError, match=f"environment variable PRIVSTREAM_TEST_KEY {rule}"):
        KeyedNoise.from_environment("PRIVSTREAM_TEST_KEY")


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o604, 0o620, 0o602])
def test_a_key_file_of_ones_own_is_for_its_owner_alone(tmp_path, mode):
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(mode)
    if not mode & 0o077:
        assert KeyedNoise.from_file(path, "golden").fingerprint == NOISE.fingerprint
        return
    with pytest.raises(ValueError, match=rf"by its owner alone, got {path} with mode {mode:04o}: chmod 600 {path}"):
        KeyedNoise.from_file(path)


def test_a_key_file_of_another_user_may_be_open_to_its_group(tmp_path, monkeypatch):
    """As Kubernetes mounts secrets."""
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    path.chmod(0o440)
    assert KeyedNoise.from_file(path, "golden").fingerprint == NOISE.fingerprint
    path.chmod(0o444)
    with pytest.raises(ValueError, match=r"by its owner and group alone, got .* with mode 0444: chmod o= "):
        KeyedNoise.from_file(path)


def test_the_key_is_not_shown():
    shown = f"{NOISE} {NOISE!r} {NOISE.derive('a')!r} {[NOISE]}"
    assert shown == "KeyedNoise(<key>, run_id='golden') KeyedNoise(<key>, run_id='golden') PrfNoise(<key>) " + (
        "[KeyedNoise(<key>, run_id='golden')]"
    )
    # Not even the pickle for the workers holds the secret itself, which may serve other runs.
    assert SECRET not in pickle.dumps(NOISE)


def test_pickles_of_a_key_from_a_file_hold_its_path_only(tmp_path):
    path = tmp_path / "key"
    secret = b"0123456789abcdef-secret"
    path.write_bytes(secret)
    path.chmod(0o600)
    noise = KeyedNoise.from_file(path, "run")
    data = pickle.dumps(noise)
    assert secret not in data
    assert len(data) < 300
    assert np.array_equal(pickle.loads(data).words(3), noise.words(3))
    path.write_bytes(b"another key, long enough")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="noise key must be the same on every worker as at launch"):
        pickle.loads(data)


def test_pickles_of_what_is_derived_from_a_file_hold_no_key(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"0123456789abcdef-secret")
    path.chmod(0o600)
    for derived in (
        KeyedNoise.from_file(path, "run").derive("a", 7).derive(b"c"),
        pickle.loads(pickle.dumps(KeyedNoise.from_file(path, "run").derive("a"))).derive(7, b"c"),
        copy.deepcopy(KeyedNoise.from_file(path, "run")).derive("a", 7, b"c"),
    ):
        data = pickle.dumps(derived)
        assert derived._key not in data
        assert len(data) < 300
        assert np.array_equal(
            pickle.loads(data).words(3), KeyedNoise(path.read_bytes(), "run").derive("a", 7, b"c").words(3)
        )
    path.write_bytes(b"another key, long enough")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="noise key must be the same on every worker as at launch"):
        pickle.loads(data)


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


def test_encrypt_is_aes_256_of_little_endian_words():
    blocks = np.array([[1, 2], [MASK, 0], [3 << 60, 5]], dtype=np.uint64)
    image = PrfNoise(KEY)._encrypt("lane 0", blocks)
    key = keyed_hash(KEY, b"key", b"lane 0")
    for block, got in zip(blocks.tolist(), image.tolist(), strict=True):
        expected = aes(key, b"".join(word.to_bytes(8, "little") for word in block))
        assert got == [int.from_bytes(expected[:8], "little"), int.from_bytes(expected[8:], "little")]


@given(st.lists(st.binary(max_size=90), max_size=12), st.binary(max_size=3))
def test_hash_is_the_scalar_definition(strings, prefix):
    got = PrfNoise(KEY).hash_bytes(*arrow(strings, prefix))
    assert got.tolist() == [scalar_hash(KEY, string) for string in strings]


def test_hash_tells_padding_from_data():
    strings = [b"a" + b"\0" * zeros for zeros in range(80)]
    assert len(set(PrfNoise(KEY).hash_bytes(*arrow(strings)).tolist())) == 80
