"""`privstream audit`: exact statistics, neighbours by construction, verdicts, refusals, and small audits."""

import argparse
import dataclasses
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
from privstream.pipelines import cli, console
from privstream.pipelines.audit import audit_command, file_command
from privstream.pipelines.audit.attacks import (
    EPSILON,
    SUSPECT,
    Seen,
    Sent,
    all_windows,
    crowd,
)
from privstream.pipelines.audit.audit_command import (
    CONSISTENT,
    NO_POWER,
    REFUTED,
    TIMES,
    WRONG,
    Finding,
    Trying,
    attacks_on,
    enough_for,
    overall,
    weakest,
)
from privstream.pipelines.audit.evidence import Samples, at_least, at_most, measure
from privstream.pipelines.audit.hidden_tests import TESTS, hidden_test_runs
from privstream.pipelines.audit.trials import Trials
from privstream.pipelines.audit.whole_run import (
    CROWDED,
    planned,
    whole_runs,
)
from privstream.pipelines.monitor.run_command import NOISE
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.spec import loaded
from scipy import stats

AUDITED = [word for word in WORDS if question(word).audit]
PURE = PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=1.0, delta=0.0)


def attacks(word):
    return loaded(question(word).audit.path)


def responses(epsilon, size, seed):
    """Scores of randomised response with two inputs: what it shows is exactly epsilon."""
    lies = np.random.default_rng(seed).random((2, size)) < 1 / (1 + math.exp(epsilon))
    return np.where(lies[0], 0.0, 1.0), np.where(lies[1], 1.0, 0.0)


class TestStatistics:
    @pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (50, 10_000)])
    def test_bounds_are_those_of_clopper_and_pearson(self, successes, trials):
        low, high = float(at_least(successes, trials, 1e-6)), float(at_most(successes, trials, 1e-6))
        assert low == 0 if successes == 0 else stats.binom.sf(successes - 1, trials, low) == pytest.approx(1e-6)
        assert high == 1 if successes == trials else stats.binom.cdf(successes, trials, high) == pytest.approx(1e-6)

    def test_randomised_response_is_bounded_and_a_claim_of_half_is_refuted(self):
        scores = responses(1.0, 20_000, seed=1)
        found = measure(*scores, PURE, 1e-9)
        assert 0.8 < found.epsilon <= 1
        assert not found.violated
        for point in found.points[:-1]:
            truth = (math.e - math.exp(point.epsilon)) / (1 + math.e)
            assert point.claimed == pytest.approx(truth)
            assert truth - 0.08 < point.found <= truth
        assert 0.8 < found.share <= 1
        refuted = measure(*scores, replace(PURE, epsilon=0.5), 1e-9)
        assert refuted.violated
        assert refuted.share > 1.5

    @pytest.mark.parametrize("epsilon", [0.5, 4.0])
    def test_guesses_measure_most_of_it_and_rarely_more(self, epsilon):
        """Laplace noise of one count, 3,200 trials: on average 0.8 of epsilon, above it in one of forty or less."""
        rng, stops = np.random.default_rng(8), 1 - math.exp(-epsilon)
        noise = rng.geometric(stops, (60, 2, 1600)) - rng.geometric(stops, (60, 2, 1600))
        found = np.array([Samples(one + 1.0, other + 0.0, 0.025).guessed() for one, other in noise])
        assert found.mean() > 0.75 * epsilon
        assert np.sum(found > epsilon) <= stats.binom.isf(1e-9, 60, 0.025)

    def test_several_units_show_what_one_has(self):
        """Laplace noise of one count and four people more: in 1,600 trials most of epsilon 0.5, and rarely more."""
        rng, stops, claim = np.random.default_rng(9), 1 - math.exp(-0.5), replace(PURE, epsilon=0.5)
        noise = rng.geometric(stops, (60, 2, 800)) - rng.geometric(stops, (60, 2, 800))
        found = [measure(one + 4.0, other + 0.0, claim, WRONG, 4) for one, other in noise]
        measured = np.array([each.measured for each in found])
        assert measured.mean() > 0.8 * 0.5
        assert np.sum(measured > 0.5) <= stats.binom.isf(1e-9, 60, 0.025)
        assert not any(each.violated for each in found)
        lower = replace(PURE, epsilon=0.3)
        assert all(measure(one + 4.0, other + 0.0, lower, WRONG, 4).violated for one, other in noise)

    def test_equal_inputs_prove_nothing(self):
        one, other = np.random.default_rng(2).normal(size=(2, 8_000))
        assert measure(one, other, PURE, 1e-9).share == 0

    def test_the_order_of_inputs_does_not_matter(self):
        one, other = responses(1.0, 20_000, seed=3)
        assert measure(-other, -one, PURE, 1e-9).epsilon == pytest.approx(
            measure(one, other, PURE, 1e-9).epsilon, abs=0.1
        )

    def test_a_leak_that_is_rare_is_found_as_delta(self):
        one, other = np.zeros((2, 20_000))
        one[::50] = 1
        claim = replace(PURE, delta=0.001)
        found = measure(one, other, claim, 1e-9)
        assert 0.005 < found.points[-1].found <= 0.02
        assert found.violated
        assert not measure(one, other, replace(PURE, delta=0.021), 1e-9).violated


