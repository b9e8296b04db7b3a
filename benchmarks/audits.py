"""How much of the epsilon that is claimed do attacks measure? `privstream audit` of every question.

Usage: python benchmarks/audits.py [--quick] [--trials 1600] [--questions counts histogram]

Of each attack on epsilon: what its guarantee claims, and the lower end of a 95% interval of what was measured. Some
attacks assume a law of the noise (`model`), see docs/audit.md. The others assume nothing, and thousands of trials do
not show more of what is rare.

Writes audits.csv, which docs/best_possible.md has as a table, and a picture of it to benchmarks/results.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from _report import parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.pipelines import cli
from privstream.pipelines.questions.catalogue import WORDS

QUICK = "predecessor"


def rows_of(question: str, report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each attack on epsilon in the report of an audit."""
    for attack in report["attacks"]:
        if attack["about"] == "epsilon":
            claimed, found = attack["claimed"], attack["found"]
            yield {
                "question": question,
                "attack": attack["attack"],
                "unit": claimed["unit"],
                "model": found.get("model", "none"),
                "delta": claimed["delta"],
                "claimed": claimed["epsilon"],
                "measured": round(found["measured_epsilon"], 3),
                "trials": report["trials"],
            }


def audited(question: str, trials: int) -> list[dict[str, Any]]:
    """Return the rows of one audit."""
    text = StringIO()
    with redirect_stdout(text):
        cli.main(["audit", question, "--trials", str(trials), "--json"])
    return list(rows_of(question, json.loads(text.getvalue())))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of each claim that was measured."""
    figure = Figure(figsize=(8, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    models = ["" if row["model"] == "none" else f", {row['model']}, delta {row['delta']:g}" for row in rows]
    names = [f"{row['question']}: {row['attack']}{model}" for row, model in zip(rows, models, strict=True)]
    shares = [row["measured"] / row["claimed"] for row in rows]
    axes.barh(names, shares, color=["#0072B2" if row["model"] != "none" else "#999999" for row in rows])
    axes.axvline(1, color="#D55E00", linewidth=1)
    axes.set(xlim=(0, 1.05), xlabel="measured epsilon as a part of the claim;\nblue: with a model of the noise")
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the audits."""
    made = parser(__doc__)
    made.add_argument("--trials", type=int, default=1600, help="trials of each attack")
    made.add_argument("--questions", nargs="+", choices=WORDS, default=list(WORDS), help="what to audit")
    options = made.parse_args()
    words = [QUICK] if options.quick else options.questions
    rows = [row for word in words for row in audited(word, 1000 if options.quick else options.trials)]
    folder = results_folder(options)
    write_csv(folder / "audits.csv", rows)
    draw(rows, folder / "audits.png")
    print_table("measured and claimed epsilon", rows)


if __name__ == "__main__":
    main()
