"""Topics of Kafka, as streaming input and as a destination of rows; needs the extra `kafka`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import apache_beam as beam
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from privstream.pipelines.locations import SCHEME
from privstream.pipelines.sinks.writers import Destination, UnreachableError
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.files import Raw
from privstream.pipelines.sources.formats import Damage, places
from privstream.pipelines.sources.readers import Polled, PolledSource, poll_parts, read_by
from privstream.pipelines.sources.text_lines import read_objects
from privstream.pipelines.terminal import json_text
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import quote
from typing_extensions import override

LAUNCH_SECONDS = 10  # so long a broker may take to answer at launch
BROKERS = "bootstrap.servers"
Client = TypeVar("Client")


def parse_url(url: str, option: str) -> tuple[str, str]:
    """Return brokers and topic of `kafka://host:port/topic`."""
    parts = urlsplit(url)
    topic = parts.path.strip("/")
    if parts.scheme != SCHEME or not parts.netloc or not topic or "/" in topic:
        raise ValueError(f"{option} must be of the form kafka://host:port/topic, got {url}")
    return parts.netloc, topic


def client(
    kind: Callable[[dict[str, Any]], Client], brokers: str, settings: Mapping[str, str], ours: Mapping[str, Any]
) -> Client:
    """Return a client of Kafka with settings of librdkafka; those in `ours`, None for unset, must not be given."""
    for name in settings:
        if name in ours or name == BROKERS:
            raise ValueError(f"kafka_setting must not set {name}, which privstream needs")
    set_here = {name: value for name, value in ours.items() if value is not None}
    try:
        return kind({"log_level": 0, **settings, **set_here, BROKERS: brokers})
    except KafkaException as error:
        raise ValueError(f"kafka_setting must be one that librdkafka knows: {error.args[0].str()}") from None


def topic_at(asked: Any, brokers: str, name: str, option: str) -> Any:
    """Return what a client is told of a topic, which must be there."""
    try:
        topic = asked.list_topics(timeout=LAUNCH_SECONDS).topics.get(name)
    except KafkaException as error:
        reason = error.args[0].str()
        raise ValueError(f"{option} must be on a Kafka broker that answers, got {brokers}: {reason}") from None
    if topic is None or topic.error is not None or not topic.partitions:
        raise ValueError(f"{option} must be a topic of {brokers}: there is none called {name}")
    return topic


RECORDS, RECORDS_AT_ONCE, QUESTION_BYTES = 20_000, 1000, 1 << 26
"""Of one question, of one call, and the bytes after which a question ends."""

WAIT_SECONDS = 0.2
MARGIN = 1_000_000
"""Microseconds: a record has its time from the broker, and is read at most this much later, by the reader's clock."""

TICK = 250_000  # microseconds: how exact the time is that a record gets
RECORD_BYTES = 1 << 20
"""Of a record, at most. Records of one tick are one element, or several of about this number of bytes."""

STAMPS, BY_BROKER = "message.timestamp.type", "LogAppendTime"
OF_READERS = {"group.id": "privstream", "enable.auto.commit": False, "enable.partition.eof": True}
OF_READERS |= {"auto.offset.reset": "earliest"}


