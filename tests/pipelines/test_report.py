"""`privstream report`: from files of rows to one page, also in a real browser, where nothing but its script runs."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from example_results import HOSTILE, KEY, row_of, write
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from privstream.pipelines import cli
from privstream.pipelines.accounts.entries import Limit
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.model.catalogue import WORDS, question
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    return tmp_path


def report(folder: Path, *words: object) -> int:
    return cli.main(["report", *map(str, words), "--output", str(folder / "report.html")])


def page_of(folder: Path, *words: object) -> str:
    assert report(folder, *words) == 0
    return (folder / "report.html").read_text()


def plain(page: str) -> str:
    """Return the text of a page in one line."""
    return " ".join("".join(Tags(page).text).split())


def test_a_page_has_all_that_is_promised(folder: Path) -> None:
    page = page_of(folder, write(folder, "counts"), "--key", folder / "key")
    text = plain(page)
    for words in (
        "Accuracy <of the run>.",
        "Each person takes part in at most 4 windows.",
        "Protected is one person over the whole run.",
        "adding or removing the unit",
        "Proof: docs/proofs/clock.md, Theorem 2.",
        "All noise is <keyed>.",
        "2030-01-31T12:00:00+00:00",
        "Data set shop",
        "1 release is recorded",
        "2024-01-01 02:00 UTC",
        "95% intervals",
    ):
        assert words in text
    assert "secretdigest" not in page and "data-counts" not in page
    assert re.search(r"[0-9a-f]{16} \(under the noise key\)", text)
    assert "People per item" in text


def test_the_page_loads_nothing_and_runs_its_own_script_alone(folder: Path) -> None:
    page = page_of(folder, write(folder, "heavy-hitters"))
    assert not re.search(r"(?:src|href)=\"(?!data:image|#)|@import|url\(", page)
    (policy,) = [one["content"] or "" for one in Tags(page).attributes("meta") if "http-equiv" in one]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert len(page) < 400_000


def test_odds_in_plain_words_are_right(folder: Path) -> None:
    text = plain(page_of(folder, write(folder, "counts")))
    assert "at most 2.72 times that in the other case (e to the power of epsilon = 1), plus delta = 1e-06" in text
    most = 100 * (math.e + 1e-6) / (1 + math.e)
    assert f"with a probability of at most {math.ceil(10 * most) / 10:g}%" in text
    alone = PrivacyGuarantee(unit=EVENT, neighbouring="replace_one", epsilon=1.0, delta=0.0, horizon=24)
    text = plain(page_of(folder, write(folder, "histogram", guarantee=alone)))
    assert "One event is protected, not a person" in text and "plus delta" not in text
    assert "It holds for at most 24 windows." in text


@pytest.mark.parametrize("word", WORDS)
def test_every_question_has_a_report(word: str, folder: Path) -> None:
    page = page_of(folder, write(folder, word))
    tags = Tags(page)
    (image,), (phone,) = tags.attributes("img"), tags.attributes("source")
    assert all((one or "").startswith("data:image/svg+xml;base64,") for one in (image["src"], phone["srcset"]))
    headings = [one["title"] for one in tags.attributes("th") if "title" in one]
    shown = [name for name in question(word).row_type._fields if f">{name}</th>" in page]
    assert len(headings) == len(shown) and all(headings)


def test_hostile_names_are_text(folder: Path) -> None:
    page = page_of(folder, write(folder, "counts", tuple(HOSTILE)), "--key", folder / "key")
    tags = Tags(page)
    assert len(tags.attributes("script")) == 1
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert [one["src"] for one in tags.attributes("img") if not (one["src"] or "").startswith("data:")] == []
    assert not set(page) & set("\u2028\u2029\u202e\u2066\x1b")
    assert "{{ 7 * 7 }}" in page and "49{%" not in page
    assert "<script>document.title='ran'</script>" in "".join(tags.text)


def test_several_results_are_sections_with_one_total(folder: Path) -> None:
    paths = [write(folder, word) for word in ("heavy-hitters", "counts")]
    page = page_of(folder, *paths, "--ledger", folder / "key.ledger.jsonl")
    assert page.count("<figure") == 2
    text = plain(page)
    assert "2 releases are recorded" in text and text.count("Data set shop") == 1
    assert "not shown: a digest of the data" in text
    table = re.sub(r' data-name="[^"]*"', "", page.partition("<main>")[0])
    cells = ("2030-01-31 12:00 UTC", "one person over the whole run", "1", "1e-06")
    assert table.count("".join(f"<td>{text}</td>" for text in cells)) == 2
    results = ["#result-1", "#result-2"]
    assert [one["href"] for one in Tags(page).attributes("a")] == [*results, "#cost", *results]
    assert "What was found" in table and "tea: 102 (90 to 200)" in table
    assert plain(page_of(folder, *paths).partition("<main>")[0]).count("not known without a ledger") == 2


def test_what_stands_out_comes_first(folder: Path) -> None:
    path = write(folder, "counts")
    rows = [
        row_types.KeyRise(*row_of("counts", 0, "tea"), None, None, None),
        row_types.KeyRise(*row_of("counts", 1, "tea"), 25.4, 2.0, 48.0),
    ]
    write_row_file(str(path), row_types.KeyRise, rows)
    page = page_of(folder, path)
    assert page.index('class="highlights"') < page.index("<figure")
    assert "tea rose by +25 (+2 to +48) until 2024-01-01 02:00 UTC" in plain(page)


def test_what_is_left_of_a_limit_is_on_the_page(folder: Path) -> None:
    path = write(folder, "counts")
    Ledger(str(folder / "key.ledger.jsonl")).set_limit("shop", Limit(4.0, 1e-5))
    page = plain(page_of(folder, path, "--ledger", folder / "key.ledger.jsonl"))
    assert "The limit: epsilon 4, delta 1e-05." in page and "epsilon left of the limit" in page


def test_a_notebook_shows_a_result_itself(folder: Path) -> None:
    """Its picture, its first rows and its guarantee, names as text, and nothing of its log."""
    found = replace(read_result(str(write(folder, "counts", (HOSTILE[0], "tea")))), log="7 exact lines")
    html = found._repr_html_()
    tags = Tags(html)
    (image,) = tags.attributes("img")
    assert base64.b64decode((image["src"] or "").partition("base64,")[2]).startswith(b"\x89PNG")
    assert "Counts: 6 rows, epsilon = 1, delta = 1e-06 for one person over the whole run" in plain(html)
    assert HOSTILE[0] in "".join(tags.text) and not tags.attributes("script")
    assert html.count("<tr>") == 7 and "Accuracy <of the run>." in plain(html) and "exact lines" not in html
    nothing = plain(found.with_rows([])._repr_html_())
    assert "No counts were published" in nothing and "first" not in nothing.partition("Accuracy")[0]


def test_a_folder_of_windows(folder: Path) -> None:
    path = write(folder, "counts")
    windows = folder / "windows"
    windows.mkdir()
    path.rename(windows / "20240101T000000Z.jsonl")
    Path(f"{path}.guarantee.json").rename(windows / "_guarantee.json")
    (windows / "_END").touch()
    (windows / ".20240101T010000Z.jsonl.0011.partial").write_text('{"half": ')
    assert page_of(folder, windows).count("<tr>") == 7 + 1 - 1


def spoil(folder: Path, what: str) -> Path:
    """Write a result, and break it."""
    path = write(folder, "counts")
    promise = Path(f"{path}.guarantee.json")
    if what == "lost":
        promise.unlink()
    elif what == "no json":
        promise.write_text('{"made_by"')
    elif what == "unknown":
        promise.write_text(promise.read_text().replace("privstream counts", "privstream oracle"))
    elif what == "no guarantee":
        promise.write_text(json.dumps(json.loads(promise.read_text()) | {"guarantee": {"version": 9}}))
    elif what == "cut short":
        path.write_text(path.read_text()[:-9])
    elif what == "other rows":
        write_row_file(str(path), row_types.NearestPoints, [row_of("predecessor", 0, "")])
    else:
        path.unlink()
    return path


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("lost", "RESULT must have its guarantee: there is no file .*counts.jsonl.guarantee.json. A run writes it"),
        ("no json", "counts.jsonl.guarantee.json must be a guarantee that privstream wrote"),
        ("unknown", "RESULT must answer a question of this version of privstream .* was made by 'privstream oracle'"),
        ("no guarantee", "counts.jsonl.guarantee.json must be a guarantee that a command has written: version"),
        ("cut short", "RESULT must have KeyCount rows that privstream wrote, got .*counts.jsonl .* cut short, run"),
        ("other rows", "RESULT must have KeyCount rows that privstream wrote, got .*counts.jsonl"),
        ("gone", "RESULT must be a file or a folder that exists, got .*counts.jsonl"),
    ],
)
def test_what_is_broken_is_one_error(what: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(folder, "heavy-hitters")
    assert report(folder, good, spoil(folder, what)) == 2
    told = capsys.readouterr().err
    assert re.search(f"privstream report: error: .*{message}", told) and told.count("\n") == 1, told
    assert not (folder / "report.html").exists()


def test_rows_that_the_run_did_not_write_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path(write(folder, "counts"))
    beside = rows.with_name(f"{rows.name}.guarantee.json")
    sealed = json.loads(beside.read_text()) | {"rows": {"sha256": hashlib.sha256(rows.read_bytes()).hexdigest()}}
    beside.write_text(json.dumps(sealed))
    assert report(folder, rows) == 0
    one, *others = rows.read_text().splitlines()
    rows.write_text("\n".join([json.dumps(json.loads(one) | {"people": 9999}), *others, ""]))
    assert report(folder, rows) == 2
    assert "RESULT must be as its run wrote it: " in capsys.readouterr().err


def test_a_ledger_without_the_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, "counts")
    other = folder / "other"
    other.mkdir()
    write(other, "heavy-hitters")
    assert report(folder, path, "--ledger", other / "key.ledger.jsonl") == 2
    assert "ledger must have recorded the run of each result" in capsys.readouterr().err


def test_another_key_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, "counts")
    (folder / "key").write_bytes(b"another example, no secret")
    assert report(folder, path, "--key", folder / "key") == 2
    assert "--key must be the key of the run" in capsys.readouterr().err
