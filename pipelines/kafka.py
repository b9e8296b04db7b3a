"""How Kafka is reached; needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from privstream.pipelines.locations import SCHEME

LAUNCH_SECONDS = 10
"""So long a broker may take to answer at launch."""

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
    """Return a client of Kafka with settings of librdkafka, of which `ours`, None for none, must not be given."""
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
