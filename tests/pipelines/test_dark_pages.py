"""Pages and their pictures in the dark: what is read can be read, lines can be told apart, and paper is light."""

import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from example_results import write
from headless_browser import Chromium
from matplotlib.image import imread
from numpy.typing import NDArray
from privstream.pipelines.plot.chart import COLOURS, DARK, FAINT, PAGE, PAPER, in_both
from privstream.pipelines.questions.catalogue import WORDS
from privstream.pipelines.report.page import render, text_file
from privstream.pipelines.report.result import read_result
from privstream.pipelines.report.section import section
from privstream.pipelines.serve.page import PACKAGE

Floats = NDArray[np.float64]

BLIND = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What is left of linear colours for people who cannot see one: Machado, Oliveira, Fernandes 2009, severity 1."""


def linear(colour: str) -> Floats:
    """Return linear red, green and blue, from 0 to 1."""
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 has it, from 1 to 21."""
    least, most = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (most + 0.05) / (least + 0.05)


def seen(colour: str, blind: str) -> Floats:
    """Return a colour as somebody sees it, in CIE Lab but for constants, where distances are as large as they look."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(np.array(BLIND[blind]) @ linear(colour), 0, 1) / to_xyz.sum(1))
    return np.array([116 * y, 500 * (x - y), 200 * (y - z)])


def schemes() -> list[dict[str, str]]:
    """Return the colours of pages by name, in light and in the dark."""
    blocks = re.findall(r":root \{([^}]*)\}", text_file("report.css"))
    return [dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in blocks]


def test_words_of_pages_can_be_read() -> None:
    light, dark = schemes()
    assert light.keys() == dark.keys()
    assert (light["paper"], dark["paper"]) == (PAPER, DARK[PAPER])
    for scheme in (light, dark):
        for words, ground in itertools.product(("ink", "soft", "link"), ("paper", "shade")):
            assert contrast(scheme[words], scheme[ground]) >= 4.5
        assert all(contrast(scheme[sign], scheme["paper"]) >= 3 for sign in ("alarm", "warning"))


@pytest.mark.parametrize(("file", "package"), [("report.css", ""), ("live.css", PACKAGE)])
def test_pages_name_colours_in_one_place(file: str, package: str) -> None:
    style = text_file(file, package) if package else text_file(file)
    assert not re.findall(r"#[0-9a-f]{3,6}\b", re.sub(r":root \{[^}]*\}", "", style))
    for query in re.findall(r"@media ([^{]*prefers-color-scheme[^{]*) \{", style):
        assert query == "screen and (prefers-color-scheme: dark)"


def test_words_of_pictures_can_be_read_in_the_dark() -> None:
    found = {colour: contrast(dark, DARK[PAPER]) for colour, dark in DARK.items() if colour not in (PAPER, FAINT)}
    assert min(found.values()) >= 5


@pytest.mark.parametrize("blind", BLIND)
def test_colour_blind_people_tell_all_lines_apart_in_the_dark(blind: str) -> None:
    lines = [seen(DARK[colour], blind) for colour in COLOURS]
    assert min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(lines, 2)) > 10


@pytest.mark.parametrize("word", WORDS)
def test_every_colour_of_a_picture_has_another_one_in_the_dark(word: str, tmp_path: Path) -> None:
    result = read_result(str(write(tmp_path, word)))
    drawn = io.BytesIO()
    result.picture_spec.prepare(next(result.given()))(drawn, PAGE)
    picture = in_both(json.loads(drawn.getvalue())["svg"])
    style, _, shapes = picture.partition("</style>")
    assert not re.findall(r"(?:fill|stroke): (?!none|url|var\(--)", shapes)
    assert not re.findall(r"<text(?![^>]*fill: var)", shapes)  # without a colour it would be black
    assert {f"--{colour[1:]}:{dark};" for colour, dark in DARK.items()} <= set(re.findall(r"--\w+:#\w+;", style))


def test_names_of_colours_in_words_stay() -> None:
    words = '<style>*{}</style><text style="fill: #0072b2">style="fill: #0072b2"</text>'
    assert in_both(words).endswith('<text style="fill: var(--0072b2)">style="fill: #0072b2"</text>')


@pytest.mark.slow
def test_a_page_follows_the_scheme_and_paper_is_light(tmp_path: Path) -> None:
    one = section(read_result(str(write(tmp_path, "cardinality"))), None)
    page = tmp_path / "page.html"
    page.write_text(render(title="", date="", version="", sections=[one], costs=None, together=[]))
    brightness = {}
    with Chromium(tmp_path / "profile") as browser:
        for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
            wanted = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.call("Emulation.setEmulatedMedia", media=media, features=wanted)
            browser.call("Page.navigate", url=page.as_uri())
            browser.wait("document.readyState == 'complete' && document.querySelector('img').complete")
            browser.run("document.querySelector('img').scrollIntoView()")
            browser.run("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            browser.picture(tmp_path / "seen.png")
            brightness[media, scheme] = float(np.median(imread(tmp_path / "seen.png")[:200, :, :3]))
    assert min(brightness["screen", "light"], brightness["print", "dark"]) > 0.9
    assert brightness["screen", "dark"] < 0.3
