"""`privstream metrics` shows exact numbers to those who have the token, on loopback alone, as Prometheus reads them."""

import base64
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.serve import metrics_command
from privstream.pipelines.serve.app import Access
from privstream.pipelines.serve.health import Health
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

TOKEN = "0123456789abcdef0123456789abcdef"
NOW = 1_700_000_060.0
STEP = "flink_taskmanager_job_task_operator_"
PAGE = f"""\
{STEP}privstream_events{{job_name="to \\"rows\\"",user="u1",subtask_index="0",}} 1000.0
{STEP}privstream_events{{job_name="to \\"rows\\"",subtask_index="1",}} 234.0
{STEP}privstream_events_late{{job_name="to \\"rows\\"",subtask_index="0",}} 7.0
{STEP}privstream_events_malformed{{job_name="to \\"rows\\"",subtask_index="0",}} 2.0
{STEP}privstream_window_latency_ms{{job_name="to \\"rows\\"",subtask_index="0",}} 1500.0
{STEP}privstream_window_latency_ms{{job_name="to \\"rows\\"",subtask_index="1",}} 2500.0
{STEP}currentOutputWatermark{{job_name="to \\"rows\\"",operator_name="a",}} 1.7E12
{STEP}currentOutputWatermark{{job_name="to \\"rows\\"",operator_name="b",}} 1.70000005E12
{STEP}currentOutputWatermark{{job_name="new",operator_name="b",}} -9.223372036854775808E18
flink_jobmanager_job_numRestarts{{job_id="00",job_name="to \\"rows\\"",}} 3.0
"""
ADDRESSES = ("http://127.0.0.1:1/metrics", "http://127.0.0.1:2/metrics")


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Health:
    """A job manager that answers, a task manager that does not, and 1,234 bytes of dead letters."""
    asked = {ADDRESSES[0]: PAGE}
    monkeypatch.setattr("privstream.pipelines.serve.health._ask", asked.get)
    monkeypatch.setattr(time, "time", lambda: NOW)
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "20240101T000000Z.jsonl").write_text("the diary of u7".ljust(1234))
    os.utime(letters / "20240101T000000Z.jsonl", (5.0, 5.0))
    (letters / ".hidden").touch()
    return Health(ADDRESSES, str(letters))


def numbers(text: str) -> dict[str, float]:
    """Return the numbers of a page by metric and labels, as a strict parser of OpenMetrics reads them."""
    found = [sample for family in parse(text) for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in found}


def test_numbers_are_exact_and_no_record_is_in_them(health: Health) -> None:
    text = metrics_command.page(health, None)
    assert numbers(text) == {
        f"privstream_page_up {ADDRESSES[0]}": 1,
        f"privstream_page_up {ADDRESSES[1]}": 0,
        'privstream_job_events_total to "rows"': 1234,
        'privstream_job_events_late_total to "rows"': 7,
        'privstream_job_events_unreadable_total to "rows"': 2,
        'privstream_job_restarts_total to "rows"': 3,
        'privstream_job_watermark_seconds to "rows"': 1_700_000_000,
        'privstream_job_lag_seconds to "rows"': 60,
        'privstream_job_window_latency_seconds to "rows"': 2.5,
        "privstream_dead_letter_files": 1,
        "privstream_dead_letter_bytes": 1234,
        "privstream_dead_letter_newest_seconds": 5,
    }
    assert "diary" not in text and "u1" not in text


