"""Limits of a monitor that follow from what an earlier period has published."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from privstream.mechanisms.privacy.accounting import PointCurve
from privstream.mechanisms.privacy.guarantee import FOLLOWING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.accounts.spending import total
from privstream.pipelines.monitor import earlier_period
from privstream.pipelines.monitor.calibration import Calibrated
from privstream.pipelines.monitor.earlier_period import limit_from
from privstream.pipelines.monitor.monitor_file import read_monitor
from privstream.pipelines.monitor.plan_command import shared_out
from privstream.transforms.methods import USUAL_CONTRIBUTIONS

MONTH = """\
data: {{input: clicks.csv, user: customer, item: page, time: ts}}
window: 1d
start: {start}
windows: 4
max_contributions: {limit}
privacy: {{epsilon: 4, delta: 1e-6}}
questions:
  pages: {{question: counts, full_share: 0.2}}
output: {{folder: {folder}}}
noise_key_file: noise.key
"""
FIRST = MONTH.format(start="2026-01-01", limit=1, folder="out/first")
SECOND = MONTH.format(start="2026-01-05", limit="{from: out/first}", folder="out/second")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a key and events of two periods, in which everybody has eight contributions in each."""
    monkeypatch.chdir(tmp_path)
    draw, lines = random.Random(1), ["customer,page,ts"]
    for person in range(400):
        for day in range(8):
            at = datetime(2026, 1, 1 + day, tzinfo=UTC) + timedelta(hours=draw.random() * 24)
            lines += [f"c{person},/{page},{at.isoformat()}" for page in draw.sample("abcd", 2)]
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "noise.key").write_bytes(bytes(range(32)))
    (tmp_path / "noise.key").chmod(0o600)
    return tmp_path


def command(word: str, text: str) -> int:
    Path("monitor.yaml").write_text(text)
    return cli.main([word, "monitor.yaml"])


