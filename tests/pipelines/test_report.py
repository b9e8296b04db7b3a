"""`privstream report`: from files of rows to one page, also in a real browser, where nothing but its script runs."""

import base64
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import HOSTILE, KEY, PERSONS, add_window, row_of, watched, write
from headless_browser import Chromium
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT
from privstream.pipelines import cli
from privstream.pipelines.accounts.entries import BEFORE_ALL, head_after
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.public_lists import write_rules
from privstream.pipelines.report.page import render
from privstream.pipelines.report.result import Result, read_result
from privstream.pipelines.report.section import highlights, linked, of_method, words_of
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms import AlertRule
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
    page = page_of(folder, write(folder, "counts"), "--noise_key_file", folder / "key")
    text = plain(page)
    for words in (
        "Accuracy <of the run>.",
        "Each person takes part in at most 4 windows.",
        "Protected is one person over the whole run.",
        "adding or removing the unit",
        "Proof: docs/proofs/clock.md, Theorem 4.",
        "All noise is <keyed>.",
        "2030-01-31T12:00:00+00:00",
        "Data set shop",
        "1 release is recorded",
        "2024-01-01 02:00 UTC",
        "with probability 95%",
    ):
        assert words in text
    assert "secretdigest" not in page and "data-counts" not in page
    assert re.search(r"[0-9a-f]{16} \(under the noise key\)", text)
    (figure,) = Tags(page).attributes("figure")
    points = json.loads(figure["data-points"] or "")
    assert json.loads(figure["data-names"] or "") == ["coffee", "tea"]
    assert len(points) == 6 and points[0][3].endswith("100 (between 90 and 200)")


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
    (figure,) = tags.attributes("figure")
    assert json.loads(figure["data-points"] or "")
    (image,) = tags.attributes("img")
    assert (image["src"] or "").startswith("data:image/svg+xml;base64,")
    headings = [one["title"] for one in tags.attributes("th") if "title" in one]
    shown = [name for name in question(word).row_type._fields if f">{name}</th>" in page]
    assert len(headings) == len(shown) and all(headings)


def test_hostile_names_are_text(folder: Path) -> None:
    page = page_of(folder, write(folder, "counts", tuple(HOSTILE)), "--noise_key_file", folder / "key")
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
    table = page.partition("<main>")[0]
    cells = ("2030-01-31 12:00 UTC", "one person over the whole run", "1", "1e-06")
    assert table.count("".join(f"<td>{text}</td>" for text in cells)) == 2
    results = ["#result-1", "#result-2"]
    assert [one["href"] for one in Tags(page).attributes("a")] == [*results, "#cost", *results]
    assert "What was found" in table and "tea: 102 (between 90 and 200)" in table
    assert plain(page_of(folder, *paths).partition("<main>")[0]).count("not known without a ledger") == 2


def test_the_heading_is_text_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, "counts")
    tags = Tags(page_of(folder, path, "--title", "Visits <script>document.title='ran'</script>\u202e"))
    assert len(tags.attributes("script")) == 1
    assert "Visits <script>document.title='ran'</script>" in "".join(tags.text)
    assert "\u202e" not in "".join(tags.text)
    assert plain(page_of(folder, path)).startswith("Differentially private results")
    for title in (" ", "x" * 201):
        assert report(folder, path, "--title", title) == 2
        assert "--title must have 1 to 200 characters, got" in capsys.readouterr().err


def test_who_signs_sees_which_rows(folder: Path) -> None:
    path = write(folder, "counts")
    promise = Path(f"{path}.guarantee.json")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    promise.write_text(json.dumps(json.loads(promise.read_text()) | {"rows": {"sha256": digest}}))
    text = plain(page_of(folder, path))
    assert f"SHA-256 {digest}" in text
    assert "Released by (name, date, signature):" in text


