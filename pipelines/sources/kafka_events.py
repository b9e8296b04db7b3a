"""Reads events from a Kafka topic, without an end; needs the extra `kafka`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from privstream.mechanisms import checks, snapshots
from privstream.pipelines.sources.event_files import RawEvents, cut
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.folder_looks import clock
from privstream.pipelines.sources.json_lines import REASON, parse_block, parse_line
from privstream.pipelines.sources.normalise import Normaliser
from privstream.pipelines.sources.polled_source import Answer, PolledSource, poll_parts
from privstream.pipelines.sources.readers import EVENTS, EventFile
from privstream.pipelines.sources.watch_events import EventsRead
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

SCHEME = "kafka"
MICROS = 1_000_000
NOWHERE = -1  # no offset
RECORDS = 20_000  # of one question
WAIT_SECONDS = 0.2
LAUNCH_SECONDS = 10
IDLE_SECONDS = 2
"""A record gets its time from the broker and can be read so much later at most."""

KIND, VERSION = "kafka position", 1
OURS = ("bootstrap.servers", "group.id", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset")


class Records(NamedTuple):
    """Neighbouring records of a partition that arrived in one second: where they come from, and what they hold."""

    place: str
    offsets: list[int]
    values: list[bytes]


class ReadKafka(beam.PTransform[Any, Any]):
    """Reads the records of a topic, each a JSON object in UTF-8, from its beginning on.

    Where to go on in each partition is kept with the state of the pipeline: a restored run reads what the one before
    it had not finished, no matter what a consumer group says. Partitions are read side by side; those that are added
    to the topic while the run goes on are not read.

    The watermark is the time of arrival: the greatest time, in whole seconds, that records of a partition carry
    (`message.timestamp.type=LogAppendTime` makes it the broker's); where a partition has been read to its end, the
    time of day less two seconds. So an idle partition holds nothing back. An event is in time if its record arrives
    before its window is decided: the allowed lateness of a transform must cover the way of an event to the broker.

    Records that cannot be used are dead letters. Counters: `events_read`, `events_malformed` (and by reason), and
    `kafka_records_lost`: gone from the broker before they were read.

    *Privacy*: the times at which records arrive must not depend on single persons. Records should carry the broker's
    time: a producer that sets times sets the watermark.

    Args:
        url: `kafka://host:port/topic`; several brokers are set apart by commas.
        fields: which fields hold what.
        settings: of librdkafka, such as `security.protocol`.
        seconds: pause between two questions, > 0.

    Raises:
        ValueError: at once, if the topic cannot be found or a setting is wrong.
    """

    files: Sequence[EventFile] = ()

    def __init__(
        self,
        url: str,
        fields: FieldMapping | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        seconds: float = 1.0,
    ) -> None:
        super().__init__()
        self.seconds = checks.positive("watch", seconds)
        self.brokers, self.topic = parse_url(url)
        self.fields = fields or FieldMapping()
        self.settings = dict(settings or {})
        for name in self.settings:
            if name in OURS:
                raise ValueError(f"kafka_setting must not set {name}, which the reader needs")
        self.partitions = self._partitions()

    def expand(self, pbegin: Any) -> EventsRead:
        """Ask for records, and parse them where they arrive."""
        parts = [str(partition).encode() for partition in self.partitions]
        source = AskKafka(self.brokers, self.topic, self.settings, self.seconds)
        read = poll_parts(pbegin, parts, source, Records) | "Parse" >> beam.ParDo(
            ParseRecords(self.fields)
        ).with_output_types(pa.RecordBatch, **{DEAD_LETTERS: DeadLetter}).with_outputs(DEAD_LETTERS, main=EVENTS)
        return EventsRead(read[EVENTS], read[DEAD_LETTERS])

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
        began = clock()
        consumer, offset = self._consumer_at(part, offset)
        if consumer is None:
            return Answer((), position or snapshots.pack(KIND, VERSION, kept), watermark)
        first_after = self._end(consumer, part)
        messages, passed = self._consume(consumer, offset, first_after)
        found = []
        for second, group in itertools.groupby(self._stamped(messages, reached), key=_second):
            records = [message for message, _ in group]
            offsets = [int(message.offset() or 0) for message in records]
            values = [message.value() or b"" for message in records]
            place = f"{SCHEME}://{self.brokers}/{self.topic} partition {part.decode()}"
            found.append((Records(place, offsets, values), second * MICROS))
            reached = max(reached, second * MICROS)
            offset = offsets[-1] + 1
        offset = max(offset, passed)
        self._consumers[part] = (consumer, offset)
        if first_after is not None and offset >= first_after:
            reached = max(reached, began - IDLE_SECONDS * MICROS)
        return Answer(found, snapshots.pack(KIND, VERSION, {"offset": offset, "reached": reached}), reached)

    def _stamped(self, messages: list[Message], reached: int) -> Iterator[tuple[Message, int]]:
        """Give each record the second at which it arrived; a partition's time does not run backwards."""
        second = reached // MICROS
        for message in messages:
            second = max(second, message.timestamp()[1] // 1000)
            yield message, second

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
        passed = offset
        while end is not None and passed < end and len(messages) < RECORDS:
            more = consumer.consume(RECORDS - len(messages), WAIT_SECONDS)
            for message in more:
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    passed = max(passed, (message.offset() or 0) + (error is None))
                if error is None:
                    messages.append(message)
            if not more:
                break
        return messages, passed


class ParseRecords(beam.DoFn):
    """Makes an Arrow batch of records."""

    def __init__(self, fields: FieldMapping) -> None:
        self.fields = fields
        self.normalise = Normaliser(fields)
        self.events_read = Metrics.counter("privstream", "events_read")
        self.events_malformed = Metrics.counter("privstream", "events_malformed")

    def process(self, element: Records) -> Iterator[Any]:
        """Parse all at once or, if that fails, one by one."""
        offsets, values = element.offsets, element.values
        rows: Sequence[dict[str, Any] | None] | None = parse_block(values)
        if rows is None:
            rows = [parse_line(value) for value in values]
        good = [number for number, row in enumerate(rows) if row is not None]

        def record(row: int) -> str:
            return cut(values[good[row]].decode("utf-8", "backslashreplace"))

        def position(row: int) -> str:
            return f"offset {offsets[good[row]]}"

        for number in sorted(set(range(len(rows))) - set(good)):
            text = cut(values[number].decode("utf-8", "backslashreplace"))
            letter = DeadLetter(REASON.replace("line", "record"), element.place, f"offset {offsets[number]}", text)
            yield self._refuse("malformed_record", letter)
        if not good:
            return
        columns = {name: [rows[number].get(name) for number in good] for name in self.fields.names()}  # type: ignore[union-attr]
        batch, refusals = self.normalise(RawEvents(columns, position, record))
        for row, code, reason in refusals:
            yield self._refuse(code, DeadLetter(reason, element.place, position(row), record(row)))
        self.events_read.inc(batch.num_rows)
        if batch.num_rows:
            yield batch

    def _refuse(self, code: str, letter: DeadLetter) -> Any:
        """Count a record and send it away."""
        self.events_malformed.inc()
        Metrics.counter("privstream", f"events_malformed_{code}").inc()
        return TaggedOutput(DEAD_LETTERS, letter)


def parse_url(url: str) -> tuple[str, str]:
    """Return brokers and topic of `kafka://host:port/topic`."""
    parts = urlsplit(url)
    topic = parts.path.strip("/")
    if parts.scheme != SCHEME or not parts.netloc or not topic or "/" in topic:
        raise ValueError(f"--input must be of the form kafka://host:port/topic, got {url}")
    return parts.netloc, topic


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


def _second(stamped: tuple[Message, int]) -> int:
    """Return the second at which a record arrived."""
    return stamped[1]
