"""The public list of items."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms import Domain

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=6)


def items_of(domain: Domain) -> list[str]:
    return [domain[place] for place in range(len(domain))]


@given(st.sets(LINE, min_size=1, max_size=8), st.lists(LINE, max_size=8))
def test_positions_are_places_in_sorted_order(items, others):
    domain = Domain(items)
    assert items_of(domain) == sorted(items)
    assert items_of(pickle.loads(pickle.dumps(domain))) == sorted(items)
    texts = [*items, *others]
    assert domain.contains(pa.array(texts)).to_pylist() == [text in items for text in texts]
    assert [domain[place] for place in domain.positions(pa.array(sorted(items))).tolist()] == sorted(items)


@given(st.sets(LINE, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_files_hold_one_item_per_line(tmp_path_factory, items, newline, last):
    path = tmp_path_factory.mktemp("domain") / "items.txt"
    path.write_bytes((newline.join(items) + (newline if last else "")).encode())
    domain = Domain.from_file(str(path))
    assert items_of(domain) == sorted(items)
    assert items_of(pickle.loads(pickle.dumps(domain))) == sorted(items)


def test_a_file_travels_as_its_name_and_must_not_change(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("secret item\n")
    sent = pickle.dumps(Domain.from_file(str(path)))
    assert b"secret item" not in sent
    path.write_text("another item\n")
    with pytest.raises(ValueError, match="domain must be the same file on every worker as at launch"):
        pickle.loads(sent)


@pytest.mark.parametrize("items", [["a", "a"], ["", "a"]])
def test_items_are_distinct_and_not_empty(items):
    with pytest.raises(ValueError, match="domain must hold distinct items, none of them empty"):
        Domain(items)


def test_other_bad_domains(tmp_path):
    with pytest.raises(ValueError, match="domain must name at least one item"):
        Domain([])
    with pytest.raises(TypeError, match="domain must hold texts, got int"):
        Domain([1, 2])
    with pytest.raises(TypeError, match="domain must hold texts, got int"):
        Domain(["a", 2])
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="domain must be a file of UTF-8 text"):
        Domain.from_file(str(tmp_path / "bytes"))
    with pytest.raises(ValueError, match="domain must be a readable file"):
        Domain.from_file(str(tmp_path / "missing"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="domain must name at least one item"):
        Domain.from_file(str(tmp_path / "empty"))
