"""What once went wrong in whole commands and transforms, beside the files of the corpus."""

import inspect
import json
from pathlib import Path

import privstream.transforms
import pytest
from fuzz_commands import ITEMS, KEY, arguments_of, run
from fuzz_manners import check_manners
from privstream.transforms import AlertRule, Domain
from privstream.transforms.events.private_transform import PrivateTransform

TRANSFORMS = [
    one for one in vars(privstream.transforms).values() if inspect.isclass(one) and issubclass(one, PrivateTransform)
]

ARGUMENTS = {
    "epsilon": 1.0, "delta": 1e-6, "window": 10, "start": 0, "end": 100, "max_hits": 1, "horizon": 5, "top": 1,
    "thresholds": 3,
    "low": 0, "high": 9, "max_contributions": 1,
    "timeout": 5.0, "universe": 9, "records": 100, "alpha": 0.3, "rules": [AlertRule(name="r", at_least=3)],
    "domain": Domain(["a", "b"]),
}  # fmt: skip
"""Of any transform, as far as it takes them."""


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def people(first: int, number: int = 40, **changes: object) -> list[dict[str, object]]:
    return [
        {"user": f"u{n}", "item": ITEMS[n % 3], "time": f"2024-01-01T00:00:{n % 60:02}Z", **changes}
        for n in range(first, first + number)
    ]


def estimates(ran) -> list[int]:
    return [json.loads(line)["estimate"] for line in ran.rows.splitlines()]


@pytest.mark.slow
def test_one_key_on_two_data_sets_draws_noise_of_its_own_for_each(tmp_path):
    def noise(name, rows, *options):
        call = arguments_of("histogram", tmp_path / name, write(tmp_path / f"{name}.jsonl", rows))
        place = call.index("--run_id")
        del call[place : place + 2]
        return estimates(run([*call, *options], tmp_path / name))

    everybody = people(0)
    one = noise("one", everybody)
    assert noise("again", everybody) == one
    assert noise("others", people(1000)) != one
    lacking = noise("lacking", everybody[1:])
    assert sum(abs(a - b) for a, b in zip(one, lacking, strict=True)) > 12, "differences show one person's counts"
    named = [{**row, "other": row["item"]} for row in everybody]
    assert noise("named", named) != noise("other field", named, "--item_field", "other")


def test_nothing_usable_is_no_success(tmp_path):
    source = write(tmp_path / "events.jsonl", people(0, time="17/May/2015:10:05:03 +0000"))
    ran = run(arguments_of("histogram", tmp_path / "run", source), tmp_path / "run")
    assert ran.status == 3
    assert ran.rows
    check_manners(ran)


@pytest.mark.slow
def test_no_item_on_the_list_is_no_success(tmp_path):
    source = write(tmp_path / "events.jsonl", people(0, item="off the list"))
    ran = run(arguments_of("flags", tmp_path / "run", source), tmp_path / "run")
    assert ran.status == 3
    assert ran.rows
    check_manners(ran)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["", "stream"])
def test_no_event_and_one_event_end_alike(stream, tmp_path):
    found = []
    for name, rows in (("none", []), ("one", people(0, 1, stream="north"))):
        call = arguments_of("histogram", tmp_path / name, write(tmp_path / f"{name}.jsonl", rows), stream=stream)
        ran = run(call, tmp_path / name)
        check_manners(ran)
        noisy = dict.fromkeys(("estimate", "lower", "upper", "category"))
        found.append([json.loads(line) | noisy for line in ran.rows.splitlines()])
    assert found[0] == found[1]


@pytest.mark.slow
def test_events_need_no_user_where_an_event_is_protected(tmp_path):
    whole = people(0)
    nobody = [{key: value for key, value in row.items() if key != "user"} for row in whole]
    half = [*whole[:20], *nobody[20:]]
    counts = []
    for name, rows in (("whole", whole), ("half", half)):
        ran = run(arguments_of("histogram", tmp_path / name, write(tmp_path / f"{name}.jsonl", rows)), tmp_path / name)
        check_manners(ran)
        counts.append(estimates(ran))
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_results_are_not_overwritten_in_silence(tmp_path):
    source = write(tmp_path / "events.jsonl", people(0))
    call = arguments_of("histogram", tmp_path / "run", source)
    first = run(call, tmp_path / "run").rows
    write(source, people(500))
    again = run(call, tmp_path / "run")
    assert again.status == 2
    assert again.rows == first


@pytest.mark.parametrize(("mode", "key"), [(0o640, KEY), (0o604, KEY), (0o600, b"a" * 16)])
def test_careless_keys_are_refused(mode, key, tmp_path):
    source = write(tmp_path / "events.jsonl", people(0))
    call = arguments_of("histogram", tmp_path / "run", source)
    (tmp_path / "run" / "key").write_bytes(key)
    (tmp_path / "run" / "key").chmod(mode)
    ran = run(call, tmp_path / "run")
    assert ran.status == 2
    check_manners(ran)


@pytest.mark.parametrize("name", ["\x1b[2J", "\x9b2J", "\u202e", "\ud800", "a\nb"])
def test_names_of_fields_do_not_steer_terminals(name, tmp_path):
    rows = [{name: 1, **row} for row in people(0)]
    source = write(tmp_path / "events.jsonl", rows)
    ran = run([*arguments_of("histogram", tmp_path / "run", source), "--user_field", "missing"], tmp_path / "run")
    check_manners(ran)


def test_multi_processing_is_refused(tmp_path):
    source = write(tmp_path / "events.jsonl", people(0))
    call = [*arguments_of("histogram", tmp_path / "run", source), "--direct_running_mode=multi_processing"]
    ran = run([*call, "--direct_num_workers=2"], tmp_path / "run")
    assert ran.status == 2
    check_manners(ran)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda one: one.__name__)
def test_noise_is_no_bare_value(transform):
    taken = inspect.signature(transform).parameters
    given = {name: value for name, value in ARGUMENTS.items() if name in taken}
    for noise in (None, b"a key", "a key", 5):
        with pytest.raises(TypeError, match="noise must be"):
            transform(**given, noise=noise)