class TestAttacks:
    def test_all_questions_have_attacks(self):
        assert {*WORDS} - {*AUDITED} == {"top-k", "alerts", "queries"}

    @pytest.mark.parametrize("word", AUDITED)
    def test_inputs_are_neighbours_and_controls_promise_less(self, word):
        for attack in (each.at(epsilon) for each in attacks(word) for epsilon in (0.5, 2.0)):
            made, control = (
                Trials(question(word), attack, options, 2, SeededNoise(1), attack.units)
                for options in (attack.options, {**attack.options, **attack.control})
            )
            claim, less = made.guarantee, control.guarantee
            assert claim.delta == 0 or attack.units == 1
            assert less.epsilon > claim.epsilon or less.delta > claim.delta
            assert (less.unit, less.neighbouring) == (claim.unit, claim.neighbouring)
            for trials in (made, control):
                one, other = ([], [])
                for window in range(attack.windows):
                    seen = Seen(trials.transform, window, (), attack.units)
                    one += trials._events(seen, True)
                    other += trials._events(seen, False)
                assert len(one) > len(other)
                assert one != other

    def test_attacks_have_the_epsilon_that_is_asked_for(self):
        """With a delta of 0 and a small one, several units do the same; controls keep their distance."""
        for word in ("counts", "flags", "ranges"):
            for own, asked in zip(attacks_on(question(word)), attacks_on(question(word), 0.5), strict=True):
                if own.transcript is None:
                    assert asked.options["epsilon"] == 0.5
                    assert asked.units == (1 if own.single or own.about == "delta" else 4)
                    assert asked.times == (16 if own.single else 1) * own.times
                    distances = [
                        each.control.get("epsilon", each.options["epsilon"]) / each.options["epsilon"]
                        for each in (own, asked)
                    ]
                    assert max(distances) == pytest.approx(min(distances))
                else:
                    assert asked.options["epsilon"] == 0.5 < asked.control["epsilon"] < 0.8

    def test_inputs_that_are_no_neighbours_are_refused(self):
        attack = attacks("counts")[0]
        for wrong in (
            replace(attack, others=all_windows(*crowd(2, "a", first=SUSPECT))),
            replace(attack, suspect=all_windows(Sent(SUSPECT, "a"), Sent(7, "a"))),
        ):
            trials = Trials(question("counts"), wrong, wrong.options, 2, SeededNoise(1))
            with pytest.raises(ValueError, match="events of one person more"):
                trials._events(Seen(trials.transform, 0, ()), True)
        event = replace(attacks("histogram")[0], suspect=all_windows(*crowd(2, "a")))
        trials = Trials(question("histogram"), event, event.options, 2, SeededNoise(1))
        with pytest.raises(ValueError, match="one event more"):
            trials._events(Seen(trials.transform, 0, ()), True)


