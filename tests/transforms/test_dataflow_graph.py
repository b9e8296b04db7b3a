"""The graph of every public transform can be updated, holds no secret, and confuses no runner."""

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from typing import Any

import apache_beam as beam
import privstream.transforms
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, StateSpec, TimerSpec
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain
from workloads import CONFIGURATIONS, ITEMS, KEY, transform

NAME = re.compile(r"[A-Z][A-Za-z]*(/[A-Z][A-Za-z]*(\([A-Za-z]+\))?|\([A-Za-z]+\))*")


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
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    _ = pipeline | "Input" >> beam.Create([("u", "i")]) | made.with_dead_letters()
    visitor = Nodes()
    pipeline.visit(visitor)
    own = [node for node in visitor.nodes if node.full_label and not node.full_label.startswith("Input")]
    return pipeline, own


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


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_labels_are_fixed_names(name):
    labels = [node.full_label for node in nodes_of(transform(name))[1]]
    assert len(labels) > 20
    assert labels == [node.full_label for node in nodes_of(transform(name))[1]]
    own = [label for label in labels if "/Reshuffle" not in label and "ApartFromOthers" not in label]
    assert [label for label in own if not NAME.fullmatch(label)] == []


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_functions_are_no_lambdas(name):
    for node in nodes_of(transform(name))[1]:
        fn = getattr(node.transform, "fn", None)
        ours = "ApartFromOthers" not in node.full_label
        if isinstance(fn, CallableWrapperDoFn) and ours:
            assert "<lambda>" not in fn.default_label()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_keys_have_deterministic_coders(name):
    checked = 0
    for node in nodes_of(transform(name))[1]:
        fn = getattr(node.transform, "fn", None)
        stateful = fn is not None and any(isinstance(v, StateSpec) for v in vars(type(fn)).values())
        if stateful or isinstance(node.transform, beam.GroupByKey):
            kind = node.inputs[0].element_type
            assert kind is not None
            coder = beam.coders.registry.get_coder(kind)
            assert coder.is_kv_coder()
            assert coder.key_coder().is_deterministic()
            assert isinstance(coder.key_coder(), beam.coders.BytesCoder) or "ApartFromOthers" in node.full_label
            checked += 1
    assert checked >= 4


def test_names_of_states_and_timers_are_unique_in_the_project():
    names = Counter(
        spec.name for fn in dofn_classes() for spec in vars(fn).values() if isinstance(spec, StateSpec | TimerSpec)
    )
    assert len(names) > 6
    assert [name for name, times in names.items() if times > 1] == []


def test_states_are_cells_and_bags():
    for fn in dofn_classes():
        for spec in vars(fn).values():
            if isinstance(spec, StateSpec):
                assert isinstance(spec, BagStateSpec | ReadModifyWriteStateSpec)
                assert isinstance(spec.coder, beam.coders.BytesCoder)


@pytest.mark.parametrize("name", ["plain", "known domain", "listed domain", "capped"])
def test_display_data_and_labels_hold_no_secret(name):
    pipeline, nodes = nodes_of(transform(name))
    shown = [str(DisplayData.create_from(node.transform).items) for node in nodes if node.transform is not None]
    shown += [node.full_label for node in nodes]
    shown += [repr(transform(name)), str(vars(transform(name))["noise"])]
    proto = pipeline.to_runner_api()
    shown += [str(t.display_data) + t.unique_name for t in proto.components.transforms.values()]
    for text in shown:
        assert KEY.decode() not in text
        assert not any(repr(item)[1:-1] in text for item in ITEMS[3:])


def test_a_domain_in_a_file_stays_out_of_the_graph(tmp_path):
    path = tmp_path / "items"
    path.write_text("an item of the domain\nanother\n")
    made = privstream.transforms.ShiftingHeavyHitters(
        epsilon=9.0, delta=0.1, max_hits=1, window=1, start=0, horizon=2, noise=KeyedNoise(KEY), count_share=0.0,
        domain=Domain.from_file(str(path)),
    )  # fmt: skip
    pipeline, _ = nodes_of(made)
    assert b"an item of the domain" not in pipeline.to_runner_api().SerializeToString()


def test_two_transforms_stand_side_by_side_under_their_own_names():
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    events = pipeline | beam.Create([("u", "i")])
    _ = events | "One" >> transform("plain")
    _ = events | "Other" >> transform("plain")
