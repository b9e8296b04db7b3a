"""A report in a real browser, headless Chromium: its script runs, and nothing else does."""

import re
from collections.abc import Callable, Iterator

import pytest
from headless_browser import Chromium
from privstream.pipelines.report.page import render

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE = "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\u202e"
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
    section |= {"parameters": [(HOSTILE, HOSTILE)], "truth": True, "rules": {"names": [HOSTILE], "rows": [[HOSTILE]]}}
    return render(title="Results", date="2030-01-31", version="0.1.0", sections=[section], costs=None)


def test_the_script_of_the_page_runs_and_no_other(shown: Callable[[str], str]) -> None:
    found = shown(page())
    assert found.count("<option") == 3
    assert "<title>Results, 2030-01-31</title>" in found
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;|\"[^\"]*\"", "", found)


def test_an_injected_script_would_not_run(shown: Callable[[str], str]) -> None:
    found = shown(page().replace("</body>", "<script>document.title = 'ran'</script></body>"))
    assert "<title>Results, 2030-01-31</title>" in found


def test_a_point_says_what_it_is_when_it_is_pointed_at(shown: Callable[[str], str]) -> None:
    pointed = POLICY.sub("", page()).replace("</body>", POINT_AT)
    (tip,) = re.findall(r'<p class="tip"([^>]*)>(.*?)</p>', shown(pointed), re.S)
    assert "hidden" not in tip[0]
    assert tip[1].endswith("first") and tip[1].startswith("&lt;/script&gt;&lt;script&gt;")