class TestTrials:
    @pytest.mark.parametrize("word", ["histogram"])
    def test_without_noise_the_scores_are_the_truth(self, word):
        """With hardly any noise, every trial says which input it had: trials are apart, and no event is lost."""
        attack = attacks(word)[0]
        trials = Trials(question(word), attack, {**attack.options, "epsilon": 200.0}, 20, SeededNoise(1))
        one, other = trials.run()
        assert (one - other).tolist() == [1.0] * 10 and len({*other}) == 1

    @pytest.mark.slow
    def test_noise_of_streams_is_independent(self):
        """Equal inputs in all streams, and draws that differ: no two neighbours in line go together."""
        attack = attacks("histogram")[0]
        trials = Trials(question("histogram"), attack, {**attack.options, "epsilon": 0.05}, 400, SeededNoise(1))
        one, other = trials.run()
        assert len(np.unique(one)) > 60
        correlation = np.corrcoef(one - 1, other)[0, 1]
        assert abs(correlation) < 6.5 / math.sqrt(200)


def let_one_person_in(monkeypatch):
    """Publish items as if nobody could be alone with one: what is above 1 with noise."""

    def uncharged(*given):
        law = calibrate_discovery(*given)
        return replace(law, scales=tuple(replace(scale, least=1, threshold=2) for scale in law.scales))

    monkeypatch.setattr(found_keys, "calibrate_discovery", uncharged)


class TestLimits:
    """Items of one person that are published as if they were not charged are seen."""

    @pytest.mark.slow
    def test_a_person_alone_who_is_not_charged_is_refuted(self, monkeypatch):
        (attack,) = (each.at(0.5) for each in attacks("counts") if each.name == "a person alone with an item")
        let_one_person_in(monkeypatch)
        number = 1600 * attack.times
        trials = Trials(question("counts"), attack, attack.options, number, SeededNoise(6), one_in=attack.one_in)
        assert measure(*trials.run(), trials.guarantee, WRONG).violated


def fitted(word, number, trials=400):
    """What an attack on all that is published finds."""
    spec = question(word)
    return Trying(spec=spec, trials=trials, key_file=None, wrong=WRONG).find(whole_runs(spec)[number])


class TestWholeRuns:
    @pytest.mark.parametrize("number", [0, 1, 3])
    def test_a_crowd_sends_all_that_may_count_and_all_of_it_is_read(self, number):
        """With hardly any noise, transcripts are the truth; of random contributions, one of eleven does not count."""
        attack = whole_runs(question("counts"))[number]
        options = {**attack.options, "epsilon": 300.0, "delta": 0.0}
        trials = Trials(question("counts"), attack, options, 4, SeededNoise(1), people=3)
        one, other = trials.run()
        moved = (one - other).mean(axis=0)
        assert attack.transcript.counted == len(moved) or np.rint(moved.min()) == 0
        assert moved.sum() > 3 * attack.transcript.counted - 1

    def test_what_limits_leave_no_choice_about_is_sent_beyond_them(self):
        assert planned(4, 3, ["a", "b"], 1) == [["a"]] * 4
        assert planned(3, 3, ["a", "b"], 2) == [["a", "b"], ["a"], ["a"]]
        assert planned(2, 4, ["a", "b"], 2) == [["a", "b"]] * 2

    @pytest.mark.slow
    def test_trials_of_several_runs_are_put_together(self, monkeypatch):
        """And no two of them have the same noise."""
        attack = whole_runs(question("counts"))[1]
        trying = Trying(spec=question("counts"), trials=40, key_file=None, wrong=WRONG)
        monkeypatch.setattr(Trying, "noise", lambda given, attack, name: SeededNoise(4).derive(name))
        claim = trying._trials(attack, attack.options, 2, "claimed").guarantee
        monkeypatch.setattr(audit_command, "trials_at_once", lambda transcript, people, one_in: CROWDED)
        found = trying.crowds(attack, claim)
        assert [len(each) for each in (*found.real, *found.control)] == [2, 38, 2, 38]
        assert len({tuple(each) for world in (*found.real, *found.control) for each in world}) == 80

    @pytest.mark.slow
    @pytest.mark.parametrize(("word", "number"), [("counts", 1), ("counts", 3)])
    def test_most_of_the_claim_is_measured(self, word, number):
        found = fitted(word, number, 1600).real
        assert 0.8 * found.claimed < found.measured <= 1.05 * found.claimed
        assert not found.violated


