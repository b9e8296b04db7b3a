"""Package mapping: three top-level folders are installed below the `privstream` namespace.

Metadata stands in pyproject.toml. This file stays because Beam ships code to workers with `--setup_file`.
"""

from setuptools import setup

setup(
    packages=["privstream.mechanisms", "privstream.transforms", "privstream.pipelines"],
    package_dir={
        "privstream.mechanisms": "mechanisms",
        "privstream.transforms": "transforms",
        "privstream.pipelines": "pipelines",
    },
    package_data={
        "privstream.mechanisms": ["py.typed"],
        "privstream.transforms": ["py.typed", "*.yaml"],
        "privstream.pipelines": ["py.typed"],
    },
)