def signed(folder: Path, *words: object) -> tuple[str, dict[str, Any]]:
    """Return the text of a page that was signed, and the file beside it."""
    page = page_of(folder, *words, "--sign_off", "Ada <b>", "--sign_off", "Grace", "--purpose", "the yearly report")
    return plain(page), json.loads((folder / "report.html.sign_off.json").read_text())


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_sign_off_has_names_a_purpose_and_digests_of_all_files(folder: Path) -> None:
    paths = [write(folder, word) for word in ("counts", "heavy-hitters")]
    ledger = folder / "key.ledger.jsonl"
    text, record = signed(folder, *paths, "--ledger", ledger)
    assert record["names"] == ["Ada <b>", "Grace"] and record["purpose"] == "the yearly report"
    assert record["page"] == {"file": "report.html", "sha256": digest_of(folder / "report.html")}
    for path, found in zip(paths, record["results"], strict=True):
        assert found["rows_sha256"] == {path.name: digest_of(path)}
        assert found["guarantee_sha256"] == digest_of(Path(f"{path}.guarantee.json"))
        assert found["run_id"] == f"run-{path.stem}" and found["guarantee"]["epsilon"] == 1.0
        assert all(digest in text for digest in (found["guarantee_sha256"], *found["rows_sha256"].values()))
    head = BEFORE_ALL
    for line in ledger.read_bytes().splitlines(keepends=True):
        head = head_after(head, line)
    assert record["ledger"] == {"line": 2, "head": head} and f"line 2, head {head}" in text
    assert re.search("released by ?Ada <b>, Grace on ?20", text) and re.search("for ?the yearly report", text)
    assert "Grace, signature:" in text and "Released by (name, date, signature):" not in text


def test_a_folder_and_no_ledger_can_be_signed_too(folder: Path) -> None:
    windows = watched(folder, "counts")
    files = [add_window(windows, hour, "tea") for hour in range(25)]
    text, record = signed(folder, windows)
    assert record["results"][0]["rows_sha256"] == {file.name: digest_of(file) for file in files}
    assert "5 more files are in the file beside this page" in text
    assert record["ledger"] is None and "what the data set has cost in all is not signed" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sign_off", "Ada"], "--purpose must be given with --sign_off"),
        (["--purpose", "a paper"], "--sign_off must be given with --purpose"),
        (["--sign_off", " ", "--purpose", "a paper"], "--sign_off must have 1 to 200 characters, got 1"),
        (["--sign_off", "Ada", "--purpose", "x" * 201], "--purpose must have 1 to 200 characters, got 201"),
        (["--sign_off", "Ada", "--purpose", "a paper", "--truth", "t"], "--sign_off must not be given with --truth"),
        (
            ["--docs", "javascript:alert(1)"],
            "--docs must be an address such as https://localhost/privstream, got java",
        ),
    ],
)
def test_what_is_no_sign_off_is_refused(words, message, folder, capsys):
    assert report(folder, write(folder, "counts"), *words) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_proofs_are_links_where_the_site_is_known(folder: Path) -> None:
    page = page_of(folder, write(folder, "counts"), "--docs", "https://localhost/privstream/")
    assert [one["href"] for one in Tags(page).attributes("a")] == ["https://localhost/privstream/proofs/clock.html"]
    assert "Proof: docs/proofs/clock.md, Theorem 4." in plain(page)
    assert linked("both: docs/proofs/a.md, section 2, and docs/proofs/b.md", "https://localhost") == [
        ("both: ", ""),
        ("docs/proofs/a.md", "https://localhost/proofs/a.html"),
        (", section 2, and ", ""),
        ("docs/proofs/b.md", "https://localhost/proofs/b.html"),
    ]
    assert linked("", "https://localhost") == []


