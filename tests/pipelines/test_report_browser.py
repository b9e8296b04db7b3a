"""A report in a real browser, headless Chromium: its script runs, and nothing else does."""

import re
import subprocess
from pathlib import Path

import pytest
from headless_browser import browser
from privstream.pipelines.report.page import render

HOSTILE = "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\u202e"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
POINT_AT = """<script>
const svg = document.querySelector("figure svg");
const frame = svg.getBoundingClientRect();
const scale = frame.width / svg.viewBox.baseVal.width;
const at = { clientX: frame.left + 102 * scale, clientY: frame.top + 51 * scale };
svg.dispatchEvent(new PointerEvent("pointermove", at));
</script></body>"""


def shown(page: str, folder: Path) -> str:
    """Return the page as it is after the browser has run it."""
    (folder / "page.html").write_text(page)
    given = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [browser(), *given, f"file://{folder / 'page.html'}"], capture_output=True, timeout=250, check=True, text=True
    )
    return done.stdout


def page() -> str:
    """Return a page with hostile names wherever the data have a say."""
    picture = {
        "title": HOSTILE,
        "caption": HOSTILE,
        "size": [800, 400],
        "image": "data:image/svg+xml;base64,",
        "names": [HOSTILE, "tea"],
        "points": [[0, 100, 50, "first"], [1, 300, 50, "second"]],
        "thinned": False,
    }
    section = {"title": HOSTILE, "question": "", "file": HOSTILE, "kind": "counts", "silence": "", "accuracy": HOSTILE}
    section |= {"pictures": [picture], "other_pictures": 0, "left_out": [], "promise": [], "not_covered": [HOSTILE]}
    section |= {"guarantee": {"epsilon": 1, "delta": 0, "unit": HOSTILE, "proof": HOSTILE, "public": [HOSTILE]}}
    section |= {"columns": [(HOSTILE, HOSTILE)], "rows": [[HOSTILE]], "all_rows": 1, "facts": [(HOSTILE, HOSTILE)]}
    section |= {"parameters": [(HOSTILE, HOSTILE)]}
    return render(title="Results", date="2030-01-31", version="0.1.0", sections=[section], costs=None)


@pytest.mark.slow
def test_the_script_of_the_page_runs_and_no_other(tmp_path: Path) -> None:
    found = shown(page(), tmp_path)
    assert found.count("<option") == 3
    assert "<title>Results, 2030-01-31</title>" in found
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;|\"[^\"]*\"", "", found)


@pytest.mark.slow
def test_an_injected_script_would_not_run(tmp_path: Path) -> None:
    found = shown(page().replace("</body>", "<script>document.title = 'ran'</script></body>"), tmp_path)
    assert "<title>Results, 2030-01-31</title>" in found


@pytest.mark.slow
def test_a_point_says_what_it_is_when_it_is_pointed_at(tmp_path: Path) -> None:
    pointed = POLICY.sub("", page()).replace("</body>", POINT_AT)
    (tip,) = re.findall(r'<p class="tip"([^>]*)>(.*?)</p>', shown(pointed, tmp_path), re.S)
    assert "hidden" not in tip[0]
    assert tip[1].endswith("first") and tip[1].startswith("&lt;/script&gt;&lt;script&gt;")