def test_names_cannot_break_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever somebody calls a job, it is one label."""
    hostile = 'a"} 1\n# EOF\nb{c="\\'
    written = hostile.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    page = f'{STEP}privstream_events{{job_name="{written}",}} 5.0'
    monkeypatch.setattr("privstream.pipelines.serve.health._ask", lambda address: page)
    (job,) = [name for name in numbers(metrics_command.page(Health(ADDRESSES[:1], None), None)) if "job" in name]
    assert job == f"privstream_job_events_total {hostile}"


def test_questions_of_a_monitor_count_the_same_records_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Flink writes them: each question has late events of its own, and each reading records that it cannot use."""
    late = {"_8__pages:_KeyedCounts__AllDeadLetters_": (3, 4), "_8__time_on_page:_NumericQuantiles_": (6, 0)}
    lines = [
        f'{STEP}privstream_events_late{{job_name="m",operator_name="{step}",subtask_index="{part}",}} {number}.0'
        for step, numbers in late.items()
        for part, number in enumerate(numbers)
    ]
    unreadable = {"": 1, "pages:_": 5, "time_on_page:_": 9}
    lines += [f'{STEP}privstream_{of}events_malformed{{job_name="m",}} {count}.0' for of, count in unreadable.items()]
    monkeypatch.setattr("privstream.pipelines.serve.health._ask", lambda address: "\n".join(lines))
    found = numbers(metrics_command.page(Health(ADDRESSES[:1], None), None))
    assert found["privstream_job_events_late_total m"] == 7
    assert found["privstream_job_events_unreadable_total m"] == 10


def ask(health: Health, path: str = "/metrics", host: str = "127.0.0.1:9464", token: str = TOKEN, method: str = "GET"):
    access = Access(local=True, token=None, operator_token=TOKEN.encode())
    password = base64.b64encode(f"prometheus:{token}".encode()).decode()
    given = {"PATH_INFO": path, "HTTP_HOST": host, "HTTP_AUTHORIZATION": f"Basic {password}", "REQUEST_METHOD": method}
    answered = []
    body = metrics_command.application(health, None, access)(given, lambda status, headers: answered.append(status))
    return int(answered[0].split()[0]), b"".join(body)


def test_only_who_has_the_token_is_answered(health: Health) -> None:
    assert ask(health)[0] == 200 and b"privstream_job_events_total" in ask(health)[1]
    assert ask(health, method="HEAD") == (200, b"")
    refused = {
        401: [{"token": ""}, {"token": TOKEN[:-1]}, {"token": TOKEN + "0"}],
        403: [{"host": "rebound.example"}, {"host": "192.0.2.1"}, {"host": ""}],
        404: [{"path": "/"}, {"path": "/metrics/"}, {"path": "/operator"}],
        405: [{"method": "POST"}],
    }
    for status, requests in refused.items():
        for request in requests:
            answered, body = ask(health, **request)
            assert answered == status and b"privstream_job" not in body, request


def test_a_ledger_that_cannot_be_read_is_no_page_and_quotes_nothing(tmp_path: Path, capsys) -> None:
    path = tmp_path / "ledger"
    path.write_text("")
    budget = metrics_command.Budget(str(path))
    path.write_text("the diary of u7\n")
    answer = metrics_command._page_or_failure(Health((), None), budget)
    assert answer.status.startswith("500")
    assert "diary" not in answer.body + capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "mode", "words"),
    [
        ("--ledger none", 0o644, "--token_file must be readable by its owner alone"),
        ("", 0o600, "--metrics, --dead_letter or --ledger must be given"),
        ("--dead_letter nowhere", 0o600, "--dead_letter must be a folder that exists"),
        ("--metrics ftp://host", 0o600, "--metrics must be addresses such as"),
        ("--metrics http://127.0.0.1:9249/metrics --port 70000", 0o600, "--port must be <= 65,535"),
    ],
)
def test_mistakes_are_named(options: str, mode: int, words: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text(TOKEN)
    Path("token").chmod(mode)
    assert cli.main(["metrics", "--token_file", "token", *options.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_of_its_own_listens_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(TOKEN)
    run = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"
    options = ["--token_file", str(tmp_path / "token"), "--port", "0", "--dead_letter", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", run, "metrics", *options], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            (address,) = re.findall(r"http:\S+/metrics", process.stderr.readline())
            password = base64.b64encode(f"any:{TOKEN}".encode()).decode()
            assert address.startswith("http://127.0.0.1:")
            request = urllib.request.Request(address, headers={"Authorization": f"Basic {password}"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
                assert numbers(answer.read().decode())["privstream_dead_letter_files"] == 1
        finally:
            process.terminate()