def test_what_stands_out_comes_first(folder: Path) -> None:
    path = write(folder, "counts")
    more = {"smoothed": 90.0, "rise": 25.4, "rise_lower": 2.0, "rise_upper": 48.0, "rise_probability": 0.96}
    told = {"kept": 900, "left_out": 100, "used_up": 7, "used_up_lower": 0, "used_up_upper": 19}
    rows = [row_of("counts", 0, "tea"), row_of("counts", 1, "tea")._replace(**more, **told)]
    write_row_file(str(path), row_types.KeyCount, rows)
    page = page_of(folder, path)
    assert page.index('class="highlights"') < page.index("<figure")
    rose = "tea rose by +25 (+2 to +48; a rise at all with probability 96%) in the window until 2024-01-01 02:00 UTC"
    assert rose in plain(page)
    assert "limits leave out about 10% of all contributions (of a person with far more than" in plain(page)
    assert "only a part is in this), and by the last window about 7 people" in plain(page)


def test_alerts_and_flags_have_their_days_also_by_the_clocks_of_the_run() -> None:
    start = 1_772_406_000  # midnight in Berlin
    when = [Timestamp(start + hour * 3600) for hour in range(4)]
    alert = row_of("alerts", 0, "flu")._replace(estimate=815.2, since=when[0], status="continues")
    alerts = [alert._replace(window_start=a, window_end=b) for a, b in itertools.pairwise(when)]
    flag = row_of("flags", 0, "tea")
    flags = [flag._replace(window_start=a, window_end=b, raised=b >= when[2]) for a, b in itertools.pairwise(when)]
    for word, rows, text in (
        (
            "alerts",
            alerts,
            "Alert flu: from 2026-03-02 00:00 CET to 2026-03-02 03:00 CET, about 815 in its last window.",
        ),
        ("flags", flags, "The flag of tea is up since 2026-03-02 02:00 CET."),
    ):
        promise = Promise("", {"parameters": {"time_zone": "Europe/Berlin"}})
        result = Result(
            path="", spec=question(word), row_type=type(rows[0]), rows=rows, promise=promise, guarantee=PERSONS
        )
        assert highlights(result) == [text]


def test_what_is_left_of_a_limit_by_period_is_on_the_page(folder: Path) -> None:
    path = write(folder, "counts")
    Ledger(str(folder / "key.ledger.jsonl")).set_limit("shop", Limit(4.0, 1e-5, "year"))
    page = page_of(folder, path, "--ledger", folder / "key.ledger.jsonl")
    assert "The limit: epsilon 4, delta 1e-05 for each year." in plain(page)
    (row,) = re.findall(r"<tr><td>any time</td>(.*?)</tr>", page)
    assert "one person over the whole run" in row and row.endswith("<td>3</td>")


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
    streams = [row._replace(stream=f"shop {number}") for number in range(5) for row in found.rows[:1]]
    assert found.with_rows(streams)._repr_html_().count("<img") == 3
    nothing = plain(found.with_rows([])._repr_html_())
    assert "No counts were published" in nothing and "first" not in nothing.partition("Accuracy")[0]


def test_without_rows_the_page_says_so_in_words(folder: Path) -> None:
    page = page_of(folder, write(folder, "counts", ()))
    assert "No counts were published." in plain(page)
    assert "<figure" not in page and "<tbody" not in page.partition('id="cost"')[0]


def test_every_stream_has_a_picture(folder: Path) -> None:
    path = write(folder, "counts")
    rows = [row_of("counts", hour, "tea")._replace(stream=stream) for stream in ("north", "south") for hour in range(3)]
    write_row_file(str(path), row_types.KeyCount, rows)
    page = page_of(folder, path)
    assert page.count("<figure") == 2 and "People with each item, north" in page


def test_sums_are_in_the_table(folder: Path) -> None:
    path = write(folder, "counts")
    rows = [row_types.KeySum(*row_of("counts", 0, "tea"), 500, 7.0, 5.0, 0.5)]
    write_row_file(str(path), row_types.KeySum, rows)
    assert "mean_error_bound" in page_of(folder, path)


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
    rows.write_text("\n".join([json.dumps(json.loads(one) | {"count": 9999}), *others, ""]))
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
    assert report(folder, path, "--noise_key_file", folder / "key") == 2
    assert "--noise_key_file must be the key of the run" in capsys.readouterr().err


