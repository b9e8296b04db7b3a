import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.mechanism import pack, unpack

values = st.one_of(
    st.integers(),
    st.floats(),
    st.binary(max_size=50),
    arrays.arrays(
        st.sampled_from(["?", "<i8", ">i4", "<u8", "<u2", "<f8", ">f8"]), arrays.array_shapes(min_dims=0, min_side=0)
    ),
)


@given(st.dictionaries(st.text(max_size=10), values, max_size=5), st.text(max_size=20), st.integers(0, 2**32 - 1))
def test_round_trip(fields, kind, version):
    found = unpack(kind, version, pack(kind, version, fields))
    assert list(found) == list(fields)
    for name, value in fields.items():
        assert isinstance(found[name], type(value))
        np.testing.assert_array_equal(found[name], value)
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype.newbyteorder("=")
            assert found[name].shape == value.shape


def test_equal_fields_give_equal_bytes_whatever_the_byte_order_or_layout():
    table = np.arange(12, dtype="<i8").reshape(3, 4)
    swapped = np.asfortranarray(table.astype(">i8"))
    assert pack("k", 1, {"table": table}) == pack("k", 1, {"table": swapped})


def test_every_truncation_is_refused():
    data = pack("k", 1, {"a": np.arange(3), "b": 5})
    for end in range(len(data)):
        with pytest.raises(SnapshotError, match="snapshot must"):
            unpack("k", 1, data[:end])


def test_every_flipped_byte_is_refused():
    data = bytearray(pack("k", 1, {"a": np.arange(3), "b": 5}))
    for position in range(len(data)):
        data[position] ^= 0x10
        with pytest.raises(SnapshotError):
            unpack("k", 1, bytes(data))
        data[position] ^= 0x10
