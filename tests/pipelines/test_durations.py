"""Durations are read alike on a command line and in Beam YAML."""

import pytest
from privstream.pipelines import cli
from privstream.pipelines.questions.option_types import OPTION_TYPES, RULE, seconds

DURATION = OPTION_TYPES["Seconds"]
LENGTHS = {
    "90": 90,
    "1e2": 100,
    "500ms": 0.5,
    "90s": 90,
    "30m": 1800,
    "1h": 3600,
    "1.5h": 5400,
    "1d": 86_400,
    "1w": 604_800,
}


@pytest.mark.parametrize(("text", "length"), LENGTHS.items())
def test_a_duration_is_a_number_with_or_without_a_unit(text: str, length: float) -> None:
    assert seconds(text) == DURATION.read("window", text) == DURATION.read("window", length) == length


@pytest.mark.parametrize("text", ["", "s", "1y", "1h30m", "1dd", "1 day", "h1", "0x1d"])
def test_what_is_no_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="window must be a number of seconds, or a number with its unit, such as"):
        DURATION.read("window", text)
    options = ["--users", "5", "--windows", "1", "--seed", "1", "--output", "e.csv"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["simulate", "heavy-hitters", *options, "--window", text])
    assert f"argument --window: {RULE}, got {text!r}" in capsys.readouterr().err