def test_the_truth_is_drawn_beside_the_rows_of_one_result_and_the_page_says_that_it_is_exact(folder: Path) -> None:
    rows = write(folder, "counts")
    truth = [item_holders("tea", hour=0, people=4_000), item_holders("mate", hour=0, people=900)]
    write_row_file(str(folder / "truth.jsonl"), ItemHolders, truth)
    page = plain(page_of(folder, rows, "--truth", folder / "truth.jsonl"))
    assert "Dashed lines are the truth, without noise. No guarantee holds for them" in page
    assert "were found; missed: mate (900)." in page
    assert "Dashed" not in plain(page_of(folder, rows))


def test_a_truth_is_that_of_one_result_of_its_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(folder, "counts")
    write_row_file(str(folder / "truth.jsonl"), ItemHolders, [])
    assert report(folder, rows, rows, "--truth", folder / "truth.jsonl") == 2
    assert "--truth must be given for a page of one RESULT, got 2" in capsys.readouterr().err
    assert report(folder, rows, "--truth", rows) == 2
    assert "--truth must have ItemHolders rows" in capsys.readouterr().err


def item_holders(item: str, *, hour: int, people: int) -> ItemHolders:
    row = row_of("counts", hour, item)
    return ItemHolders(row.stream, row.window_start, row.window_end, item, people)


RULES = [
    AlertRule(name="kettle", at_least=60, items=("fever", "cough")),
    AlertRule(name="all", at_least=150),
]
DAYS = AlertRule(name="three hours", at_most=20, windows=3)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinic")
    given = ["--users", "2000", "--windows", "24", "--seed", "3", "--output", str(folder / "e.avro")]
    assert cli.main(["simulate", "alerts", *given]) == 0
    return folder


def run(clinic, name, rules, *more):
    write_rules(str(clinic / "rules"), rules)
    given = ["--input", str(clinic / "e.avro"), "--rules", str(clinic / "rules"), "--output", str(clinic / name)]
    given += ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-02", "--epsilon", "4", "--delta", "1e-6"]
    assert cli.main(["alerts", *given, *more]) == 0
    return words_of(read_result(str(clinic / name)), None)


@pytest.mark.parametrize(
    ("method", "words", "others"),
    [
        ("counts", "paid for before the run", ("stops, and", "continues and ends")),
        ("status", "people are charged", ("stops, and", "paid for before the run")),
        ("sparse_vector", "its last row says so", ("people are charged", "paid for before")),
    ],
)
def test_the_page_is_about_the_method_that_ran(clinic, method, words, others):
    page = run(clinic, f"{method}.jsonl", RULES, "--method", method)
    assert words in page["question"] and not any(other in page["question"] for other in others)
    costs = method == "sparse_vector"
    names = [name for name, _ in page["columns"]]
    assert ("stopped" in names) == ("epsilon_left" in names) == costs
    assert page["rows"] and all(len(row) == len(names) for row in page["rows"])
    assert any("budget is spent" in text for text in page["left_out"]) == costs
    text = dict(page["columns"])["status"]
    assert ('says "ended"' in text) == (method == "status") and "None" not in text


def test_the_page_shows_the_rules(clinic):
    page = run(clinic, "rules.jsonl", [*RULES, DAYS])
    assert page["rules"] == {
        "names": ["name", "at_least", "at_most", "windows", "items"],
        "rows": [
            ["kettle", "60", "-", "1", "fever, cough"],
            ["all", "150", "-", "1", "any"],
            ["three hours", "-", "20", "3", "any"],
        ],
    }
    assert ("window", "1 hour") in page["parameters"]
    shown = clinic / "page.html"
    assert cli.main(["report", str(clinic / "rules.jsonl"), "--output", str(shown)]) == 0
    assert "<h3>The rules</h3>" in shown.read_text() and "<td>fever, cough</td>" in shown.read_text()


