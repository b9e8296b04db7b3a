"""Reads events from a Kafka topic, without an end; needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from privstream.mechanisms import checks, snapshots
from privstream.pipelines.locations import LAUNCH_SECONDS, SCHEME, parse_url
from privstream.pipelines.sources.event_files import Damage, RawEvents, quote
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.sources.json_events import REASON, parse_all
from privstream.pipelines.sources.normalise import Normaliser, usable
from privstream.pipelines.sources.polled_source import Answer, PolledSource, poll_parts
from privstream.pipelines.sources.readers import EventsRead, read_by
from privstream.pipelines.sources.steady_clock import clock_of
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter

NOWHERE = -1  # no offset
RECORDS = 20_000  # of one question
RECORDS_AT_ONCE = 1000
QUESTION_BYTES = 1 << 26
"""A question ends when so many bytes of records have come."""

WAIT_SECONDS = 0.2
MARGIN = 1_000_000
"""Microseconds: a record has its time from the broker, and can be read so much later at most, by the reader's clock."""

TICK = 250_000
"""Microseconds: how exact the time is that a record gets. Records of one tick are one element."""

KIND, VERSION = "kafka position", 1
STAMPS, BY_BROKER = "message.timestamp.type", "LogAppendTime"
OURS = ("bootstrap.servers", "group.id", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset")


class ReadKafka(beam.PTransform[Any, Any]):
    """Reads the records of a topic, each a JSON object in UTF-8, from its beginning on.

    Where to go on in each partition is kept with the state of the pipeline: a restored run reads what the one before
    it had not finished, no matter what a consumer group says. Partitions are read side by side; those that are added
    to the topic while the run goes on are not read.

    The watermark is the time of arrival: the greatest time, in quarters of a second, at which the broker has appended
    a record to a partition; where a partition has been read to its end, the time of day less one second, as
    `SteadyClock` has it. So an idle partition holds nothing back. An event is in time if its record arrives before its
    window is decided: the allowed lateness of a transform must cover the way of an event to the broker, and clocks of
    brokers must not be a second behind those of workers.

    Brokers stamp the records of a topic with `message.timestamp.type=LogAppendTime`; other topics are refused. Where
    the settings of a topic may not be read, the run goes on: a record with the time of its producer counts as arrived
    at the time that its partition had reached, and moves no time.

    Records that cannot be used are dead letters, those of more than 1 MiB too. Counters: `events_read`,
    `events_malformed` (and by reason), and `kafka_records_lost`: gone from the broker before they were read.

    *Privacy*: the times at which records arrive must not depend on single persons. No time that a producer sets moves
    the watermark.

    Args:
        url: `kafka://host:port/topic`; several brokers are set apart by commas.
        fields: which fields contain what.
        settings: of librdkafka, such as `security.protocol`.
        seconds: pause between two questions, > 0.

    Raises:
        ValueError: at once, if the topic cannot be found, its records are not stamped by the broker, or a setting is
            wrong.
    """

    files: Sequence[EventFile] = ()

    def __init__(
        self,
        url: str,
        fields: AnyFields | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        seconds: float = 0.5,
    ) -> None:
        super().__init__()
        self.seconds = checks.positive("watch", seconds)
        self.brokers, self.topic = parse_url(url, "--input")
        self.fields = fields or FieldMapping()
        self.settings = dict(settings or {})
        for name in self.settings:
            if name in OURS:
                raise ValueError(f"kafka_setting must not set {name}, which the reader needs")
        self.partitions = self._partitions()
        self._check_stamps()

    def expand(self, pbegin: Any) -> EventsRead:
        """Ask for records, and parse them where they arrive."""
        parts = [str(partition).encode() for partition in self.partitions]
        source = AskKafka(self.brokers, self.topic, self.settings, self.seconds)
        return read_by(ParseRecords(self.fields), poll_parts(pbegin, parts, source, Records), "Parse")

    def display_data(self) -> dict[str, Any]:
        """Show where events come from."""
        return {"brokers": self.brokers, "topic": self.topic, "partitions": len(self.partitions)}

    def _partitions(self) -> list[int]:
        """Ask the brokers for the topic."""
        asked = new_consumer(self.brokers, self.settings)
        try:
            topic = asked.list_topics(self.topic, timeout=LAUNCH_SECONDS).topics[self.topic]
        except KafkaException as error:
            reason = error.args[0].str()
            raise ValueError(f"--input must be on a Kafka broker that answers, got {self.brokers}: {reason}") from None
        finally:
            asked.close()
        if topic.error is not None or not topic.partitions:
            raise ValueError(f"--input must be a topic of {self.brokers}: there is none called {self.topic}")
        return sorted(topic.partitions)

    def _check_stamps(self) -> None:
        """Refuse a topic whose producers stamp its records; go on if who asks may not know."""
        asked = ConfigResource(ResourceType.TOPIC, self.topic)
        client = AdminClient({"log_level": 0, **self.settings, "bootstrap.servers": self.brokers})
        try:
            (answer,) = client.describe_configs([asked], request_timeout=LAUNCH_SECONDS).values()
            stamped = answer.result()[STAMPS].value
        except (KafkaException, KeyError):
            return
        if stamped != BY_BROKER:
            raise ValueError(
                f"--input must be a topic whose broker stamps its records, but {self.topic} has {STAMPS}={stamped}. "
                f"Run: kafka-configs --bootstrap-server {self.brokers} --alter --entity-type topics "
                f"--entity-name {self.topic} --add-config {STAMPS}={BY_BROKER}"
            )


class AskKafka(PolledSource):
    """Gives the `Records` of one partition for each part."""

    def __init__(self, brokers: str, topic: str, settings: Mapping[str, str], seconds: float) -> None:
        super().__init__(seconds)
        self.brokers, self.topic, self.settings = brokers, topic, dict(settings)
        self.lost = Metrics.counter("privstream", "kafka_records_lost")

    def setup(self) -> None:
        """Start without consumers."""
        self._consumers: dict[bytes, tuple[Consumer, int]] = {}  # cache: each with the offset at which it stands

    def teardown(self) -> None:
        """Close the consumers."""
        for consumer, _ in self._consumers.values():
            consumer.close()

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """Read what there is, to the end of the partition or to so many records."""
        kept = {"offset": 0, "reached": 0} if position is None else snapshots.unpack(KIND, VERSION, position)
        offset, reached = int(kept["offset"]), int(kept["reached"])
        clock = clock_of(f"{self.brokers}/{self.topic}")
        began = clock.now()
        consumer, offset = self._consumer_at(part, offset)
        if consumer is None:
            return Answer((), position or snapshots.pack(KIND, VERSION, kept), watermark)
        first_after = self._end(consumer, part)
        messages, passed = self._consume(consumer, offset, first_after)
        found = []
        for arrived, group in groupby(self._stamped(messages, reached), key=itemgetter(1)):
            records = [message for message, _ in group]
            offsets = [int(message.offset() or 0) for message in records]
            values = [message.value() or b"" for message in records]
            place = f"{SCHEME}://{self.brokers}/{self.topic} partition {part.decode()}"
            found.append((Records(place, offsets, values), arrived))
            reached = max(reached, arrived)
            clock.at_least(arrived)
            offset = offsets[-1] + 1
        offset = max(offset, passed)
        self._consumers[part] = (consumer, offset)
        if first_after is not None and offset >= first_after:
            reached = max(reached, began - MARGIN)
        return Answer(found, snapshots.pack(KIND, VERSION, {"offset": offset, "reached": reached}), reached)

    def _stamped(self, messages: list[Message], reached: int) -> Iterator[tuple[Message, int]]:
        """Give each record the tick at which it arrived, by the broker; a partition's time never runs backwards.

        A time that a producer has set says nothing: one record of the year 2100 would make all others late.
        """
        arrived = reached // TICK * TICK
        for message in messages:
            kind, millis = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                arrived = max(arrived, millis * 1000 // TICK * TICK)
            yield message, arrived

    def _consumer_at(self, part: bytes, offset: int) -> tuple[Consumer | None, int]:
        """Return a consumer that stands at an offset, or at the first record behind it that is still there.

        While no broker answers there is none.
        """
        consumer, stands = self._consumers.get(part, (None, NOWHERE))
        if consumer is None:
            consumer = new_consumer(self.brokers, self.settings)
        if stands != offset:
            partition = TopicPartition(self.topic, int(part))
            try:
                first, _ = consumer.get_watermark_offsets(partition, timeout=LAUNCH_SECONDS)
            except KafkaException:
                self._consumers[part] = (consumer, NOWHERE)
                return None, offset
            if first > offset:
                self.lost.inc(first - offset if offset else 0)
                offset = first
            partition.offset = offset
            consumer.assign([partition])
            self._consumers[part] = (consumer, offset)
        return consumer, offset

    def _end(self, consumer: Consumer, part: bytes) -> int | None:
        """Return the offset after the last record that has been appended by now; None if no broker says so."""
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, int(part)), timeout=LAUNCH_SECONDS)
        except KafkaException:
            return None
        return int(end)

    def _consume(self, consumer: Consumer, offset: int, end: int | None) -> tuple[list[Message], int]:
        """Return records, until those before `end` have come, and the offset behind them and marks between them."""
        messages: list[Message] = []
        passed, bytes_ = offset, 0
        while end is not None and passed < end and len(messages) < RECORDS and bytes_ < QUESTION_BYTES:
            more = consumer.consume(RECORDS_AT_ONCE, WAIT_SECONDS)
            for message in more:
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    passed = max(passed, (message.offset() or 0) + (error is None))
                if error is None:
                    messages.append(message)
                    bytes_ += len(message.value() or b"")
            if not more:
                break
        return messages, passed


