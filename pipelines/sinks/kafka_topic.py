"""A topic of Kafka as a destination of rows; needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from privstream.pipelines.locations import LAUNCH_SECONDS, parse_url
from privstream.pipelines.sinks.destination import Destination, UnreachableError
from privstream.pipelines.terminal import json_text
from typing_extensions import override

POLL_SECONDS = 0.5
OURS = ("bootstrap.servers", "enable.idempotence", "acks", "partitioner", "message.timeout.ms", "transactional.id")


class KafkaTopic(Destination):
    """Sends each row as one message: its value is the row's line of JSON, its key a JSON object.

    The key has the run id and the fields that distinguish rows, so that a topic that is compacted keeps all rows of all
    runs, each once. A message counts as sent when all replicas that are in sync have it; in one process each is sent
    once, in the order of the file. A run that goes back to a checkpoint, or is started again, sends rows again, with
    the same key and value.

    Args:
        url: `kafka://host:port/topic`; several brokers are set apart by commas.
    """

    def __init__(
        self, url: str, run_id: str, row_type: type, key: Sequence[str], settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(run_id, row_type, key)
        self.brokers, self.topic = parse_url(url, "--output")
        self.settings = dict(settings or {})
        for name in self.settings:
            if name in OURS:
                raise ValueError(f"kafka_setting must not set {name}, which the writer needs")
        self._producer: Producer | None = None  # of the process that sends

    @override
    def name(self) -> str:
        return f"{self.topic} on {self.brokers}"

    @override
    def check(self, *, first: bool) -> None:
        # Whether the topic has rows of this run is not known.
        try:
            client = AdminClient({"log_level": 0, **self.settings, "bootstrap.servers": self.brokers})
        except KafkaException as error:
            raise ValueError(f"kafka_setting must be one that librdkafka knows: {error.args[0].str()}") from None
        try:
            topics = client.list_topics(timeout=LAUNCH_SECONDS).topics
        except KafkaException as error:
            text = error.args[0].str()
            raise ValueError(f"--output must be on a Kafka broker that answers, got {self.brokers}: {text}") from None
        if self.topic not in topics:
            raise ValueError(f"--output must be a topic of {self.brokers}: there is none called {self.topic}")

    @override
    def send(self, rows: Sequence[Any]) -> int:
        # librdkafka tries again while brokers are away.
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = self._open()
        for key, values in self.keyed(rows):
            self._produce(producer, key.encode(), json_text(values).encode(), delivered, failed)
        producer.flush()
        worst = next((error for error in failed if error.code() != KafkaError.MSG_SIZE_TOO_LARGE), None)
        if worst is not None:
            self._producer = None
            raise UnreachableError(f"the rows could not be sent to {self.name()} in {self.patience:g} s: {worst.str()}")
        return len(failed)

    def _produce(self, producer: Producer, key: bytes, value: bytes, told: Any, failed: list[KafkaError]) -> None:
        """Hand one row to librdkafka, when it has room."""
        while True:
            try:
                return producer.produce(self.topic, value, key, on_delivery=told)
            except BufferError:
                producer.poll(POLL_SECONDS)
            except KafkaException as error:
                return failed.append(error.args[0])

    def _open(self) -> Producer:
        """Return the producer of this process; Java's clients find a key in the same partition."""
        if self._producer is None:
            needed = {
                "bootstrap.servers": self.brokers,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(self.patience * 1000),
            }
            self._producer = Producer({"log_level": 0, **self.settings, **needed})
        return self._producer
