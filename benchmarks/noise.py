"""Draws per CPU second of the noise laws, against OpenDP (if installed) and scipy in the same run.

Usage: python benchmarks/noise.py [--quick] [--draws 1000000] [--repeats 5]

Writes noise.csv and noise.png to benchmarks/results. OpenDP also draws exactly, from the system's randomness and not by
label, and its time includes moving Python lists in and out; scipy draws in floating point, with neither secrecy nor
exactness. Both are peers in speed only.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import best_seconds
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms.noise import continuous, discrete
from privstream.mechanisms.noise.sources import KeyedNoise
from scipy import stats

OPENDP_SHARE = 20  # OpenDP draws one by one and gets fewer draws to do
Row = tuple[str, str, int, Callable[[], Any]]


def ours(draws: int) -> Iterator[Row]:
    noise = KeyedNoise.random().derive("benchmark")
    laws: list[Any] = [discrete.DiscreteLaplace(scale) for scale in (10.0, 1000.0, 1e9)]
    laws += [discrete.Geometric(10.0), discrete.Geometric(1e12)]
    laws += [discrete.DiscreteGaussian(sigma) for sigma in (10.0, 1e6)]
    laws += [continuous.Laplace(1.0), continuous.Gaussian(1.0)]
    for law in laws:
        parameter = getattr(law, "scale", getattr(law, "sigma", 1.0))
        name = f"{type(law).__name__}({parameter:g})"
        yield "privstream", name, draws, lambda law=law: law.draw(noise, draws)
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, 16, draws)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    data = rng.integers(0, 256, offsets[-1], dtype=np.uint8)
    yield "privstream", "hash of 5..15 bytes", draws, lambda: noise.hash_bytes(data, offsets)


def scipy_peers(draws: int) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for scale in (10.0, 1000.0):
        yield (
            "scipy",
            f"DiscreteLaplace({scale:g})",
            draws,
            lambda scale=scale: stats.dlaplace.rvs(1 / scale, size=draws, random_state=rng),
        )


def opendp_peers(draws: int) -> Iterator[Row]:
    if importlib.util.find_spec("opendp") is None:
        print("OpenDP is not installed: pip install 'privstream[bench]'")
        return
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    draws //= OPENDP_SHARE
    domain, zeros = dp.vector_domain(dp.atom_domain(T=int)), [0] * draws
    for scale in (10.0, 1000.0, 1e9):
        laplace = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale)
        yield "opendp", f"DiscreteLaplace({scale:g})", draws, lambda laplace=laplace: laplace(zeros)
    gaussian = dp.m.make_gaussian(domain, dp.l2_distance(T=int), 10.0)
    yield "opendp", "DiscreteGaussian(10)", draws, lambda: gaussian(zeros)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 0.35 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = {"privstream": "tab:blue", "opendp": "tab:orange", "scipy": "tab:grey"}
    labels = [f"{row['law']}  {row['library']}" for row in rows]
    bars = axes.barh(labels, [row["draws_per_second"] for row in rows], color=[colours[row["library"]] for row in rows])
    axes.bar_label(bars, [f"{row['draws_per_second'] / 1e6:.2g}M" for row in rows], padding=3)
    axes.set(xscale="log", xlabel="draws per second of one core")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--draws", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    if options.quick:
        options.draws, options.repeats = 2_000, 1
    folder = results_folder(options)
    rows = []
    for peers in (ours, scipy_peers, opendp_peers):
        for library, law, draws, run in peers(options.draws):
            run()  # builds the tables
            rate = round(draws / best_seconds(run, options.repeats)[0])
            rows.append({"library": library, "law": law, "draws": draws, "draws_per_second": rate})
            rows[-1]["load_average"] = load_average()
            print(f"{library:11} {law:22} {rate / 1e6:8.2f} million draws per CPU second", flush=True)
    rows.sort(key=lambda row: (row["law"], row["library"] != "privstream"))
    write_csv(folder / "noise.csv", rows)
    plot(rows, folder / "noise.png")
    print_table("noise: draws per second of one core", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