@pytest.mark.slow
def test_the_limit_of_a_period_follows_from_the_one_before(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a number like any other then, and a function of published rows alone: also when the events are gone."""
    assert command("run", FIRST) == 0
    assert command("run", SECOND) == 0
    promised = json.loads(Path("out/second/pages.csv.guarantee.json").read_text())
    assert promised["parameters"]["max_contributions"] == 2 == limit_from("out/first", "pages")
    first, second = Ledger("noise.key.ledger.jsonl").read()
    assert second.parameters["questions.pages.max_contributions"] == 2 and first.run_id != second.run_id
    assert second.guarantee.curve == PointCurve(at_epsilon=4.0, at_delta=1e-6) != first.guarantee.curve
    assert promised["guarantee"]["curve"] == {"type": "PointCurve", "at_epsilon": 4.0, "at_delta": 1e-6}
    together = total([first.guarantee, second.guarantee], PERSON, "add_remove")
    assert together.epsilon == together.plain_epsilon == 8  # by curves it would be 5
    capsys.readouterr()
    Path("clicks.csv").unlink()
    assert command("plan", SECOND) == 0
    assert "at most 2 contributions" in " ".join(capsys.readouterr().out.split())

    rows = Path("out/first/pages.csv")
    rows.write_text(rows.read_text().replace(",400,", ",401,", 1) + "\n")
    assert command("plan", SECOND) == 2
    assert "monitor.yaml, line 5: max_contributions.from: RESULT must be as its run wrote it" in capsys.readouterr().err


@pytest.mark.slow
def test_the_first_limit_may_be_the_usual_one(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the guarantee file has none; and one without what the run wrote is refused, with the line."""
    assert command("run", FIRST.replace("max_contributions: 1\n", "")) == 0
    beside = Path("out/first/pages.csv.guarantee.json")
    promise = json.loads(beside.read_text())
    assert "max_contributions" not in promise["parameters"]
    assert command("plan", SECOND) == 0
    monkeypatch.setattr(earlier_period, "next_limit", lambda told, run: told.limit)
    assert limit_from("out/first", "pages") == USUAL_CONTRIBUTIONS
    for name in ("epsilon", "window"):
        some = {key: value for key, value in promise["parameters"].items() if key != name}
        beside.write_text(json.dumps({**promise, "parameters": some}))
        capsys.readouterr()
        assert command("plan", SECOND) == 2
        assert "line 5: max_contributions.from: pages must have the guarantee file" in capsys.readouterr().err


PRESENT = "  present: {question: cardinality, timeout: 30m}\noutput:"


def planned(monkeypatch: pytest.MonkeyPatch, folder: Path, limit: int, text: str) -> Calibrated:
    """Return the plan of a monitor, as if the limit that follows were this one."""
    monkeypatch.setattr(earlier_period, "limit_from", lambda folder, question: limit)
    (folder / "monitor.yaml").write_text(text)
    return shared_out(read_monitor(str(folder / "monitor.yaml"), str(folder)))


@pytest.mark.parametrize("more", ["output:", PRESENT])
def test_what_a_period_promises_does_not_depend_on_the_limit_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """One curve holds for every limit, though the laws have curves of which none bounds the others."""
    text = SECOND.replace("output:", more)
    found = [planned(monkeypatch, tmp_path, limit, text) for limit in (1, 1000)]
    small, large = (each.guarantee for each in found)
    assert small.curve == large.curve == PointCurve(at_epsilon=4.0, at_delta=1e-6)
    assert (small.epsilon, small.delta) == (large.epsilon, large.delta) == (4.0, 1e-6)
    assert "Theorem 3b" in small.proof
    laws = [each.questions[0].transform.guarantee.known_curve for each in found]
    assert laws[0].delta(1.0) < laws[1].delta(1.0) and laws[0].delta(6.0) > laws[1].delta(6.0)
    for each in found:
        for paid in each.questions:
            point = PointCurve(at_epsilon=paid.transform.guarantee.epsilon, at_delta=paid.transform.guarantee.delta)
            assert paid.guarantee.curve == point
            assert (FOLLOWING in paid.guarantee.adaptivity) == (more == PRESENT)


def test_budgets_that_follow_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a question gets beside others depends on the limit: no composition is proved for it but the sum."""
    text = SECOND.replace("output:", PRESENT)
    own = [planned(monkeypatch, tmp_path, limit, text).questions[0].guarantee for limit in (1, 2)]
    assert own[0].epsilon != own[1].epsilon
    promised: PrivacyGuarantee = own[0]
    with pytest.raises(ValueError, match=r"^epsilon must be fixed before anything is published, to be composed"):
        promised.compose(own[1], delta=1e-6)
    together = total(own * 20, promised.unit, promised.neighbouring)
    assert together.epsilon == together.plain_epsilon
    fixed = planned(monkeypatch, tmp_path, 1, text.replace("{from: out/first}", "1")).questions[0].guarantee
    assert total([fixed] * 40, fixed.unit, fixed.neighbouring).epsilon < together.epsilon / 1.2


@pytest.mark.slow
def test_a_period_that_does_not_tell_is_refused(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a share that tells what limits leave out there is nothing that a limit could follow from."""
    assert command("run", FIRST.replace(", full_share: 0.2", "")) == 0
    capsys.readouterr()
    assert command("plan", SECOND) == 2
    assert "line 5: max_contributions.from: pages must have been published with full_share" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            "auto",
            "max_contributions: must be a whole number, or {from: FOLDER} of the output of an earlier period; "
            "`privstream suggest` finds a first one, got auto (for pages)",
        ),
        ("{from: none}", "max_contributions.from: must be the folder of the output of an earlier run, got none"),
        ("{form: out}", "max_contributions.form: unknown key; did you mean `from`?"),
        ("{}", "max_contributions: must be a whole number, but for counts a folder from which it follows (for pages)"),
        ("{from: 3}", "max_contributions.from: must be a text, got int"),
        ("{from: .}", "max_contributions.from: RESULT must be a file or a folder that exists, got ./pages (for pages)"),
    ],
)
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("plan", SECOND.replace("{from: out/first}", limit)) == 2
    assert f"monitor.yaml, line 5: {message}" in capsys.readouterr().err


def test_other_questions_have_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they publish does not tell what their limits leave out."""
    monkeypatch.chdir(tmp_path)
    text = SECOND.replace("counts, full_share: 0.2", "quantiles, value: ms, low: 1, high: 9")
    assert command("plan", text) == 2
    assert "line 5: max_contributions: must be a whole number, but for counts" in capsys.readouterr().err
    assert command("plan", text.replace("{from: out/first}", "auto")) == 2
    said = "line 5: max_contributions: must be a whole number; `privstream suggest` finds a first one, got auto"
    assert said in capsys.readouterr().err
