"""The picture of an audit: what was measured against what is claimed, for each attack and its control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

from privstream.pipelines.audit.audit_command import WRONG, Finding
from privstream.pipelines.plot.chart import ALARM, COLOURS, FAINT, GREY, INK, chart, key_above, plural

MOST = 3.0
"""The axis breaks here: controls further right are drawn at its end, and their numbers say where they are."""

BREAK: dict[str, Any] = {
    "marker": [(-1, -2), (1, 2)],
    "markersize": 9,
    "linestyle": "none",
    "color": GREY,
    "clip_on": False,
}
"""A stroke across an axis, as matplotlib draws a marker; two of them break it."""

MARGIN = 0.6


def draw(stream: BinaryIO, format: str, title: str, findings: Sequence[Finding]) -> None:
    """Draw a line for each attack, the first on top."""
    with chart(stream, format) as figure:
        axes = figure.add_subplot()
        places = range(len(findings), 0, -1)
        found, controls = ([getattr(finding, name).share for finding in findings] for name in ("real", "control"))
        axes.hlines(places, found, [max(1.0, share) for share in found], color=COLOURS[0], linewidth=2.5)
        (dots,) = axes.plot(found, places, "o", color=COLOURS[0], markersize=8)
        shown = [min(share, MOST) for share in controls]
        (crosses,) = axes.plot(shown, places, "X", color=COLOURS[1], markersize=9)
        limit = axes.axvline(1.0, color=ALARM, linestyle="--", linewidth=1.5)
        for place, finding, control in zip(places, findings, shown, strict=True):
            axes.annotate(f"{finding.real.share:.2f}", (finding.real.share, place), **_beside_line(finding.real.share))
            axes.annotate(f"{finding.control.share:.2f}", (control, place), **_beside_line(control))
        axes.set_yticks(places, [_name(finding) for finding in findings])
        axes.set_ylim(1 - MARGIN, len(findings) + MARGIN)
        axes.set_xlim(-0.03, MOST * 1.05)
        if max(controls) > MOST:
            axes.plot([MOST * 0.96, MOST * 0.975], [0, 0], transform=axes.get_xaxis_transform(), **BREAK)
            axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick < MOST])
        axes.set_xlabel("lower bound of what is shown about one unit, as a share of what the guarantee allows")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0, colors=INK)
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines["bottom"].set_color(GREY)
        names = ["the transform: at least so much", "control, which must be beyond the line", "the guarantee"]
        key_above(axes, [dots, crosses, limit], names)
        figure.say(
            title,
            "Bars: where the true values are if the guarantee holds, from what was measured up to what is allowed; "
            f"dots beyond the line would refute it. With probability {1 - WRONG:.2%}, all dots together are no "
            "larger than the true values. An audit proves a violation, or finds none with these attacks; it is not "
            "a proof of privacy.",
        )


def _name(finding: Finding) -> str:
    """Return the name of an attack, with what is claimed, and what tells apart those on several runs."""
    claim, attack = finding.guarantee, finding.attack
    method = f", {finding.method}" if finding.method else ""
    listed = ", listed items" if attack.options.get("domain") else ""
    sent = "" if attack.transcript is None else f"\none unit in {plural(attack.transcript.counted, 'number')}{listed}"
    return f"{attack.name}{method}\nepsilon {claim.epsilon:g}, delta {claim.delta:g}{sent}"


def _beside_line(share: float) -> dict[str, Any]:
    """Say where a number stands: above its mark, and on the same side of the line, which does not cross it."""
    side = "right" if 0.5 < share <= 1 else "left"
    return {"textcoords": "offset points", "xytext": (0, 9), "ha": side, "fontsize": 8.5, "color": INK}
