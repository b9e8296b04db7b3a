"""The graph of every public transform can be updated, holds no secret, and confuses no runner."""

import functools
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import PipelineVisitor
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.userstate import StateSpec, TimerSpec
from examples import EXAMPLES, KEY, ONE_OF_EACH, SECRET_ITEM, example, with_input
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise

NAME = re.compile(r"[A-Z][A-Za-z]*(/[A-Z][A-Za-z]*(\([A-Za-z]+\))?|\([A-Za-z]+\))*")
SECRETS = (KEY.decode(), SECRET_ITEM)
every_example = some_quick("name", EXAMPLES, *ONE_OF_EACH)


class Nodes(PipelineVisitor):
    """Collects the nodes of a pipeline."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def visit_transform(self, node) -> None:
        self.nodes.append(node)

    def enter_composite_transform(self, node) -> None:
        self.nodes.append(node)


def nodes_of(made) -> tuple[beam.Pipeline, list[Any]]:
    """Return a pipeline with a transform, and the nodes of the transform."""
    pipeline, given = with_input()
    _ = given | made.with_dead_letters()
    visitor = Nodes()
    pipeline.visit(visitor)
    own = [node for node in visitor.nodes if node.full_label and not node.full_label.startswith("Input")]
    return pipeline, own


@functools.cache
def graph_of(name: str) -> tuple[beam.Pipeline, list[Any]]:
    """Return the graph of an example, built once."""
    return nodes_of(example(name))


def modules():
    """All modules of transforms, and of pipelines."""
    for package in ("privstream.transforms", "privstream.pipelines"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            yield importlib.import_module(found.name)


def dofn_classes() -> set[type[beam.DoFn]]:
    return {
        value
        for module in modules()
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, beam.DoFn) and value.__module__ == module.__name__
    }


@every_example
def test_labels_are_fixed_names(name):
    labels = [node.full_label for node in graph_of(name)[1]]
    assert len(labels) > 15
    assert labels == [node.full_label for node in nodes_of(example(name))[1]]
    assert [label for label in labels if not NAME.fullmatch(label)] == []


@every_example
def test_keys_are_bytes(name):
    checked = 0
    for node in graph_of(name)[1]:
        fn = getattr(node.transform, "fn", None)
        stateful = any(isinstance(value, StateSpec) for value in vars(type(fn)).values())
        if stateful or isinstance(node.transform, beam.GroupByKey):
            coder = beam.coders.registry.get_coder(node.inputs[0].element_type)
            assert coder.is_kv_coder()
            assert coder.key_coder().is_deterministic()
            assert isinstance(coder.key_coder(), beam.coders.BytesCoder)
            checked += 1
    assert checked >= 2


def test_names_of_states_and_timers_are_unique_in_the_project():
    names = Counter(
        spec.name for fn in dofn_classes() for spec in vars(fn).values() if isinstance(spec, StateSpec | TimerSpec)
    )
    assert len(names) > 6
    assert [name for name, times in names.items() if times > 1] == []


@every_example
def test_display_data_and_labels_hold_no_secret(name):
    made, (pipeline, nodes) = example(name), graph_of(name)
    shown = [str(DisplayData.create_from(node.transform).items) for node in nodes if node.transform is not None]
    shown += [str(t.display_data) + t.unique_name for t in pipeline.to_runner_api().components.transforms.values()]
    shown += [repr(made), *(str(value) for value in vars(made).values() if isinstance(value, KeyedNoise))]
    assert [secret for secret in SECRETS for text in shown if secret in text] == []
