"""The transforms in Beam YAML: real pipelines on FnApiRunner, and what is refused before one runs."""

import csv
import json
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
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines import __path__ as installed
from privstream.pipelines.yaml import transforms
from privstream.transforms import AlertRule, Domain, LinearQuery
from privstream.transforms.stages import PrivateTransform

DOCUMENT = Path(__file__).parents[2] / "docs" / "beam_yaml.md"
LISTING = str(Path(installed[0]) / "providers.yaml")
NO_TIME = "ISO 8601 text with dashes and colons, such as 2030-01-31T12:00:00Z"
KEY = b"the key of the tests of Beam YAML"
START = 1_704_067_200  # 2024-01-01
BUDGET: dict[str, Any] = {
    "epsilon": 30.0, "delta": 1e-4, "max_contributions": 4, "window": 60, "start": START, "end": START + 240,
}  # fmt: skip


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def crowd(of: str = "", item: str = "tea", people: int = 200) -> list[tuple[str, str, int]]:
    """Many people who hold one item in two of four windows, and one apiece of their own."""
    events = []
    for person in range(people):
        user = f"{of}{person}"
        for window in range(4):
            events.append((user, item if window % 2 else f"own {person}", START + 60 * window + person % 60))
    return events


def build(pipeline: beam.Pipeline, transforms: list[dict[str, Any]]) -> None:
    spec = {"pipeline": {"transforms": transforms}, "providers": [{"include": LISTING}]}
    yaml_transform.expand_pipeline(pipeline, yaml.safe_dump(spec))


def run(transforms: list[dict[str, Any]]) -> None:
    with beam.Pipeline(options=PipelineOptions(runner="FnApiRunner", pickle_library="cloudpickle")) as pipeline:
        build(pipeline, transforms)


def run_on_rows(
    folder: Path, rows: list[dict[str, Any]], config: dict[str, Any], name: str = "KeyedCounts"
) -> list[list[dict[str, Any]]]:
    """What comes out, sorted, and what is refused if the configuration names an output for it."""
    private = {"type": name, "input": "Create", "config": config}
    outputs = {"found": name}
    if "error_handling" in config:
        outputs["refused"] = f"{name}.{config['error_handling']['output']}"
    sinks = [
        {"type": "WriteToJson", "name": name, "input": source, "config": {"path": str(folder / name)}}
        for name, source in outputs.items()
    ]
    run([{"type": "Create", "config": {"elements": rows}}, private, *sinks])
    return [read_json(folder, name) for name in outputs]


def read_json(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob(f"{name}-*") for line in file.read_text("utf-8").splitlines()]
    return sorted((json.loads(line) for line in lines), key=str)


def published(events: list[tuple[str, str, int]], transform: PrivateTransform) -> list[dict[str, Any]]:
    """The rows of a transform called from Python, as Beam YAML writes them."""
    rows = [beam.Row(user=user, item=item, time=Timestamp(time), value=5) for user, item, time in events]
    COLLECTED.clear()
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create(rows) | transform | beam.Map(collect)
    return sorted(({name: plain(value) for name, value in row._asdict().items()} for row in COLLECTED), key=str)


COLLECTED: list[Any] = []


def collect(row: Any) -> None:
    COLLECTED.append(row)


def plain(value: Any) -> Any:
    """A value as WriteToJson writes it: times as text, numbers with ten decimals."""
    if isinstance(value, Timestamp):
        return value.to_rfc3339()
    return round(value, 10) if isinstance(value, float) else value


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "noise.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


