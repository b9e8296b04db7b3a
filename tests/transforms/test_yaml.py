"""The transform in Beam YAML: real pipelines on FnApiRunner, and what is refused before one runs."""

import argparse
import csv
import inspect
import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp
from apache_beam.yaml import main, yaml_transform
from apache_beam.yaml.yaml_provider import load_providers
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.commands import options
from privstream.transforms import Domain, HeavyHitter, ShiftingHeavyHitters
from privstream.transforms import __path__ as installed
from privstream.transforms.events.event_rows import to_micros
from privstream.transforms.yaml_provider import YamlShiftingHeavyHitters

DOCUMENT = Path(__file__).parents[2] / "docs" / "beam_yaml.md"
LISTING = str(Path(installed[0]) / "providers.yaml")
KEY = b"the key of the tests of Beam YAML"
START = 1_704_067_200  # 2024-01-01
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "max_hits": 2, "window": 60, "horizon": 10}


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def crowd(stream: str = "", item: str = "tea", people: int = 200) -> list[tuple[str, str, int, str]]:
    """Many people who hold one item in two of four windows, and one apiece of their own."""
    events = []
    for person in range(people):
        user = f"{stream}{person}"
        for window in range(4):
            events.append((user, item if window % 2 else f"own {person}", START + 60 * window + person % 60, stream))
    return events


def build(pipeline: beam.Pipeline, transforms: list[dict[str, Any]]) -> None:
    spec = {"pipeline": {"transforms": transforms}, "providers": [{"include": LISTING}]}
    yaml_transform.expand_pipeline(pipeline, yaml.safe_dump(spec))


def run(transforms: list[dict[str, Any]]) -> None:
    with beam.Pipeline(options=PipelineOptions(runner="FnApiRunner", pickle_library="cloudpickle")) as pipeline:
        build(pipeline, transforms)


