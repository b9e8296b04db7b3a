"""The graphs of alerts and queries can be updated, hold no secret, and confuse no runner."""

import apache_beam as beam
import pytest
import test_dataflow_graph as graph
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.userstate import StateSpec
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    Domain,
    LinearQuery,
    Measurement,
    MeasurementAlerts,
    PrivateQueries,
    SparseVectorAlerts,
)

KEY = b"a key for tests, no secret"
RULES = (AlertRule(name="rule", at_least=5),)
RUN = {"epsilon": 1.0, "window": 1, "start": 0, "end": 2}


def inputs(pipeline, name):
    if name == "queries":
        queries = pipeline | "Input queries" >> beam.Create([LinearQuery("q", Timestamp(1), ("i",))])
        return {"events": pipeline | "Input" >> beam.Create([("u", "i")]), "queries": queries}
    rows = [Measurement("rule", Timestamp(1), 1.0)] if name == "measurements" else [("u", "i")]
    return pipeline | "Input" >> beam.Create(rows)


def make(name):
    noise = KeyedNoise(KEY)
    streams = {"streams": ("s",), "streams_per_person": 1} if name == "alerts in streams" else {}
    if name == "measurements":
        return MeasurementAlerts(**RUN, rules=RULES, noise=noise)
    if name == "queries":
        return PrivateQueries(epsilon=1.0, domain=Domain(["i", "j"]), records=10, alpha=0.5, noise=noise)
    return SparseVectorAlerts(**RUN, rules=RULES, noise=noise, **streams)


def nodes_of(name):
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    _ = inputs(pipeline, name) | make(name).with_dead_letters()
    visitor = graph.Nodes()
    pipeline.visit(visitor)
    return pipeline, [n for n in visitor.nodes if n.full_label and not n.full_label.startswith("Input")]


all_transforms = pytest.mark.parametrize("name", ["alerts", "alerts in streams", "measurements", "queries"])


@all_transforms
def test_labels_are_fixed_names(name):
    labels = [node.full_label for node in nodes_of(name)[1]]
    assert len(labels) > 20
    assert labels == [node.full_label for node in nodes_of(name)[1]]
    own = [label for label in labels if "/Reshuffle" not in label and "ApartFromOthers" not in label]
    assert [label for label in own if not graph.NAME.fullmatch(label)] == []


@all_transforms
def test_functions_are_no_lambdas(name):
    for node in nodes_of(name)[1]:
        fn = getattr(node.transform, "fn", None)
        if isinstance(fn, CallableWrapperDoFn) and "ApartFromOthers" not in node.full_label:
            assert "<lambda>" not in fn.default_label()


@all_transforms
def test_keys_are_bytes(name):
    checked = 0
    for node in nodes_of(name)[1]:
        fn = getattr(node.transform, "fn", None)
        stateful = fn is not None and any(
            isinstance(v, StateSpec) for kind in type(fn).__mro__ for v in vars(kind).values()
        )
        if (stateful or isinstance(node.transform, beam.GroupByKey)) and "ApartFromOthers" not in node.full_label:
            coder = beam.coders.registry.get_coder(node.inputs[0].element_type)
            assert coder.is_kv_coder()
            assert isinstance(coder.key_coder(), beam.coders.BytesCoder)
            checked += 1
    assert checked >= 3


@all_transforms
def test_display_data_and_labels_hold_no_secret(name):
    pipeline, nodes = nodes_of(name)
    shown = [str(DisplayData.create_from(node.transform).items) for node in nodes if node.transform is not None]
    shown += [str(t.display_data) + t.unique_name for t in pipeline.to_runner_api().components.transforms.values()]
    shown += [repr(make(name)), str(make(name).noise)]
    for text in shown:
        assert KEY.decode() not in text


@all_transforms
def test_two_stand_side_by_side_under_their_own_names(name):
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    given = inputs(pipeline, name)
    _ = given | "One" >> make(name)
    _ = given | "Other" >> make(name)