@pytest.mark.slow
@some_quick("listing", ["included", "inline"], "included")
def test_the_pipeline_of_the_documentation_runs(tmp_path, key_file, monkeypatch, listing):
    whole, inline = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    text = whole if listing == "included" else whole.partition("providers:")[0] + inline
    monkeypatch.chdir(tmp_path)
    events = crowd(people=500)
    with open("searches.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        writer.writerows((user, item, iso(START + 60 * (time - START))) for user, item, time in events)
        writer.writerow(["", "NA", iso(START)])
    Path("trending.yaml").write_text(text, "utf-8")
    where = ["--jinja_variable_flags=privstream", f"--privstream={installed[0]}"]
    main.run(["--yaml_pipeline_file=trending.yaml", "--runner=FnApiRunner", *where])
    assert "tea" in {row["item"] for row in read_json(tmp_path, "trending.jsonl")}
    [refused] = read_json(tmp_path, "refused.jsonl")
    assert refused["reason"] == "user must be present and not empty"
    assert "NA" in refused["record"]


@pytest.mark.slow
def test_items_of_several_columns_and_a_filter(tmp_path: Path, key_file: str) -> None:
    rows = [{"user": u, "land": "de", "page": i, "time": iso(t), "status": 500} for u, i, t in crowd()]
    rows += [row | {"land": "fr", "status": 200} for row in rows]
    config = BUDGET | {"key": key_file, "item": "land,page", "where": "status >= 500"}
    [found] = run_on_rows(tmp_path, rows, config)
    assert {row["land"] for row in found} == {"de"} and "tea" in {row["page"] for row in found}
    assert all("item" not in row for row in found)


DAY: dict[str, Any] = {"epsilon": 30.0, "window": 60, "start": START, "end": START + 240}
ITEMS = ["coffee", "tea", "water"]
RULES = [{"name": "tea", "at_least": 10, "items": ["tea"], "clear_below": 5}, {"name": "all", "at_least": 5}]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "KeyedCounts": (
        {"max_contributions": 4, "over": "2m", "domain": ITEMS},
        {"max_contributions": 4, "over": 120, "domain": Domain(ITEMS)},
    ),
    "NumericQuantiles": (
        {"max_contributions": 4, "low": 0, "high": 9, "quantiles": [0.25, 0.5], "resolution": 9, "value": "size"},
        {"max_contributions": 4, "low": 0, "high": 9, "quantiles": (0.25, 0.5), "resolution": 9},
    ),
    "ShiftingHeavyHitters": ({"delta": 1e-3, "max_hits": 2, "method": "clock"},) * 2,
    "TopKWithGap": ({"domain": ITEMS, "top": 1}, {"domain": Domain(ITEMS), "top": 1}),
    "SparseVectorAlerts": (
        {"rules": RULES, "method": "status", "delta": 1e-3, "renew_every": "2m"},
        {"rules": [AlertRule(name="tea", at_least=10, items=("tea",), clear_below=5),
                   AlertRule(name="all", at_least=5)],
         "method": "status", "delta": 1e-3, "renew_every": 120},
    ),
    "ContinualHistogram": (
        {"domain": ITEMS, "queries": ["histogram", "max"]},
        {"domain": Domain(ITEMS), "queries": ["histogram", "max"]},
    ),
    "ThresholdFlags": (
        {"domain": ["7", "tea"], "thresholds": {7: 1000, "tea": 30}},
        {"domain": Domain(["7", "tea"]), "thresholds": {"7": 1000, "tea": 30}},
    ),
    "SetCardinality": (
        {"enter_values": ["tea"], "leave_values": ["own 0", "coffee"], "timeout": 61, "method": "counts"},
        {"enter_values": ("tea",), "leave_values": ("own 0", "coffee"), "timeout": 61, "method": "counts"},
    ),
    "RangeCounts": ({"universe": 64, "queries": [{"low": 1, "high": 9}], "user": "point"},
                    {"universe": 64, "queries": [(1, 9)]}),
    "PredecessorQueries": ({"universe": 64, "queries": [{"point": 9}], "user": "point"},
                           {"universe": 64, "queries": [9]}),
    "PrivateQueries": (
        {"domain": ITEMS, "records": 120, "queries": [{"name": "hot", "items": ["coffee", "tea"]}]},
        {"domain": ITEMS, "records": 120, "queries": [LinearQuery(name="hot", items=("coffee", "tea"))]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_transform_gives_what_it_gives_in_python(tmp_path: Path, key_file: str, name: str) -> None:
    config, arguments = CASES[name]
    events = crowd("a", people=60) + crowd("b", item="tea;coffee" if name == "ContinualHistogram" else "tea", people=60)
    if points := config.get("user") == "point":
        events = [(1 + number % 60, item, time) for number, (_, item, time) in enumerate(events)]
    who = "point" if points else "who"
    rows: list[dict[str, Any]] = [{who: u, "item": i, "time": iso(t), "size": 5} for u, i, t in events]
    bad = {
        f"time must be {NO_TIME}": rows[0] | {"time": "yesterday"},
        "time must be between 1970-01-01 and 2200-01-01": rows[0] | {"time": "1969-12-31"},
    }
    info = transforms.KINDS[name].info
    shared = DAY if info.has_windows else {"epsilon": DAY["epsilon"]}
    bad = bad if info.has_windows else {}
    config = shared | config | {"key": key_file, "error_handling": {"output": "bad"}}
    config = {"user": "who"} | config if info.user else config
    found, refused = run_on_rows(tmp_path, [*rows, *bad.values()], config, name)
    made = info.transform_class(**shared | arguments, noise=KeyedNoise(KEY))
    assert found == published(events, made)
    assert len(found) >= 1
    assert {row["reason"] for row in refused} == set(bad)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("KeyedCounts", {"over": "often"}, "over must be a number of seconds, or a number with"),
        ("SparseVectorAlerts", {"rules": "rules.jsonl"}, "rules must be a readable file, got rules.jsonl"),
        ("SetCardinality", {"start": None}, "start must be given"),
        ("SetCardinality", {"period": 30}, "no option `period`"),
    ],
)
def test_what_is_wrong_with_each_is_said_before_anything_runs(name: str, config: dict[str, Any], message: str) -> None:
    row = {"item": "tea", "time": iso(START), "user": "u", "size": 5}
    private = {"type": name, "input": "Create", "config": DAY | CASES[name][0] | config}
    with pytest.raises(ValueError, match=name) as raised:
        build(beam.Pipeline(), [{"type": "Create", "config": {"elements": [row]}}, private])
    assert message in str(raised.value)


def test_the_listing_has_all_questions() -> None:
    [provider] = load_providers(LISTING)
    assert set(provider.provided_transforms()) == {*CASES} == transforms.KINDS.keys()
