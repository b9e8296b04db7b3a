"""`privstream audit`: verdicts of questions, of runs and of monitors, and what it refuses."""

import json

import pytest
from privstream.mechanisms import SeededNoise
from privstream.mechanisms.privacy.guarantee import guarantee_record
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.question import Windows


def written(path, word="counts", **options):
    """Write the guarantee file of a run."""
    given = {"window": 60, "start": 0, "end": 240, "epsilon": 1.0, "max_contributions": 2} | options
    spec = question(word)
    windows = Windows.read({name: given[name] for name in Windows.model_fields if name in given})
    asked = MODELS[word].read({name: given[name] for name in MODELS[word].options() if name in given})
    budget = {name: given[name] for name in ("epsilon", "delta") if name in given}
    made = spec.transform_class(**asked.arguments(windows), **budget, noise=SeededNoise(1))
    content = {"made_by": {"command": f"privstream {word}"}, "parameters": given, "accuracy": {}}
    path.write_text(json.dumps({**content, "guarantee": guarantee_record(made.guarantee)}))
    return str(path)


@pytest.mark.parametrize(
    "options", [{"domain": ["a", "b"], "max_contributions": 3, "delta": 1e-9}, {"delta": 1e-6, "renew_every": 120}]
)
def test_a_run_is_replayed_at_its_own_parameters(options, tmp_path, capsys):
    path = written(tmp_path / "rows.csv.guarantee.json", **options)
    assert cli.main(["audit", path, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["replays"]
    assert found["claimed_epsilon"] == 1.0 and 0.8 <= found["share"] <= 1
    assert found["claimed_delta"] == options["delta"]


def test_a_file_that_claims_less_than_its_parameters_is_refuted(tmp_path, capsys):
    path = tmp_path / "rows.csv.guarantee.json"
    written(path, domain=["a"])
    content = json.loads(path.read_text())
    content["guarantee"] |= {"epsilon": 0.85, "curve": {"type": "PureDp", "at_epsilon": 0.85, "at_delta": 0.0}}
    path.write_text(json.dumps(content))
    assert cli.main(["audit", str(path)]) == 1
    told = capsys.readouterr()
    assert "is refuted" in told.err and "refuted" in told.out and "of the claim" in told.out


def test_what_cannot_be_replayed_is_refused(tmp_path, capsys):
    path = written(tmp_path / "rows.guarantee.json", "histogram", domain=["a"], max_contributions=None)
    assert cli.main(["audit", path]) == 2 and "histogram" in capsys.readouterr().err
    path = tmp_path / "rows.json"
    assert cli.main(["audit", str(path)]) == 2
    path.write_text("{}")
    assert cli.main(["audit", str(path)]) == 2 and "of a question" in capsys.readouterr().err
    assert cli.main(["audit", "flags"]) == cli.main(["audit", "oracle"]) == 2


def test_each_question_of_a_monitor_is_held_against_its_part_of_the_budget(tmp_path, capsys):
    written(tmp_path / "pages.csv.guarantee.json", epsilon=0.5, domain=["a", "b"])
    written(tmp_path / "bars.csv.guarantee.json", "histogram", domain=["a"], max_contributions=None)
    whole = {"made_by": {"command": "privstream run"}}
    whole |= {"questions": {name: {"output": f"{name}.csv"} for name in ("pages", "bars")}}
    (tmp_path / "_guarantee.json").write_text(json.dumps(whole))
    assert cli.main(["audit", str(tmp_path / "_guarantee.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (found,) = said["replays"]
    assert found["name"] == "pages" and found["claimed_epsilon"] == 0.5 and found["share"] > 0.8
    assert [*said["without_replay"]] == ["bars"]


def test_an_audit_of_a_question_has_a_verdict(capsys):
    assert cli.main(["audit", "top-k", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert all(0.8 < one["share"] <= 1 and not one["faults"] for one in said["replays"])
