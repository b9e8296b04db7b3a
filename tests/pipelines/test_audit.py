"""`privstream audit`: exact statistics, neighbours by construction, verdicts, refusals, and small audits."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms import SeededNoise
from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.keyed_counts import found_keys
from privstream.mechanisms.keyed_counts.discovery import calibrate_discovery
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines import cli
from privstream.pipelines.audit import audit_command
from privstream.pipelines.audit.attacks import Trials
from privstream.pipelines.audit.audit_command import CONSISTENT, NO_POWER, REFUTED, WRONG, Finding
from privstream.pipelines.audit.evidence import at_least, at_most, measure
from privstream.pipelines.audit.worst import RUNS, SUSPECT
from privstream.pipelines.model.catalogue import MODELS, WORDS, question
from privstream.pipelines.model.question import Windows, loaded
from scipy import stats

AUDITED = [word for word in WORDS if question(word).audit]
PURE = PrivacyGuarantee(unit=PERSON, epsilon=1.0, delta=0.0)


def attacks(word):
    return loaded(question(word).audit.path)


ATTACKS = [(word, attack) for word in AUDITED for attack in attacks(word)]


def responses(epsilon, size, seed):
    """Answers of randomised response with two inputs: what it shows is exactly epsilon."""
    lies = np.random.default_rng(seed).random((2, size)) < 1 / (1 + math.exp(epsilon))
    return ~lies[0], lies[1]


class TestStatistics:
    @pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (50, 10_000)])
    def test_bounds_are_those_of_clopper_and_pearson(self, successes, trials):
        low, high = float(at_least(successes, trials, 1e-6)), float(at_most(successes, trials, 1e-6))
        assert low == 0 if successes == 0 else stats.binom.sf(successes - 1, trials, low) == pytest.approx(1e-6)
        assert high == 1 if successes == trials else stats.binom.cdf(successes, trials, high) == pytest.approx(1e-6)

    def test_randomised_response_is_bounded_and_a_claim_of_half_is_refuted(self):
        answers = responses(1.0, 20_000, seed=1)
        found = measure(*answers, PURE, 1e-9)
        assert 0.8 < found.epsilon <= 1
        assert not found.violated
        assert measure(*answers, replace(PURE, epsilon=0.5), 1e-9).violated

    def test_equal_inputs_prove_nothing(self):
        one, other = np.random.default_rng(2).random((2, 8_000)) < 0.5
        assert measure(one, other, PURE, 1e-9).share == 0

    def test_a_leak_that_is_rare_is_found_as_delta(self):
        one, other = np.zeros((2, 20_000), bool)
        one[::50] = 1
        claim = replace(PURE, delta=0.001)
        found = measure(one, other, claim, 1e-9)
        assert 0.005 < found.delta <= 0.02
        assert found.violated
        assert not measure(one, other, replace(PURE, delta=0.021), 1e-9).violated


class TestTrials:
    def test_every_question_but_queries_is_replayed_or_attacked(self):
        assert {*RUNS} | {word for word, _ in ATTACKS} == {*AUDITED} == {*WORDS} - {"queries"}

    @pytest.mark.parametrize(("word", "attack"), ATTACKS, ids=[word for word, _ in ATTACKS])
    def test_inputs_are_neighbours_and_controls_promise_less(self, word, attack):
        made, control = (
            Trials(question(word), attack, options, 2, SeededNoise(1))
            for options in (attack.options, {**attack.options, **attack.control})
        )
        claim, less = made.guarantee, control.guarantee
        assert less.epsilon > claim.epsilon or less.delta > claim.delta
        assert less.unit == claim.unit
        if claim.unit.what == "event":
            assert len(attack.suspect) == 1
        else:
            assert {one.user for one in attack.suspect} == {SUSPECT}
            assert SUSPECT not in {one.user for one in attack.others(made.transform)}

    def test_without_noise_the_scores_are_the_truth(self):
        """With hardly any noise, every trial says which input it had: trials are apart, and no event is lost."""
        (attack,) = attacks("histogram")
        trials = Trials(question("histogram"), attack, {**attack.options, "epsilon": 200.0}, 20, SeededNoise(1))
        assert [world.tolist() for world in trials.run()] == [[True] * 10, [False] * 10]

    @pytest.mark.slow
    def test_a_person_alone_who_is_not_charged_is_refuted(self, monkeypatch):
        """Items are published as if nobody could be alone with one: what is above 1 with noise."""

        def uncharged(*given):
            law = calibrate_discovery(*given)
            return replace(law, scales=tuple(replace(scale, least=1, threshold=2) for scale in law.scales))

        monkeypatch.setattr(found_keys, "calibrate_discovery", uncharged)
        (attack,) = attacks("counts")
        trials = Trials(question("counts"), attack, attack.options, 400 * attack.times, SeededNoise(6))
        assert measure(*trials.run(), trials.guarantee, WRONG).violated


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


class TestFiles:
    @pytest.mark.parametrize(
        "options", [{"domain": ["a", "b"], "max_contributions": 3, "delta": 1e-9}, {"delta": 1e-6, "renew_every": 120}]
    )
    def test_a_run_is_replayed_at_its_own_parameters(self, options, tmp_path, capsys):
        path = written(tmp_path / "rows.csv.guarantee.json", **options)
        assert cli.main(["audit", path, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["claimed_epsilon"] == 1.0
        assert 0.8 <= said["measured_epsilon"] <= 1
        assert said["attacks"][0]["claimed"]["delta"] == options["delta"]

    def test_a_file_that_claims_less_than_its_parameters_is_refuted(self, tmp_path, capsys):
        path = tmp_path / "rows.csv.guarantee.json"
        written(path, domain=["a"])
        content = json.loads(path.read_text())
        content["guarantee"] |= {"epsilon": 0.85, "curve": {"type": "PureDp", "at_epsilon": 0.85, "at_delta": 0.0}}
        path.write_text(json.dumps(content))
        assert cli.main(["audit", str(path)]) == 1
        assert "is refuted" in capsys.readouterr().err

    def test_what_cannot_be_replayed_is_refused(self, tmp_path, capsys):
        path = written(tmp_path / "rows.guarantee.json", "histogram", domain=["a"], max_contributions=None)
        assert cli.main(["audit", path]) == 2
        assert "privstream audit histogram" in capsys.readouterr().err
        path = tmp_path / "rows.json"
        assert cli.main(["audit", str(path)]) == 2
        path.write_text("{}")
        assert cli.main(["audit", str(path)]) == 2
        assert "made_by" in capsys.readouterr().err

    def test_each_question_of_a_monitor_is_held_against_its_part_of_the_budget(self, tmp_path, capsys):
        path = tmp_path / "monitor.yaml"
        path.write_text(
            "data: {input: clicks.csv, user: customer, time: ts}\n"
            "windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T04:00}\n"
            "privacy: {epsilon: 2, delta: 1e-6}\n"
            "questions:\n"
            "  pages:   {question: counts, item: page, max_contributions: 3, share: 3}\n"
            "  present: {question: cardinality, timeout: 30m}\n"
            "  bars:    {question: histogram, item: page, domain: [a, b], unit: person, max_contributions: 2}\n"
            "output: {path: out}\n"
        )
        assert cli.main(["plan", str(path), "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)["questions"]
        assert cli.main(["audit", str(path), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        found = {attack["attack"]: attack for attack in said["attacks"]}
        assert [*found] == ["pages", "present"] and [*said["without_attack"]] == ["bars"]
        for name, attack in found.items():
            assert attack["claimed"]["epsilon"] == planned[name]["epsilon"] < said["together"]["epsilon"] == 2
            assert attack["found"]["share"] > 0.8


def finding(verdict):
    return Finding(
        name="one point",
        text="of a test",
        method="",
        guarantee=PURE,
        measured=0.9,
        share=0.9,
        verdict=verdict,
        found={},
        control={"options": {"epsilon": 2.0}, "measured_epsilon": 1.5, "share": 1.5, "refuted": verdict != NO_POWER},
    )


class TestCommand:
    @pytest.mark.parametrize(("verdict", "status"), [(CONSISTENT, 0), (REFUTED, 1), (NO_POWER, 4)])
    def test_verdicts_and_exit_statuses(self, verdict, status, monkeypatch, capsys):
        monkeypatch.setattr(audit_command, "tried", lambda *given: finding(verdict))
        assert cli.main(["audit", "ranges"]) == status
        assert verdict in capsys.readouterr().out
        assert cli.main(["audit", "ranges", "--json", "--trials", "400"]) == status
        said = json.loads(capsys.readouterr().out)
        assert (said["verdict"], said["trials"], said["measured_epsilon"]) == (verdict, 400, 0.9)

    def test_an_audit_of_ranks_has_a_verdict(self, capsys):
        assert cli.main(["audit", "top-k", "--trials", "1600", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["verdict"] == CONSISTENT and all(one["found"]["share"] > 0.8 for one in said["attacks"])

    @pytest.mark.parametrize("options", [["--trials", "399"], ["--trials", "401"], ["--key", "nowhere"]])
    def test_refusals(self, options):
        assert cli.main(["audit", "ranges", *options]) == 2

    @pytest.mark.slow
    @pytest.mark.parametrize("word", sorted({word for word, _ in ATTACKS}))
    def test_an_audit_stands_and_catches_its_controls(self, word, capsys):
        assert cli.main(["audit", word, "--trials", "1600", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        tried = [one for one in said["attacks"] if one["control"] is not None]
        assert tried and all(one["control"]["refuted"] and not one["found"]["refuted"] for one in tried)