class TestHiddenTests:
    """Attacks on tests that people are charged for."""

    @pytest.mark.parametrize(
        ("word", "number"),
        [
            pytest.param("heavy-hitters", 0, marks=pytest.mark.slow),
            ("heavy-hitters", 1),
        ],
    )
    def test_tests_are_passed_as_the_model_says(self, word, number):
        """Of so few trials: about one in seven without the crowd, and nearly all with it."""
        attack = hidden_test_runs(question(word))[number]
        trying = Trying(spec=question(word), trials=60, key_file=None, wrong=WRONG)
        claim = attack.part(trying._trials(attack, attack.options, 2, "claimed").transform)
        assert claim.delta == attack.options["delta"]
        assert claim.epsilon == pytest.approx(0.75 * EPSILON, rel=1e-6)
        one, other = trying.crowds(attack, claim).real
        assert one.shape == other.shape == (30, TESTS)
        assert 0.9 < one.mean() <= 1
        assert 0.05 < other.mean() < 0.25

    @pytest.mark.slow
    @pytest.mark.parametrize(("word", "number", "trials"), [("heavy-hitters", 1, 2400)])
    def test_most_of_the_claim_is_measured_and_noise_that_is_too_small_is_found(self, word, number, trials, tmp_path):
        attack = hidden_test_runs(question(word))[number]
        found = Trying(spec=question(word), trials=trials, key_file=key_in(tmp_path), wrong=WRONG).find(attack)
        assert found.verdict == CONSISTENT
        assert 0.8 < found.real.measured / found.guarantee.epsilon < 1.05


def written(path, word="counts", method=None, **options):
    """Write the guarantee file of a run."""
    given = {"window": 60, "start": 0, "end": 240, "epsilon": 1.0, "max_contributions": 2} | options
    spec = question(word)
    made = spec.transform_class(**arguments_of(spec, given, streams=False), noise=SeededNoise(1))
    accuracy = {} if method is None else {"method": method}
    content = {"made_by": {"command": f"privstream {word}"}, "parameters": given, "accuracy": accuracy}
    path.write_text(json.dumps({**content, "guarantee": guarantee_record(made.guarantee)}))
    return str(path)


def key_in(folder):
    """Write a noise key; return its path."""
    key = folder / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    return str(key)


