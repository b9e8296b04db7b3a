"""Questions for pipelines in other languages, which Beam's expansion service makes by name.

As in Beam YAML, rows with a schema go in and out, and everything is configured by plain values. A key must be named
here: a new random one would be written into the pipeline of the other language.
"""

from __future__ import annotations

from typing import Any

from privstream.pipelines.yaml.transforms import TRANSFORMS, OnRows, YamlTransform

PLACES = ("noise_key_file", "noise_key_variable")


class ExternalTransform(YamlTransform):
    """What the expansion service calls to make a transform from a configuration that names its noise key."""

    def __call__(self, **config: Any) -> OnRows:
        """Make the transform from a configuration."""
        if all(config.get(place) is None for place in PLACES):
            raise ValueError(f"one of {' and '.join(PLACES)} must be given: a random key would be in the pipeline")
        return super().__call__(**config)


globals().update({name: ExternalTransform(made.spec) for name, made in TRANSFORMS.items()})
