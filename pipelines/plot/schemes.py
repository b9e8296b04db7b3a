"""Pictures of pages in light and in the dark: each colour has another one there, and the browser chooses."""

from __future__ import annotations

import re

from privstream.pipelines.plot.chart import ALARM, COLOURS, FAINT, GREY, INK

PAPER = "#ffffff"
DARK = {PAPER: "#15181c", INK: "#e8e8e8", GREY: "#8d939a", FAINT: "#3a4048", ALARM: "#ff7b72"} | dict(
    zip(
        COLOURS,
        (
            "#568efc",
            "#ea902c",
            "#2afeb3",
            "#db68b4",
            "#ffe924",
            "#b0d9fe",
            "#c7a194",
            "#94b0fc",
            "#efb921",
            "#30e380",
            "#b58768",
            "#c2c2c2",
        ),
        strict=True,
    )
)
"""By its colour in light. Words in any of them have a contrast of 5 to 1 or more, and colour-blind people see those of
lines as different. The paper is that of the pages, see `report.css`."""

TAG, COLOUR = re.compile(r"<[^<>]+>"), re.compile("|".join(DARK))


def in_both(svg: str) -> str:
    """Return an SVG whose colours follow the scheme of the page that shows it; one that is printed is light."""
    light, dark = (
        "".join(f"{_name(colour)}:{shown};" for colour, shown in pairs)
        for pairs in (zip(DARK, DARK, strict=True), DARK.items())
    )
    style = f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    named = TAG.sub(lambda tag: COLOUR.sub(lambda colour: f"var({_name(colour[0])})", tag[0]), svg)
    return named.replace("</style>", style, 1)


def _name(colour: str) -> str:
    """Return the name of the property that has a colour."""
    return f"--{colour[1:]}"
