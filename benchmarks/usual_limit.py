"""How good is one limit of contributions for all data, where nobody says another?

Usage: python benchmarks/usual_limit.py [--quick]

The data sets of suggested_limits.py, with the same error of smoothed counts. For limits of 10, 30, 100 and 300 that
error as a multiple of the least one of all limits; and the share of all contributions that the limit keeps.

Writes usual_limit.csv, and a picture of the errors of all limits, to benchmarks/results.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from _report import parser, print_table, results_folder, write_csv
from privstream.transforms.methods import USUAL_CONTRIBUTIONS
from suggested_limits import Contributions, cases, errors_by_limit

LIMITS = (10, 30, USUAL_CONTRIBUTIONS, 300)


def compared(data: Contributions) -> Iterator[dict[str, Any]]:
    """Yield a row for each limit."""
    errors = data.errors
    best = int(np.argmin(errors))
    for limit in LIMITS:
        yield {
            "data": data.name,
            "windows": data.count,
            "people": len(data.numbers),
            "limit": limit,
            "best_limit": best + 1,
            "best_error": round(float(errors[best]), 3),
            "by_best": round(float(errors[min(limit, len(errors)) - 1] / errors[best]), 2),
            "kept": round(float(np.minimum(data.numbers, limit).sum() / data.numbers.sum()), 3),
        }


def main() -> None:
    arguments = parser(__doc__).parse_args()
    results, data = results_folder(arguments), list(cases(arguments.quick))
    rows = [row for case in data for row in compared(case)]
    write_csv(results / "usual_limit.csv", rows)
    figure, axes = errors_by_limit(data)
    axes.axvline(USUAL_CONTRIBUTIONS, color="#999999", linewidth=1, linestyle=":", label="the usual limit")
    axes.legend(frameon=False)
    figure.savefig(results / "usual_limit.png", dpi=150)
    print_table("one limit for all data", rows)


if __name__ == "__main__":
    main()
