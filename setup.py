"""Package mapping: three top-level folders are installed below the `privstream` namespace.

Metadata stands in pyproject.toml. This file stays because Beam ships code to workers with `--setup_file`.
"""

from setuptools import find_packages, setup

LAYERS = ("mechanisms", "transforms", "pipelines")

setup(
    packages=[
        name
        for layer in LAYERS
        for name in (f"privstream.{layer}", *(f"privstream.{layer}.{package}" for package in find_packages(layer)))
    ],
    package_dir={f"privstream.{layer}": layer for layer in LAYERS},
    package_data={f"privstream.{layer}": ["py.typed", "*.yaml"] for layer in LAYERS}
    | {f"privstream.pipelines.{package}": ["*.html", "*.css", "*.js"] for package in ("report", "serve")},
)