class ReadKafka(beam.PTransform[Any, Any]):
    """Reads the records of a topic, each a JSON object in UTF-8 of at most 1 MiB, from its beginning on.

    Where to go on is kept with the state of the pipeline. Partitions that are added meanwhile are not read.

    The watermark of a partition is the greatest time, in quarters of a second, at which the broker has appended a
    record; at the end of the partition, the time of day less one second, so that an idle one holds nothing back.
    Topics whose producers stamp the records are refused; where the settings of a topic may not be read, such a record
    counts as arrived at the time that its partition had reached.

    Counters as `ReadEvents`, and `kafka_records_lost`: gone from the broker before they were read.

    *Privacy*: the times at which records arrive must not depend on single persons. No time that a producer sets moves
    the watermark.

    Args:
        url: `kafka://host:port/topic`; several brokers are set apart by commas.
        settings: of librdkafka, such as `security.protocol`.
        seconds: pause between two questions, > 0.
    """

    def __init__(
        self, url: str, fields: Readings, settings: Mapping[str, str] | None = None, *, seconds: float = 0.5
    ) -> None:
        super().__init__()
        self.seconds, self.fields, self.settings = seconds, fields, dict(settings or {})
        self.brokers, self.topic = parse_url(url, "--input")
        asked = new_consumer(self.brokers, self.settings)
        try:
            self.partitions = sorted(topic_at(asked, self.brokers, self.topic, "--input").partitions)
        finally:
            asked.close()
        self._check_stamps()

    def expand(self, pbegin: Any) -> Any:
        """Ask for records, and parse them where they arrive."""
        parts = [str(partition).encode() for partition in self.partitions]
        source = AskKafka(self.brokers, self.topic, self.settings, self.seconds)
        return read_by(parse_records, poll_parts(pbegin, parts, source, PolledRecords), "Parse", self.fields)

    def _check_stamps(self) -> None:
        """Refuse a topic whose producers stamp its records; go on if who asks may not know."""
        asked = ConfigResource(ResourceType.TOPIC, self.topic)
        admin = client(AdminClient, self.brokers, self.settings, {})
        try:
            (answer,) = admin.describe_configs([asked], request_timeout=LAUNCH_SECONDS).values()
            stamped = answer.result()[STAMPS].value
        except (KafkaException, KeyError):
            return
        if stamped != BY_BROKER:
            raise ValueError(
                f"--input must be a topic whose broker stamps its records, but {self.topic} has {STAMPS}={stamped}. "
                f"Run: kafka-configs --bootstrap-server {self.brokers} --alter --entity-type topics "
                f"--entity-name {self.topic} --add-config {STAMPS}={BY_BROKER}"
            )


class PolledRecords(NamedTuple):
    """Neighbouring records of a partition that arrived in one tick."""

    path: str  # topic and partition
    offsets: list[int]
    values: list[bytes]


