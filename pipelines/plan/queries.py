"""`privstream plan queries`: how precise answers to linear queries are, and for which alpha they are best."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from privstream.mechanisms import checks
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.sparse_vector.multiplicative_weights import OnlineMultiplicativeWeights
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.plan.page import add_json, show
from rich.table import Table
from scipy import special

NUMBERS = """\
numbers in the answer:
  error bound       with probability 1 - beta, all answers are within so many people of the truth
  measurements      answers that may be taken from the data before queries are refused
  people needed     from which number of people on no query is refused, with probability 1 - beta; 1 if each of them
                    could be measured
Baselines: noise on every answer, which pays for each query, and noise on the count of each item, from which all
queries are answered: that is better wherever the domain is small enough.
"""

LEARNING, EACH, HISTOGRAM = "multiplicative weights", "noise on each answer", "noise on each item"
ALPHAS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = NUMBERS
    budget = parser.add_argument_group("privacy, for each person over all queries")
    budget.add_argument("--epsilon", type=float, required=True, help="bound on what leaks about a person, > 0")
    budget.add_argument("--delta", type=float, default=0.0, help="probability of leaking more (default: 0, never)")
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    what = parser.add_argument_group("data and queries")
    what.add_argument("--records", type=int, required=True, metavar="N", help="number of people")
    what.add_argument("--domain_size", type=int, required=True, metavar="N", help="number of items")
    what.add_argument("--queries", type=int, required=True, metavar="N", help="number of queries")
    what.add_argument(
        "--alpha", type=float, help="error, as a part of --records, that is corrected (default: the best)"
    )
    what.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    add_json(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the answer."""
    try:
        for name in ("records", "queries"):
            checks.integer(name, getattr(arguments, name), minimum=1)
        checks.integer("domain_size", arguments.domain_size, minimum=2)
        checks.probability("beta", arguments.beta)
        answer = plan(arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(arguments, answer)


def plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what each method gives."""
    checks.positive("epsilon", arguments.epsilon)
    return {LEARNING: _learning(arguments), EACH: _each(arguments), HISTOGRAM: _histogram(arguments)}


def _mechanism(arguments: argparse.Namespace, alpha: float) -> OnlineMultiplicativeWeights:
    """Return the mechanism for whole queries."""
    return OnlineMultiplicativeWeights(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        domain_size=arguments.domain_size,
        records=arguments.records,
        alpha=alpha,
        integer=True,
        neighbouring=arguments.neighbouring,
    )


def _learning(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what multiplicative weights give, for the alpha of least error if none is given."""
    alpha = arguments.alpha
    if alpha is None:
        alpha = best_alpha(lambda given: _cost(arguments, _mechanism(arguments, given)))
    mechanism = _mechanism(arguments, alpha)
    return {
        "error_bound": mechanism.accuracy(arguments.queries, arguments.beta),
        "alpha": alpha,
        "measurements": mechanism.max_updates,
        "records_needed": _needed(arguments, mechanism),
        "guarantee": mechanism.guarantee.to_dict(),
    }


def _needed(arguments: argparse.Namespace, mechanism: OnlineMultiplicativeWeights) -> int:
    """Return from how many people on no query is refused."""
    if arguments.queries <= mechanism.max_updates:
        return 1
    return mechanism.records_needed(arguments.queries, arguments.beta)


def _cost(arguments: argparse.Namespace, mechanism: OnlineMultiplicativeWeights) -> float:
    """Return what an alpha should make least: the error, but before all no query should be refused."""
    refusing = _needed(arguments, mechanism) > arguments.records
    return mechanism.accuracy(arguments.queries, arguments.beta) * (1e9 if refusing else 1)


def best_alpha(cost: Callable[[float], float]) -> float:
    """Return the alpha, of two digits, that costs least among those for which there is a mechanism."""
    best, least = math.nan, math.inf
    failure = ValueError("alpha must be in (0, 1)")
    for alpha in np.unique([float(f"{value:.2g}") for value in np.geomspace(0.002, 0.99, ALPHAS)]).tolist():
        try:
            found = cost(alpha)
        except ValueError as refusal:
            failure = refusal
            continue
        if found < least:
            best, least = alpha, found
    if math.isnan(best):
        raise failure
    return best


def _each(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what noise on each answer gives: Laplace noise, or with delta Gaussian noise if that is less."""
    share = arguments.beta / (2 * arguments.queries)
    bound = float(DiscreteLaplace(arguments.queries / arguments.epsilon).tail_quantile(share))
    if arguments.delta > 0:
        promise = DifferentialPrivacyParameters(arguments.epsilon, arguments.delta)
        stddev = GaussianPrivacyLoss.from_privacy_guarantee(promise).standard_deviation * math.sqrt(arguments.queries)
        bound = min(bound, -stddev * float(special.ndtri(share)))
    return {"error_bound": bound}


def _histogram(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what noise on each item gives: the sum of up to all of them, by Chernoff's bound on Laplace sums."""
    scale = (2 if arguments.neighbouring == "replace_one" else 1) / arguments.epsilon
    log_failure = math.log(2 * arguments.queries / arguments.beta)
    # Pr[sum of m discrete Laplace > x] <= min over t of exp(m ln E e^(tX) - t x), with E e^(tX) of this law.
    q = math.exp(-1 / scale)
    bounds = []
    for t in np.linspace(0, 1 / scale, 1000)[1:-1].tolist():
        log_moment = 2 * math.log1p(-q) - math.log1p(-q * math.exp(t)) - math.log1p(-q * math.exp(-t))
        bounds.append((arguments.domain_size * log_moment + log_failure) / t)
    return {"error_bound": min(bounds)}


def _print(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Print a table, and what it says."""
    title = (
        f"epsilon {arguments.epsilon:g}, delta {arguments.delta:g}: {arguments.queries:,} queries about "
        f"{arguments.records:,} people, {arguments.domain_size:,} items"
    )
    table = Table()
    table.add_column("method")
    for column in ("error bound", "alpha", "measurements", "people needed"):
        table.add_column(column, justify="right")
    for name, found in answer.items():
        if name == EACH:
            table.add_section()
        cells = [f"{math.ceil(found['error_bound']):,}"]
        cells += [f"{found[key]:,g}" if key in found else "-" for key in ("alpha",)]
        cells += [f"{found[key]:,}" if key in found else "-" for key in ("measurements", "records_needed")]
        table.add_row(name, *cells)
    show(title, table, [_verdict(arguments, answer)])


def _verdict(arguments: argparse.Namespace, answer: dict[str, Any]) -> str:
    """Say what is to be done."""
    bounds = {name: found["error_bound"] for name, found in answer.items()}
    best = min(bounds, key=lambda name: bounds[name])
    learning = answer[LEARNING]
    if bounds[LEARNING] >= arguments.records:
        text = f"With {arguments.records:,} people and this budget the bound of {LEARNING} says nothing."
    elif arguments.records < learning["records_needed"]:
        text = "Queries may be refused before all are answered: there are fewer people than needed."
    else:
        text = f"--alpha {learning['alpha']:g} answers all queries."
    return f"{text} Best error bound: {best}, {math.ceil(bounds[best]):,} people."


COMMAND = Command(
    description="Says, before any data is touched, how precise the answers to linear queries are, for which alpha they "
    "are best, and what standard methods would give.",
    add_arguments=add_arguments,
    run=run,
)