def test_hostile_promises_have_no_rules(clinic):
    run(clinic, "hostile.jsonl", RULES)
    file = Path(f"{clinic / 'hostile.jsonl'}.guarantee.json")
    content = json.loads(file.read_text())
    for rules in ("rule", [1], {"a": 1}):
        file.write_text(json.dumps(content | {"public": {"rules": rules}}))
        assert words_of(read_result(str(clinic / "hostile.jsonl")), None)["rules"] is None


def test_sentences_about_other_methods_are_left_out():
    text = 'A number. With the method "status" it is None. With the methods "counts" and "pairs" it is 1; None is rare.'
    assert of_method(text, "status") == 'A number. With the method "status" it is "-".'
    assert of_method(text, "pairs") == 'A number. With the methods "counts" and "pairs" it is 1; "-" is rare.'
    assert of_method(text, "").count("With the method") == 2


HARMFUL = "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\u202e"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
POINT_AT = """<script>
const svg = document.querySelector("figure svg");
const frame = svg.getBoundingClientRect();
const scale = frame.width / svg.viewBox.baseVal.width;
const at = { clientX: frame.left + 102 * scale, clientY: frame.top + 51 * scale };
svg.dispatchEvent(new PointerEvent("pointermove", at));
</script></body>"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return what gives a page as it is after the browser has run it."""
    folder = tmp_path_factory.mktemp("browser")
    with Chromium(folder / "profile") as browser:

        def after_running(page: str) -> str:
            file = folder / f"{len(list(folder.iterdir()))}.html"
            file.write_text(page)
            browser.call("Page.navigate", url=file.as_uri())
            browser.wait(f"location.href == {file.as_uri()!r} && document.readyState == 'complete'")
            found: str = browser.run("document.documentElement.outerHTML")
            return found

        yield after_running


def page() -> str:
    """Return a page with hostile names wherever the data have a say."""
    picture = {
        "title": HARMFUL,
        "caption": HARMFUL,
        "size": [800, 400],
        "image": "data:image/svg+xml;base64,",
        "names": [HARMFUL, "tea"],
        "points": [[0, 100, 50, "first"], [1, 300, 50, "second"]],
        "thinned": False,
    }
    section = {
        "title": HARMFUL,
        "question": "",
        "file": HARMFUL,
        "kind": "counts",
        "why_nothing": "",
        "accuracy": HARMFUL,
    }
    section |= {"highlights": [HARMFUL], "proof": [(HARMFUL, "")]}
    section |= {"pictures": [picture], "other_pictures": 0, "left_out": [], "promise": [], "not_covered": [HARMFUL]}
    section |= {
        "view": False,
        "guarantee": {"epsilon": 1, "delta": 0, "unit": HARMFUL, "proof": HARMFUL, "public": [HARMFUL]},
    }
    section |= {"columns": [(HARMFUL, HARMFUL)], "rows": [[HARMFUL]], "all_rows": 1, "facts": [(HARMFUL, HARMFUL)]}
    section |= {"parameters": [(HARMFUL, HARMFUL)], "truth": True, "rules": {"names": [HARMFUL], "rows": [[HARMFUL]]}}
    return render(title="Results", date="2030-01-31", version="0.1.0", sections=[section], costs=None, together=[])


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_the_script_of_the_page_runs_and_no_other(shown: Callable[[str], str]) -> None:
    found = shown(page())
    assert found.count("<option") == 3
    assert "<title>Results, 2030-01-31</title>" in found
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;|\"[^\"]*\"", "", found)


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_an_injected_script_would_not_run(shown: Callable[[str], str]) -> None:
    found = shown(page().replace("</body>", "<script>document.title = 'ran'</script></body>"))
    assert "<title>Results, 2030-01-31</title>" in found


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_a_point_says_what_it_is_when_it_is_pointed_at(shown: Callable[[str], str]) -> None:
    pointed = POLICY.sub("", page()).replace("</body>", POINT_AT)
    (tip,) = re.findall(r'<p class="tip"([^>]*)>(.*?)</p>', shown(pointed), re.S)
    assert "hidden" not in tip[0]
    assert tip[1].endswith("first") and tip[1].startswith("&lt;/script&gt;&lt;script&gt;")
