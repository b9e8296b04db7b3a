"""A topic of Kafka as a destination of rows; needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from privstream.pipelines.kafka import client, parse_url, topic_at
from privstream.pipelines.sinks.destination import Destination, UnreachableError
from privstream.pipelines.terminal import json_text
from typing_extensions import override

POLL_SECONDS = 0.5
OURS: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
OURS |= {"message.timeout.ms": None, "transactional.id": None}


class KafkaTopic(Destination):
    """Sends each row as one message: its value is the row's line of JSON, its key a JSON object.

    The key has the run id and the fields that distinguish rows, so that a topic that is compacted keeps all rows of all
    runs, each once. A message counts as sent when all replicas that are in sync have it. A run that is started again
    sends rows again, with the same key and value.

    Args:
        url: `kafka://host:port/topic`; several brokers are set apart by commas.
    """

    def __init__(
        self, url: str, run_id: str, row_type: type, key: Sequence[str], settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(run_id, row_type, key)
        self.brokers, self.topic = parse_url(url, "--output")
        self.settings = dict(settings or {})
        self._producer: Producer | None = None  # of the process that sends

    @override
    def name(self) -> str:
        return f"{self.topic} on {self.brokers}"

    @override
    def check(self, *, first: bool) -> None:
        # Whether the topic has rows of this run is not known.
        topic_at(client(AdminClient, self.brokers, self.settings, OURS), self.brokers, self.topic, "--output")

    @override
    def send(self, rows: pa.Table) -> None:
        # librdkafka tries again while brokers are away.
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = self._open()
        for key, values in self.keyed(rows):
            self._produce(producer, key.encode(), json_text(values).encode(), delivered, failed)
        producer.flush()
        if failed:
            self._producer = None
            why = failed[0].str()
            raise UnreachableError(f"the rows could not be sent to {self.name()} in {self.patience:g} s: {why}")

    def _produce(self, producer: Producer, key: bytes, value: bytes, told: Any, failed: list[KafkaError]) -> None:
        """Hand one row to librdkafka, when it has room."""
        while True:
            try:
                return producer.produce(self.topic, value, key, on_delivery=told)
            except BufferError:
                producer.poll(POLL_SECONDS)
            except KafkaException as error:  # such as a message that the broker would not take
                return failed.append(error.args[0])

    def _open(self) -> Producer:
        """Return the producer of this process; Java's clients find a key in the same partition."""
        if self._producer is None:
            ours = {**OURS, "message.timeout.ms": int(self.patience * 1000)}
            self._producer = client(Producer, self.brokers, self.settings, ours)
        return self._producer