def run_on_rows(folder: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What comes out, sorted, and what is refused if the configuration names an output for it."""
    hitters = {"type": "ShiftingHeavyHitters", "input": "Create", "config": config}
    outputs = {"found": "ShiftingHeavyHitters"}
    if "error_handling" in config:
        outputs["refused"] = f"ShiftingHeavyHitters.{config['error_handling']['output']}"
    sinks = [
        {"type": "WriteToJson", "name": name, "input": source, "config": {"path": str(folder / name)}}
        for name, source in outputs.items()
    ]
    run([{"type": "Create", "config": {"elements": rows}}, hitters, *sinks])
    return [read_json(folder, name) for name in outputs]


def read_json(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob(f"{name}-*") for line in file.read_text("utf-8").splitlines()]
    return sorted((json.loads(line) for line in lines), key=str)


def direct(events: list[tuple[str, str, int, str]], **arguments: Any) -> list[dict[str, Any]]:
    """The rows of the transform called from Python, as Beam YAML writes them."""
    with_streams = arguments.get("streams_per_person") is not None
    rows = [
        beam.Row(user=user, item=item, time=Timestamp(time), stream=stream if with_streams else "")
        for user, item, time, stream in events
    ]
    COLLECTED.clear()
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        hitters = ShiftingHeavyHitters(**(BUDGET | {"noise": KeyedNoise(KEY)} | arguments))
        pipeline | beam.Create(rows) | hitters | beam.Map(collect)
    return sorted(map(as_written, COLLECTED), key=str)


COLLECTED: list[HeavyHitter] = []


def collect(row: HeavyHitter) -> None:
    COLLECTED.append(row)


def as_written(row: HeavyHitter) -> dict[str, Any]:
    """A row as WriteToJson writes it, with ten decimals."""
    times = {"window_start": row.window_start.to_rfc3339(), "window_end": row.window_end.to_rfc3339()}
    return row._asdict() | times | {"count_stddev": round(row.count_stddev, 10)}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "noise.key"
    path.write_bytes(KEY)
    return str(path)


@pytest.mark.parametrize("listing", ["included", "inline"])
def test_the_pipeline_of_the_documentation_runs(
    tmp_path: Path, key_file: str, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    whole, inline = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    text = whole if listing == "included" else whole.partition("providers:")[0] + inline
    monkeypatch.chdir(tmp_path)
    events = crowd(people=500)
    with open("searches.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        writer.writerows((user, item, iso(START + 60 * (time - START))) for user, item, time, _ in events)
        writer.writerow(["", "NA", iso(START)])
    Path("trending.yaml").write_text(text, "utf-8")
    where = ["--jinja_variable_flags=privstream", f"--privstream={installed[0]}"]
    main.run(["--yaml_pipeline_file=trending.yaml", "--runner=FnApiRunner", *where])
    slow = [(user, item, START + 60 * (time - START), stream) for user, item, time, stream in events]
    budget = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "window": 3600, "horizon": 8, "start": START}
    expected = direct(slow, **budget)
    assert [row["item"] for row in expected] == ["tea", "tea"]
    assert read_json(tmp_path, "trending.jsonl") == expected
    [refused] = read_json(tmp_path, "refused.jsonl")
    assert refused["reason"] == "user must not be empty"
    assert "NA" in refused["record"]


def test_fields_units_domains_and_streams_by_plain_values(tmp_path: Path, key_file: str) -> None:
    events = crowd("a") + crowd("b", item="7") + crowd("c")
    rows = [
        {"who": user, "what": int(item) if item.isdigit() else item, "when": 1000 * time, "stream": stream}
        for user, item, time, stream in events
    ]
    limits = {"start": START, "streams_per_person": 1, "end": START + 600, "items_per_step": 2, "max_hits": 3}
    names = {"user_field": "who", "item_field": "what", "time_field": "when", "time_unit": "ms"}
    config = BUDGET | limits | names | {"noise_key_file": key_file, "domain": ["tea", 7], "streams": ["a", "b"]}
    del config["streams_per_person"]  # 1 where the rows have a stream
    [found] = run_on_rows(tmp_path, rows, config)
    expected = direct(events, **limits, domain=Domain(["tea", "7"]), streams=("a", "b"))
    assert found == expected
    assert {(row["stream"], row["item"]) for row in found} == {("a", "tea"), ("b", "7")}


def test_a_stream_field_can_be_left_out_of_account(tmp_path: Path, key_file: str) -> None:
    events = crowd("a", people=120) + crowd("b", people=120)
    rows = [{"user": u, "item": i, "time": iso(t), "stream": s} for u, i, t, s in events]
    [found] = run_on_rows(tmp_path, rows, BUDGET | {"noise_key_file": key_file, "stream_field": ""})
    assert found == direct(events)
    assert {row["stream"] for row in found} == {""}


def test_rows_that_cannot_be_used_are_refused_with_the_reason(tmp_path: Path, key_file: str) -> None:
    events = crowd()
    bad = {
        "time must be ISO 8601 text or a number": {"user": "u", "item": "tea", "time": "yesterday"},
        "time must be between 1970-01-01 and 2200-01-01": {"user": "u", "item": "tea", "time": "1969-12-31"},
        "time must not be a plain number without a time_unit": {"user": "u", "item": "tea", "time": "1704067200"},
        "item must not be empty": {"user": "u", "item": "", "time": iso(START)},
    }
    rows = [{"user": u, "item": i, "time": iso(t)} for u, i, t, _ in events] + list(bad.values())
    config = BUDGET | {"noise_key_file": key_file, "error_handling": {"output": "bad"}}
    found, refused = run_on_rows(tmp_path, rows, config)
    assert found == direct(events)
    assert {row["reason"] for row in refused} == set(bad)
    assert len(refused) == len(bad)
    assert json.loads(next(row["record"] for row in refused if "ISO" in row["reason"]))["time"] == "yesterday"


def test_without_a_key_a_random_one_is_made_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"user": u, "item": i, "time": iso(t)} for u, i, t, _ in crowd(people=400)]
    with caplog.at_level(logging.INFO, "privstream.transforms.yaml_provider"):
        [found] = run_on_rows(tmp_path, rows, BUDGET)
    assert [row["item"] for row in found].count("tea") == 2
    said = [record for record in caplog.records if record.name == "privstream.transforms.yaml_provider"]
    assert [record.levelno for record in said] == [logging.WARNING, logging.INFO]
    assert "random" in said[0].message
    assert ShiftingHeavyHitters(**BUDGET, noise=KeyedNoise(KEY)).guarantee.paragraph() in said[1].message


def test_a_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSTREAM_TEST_KEY", KEY.decode())
    noise = YamlShiftingHeavyHitters(**BUDGET, noise_key_variable="PRIVSTREAM_TEST_KEY", run_id="r").hitters.noise
    assert (noise.words(3) == KeyedNoise(KEY, "r").words(3)).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"epsilom": 1.0}, "unexpected argument 'epsilom'"),
        ({"noise": "inline"}, "unexpected argument 'noise'"),
        ({"epsilon": -1}, "epsilon must be finite and > 0, got -1"),
        ({"epsilon": "much"}, "epsilon must be a number, got 'much'"),
        ({"delta": "2e0"}, "delta must be in"),
        ({"max_hits": True}, "max_hits must be an integer, got bool"),
        ({"horizon": "long"}, "horizon must be an integer, got str"),
        ({"start": datetime(2024, 1, 1, tzinfo=UTC)}, "start must be ISO 8601 text in quotes"),
        ({"start": "noon"}, "start must be ISO 8601 text or a number"),
        ({"end": START + 1, "start": START}, "end must leave room"),
        ({"domain": ["tea", "tea"]}, "domain must hold distinct items"),
        ({"domain": "no such file"}, "domain must be a readable file"),
        ({"streams": "a,b"}, "streams must be a list, got str"),
        ({"streams": [False]}, "streams must hold texts"),
        ({"streams_per_person": 2}, "streams_per_person must not be given when the events have no stream"),
        ({"time_unit": "h"}, "time_unit must be one of s, ms, us, ns, got 'h'"),
        (
            {"item_field": "query"},
            "item_field must be a field of the input, got 'query'; its fields are item, time, user",
        ),
        ({"noise_key_file": "no such file"}, "noise_key_file must be a readable file"),
        ({"noise_key_file": "a", "noise_key_variable": "b"}, "must not both be given"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "_".join(value),
)
def test_what_is_wrong_is_said_before_anything_runs(config: dict[str, Any], message: str) -> None:
    rows = [{"item": "tea", "time": iso(START), "user": "u"}]
    hitters = {"type": "ShiftingHeavyHitters", "input": "Create", "config": BUDGET | config}
    with pytest.raises(ValueError, match="ShiftingHeavyHitters") as raised:
        build(beam.Pipeline(), [{"type": "Create", "config": {"elements": rows}}, hitters])
    assert message in str(raised.value)


@pytest.mark.parametrize("value", ["bad", {"out": "bad"}, {"output": "good"}, {"output": None}])
def test_error_handling_names_one_output(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^error_handling(\.output)? must be"):
        YamlShiftingHeavyHitters(**BUDGET, error_handling=value)


def test_keys_and_defaults_are_those_of_the_command_and_of_the_transform() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    for add in (options.add_events, options.add_privacy, options.add_heavy_hitters):
        add(parser)
    command = {action.dest: action for action in parser._actions}
    for name in ("input", "output", "dead_letter", "input_format"):
        del command[name]
    keys = inspect.signature(YamlShiftingHeavyHitters).parameters
    assert keys.keys() - {"error_handling"} == command.keys()
    for name, action in command.items():
        assert (keys[name].default is inspect.Parameter.empty) == action.required
        assert action.required or keys[name].default == action.default
    shared = inspect.signature(ShiftingHeavyHitters).parameters
    assert shared.keys() - keys.keys() == {"noise"}
    assert all(keys[name].default == shared[name].default for name in shared.keys() - {"noise", "horizon"})


def test_every_key_is_described() -> None:
    [provider] = load_providers(LISTING)
    fields = provider.config_schema("ShiftingHeavyHitters").fields
    assert {field.name for field in fields} == inspect.signature(YamlShiftingHeavyHitters).parameters.keys()
    assert all(field.description for field in fields)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (Timestamp(START), None),
        (datetime(2024, 1, 1, tzinfo=UTC), None),
        (datetime(2024, 1, 1), None),
        ("2024-01-01", None),
        ("2024-01-01T01:00:00+01:00", None),
        ("2024-01-01t00:00:00z", None),
        (START, "s"),
        (float(START), "s"),
        (str(START), "s"),
        (START * 1000, "ms"),
        (START * 10**9 + 1, "ns"),
        (f"{START * 10**9 + 1}", "ns"),
    ],
)
def test_times_in_any_usual_form(value: Any, unit: str | None) -> None:
    assert to_micros("time", value, unit) == START * 1_000_000


@pytest.mark.parametrize(
    "value", [None, True, b"2024", "", "nan", float("nan"), float("inf"), 10**400, -1, "2200-01-01"]
)
def test_what_is_no_time_is_refused_without_quoting_it(value: Any) -> None:
    kinds = "ISO 8601 text or a number|ISO 8601 text, a timestamp or a number, got [a-zA-Z]+"
    with pytest.raises((TypeError, ValueError), match=f"^time must be ({kinds}|between 1970-01-01 and 2200-01-01)$"):
        to_micros("time", value, "s")
