"""Questions in Beam YAML: rows with a schema in and out, everything configured by plain values.

The listing `providers.yaml` names the transforms of this module. Beam reads the keys of a configuration, and their
documentation, from the signature and the docstring of a `YamlTransform`; both are made from the description of the
question. Nothing here imports what only Beam's `yaml` extra installs.
"""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.readings import READINGS
from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.yaml.configuration import ADDED, Key
from privstream.pipelines.yaml.on_rows import OnRows

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


class YamlTransform:
    """What Beam YAML calls to make a transform from a configuration.

    Args:
        spec: the question.
    """

    def __init__(self, spec: QuestionSpec) -> None:
        self.spec = spec
        own = {
            option.name: Key(READINGS[option.type].plain, option.text, option.default) for option in options_of(spec)
        }
        self.keys = {**own, **ADDED}
        self.fields = tuple(get_type_hints(spec.row_type))
        self.__signature__ = inspect.Signature([_parameter(name, key) for name, key in self.keys.items()])
        self.__doc__ = DESCRIPTION.format(
            summary=spec.signature.summary,
            fields=", ".join(self.fields),
            name=spec.transform.rpartition(".")[2],
            arguments="\n".join(f"    {name}: {key.text}" for name, key in self.keys.items()),
        )

    def __call__(self, **config: Any) -> OnRows:
        """Make the transform from a configuration."""
        self.__signature__.bind(**config)
        for name, value in config.items():
            if value is None and self.keys[name].default is REQUIRED:
                raise ValueError(f"{name} must be given, got null")
        return OnRows(
            self.spec,
            given={name: value for name, value in config.items() if name not in ADDED},
            added={name: config.get(name, key.default) for name, key in ADDED.items()},
        )


def _parameter(name: str, key: Key) -> inspect.Parameter:
    """Return a key as Beam reads it."""
    default = inspect.Parameter.empty if key.default is REQUIRED else key.default
    hint = key.type if default is not None else key.type | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _transforms() -> dict[str, YamlTransform]:
    """Return what Beam YAML calls for each transform that has events as its only input, by the name of its class."""
    specs = [spec for spec in map(question, WORDS) if spec.inputs is None]
    return {spec.transform.rpartition(".")[2]: YamlTransform(spec) for spec in specs}


TRANSFORMS = _transforms()
globals().update(TRANSFORMS)
