"""The graphs of live histograms and flags can be updated, hold no secret, and confuse no runner."""

import random
from pathlib import Path

import apache_beam as beam
import pytest
import runner_harness
import slow_histogram
import test_dataflow_graph as graph
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.userstate import StateSpec
from histogram_workloads import KEY, random_events, transform

configurations = pytest.mark.parametrize("name", ["plain", "people, streams", "several categories", "flags of people"])


@configurations
def test_labels_are_fixed_names(name):
    labels = [node.full_label for node in graph.nodes_of(transform(name))[1]]
    assert len(labels) > 15
    assert labels == [node.full_label for node in graph.nodes_of(transform(name))[1]]
    own = [label for label in labels if "/Reshuffle" not in label and "ApartFromOthers" not in label]
    assert [label for label in own if not graph.NAME.fullmatch(label)] == []


@configurations
def test_functions_are_no_lambdas(name):
    for node in graph.nodes_of(transform(name))[1]:
        fn = getattr(node.transform, "fn", None)
        if isinstance(fn, CallableWrapperDoFn) and "ApartFromOthers" not in node.full_label:
            assert "<lambda>" not in fn.default_label()


@configurations
def test_keys_are_bytes(name):
    checked = 0
    for node in graph.nodes_of(transform(name))[1]:
        fn = getattr(node.transform, "fn", None)
        stateful = fn is not None and any(isinstance(value, StateSpec) for value in vars(type(fn)).values())
        if (stateful or isinstance(node.transform, beam.GroupByKey)) and "ApartFromOthers" not in node.full_label:
            coder = beam.coders.registry.get_coder(node.inputs[0].element_type)
            assert coder.is_kv_coder()
            assert isinstance(coder.key_coder(), beam.coders.BytesCoder)
            checked += 1
    assert checked >= (3 if "people" in name else 1)


@configurations
def test_display_data_and_labels_hold_no_secret(name):
    made = transform(name)
    pipeline, nodes = graph.nodes_of(made)
    shown = [str(DisplayData.create_from(node.transform).items) for node in nodes if node.transform is not None]
    shown += [str(t.display_data) + t.unique_name for t in pipeline.to_runner_api().components.transforms.values()]
    for text in [*shown, repr(made)]:
        assert KEY.decode() not in text


@runner_harness.on_every_runner
def test_several_on_one_input_do_not_disturb_each_other(runner):
    names = (
        ("plain", "approximate", "flags") if runner == "bundle_based" else ("plain", "people", "flags", "approximate")
    )
    events = random_events("plain", random.Random(3), 300)

    def build(pipeline):
        source = pipeline | beam.Create([beam.Row(user=u, item=i, time=t, stream=s) for u, i, t, s in events])
        return {name: source | name.title() >> transform(name) for name in names} | {
            "again": source | "Again" >> transform("plain")
        }

    results = runner_harness.run(runner, build)
    for name in names:
        slow = slow_histogram.flags if name == "flags" else slow_histogram.histogram
        assert sorted(results.elements(name)) == slow(transform(name), events)
    assert sorted(results.elements("again")) == slow_histogram.histogram(transform("plain"), events)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "people, streams"])
def test_rows_are_the_same_with_two_processes(name, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(runner_harness.__file__).parent))  # for the workers
    events = random_events(name, random.Random(4), 300)
    made = transform(name)

    def build(pipeline):
        source = pipeline | beam.Create([beam.Row(user=u, item=i, time=t, stream=s) for u, i, t, s in events])
        return source | made

    two = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    assert sorted(runner_harness.run("fn_api", build, *two).elements()) == slow_histogram.histogram(made, events)
