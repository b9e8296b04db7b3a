"""How much of the epsilon that is claimed do attacks measure? The attacks of `privstream audit`, one by one.

Usage: python benchmarks/audits.py [--quick] [--trials 1600] [--questions counts histogram] [--epsilons 0.5 1 2 4]
    [--workers 2]

Of each attack on epsilon: what its guarantee claims, the lower end of a 95% interval of what was measured, whether its
control was caught, and the seconds of a processor that both took. Some attacks assume a law of the noise (`model`), see
docs/audit.md. The others assume nothing, and thousands of trials do not show more of what is rare.

Writes audits.csv, which docs/best_possible.md has as a table, and a picture of it to benchmarks/results.
"""

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _report import parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.pipelines.audit.audit_command import WRONG, Trying, attacks_on
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.runners.processes import cores

QUICK = "queries"
EPSILONS = (0.5, 1.0, 2.0, 4.0)


def seconds() -> float:
    """Return how long this process has been computing."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def audited(word: str, epsilon: float, number: int, trials: int) -> tuple[dict[str, Any], float]:
    """Return the row of one attack on a question, and how long it took by the clock."""
    started, began = time.monotonic(), seconds()
    spec = question(word)
    attacks = attacks_on(spec, epsilon)
    attack = attacks[number]
    found = Trying(spec=spec, trials=trials, key_file=None, wrong=WRONG / len(attacks)).find(attack)
    claim = found.guarantee
    row = {
        "question": word,
        "attack": attack.name,
        "unit": str(claim.unit),
        "model": "none" if found.real.fit is None else found.real.fit.law,
        "delta": claim.delta,
        "claimed": round(claim.epsilon, 6),
        "measured": round(found.real.measured, 3),
        "verdict": found.verdict,
        "trials": trials * attack.times,
        "enough": None if found.enough is None else found.enough * trials * attack.times,
        "cpu_seconds": round(seconds() - began, 1),
    }
    return row, time.monotonic() - started


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of each claim that was measured."""
    figure = Figure(figsize=(8, 0.18 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    models = ["" if row["model"] == "none" else f", {row['model']}, delta {row['delta']:g}" for row in rows]
    names = [
        f"{row['question']}: {row['attack']}{model}, {row['claimed']:g}"
        for row, model in zip(rows, models, strict=True)
    ]
    shares = [row["measured"] / row["claimed"] for row in rows]
    places = range(len(rows))  # some attacks have the same name
    axes.barh(places, shares, color=["#0072B2" if row["model"] != "none" else "#999999" for row in rows])
    axes.axvline(1, color="#D55E00", linewidth=1)
    axes.set(xlim=(0, 1.05), xlabel="measured epsilon as a part of the claim;\nblue: with a model of the noise")
    axes.tick_params(labelsize="x-small")
    axes.set_yticks(places, names)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the audits."""
    made = parser(__doc__)
    made.add_argument("--trials", type=int, default=1600, help="trials of each attack")
    made.add_argument("--questions", nargs="+", choices=WORDS, default=list(WORDS), help="what to audit")
    made.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS), help="what is promised")
    made.add_argument("--workers", type=int, default=cores(), help="processes that share the attacks")
    options = made.parse_args()
    words, epsilons, trials = options.questions, options.epsilons, options.trials
    if options.quick:
        words, epsilons, trials = [QUICK], [3.0], 400
    tasks = [
        (word, epsilon, number, trials)
        for word in words
        for epsilon in epsilons
        for number, attack in enumerate(attacks_on(question(word), epsilon))
        if attack.about == "epsilon"
    ]
    if options.quick:
        found = [audited(*task) for task in tasks]
    else:
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            found = list(pool.map(audited, *zip(*tasks, strict=True)))
    rows = [row for row, _ in found]
    folder = results_folder(options)
    write_csv(folder / "audits.csv", rows)
    draw(rows, folder / "audits.png")
    print_table("measured and claimed epsilon", rows)
    print(f"the longest attack took {max(took for _, took in found):.0f} s")


if __name__ == "__main__":
    main()