class TestFiles:
    @pytest.mark.slow
    def test_processes_find_what_one_finds(self, tmp_path, capsys, monkeypatch):
        """Those that share the trials, whatever their number."""
        monkeypatch.setattr(audit_command, "trials_at_once", lambda transcript, people, one_in: 200)
        path = written(tmp_path / "rows.csv.guarantee.json", domain=["a"])
        found = []
        for workers in ("1", "2"):
            command = ["audit", path, "--json", "--trials", "400", "--noise_key_file", key_in(tmp_path)]
            assert cli.main([*command, "--workers", workers]) in (0, 4)
            found.append(json.loads(capsys.readouterr().out))
        assert found[0] == found[1]

    @pytest.mark.slow
    def test_a_run_is_attacked_with_its_own_parameters(self, tmp_path, capsys):
        path = written(tmp_path / "rows.csv.guarantee.json", domain=["a", "b"], max_contributions=3, delta=1e-9)
        assert cli.main(["audit", path, "--json", "--trials", "1600"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["claimed_epsilon"] == 1.0
        assert 0.8 < said["measured_epsilon"] < 1.05
        assert said["unit"] == "one person over the whole run"
        (attack,) = said["attacks"]
        assert attack["claimed"]["delta"] == 1e-9
        assert attack["found"]["model"] in ("Gaussian", "Laplace")

    @pytest.mark.slow
    def test_a_file_that_claims_less_than_its_parameters_is_refuted(self, tmp_path, capsys):
        path = tmp_path / "rows.csv.guarantee.json"
        written(path, domain=["a"])
        content = json.loads(path.read_text())
        content["guarantee"] |= {"epsilon": 0.85, "curve": {"type": "PureDp", "at_epsilon": 0.85, "at_delta": 0.0}}
        path.write_text(json.dumps(content))
        assert cli.main(["audit", str(path), "--trials", "1600"]) == 1
        assert "is refuted" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("word", "options", "error"),
        [
            ("cardinality", {"leave_values": ["out"], "max_contributions": None}, "privstream audit cardinality"),
        ],
    )
    def test_runs_that_are_not_attacked_are_refused(self, word, options, error, tmp_path, capsys):
        path = written(tmp_path / "rows.guarantee.json", word, **options)
        assert cli.main(["audit", path, "--trials", "400"]) == 2
        assert error in capsys.readouterr().err

    def test_what_is_no_guarantee_is_refused(self, tmp_path, capsys):
        path = tmp_path / "rows.json"
        assert cli.main(["audit", str(path)]) == 2
        path.write_text("{}")
        assert cli.main(["audit", str(path)]) == 2
        assert "made_by" in capsys.readouterr().err


MONITOR = """\
data: {input: clicks.csv, user: customer, time: ts}
window: 1h
start: 2026-01-01
end: 2026-01-01T04:00
privacy: {epsilon: 2, delta: 1e-6}
questions:
  pages:   {question: counts, item: page, max_contributions: 3, share: 3}
  listed:  {question: counts, item: page, domain: [a, b], max_contributions: 2}
  present: {question: cardinality, timeout: 30m}
output: {folder: out}
"""


TOGETHER = f"""\
{MONITOR.partition("  pages:")[0]}\
  pages:   {{question: counts, item: page, max_contributions: 12, share: 3}}
  lands:   {{question: counts, item: country, max_contributions: 10}}
output: {{folder: out}}
"""


def without(*words):
    """The first monitor without the lines that have such words."""
    return "".join(line for line in MONITOR.splitlines(keepends=True) if not any(word in line for word in words))


class TestMonitors:
    @pytest.fixture
    def found(self, monkeypatch):
        """Let all attacks find the same, and note which are tried and what is claimed."""
        tried = []

        def find(trying, attack):
            claim = attack.options["epsilon"] if trying.claim is None else trying.claim.epsilon
            tried.append((attack.name, trying.spec.word, claim, dict(attack.options), trying.wrong))
            said = dataclasses.replace(finding(CONSISTENT), attack=dataclasses.replace(attack, about="epsilon"))
            return said

        monkeypatch.setattr(audit_command.Trying, "find", find)
        return tried

    def test_each_question_is_attacked_with_its_part_of_the_budget(self, tmp_path, capsys, found):
        path = tmp_path / "monitor.yaml"
        path.write_text(MONITOR)
        assert cli.main(["plan", str(path), "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)["questions"]
        assert cli.main(["audit", str(path), "--json", "--trials", "400"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert [(name, claim) for name, _, claim, *_ in found] == [
            *((f"{name}: all that is published", planned[name]["epsilon"]) for name in ("pages", "listed")),
            *(
                (f"present: {attack.name}", max(0.5, planned["present"]["epsilon"]))
                for attack in attacks("cardinality")
            ),
        ]
        assert found[0][3]["max_contributions"] == 3 and len(found[1][3]["domain"]) == 2
        assert {wrong for *_, wrong in found} == {audit_command.WRONG / 5}
        assert said["attack"] == said["weakest_attack"] in [name for name, *_ in found]
        assert {"claimed_epsilon", "measured_epsilon", "unit"} <= said.keys() and said["together"]["epsilon"] == 2
        assert (said["without_attack"], said["at_own_parameters"]) == ({}, ["present"])
        assert cli.main(["audit", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "present is attacked as privstream audit cardinality does it" in shown
        assert "all together promise epsilon = 2, delta = 1e-06, for one person over the whole run" in shown

    def test_a_verdict_is_whole_however_narrow_the_page_is(self, tmp_path, capsys, found, monkeypatch):
        monkeypatch.setattr(console, "WIDTH", 80)
        path = tmp_path / "monitor.yaml"
        path.write_text(MONITOR)
        assert cli.main(["audit", str(path), "--trials", "400"]) == 0
        assert f" {CONSISTENT} │" in capsys.readouterr().out

    def test_noise_of_questions_is_derived_as_in_a_run(self, tmp_path):
        """Trials have one source of noise, from which each question has its own by its name."""
        path = tmp_path / "monitor.yaml"
        path.write_text(TOGETHER)
        audit = file_command._planned(str(path), str(tmp_path))
        arguments = argparse.Namespace(trials=400, noise_key_file=None)
        pages, lands = (audit._trying(attack, arguments, WRONG) for attack in audit._attacks())
        source = pages.source("claimed")
        assert source is lands.source("claimed") is not pages.source("control")
        drawn = [each.noise(audit.audits["pages"].attack, "claimed").words(1).tolist() for each in (pages, lands)]
        assert drawn == [source.derive(NOISE, name).words(1).tolist() for name in ("pages", "lands")]

    def test_items_that_alerts_name_are_no_part_of_an_attack(self, tmp_path, capsys, found):
        """Their list is in no file that a guarantee of a monitor names."""
        path = tmp_path / "monitor.yaml"
        path.write_text(f"{MONITOR}views:\n  low: {{of: pages, item: home, below: 5}}\n")
        assert cli.main(["audit", str(path), "--json", "--trials", "400"]) == 0
        result = tmp_path / "rows.csv.guarantee.json"
        written(result, delta=1e-3)
        content = json.loads(result.read_text())
        content["parameters"]["public_items"] = "a list of 1"
        result.write_text(json.dumps(content))
        assert cli.main(["audit", str(result), "--json", "--trials", "400"]) == 0
        assert [name for name, *_ in found] == [
            *(f"{name}: all that is published" for name in ("pages", "listed")),
            *(f"present: {attack.name}" for attack in attacks("cardinality")),
            "all that is published",
        ]

    @pytest.mark.parametrize("end", ["", "end: 2026-01-01T06:00\n"])
    def test_of_a_run_that_starts_afresh_one_period_is_attacked(self, tmp_path, capsys, found, end):
        """Also of one that ends after others: an attack is on the windows of one."""
        path = tmp_path / "monitor.yaml"
        path.write_text(MONITOR.replace("end: 2026-01-01T04:00\n", f"{end}renew_every: 3h\n"))
        assert cli.main(["audit", str(path), "--json"]) == 0
        assert found[0][3]["end"] - found[0][3]["start"] == 3 * 3600 == found[0][3]["renew_every"]

    def test_the_guarantee_file_of_a_monitor_names_those_of_its_questions(self, tmp_path, capsys, found):
        written(tmp_path / "pages.csv.guarantee.json", domain=["a", "b"])
        whole = {
            "made_by": {"command": "privstream run"},
            "parameters": {"run_id": "one"},
            "guarantee": json.loads((tmp_path / "pages.csv.guarantee.json").read_text())["guarantee"],
            "questions": {"pages": {"output": "pages.csv"}},
        }
        path = tmp_path / "_guarantee.json"
        path.write_text(json.dumps(whole))
        assert cli.main(["audit", str(path), "--json"]) == 0
        assert [(name, claim) for name, _, claim, *_ in found] == [("pages: all that is published", 1.0)]
        path.write_text(json.dumps({**whole, "questions": {"gone": {"output": "gone.csv"}}}))
        assert cli.main(["audit", str(path)]) == 2
        assert "must have the guarantee of gone beside it" in capsys.readouterr().err

    def test_a_monitor_of_other_questions_has_attacks_on_their_mechanisms(self, tmp_path, capsys, found):
        path = tmp_path / "monitor.yaml"
        path.write_text(without("pages", "listed"))
        assert cli.main(["audit", str(path), "--json"]) == 0
        assert [claim for _, _, claim, *_ in found] == [2.0] * len(attacks("cardinality"))


def finding(verdict):
    attack = attacks("ranges")[0]
    strong, weak = responses(2.0, 20_000, seed=4), responses(0.1, 20_000, seed=5)
    real, control = {REFUTED: (strong, strong), CONSISTENT: (weak, strong), NO_POWER: (weak, weak)}[verdict]
    found = [measure(*scores, PURE, WRONG) for scores in (real, control)]
    return Finding(attack=attack, method="", guarantee=PURE, real=found[0], control=found[1])


class TestCommand:
    @pytest.mark.parametrize(
        ("verdict", "status", "words"),
        [(CONSISTENT, 0, "all controls were caught"), (REFUTED, 1, "is refuted"), (NO_POWER, 4, "has no power")],
    )
    def test_verdicts_and_exit_statuses(self, verdict, status, words, monkeypatch, capsys):
        monkeypatch.setattr(audit_command.Trying, "find", lambda *given: finding(verdict))
        assert cli.main(["audit", "ranges"]) == status
        shown = capsys.readouterr()
        assert words in shown.err
        assert verdict in shown.out
        assert "cannot prove" in shown.out

    def test_a_missed_control_says_with_how_many_trials_it_would_be_caught(self, monkeypatch, capsys):
        """As many as show it if all trials are repeated, and a step more; of what shows nothing there is no number."""
        scores = responses(1.3, 300, seed=6)
        found = [measure(*(np.repeat(each, times) for each in scores), PURE, WRONG) for times in (1, *TIMES)]
        caught = [each.violated for each in found]
        assert not caught[0] and caught[-2]
        enough = enough_for(lambda times: found[(1, *TIMES).index(times)])
        assert enough == TIMES[caught.index(True)]
        assert enough_for(lambda times: found[0]) is None and enough_for(lambda times: found[-1]) == 1
        missed = replace(finding(NO_POWER), enough=enough)
        monkeypatch.setattr(audit_command.Trying, "find", lambda *given: missed)
        assert cli.main(["audit", "ranges", "--trials", "1000"]) == 4
        assert f"; --trials {enough * 1000} may catch them" in capsys.readouterr().err
        monkeypatch.setattr(audit_command.Trying, "find", lambda *given: replace(missed, enough=None))
        assert cli.main(["audit", "ranges", "--json"]) == 4
        said = capsys.readouterr()
        assert "16 times as many --trials would not catch them" in said.err
        assert json.loads(said.out)["attacks"][0]["enough_trials"] is None

    def test_the_worst_attack_decides(self):
        found = {verdict: finding(verdict) for verdict in (CONSISTENT, NO_POWER, REFUTED)}
        assert overall([found[CONSISTENT], found[NO_POWER]]) == NO_POWER
        assert overall([found[CONSISTENT], found[REFUTED], found[NO_POWER]]) == REFUTED

    def test_the_weakest_attack_is_one_on_epsilon(self):
        strong, weak = finding(REFUTED), finding(CONSISTENT)
        on_delta = replace(weak, attack=replace(weak.attack, about="delta"))
        assert weakest([strong, weak]) is weak
        assert weakest([strong, on_delta]) is strong

    def test_json(self, monkeypatch, capsys):
        monkeypatch.setattr(audit_command.Trying, "find", lambda *given: finding(CONSISTENT))
        assert cli.main(["audit", "ranges", "--json", "--trials", "400"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["verdict"] == CONSISTENT
        assert said["trials"] == 400
        assert (said["claimed_epsilon"], said["unit"]) == (1.0, "one person over the whole run")
        assert said["measured_epsilon"] == said["attacks"][0]["found"]["measured_epsilon"] < 1
        first, *_ = said["attacks"]
        assert first["claimed"]["epsilon"] == 1.0
        assert first["found"]["epsilon_at_least"] < 1 < first["control"]["epsilon_at_least"]
        assert [point["epsilon"] for point in first["found"]["curve"]] == [0.0, 0.25, 0.5, 0.75, 1.0]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (["--trials", "399"], "--trials must be >= 400, got 399"),
            (["--trials", "401"], "--trials must be even"),
            (["--epsilon", "0"], "--epsilon must be finite and > 0, got 0"),
            (["--workers", "0"], "--workers must be from 1 to 256, got 0"),
            (["--noise_key_file", "nowhere"], "nowhere"),
        ],
    )
    def test_refusals(self, options, error, capsys):
        assert cli.main(["audit", "ranges", *options]) == 2
        assert error in capsys.readouterr().err

    def test_what_is_no_question_is_refused_with_all_that_are(self, capsys):
        with pytest.raises(SystemExit) as ended:
            cli.main(["audit", "guesses"])
        assert ended.value.code == 2
        shown = capsys.readouterr().err
        assert all(word in shown for word in AUDITED)

    @pytest.mark.slow
    def test_a_small_audit_stands_and_catches_its_controls(self, tmp_path, capsys):
        command = ["audit", "histogram", "--trials", "1600", "--noise_key_file", key_in(tmp_path), "--json"]
        assert cli.main(command) == 0
        attacks = json.loads(capsys.readouterr().out)["attacks"]
        assert len(attacks) == 1
        for found in attacks:
            assert found["control"]["refuted"]
            assert not found["found"]["refuted"]
