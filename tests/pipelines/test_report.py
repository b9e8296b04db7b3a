"""`privstream report`: from files of rows to one page, also in a notebook, where nothing but its script runs."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from example_results import HOSTILE, row_of, write
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import WORDS
from privstream.pipelines.report.result import read_result
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms import rows as row_types


class Tags(HTMLParser):
    """Collects the elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def report(folder: Path, *words: object) -> int:
    return cli.main(["report", *map(str, words), "--output", str(folder / "report.html")])


def page_of(folder: Path, *words: object) -> str:
    assert report(folder, *words) == 0
    return (folder / "report.html").read_text()


def plain(page: str) -> str:
    """Return the text of a page in one line."""
    return " ".join("".join(Tags(page).text).split())


def test_a_sentence_a_picture_and_ten_rows_come_first_and_all_else_is_folded(tmp_path: Path) -> None:
    names = tuple(f"item {number:02}" for number in range(15))
    page = page_of(tmp_path, write(tmp_path, "counts", names))
    first, *folded = page.partition("<main>")[2].partition("<footer>")[0].split("<details")
    assert first.index('class="first"') < first.index("<figure") < first.index("<table")
    assert "Most people, 1 January 02:00: item 00: 102 (90 to 200)" in plain(first)
    assert first.count("<tr>") == 11 and folded[0].count("<tr>") == 46 and "10 of 15 items" in first
    text = plain("".join(folded))
    for words in ("Protected is one person over the whole run", "Each person takes part", "<keyed>", "Theorem 2"):
        assert words in text
    assert "Epsilon 1, delta 1e-06, for " in plain(page)
    assert "secretdigest" not in page and "data-counts" not in page


def test_the_page_loads_nothing_and_runs_its_own_script_alone(tmp_path: Path) -> None:
    page = page_of(tmp_path, write(tmp_path, "heavy-hitters"))
    assert not re.search(r"(?:src|href)=\"(?!data:image|#)|@import|url\(", page)
    (policy,) = [one["content"] or "" for one in Tags(page).attributes("meta") if "http-equiv" in one]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert len(page) < 400_000


@pytest.mark.parametrize("word", WORDS)
def test_every_question_has_a_report(word: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, write(tmp_path, word))
    tags = Tags(page)
    (image,), (phone,) = tags.attributes("img"), tags.attributes("source")
    assert all((one or "").startswith("data:image/svg+xml;base64,") for one in (image["src"], phone["srcset"]))
    assert re.search(r'class="first">[A-Z][^<]*\.<', page)
    assert "<ul" in page or page.count("<table") == 2


def test_hostile_names_are_text(tmp_path: Path) -> None:
    page = page_of(tmp_path, write(tmp_path, "counts", tuple(HOSTILE)), "--title", HOSTILE[0])
    tags = Tags(page)
    assert len(tags.attributes("script")) == 1
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert [one["src"] for one in tags.attributes("img") if not (one["src"] or "").startswith("data:")] == []
    assert not set(page) & set("\u2028\u2029\u202e\u2066\x1b")
    assert "{{ 7 * 7 }}" in page and "49{%" not in page
    assert "<script>document.title='ran'</script>" in "".join(tags.text)


def test_several_results_are_sections(tmp_path: Path) -> None:
    page = page_of(tmp_path, *[write(tmp_path, word) for word in ("heavy-hitters", "counts")])
    assert [one["href"] for one in Tags(page).attributes("a")] == ["#result-1", "#result-2"]
    assert page.count("<figure") == 2


def test_what_began_last_is_the_newest(tmp_path: Path) -> None:
    path = write(tmp_path, "flags")
    rows = [row_of("flags", hour, name) for name, first in (("a", 0), ("b", 1)) for hour in range(first, 3)]
    write_row_file(str(path), row_types.CategoryFlag, rows)
    assert "Newest of 2: b, 1 January 01:00 to 03:00." in plain(page_of(tmp_path, path))


def test_what_rose_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path, "counts")
    promise = Path(f"{path}.guarantee.json")
    content = json.loads(promise.read_text())
    promise.write_text(json.dumps(content | {"parameters": content["parameters"] | {"rising": 1}}))
    rose = [(None, None, None), (25.4, 2.0, 48.0)]
    rows = [row_types.KeyRise(*row_of("counts", hour, "tea"), *rise) for hour, rise in enumerate(rose)]
    write_row_file(str(path), row_types.KeyRise, rows)
    assert "Largest rise, 1 January 01:00: tea: 25 (2 to 48)" in plain(page_of(tmp_path, path))


def test_a_notebook_shows_a_result_itself(tmp_path: Path) -> None:
    """Its sentence, its picture, its first rows and its guarantee, names as text, and nothing of its log."""
    found = replace(read_result(str(write(tmp_path, "counts", (HOSTILE[0], "tea")))), log="7 exact lines")
    html = found._repr_html_()
    tags = Tags(html)
    (image,) = tags.attributes("img")
    assert base64.b64decode((image["src"] or "").partition("base64,")[2]).startswith(b"\x89PNG")
    assert HOSTILE[0] in "".join(tags.text) and not tags.attributes("script")
    assert html.count("<tr>") == 3 and "Accuracy <of the run>." in plain(html) and "exact lines" not in html
    assert "so nothing is published" in plain(replace(found, table=found.table[:0])._repr_html_())


def test_a_folder_of_windows(tmp_path: Path) -> None:
    path = write(tmp_path, "counts")
    windows = tmp_path / "windows"
    windows.mkdir()
    path.rename(windows / "20240101T000000Z.jsonl")
    Path(f"{path}.guarantee.json").rename(windows / "_guarantee.json")
    (windows / "_END").touch()
    (windows / ".20240101T010000Z.jsonl.0011.partial").write_text('{"half": ')
    assert page_of(tmp_path, windows).count("<tr>") == 3 + 7


def spoil(folder: Path, what: str) -> Path:
    """Write a result, and break it."""
    path = write(folder, "counts")
    promise = Path(f"{path}.guarantee.json")
    content = json.loads(promise.read_text())
    if what == "lost":
        promise.unlink()
    elif what == "no json":
        promise.write_text('{"made_by"')
    elif what == "unknown":
        promise.write_text(promise.read_text().replace("privstream counts", "privstream oracle"))
    elif what == "no guarantee":
        promise.write_text(json.dumps(content | {"guarantee": {"version": 9}}))
    elif what == "cut short":
        path.write_text(path.read_text()[:-9])
    elif what == "other rows":
        write_row_file(str(path), row_types.NearestPoints, [row_of("predecessor", 0, "")])
    elif what == "changed":
        promise.write_text(json.dumps(content | {"rows": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}))
        path.write_text(path.read_text().replace("102", "9999", 1))
    else:
        path.unlink()
    return path


@pytest.mark.parametrize(
    "what", ["lost", "no json", "unknown", "no guarantee", "cut short", "other rows", "changed", "gone"]
)
def test_what_is_broken_is_one_error(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path, "heavy-hitters")
    assert report(tmp_path, good, spoil(tmp_path, what)) == 2
    told = capsys.readouterr().err
    assert re.search("privstream report: error: .*counts.jsonl", told) and told.count("\n") == 1, told
    assert not (tmp_path / "report.html").exists()
