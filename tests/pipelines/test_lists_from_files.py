"""Lists of texts on the command line: with commas, or, for long ones, the lines of a file."""

from pathlib import Path

import pytest
from privstream.pipelines.questions.option_types import comma_separated


def test_a_list_is_texts_with_commas_or_the_lines_of_a_file(tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_bytes("\ufeffMünchen\r\na,b\n@x\n".encode())
    assert comma_separated("a,b") == ["a", "b"]
    assert comma_separated(f"@{names}") == ["München", "a,b", "@x"]


def test_nothing_but_the_end_of_a_line_parts_names(tmp_path: Path) -> None:
    names = tmp_path / "names"
    kept = ["a\u2028b", "\x0cc", "d\x85", "e\rf", "\0"]
    names.write_bytes("\n".join(kept).encode())
    assert comma_separated(f"@{names}") == kept


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no line empty"),
        (b"a\n\nb\n", "no line empty"),
        (b"\xff\n", "must be a file in UTF-8"),
        (None, "must be a file that can be read"),
    ],
)
def test_files_that_are_no_lists_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    names = tmp_path / "names"
    if content is not None:
        names.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        comma_separated(f"@{names}")
