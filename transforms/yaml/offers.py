"""Transforms for Beam YAML: rows with a schema in and out, everything configured by plain values.

The listing `providers.yaml` names the offers below. Beam reads the keys of a configuration, and their documentation,
from signature and docstring of an offer; both are made from those of the transform. Nothing here imports what only
Beam's `yaml` extra installs.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

from privstream.transforms.alerts.sparse_vector_alerts import SparseVectorAlerts
from privstream.transforms.cardinality.set_cardinality import SetCardinality
from privstream.transforms.events.private_transform import PrivateTransform
from privstream.transforms.heavy_hitters.shifting_heavy_hitters import ShiftingHeavyHitters
from privstream.transforms.histograms.continual_histogram import ContinualHistogram
from privstream.transforms.histograms.threshold_flags import ThresholdFlags
from privstream.transforms.rows import (
    Alert,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    RankedItem,
)
from privstream.transforms.top_k.top_k_with_gap import TopKWithGap
from privstream.transforms.yaml.keys import ADDED, KEYS, REQUIRED, SAME, Key, number, same
from privstream.transforms.yaml.on_rows import OnRows

DESCRIPTION = """{summary}

Input are rows with a person, an item and a time, output rows with {fields}. The windows are those of this
configuration; `windowing` has no influence. The guarantee is logged when the pipeline is built.

Privacy: as of `privstream.transforms.{name}`. The whole configuration is public: Beam writes it into the pipeline. So
the noise key is named by its file or environment variable.

Args:
{arguments}

Raises:
    ValueError, TypeError: a value breaks its rule, or a field is missing, when the pipeline is built.
"""


class Offer:
    """What Beam YAML calls to make a transform from a configuration.

    Args:
        transform: the transform.
        row_type: what it publishes.
        like: another transform, whose docstring describes the arguments that its own does not.
        all_streams: whether it takes streams that are not named.
        one_stream: whether a person is in one stream where rows have one, unless `streams_per_person` says more.
    """

    def __init__(
        self,
        transform: type[PrivateTransform],
        row_type: type[tuple[Any, ...]],
        *,
        like: type[PrivateTransform] | None = None,
        all_streams: bool = False,
        one_stream: bool = False,
    ) -> None:
        self.transform = transform
        self.row_type = row_type
        self.all_streams = all_streams
        self.one_stream = one_stream
        self.keys = {**_arguments(transform, like or transform), **ADDED}
        self.__signature__ = inspect.Signature([_parameter(name, key) for name, key in self.keys.items()])
        self.__doc__ = DESCRIPTION.format(
            summary=inspect.cleandoc(transform.__doc__ or "").partition("\n")[0],
            fields=", ".join(get_type_hints(row_type)),
            name=transform.__name__,
            arguments="\n".join(f"    {name}: {key.text}" for name, key in self.keys.items()),
        )

    def __call__(self, **config: Any) -> OnRows:
        """Make the transform from a configuration."""
        self.__signature__.bind(**config)
        for name, value in config.items():
            if value is None and self.keys[name].default is REQUIRED:
                raise ValueError(f"{name} must be given, got null")
        return OnRows(
            self.transform,
            self.row_type,
            arguments={name: self.keys[name].read(name, config[name]) for name in config.keys() - ADDED.keys()},
            added={name: config.get(name, key.default) for name, key in ADDED.items()},
            all_streams=self.all_streams,
            one_stream=self.one_stream,
        )


def _arguments(transform: type[PrivateTransform], like: type[PrivateTransform]) -> dict[str, Key]:
    """Return a key for each argument of a transform but the noise."""
    found = {}
    hints, texts = get_type_hints(transform.__init__), _described(like) | _described(transform)
    for name, argument in inspect.signature(transform).parameters.items():
        if name == "noise":
            continue
        if name in KEYS:
            key = KEYS[name]
        else:
            key = Key(hints[name], texts[name], number if float in (hints[name], *_members(hints[name])) else same)
        if key.default is SAME:
            key = key._replace(default=REQUIRED if argument.default is argument.empty else argument.default)
        found[name] = key
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union."""
    return getattr(hint, "__args__", ())


def _described(transform: type[PrivateTransform]) -> dict[str, str]:
    """Return what a docstring says of each argument."""
    section = inspect.cleandoc(transform.__doc__ or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in re.findall(r"^    (\w+): (.*(?:\n {5}.*)*)", section, re.M)}


def _parameter(name: str, key: Key) -> inspect.Parameter:
    """Return a key as Beam reads it."""
    default = inspect.Parameter.empty if key.default is REQUIRED else key.default
    hint = key.type if default is not None else key.type | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


SHIFTING_HEAVY_HITTERS = Offer(ShiftingHeavyHitters, HeavyHitter, all_streams=True, one_stream=True)
TOP_K_WITH_GAP = Offer(TopKWithGap, RankedItem, one_stream=True)
SPARSE_VECTOR_ALERTS = Offer(SparseVectorAlerts, Alert)
CONTINUAL_HISTOGRAM = Offer(ContinualHistogram, HistogramEstimate)
THRESHOLD_FLAGS = Offer(ThresholdFlags, CategoryFlag, like=ContinualHistogram)
SET_CARDINALITY = Offer(SetCardinality, CardinalityEstimate)