class AskKafka(PolledSource):
    """Gives the `PolledRecords` of one partition for each part; a position is an offset, and its time."""

    def __init__(self, brokers: str, topic: str, settings: Mapping[str, str], seconds: float) -> None:
        super().__init__(seconds)
        self.brokers, self.topic, self.settings = brokers, topic, dict(settings)
        self.lost = counter("kafka_records_lost")
        self._consumers: dict[bytes, tuple[Consumer, int]] = {}  # cache: each with the offset at which it stands

    def teardown(self) -> None:
        """Close the consumers."""
        for consumer, _ in self._consumers.values():
            consumer.close()

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Polled:
        """Read to the end of the partition or the limits of one question; while no broker answers, nothing.

        Each record has the tick at which it arrived, by the broker; a partition's time never runs backwards.
        """
        position = position or b"[0, 0]"
        offset, reached = json.loads(position)
        began = Timestamp.now().micros
        try:
            consumer, offset, end = self._consumer_at(part, offset)
        except KafkaException:
            return Polled((), position, watermark)
        messages, offset = self._consume(consumer, offset, end)
        self._consumers[part] = consumer, offset
        found: list[tuple[PolledRecords, int]] = []
        size = 0
        arrived, place = reached // TICK * TICK, f"{SCHEME}://{self.brokers}/{self.topic} partition {part.decode()}"
        for message in messages:
            kind, millis = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:  # a producer may say 2100, and make all others late
                arrived = max(arrived, millis * 1000 // TICK * TICK)
            value = message.value() or b""
            if not found or found[-1][1] != arrived or size > RECORD_BYTES:
                found.append((PolledRecords(place, [], []), arrived))
                size = 0
            found[-1][0].offsets.append(message.offset() or 0)
            found[-1][0].values.append(value)
            size += len(value)
        reached = max(reached, arrived, began - MARGIN if offset >= end else 0)
        return Polled(found, json.dumps([offset, reached]).encode(), reached)

    def _consumer_at(self, part: bytes, offset: int) -> tuple[Consumer, int, int]:
        """Return a consumer that stands at an offset, or at the first record behind it that is there, and the end."""
        old, stands = self._consumers.pop(part, (None, offset))
        if old is not None and stands != offset:
            old.close()  # it could still say that the partition ends where it stood
            old = None
        consumer, partition = old or new_consumer(self.brokers, self.settings), TopicPartition(self.topic, int(part))
        try:
            first, end = consumer.get_watermark_offsets(partition, timeout=LAUNCH_SECONDS)
        except KafkaException:
            consumer.close()
            raise
        if old is None:
            self.lost.inc(max(first - offset, 0) if offset else 0)
            partition.offset = offset = max(first, offset)
            consumer.assign([partition])
        return consumer, offset, int(end)

    def _consume(self, consumer: Consumer, offset: int, end: int) -> tuple[list[Any], int]:
        """Return records, until those before `end` have come, and the offset behind them and marks between them."""
        messages: list[Any] = []
        bytes_ = 0
        while offset < end and len(messages) < RECORDS and bytes_ < QUESTION_BYTES:
            more = consumer.consume(RECORDS_AT_ONCE, WAIT_SECONDS)
            for message in more:
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    offset = max(offset, (message.offset() or 0) + (error is None))
                if error is None:
                    messages.append(message)
                    bytes_ += len(message.value() or b"")
            if not more:
                break
        return messages, offset


def new_consumer(brokers: str, settings: Mapping[str, str]) -> Consumer:
    """Return a consumer that neither commits nor chooses, and says where a partition ends."""
    return client(Consumer, brokers, settings, OF_READERS)


def parse_records(element: PolledRecords, fields: Readings) -> Raw:
    """Read the JSON objects of records; other records are reported."""
    offsets, texts = [], []
    for offset, value in zip(element.offsets, element.values, strict=True):
        if len(value) <= RECORD_BYTES:
            offsets.append(offset)
            texts.append(value)
        else:
            reason = f"record must be at most {RECORD_BYTES:,} bytes"
            yield Damage("malformed_record", reason, f"offset {offset}", quote(value))
    yield from read_objects(texts, fields.names, places("offset", offsets), "record")


MOST_WAITING = 1000  # messages of at most 1 MiB that the client has, and the broker has not
# With this partitioner Java's clients find a key in the same partition.
OF_WRITERS: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
OF_WRITERS |= {"queue.buffering.max.messages": MOST_WAITING, "queue.buffering.max.kbytes": 1 << 20}
OF_WRITERS |= {"message.timeout.ms": None, "transactional.id": None}


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
        self.brokers, self.topic = parse_url(url, "send")
        self.settings = dict(settings or {})
        self._producer: Producer | None = None  # of the process that sends

    @override
    def name(self) -> str:
        return f"{self.topic} on {self.brokers}"

    @override
    def check(self, *, first: bool) -> None:
        # Whether the topic has rows of this run is not known.
        topic_at(client(AdminClient, self.brokers, self.settings, OF_WRITERS), self.brokers, self.topic, "send")

    @override
    def send(self, rows: pa.Table) -> None:
        # librdkafka tries again while brokers are away.
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: object) -> None:
            failed.extend([] if error is None else [error])

        if self._producer is None:
            ours = {**OF_WRITERS, "message.timeout.ms": int(self.patience * 1000)}
            self._producer = client(Producer, self.brokers, self.settings, ours)
        for key, values in self.keyed(rows):
            if len(self._producer) >= MOST_WAITING:
                self._producer.flush()
            try:
                self._producer.produce(self.topic, json_text(values), key, on_delivery=delivered)
            except KafkaException as error:  # such as a message that the broker would not take
                failed.append(error.args[0])
        self._producer.flush()
        if failed:
            self._producer = None
            why = failed[0].str()
            raise UnreachableError(f"the rows could not be sent to {self.name()} in {self.patience:g} s: {why}")
