"""Alerts that are posted to a web address: when they begin, once, again while nobody answers, and nothing else."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import arrow_table
from privstream.pipelines.sinks.writers import UnreachableError, Webhook
from privstream.transforms.row_types import Alert, AlertState

HOUR = 3600


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted; answers with the statuses that the server was given, at last with 200."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.server.got.append((status, self.headers["Idempotency-Key"], body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def receiver():
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.got, server.statuses = [], []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def webhook(receiver, folder, name="busy", row_type=AlertState, key=("window_start", "item")):
    url = f"http://127.0.0.1:{receiver.server_port}/a-secret-path"
    return Webhook(url, "run 1", row_type, key, str(folder), name)


def state(hour, since, item="tea", told="alert"):
    ends = Timestamp(hour * HOUR), Timestamp((hour + 1) * HOUR)
    return AlertState(*ends, item, 130.0, 110.0, 150.0, 120.0, told, Timestamp(since * HOUR))


def test_an_alert_is_posted_when_it_begins_and_once_whatever_comes_again(receiver, tmp_path):
    first = [state(0, 0), state(0, 0, "mate", "clear"), state(0, 0, "milk", "no data")]
    for rows in (first, [state(1, 0)], first, [state(1, 0), state(3, 3)]):
        webhook(receiver, tmp_path).send(arrow_table(type(rows[0]), rows))
    assert [body["since"] for _, _, body in receiver.got] == ["1970-01-01T00:00:00Z", "1970-01-01T03:00:00Z"]
    status, key, body = receiver.got[0]
    assert status == 200 and len(key) == 32
    assert body | {"run_id": "run 1", "name": "busy", "item": "tea", "value": 130, "state": "alert"} == body
    webhook(receiver, tmp_path, "another view").send(arrow_table(type(first[0]), first))
    assert len(receiver.got) == 3


def test_an_end_of_an_alert_is_none(receiver, tmp_path):
    ends = Timestamp(0), Timestamp(HOUR)
    rows = [Alert(*ends, "flu", 5.0, 9.0, 6.0, 12.0, ends[0], status, 1.0, False) for status in ("started", "ended")]
    webhook(receiver, tmp_path, "alerts", Alert, ("window_start", "rule")).send(arrow_table(Alert, rows[1:]))
    assert receiver.got == []
    webhook(receiver, tmp_path, "alerts", Alert, ("window_start", "rule")).send(arrow_table(type(rows[0]), rows))
    assert [body["rule"] for *_, body in receiver.got] == ["flu"]


def test_a_receiver_that_is_busy_gets_it_later_with_the_same_key(receiver, tmp_path):
    receiver.statuses = [503, 429]
    webhook(receiver, tmp_path).send(arrow_table(AlertState, [state(0, 0)]))
    assert [status for status, *_ in receiver.got] == [503, 429, 200]
    assert len({key for _, key, _ in receiver.got}) == 1


def test_what_cannot_be_posted_is_an_error_without_the_alert_or_the_address(receiver, tmp_path):
    receiver.statuses = [404]
    hook = webhook(receiver, tmp_path)
    with pytest.raises(UnreachableError, match=r"could not be posted to 127\.0\.0\.1: it answers 404") as error:
        hook.send(arrow_table(AlertState, [state(0, 0)]))
    hook.url, hook.patience = "http://127.0.0.1:1/a-secret-path", 0.1
    with pytest.raises(UnreachableError, match="could not be posted") as again:
        hook.send(arrow_table(AlertState, [state(0, 0)]))
    assert not {"tea", "secret"} & {*str(error.value).split(), *str(again.value).split("-")}
    hook.url = "ftp://127.0.0.1"
    with pytest.raises(ValueError, match="https:"):
        hook.check(first=True)