def new_consumer(brokers: str, settings: Mapping[str, str]) -> Consumer:
    """Return a consumer that neither commits nor chooses by itself, and says where a partition ends.

    Raises:
        ValueError: a setting is wrong.
    """
    needed = {
        "bootstrap.servers": brokers,
        "group.id": "privstream",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    try:
        return Consumer({"log_level": 0, **settings, **needed})
    except KafkaException as error:
        raise ValueError(f"kafka_setting must be one that librdkafka knows: {error.args[0].str()}") from None


RECORD_BYTES = 1 << 20
"""Longer records are not looked at."""

PARSED_BYTES = 1 << 20
"""So many bytes of records are parsed at once."""


class Records(NamedTuple):
    """Neighbouring records of a partition that arrived in one second: where they come from, and what they contain."""

    place: str
    offsets: list[int]
    values: list[bytes]


class ParseRecords(beam.DoFn):
    """Makes an Arrow batch of records."""

    def __init__(self, fields: AnyFields) -> None:
        self.fields = fields
        self.normalise = Normaliser(fields)

    def process(self, element: Records) -> Iterator[Any]:
        """Parse records, so many bytes at a time; those that are too long are not looked at."""
        for first, last in pairwise([*_starts(element.values), len(element.values)]):
            for found in self._parse(element.offsets[first:last], element.values[first:last]):
                for each in usable(found, element.place, self.normalise):
                    yield TaggedOutput(DEAD_LETTERS, each) if isinstance(each, DeadLetter) else each

    def _parse(self, offsets: Sequence[int], values: Sequence[bytes]) -> Iterator[RawEvents | Damage]:
        """Parse some records, or one that may be too long."""
        long = len(values) == 1 and len(values[0]) > RECORD_BYTES
        reason = f"record must be at most {RECORD_BYTES:,} bytes" if long else REASON.replace("line", "record")
        good, rows = [], []
        for number, row in enumerate([None] if long else parse_all(values)):
            if row is None:
                yield Damage("malformed_record", reason, f"offset {offsets[number]}", quote(values[number]))
            else:
                good.append(number)
                rows.append(row)
        if rows:
            yield RawEvents(
                {name: [row.get(name) for row in rows] for name in self.fields.names()},
                lambda row: f"offset {offsets[good[row]]}",
                lambda row: quote(values[good[row]]),
            )


def _starts(values: Sequence[bytes]) -> Iterator[int]:
    """Cut values into runs of `PARSED_BYTES` at most, or of one; give the number at which each run starts."""
    size = PARSED_BYTES + 1
    for number, value in enumerate(values):
        if size + len(value) > PARSED_BYTES:
            yield number
            size = 0
        size += len(value)
