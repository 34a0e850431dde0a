"""What a script is made of. A script is a generator: it yields a step, and is sent the answer to it, as it was decoded.

    def create() -> Script:
        made = yield Ask("create", ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[CreatableTopic("a", 1, 1)]))
        yield from topic_is_there("a")
        wanted = [MetadataRequestTopic(made.topics[0].topic_id, None)]
        yield Ask("by its id", ApiKey.METADATA, 12, MetadataRequest(topics=wanted))

    SCRIPTS = {"create": create}

The same script runs against Kafka and against Tailrace, each with its own generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.differential.known import Known

MAIN = "main"
LATER = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
)
"""Errors on which a client repeats its request: one server is not ready yet, where the other is."""
CLOSED = "<closed>"
"""In place of an answer: the server closed the connection."""
SILENT = "<silent>"
"""In place of an answer: there is none, and the connection goes on."""
WAITING = "<waiting>"
"""In place of an answer: none came for ten seconds; the connection is closed."""
LATER_ON = "<later>"
"""In place of an answer: a step without a request will receive it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and how its answers are compared.

    Args:
        what: the step's name, different from the others of the script.
        request: the message; bytes are sent as they are, behind the request's header. None receives the answer to the
            request that went over this connection before (`is_answered_later`).
        connection: which one it goes over. Each is opened when it is first named, and again once it is closed.
        user: a SCRAM user and password, "name:password": the connection logs in (`needs_logins` only). An empty one
            goes to the listener with logins and does not log in.
        is_answered: False for a request without an answer (acks=0).
        is_answered_later: the request is sent, and the script goes on; a step without a request receives the answer.
        until: the request is repeated until this holds of its answer, for ten seconds at most.
        repeat_on: error codes on which the request is repeated, for a second at most.
        answer_version: in which version the answer is decoded, where it is not the request's.
        unordered: fields (lists) whose order may differ.
        ignored: fields that may differ.
        texts: whether error messages are compared; otherwise only whether there is one.
        is_compared: False for a step that only prepares.
    """

    what: str
    api: ApiKey
    version: int
    request: Any
    connection: str = MAIN
    user: str | None = None
    is_answered: bool = True
    is_answered_later: bool = False
    until: Callable[[Any], bool] | None = None
    repeat_on: frozenset[int] = LATER
    answer_version: int | None = None
    unordered: Sequence[str] = ()
    ignored: Sequence[str] = ()
    texts: bool = False
    is_compared: bool = True


Script = Generator[Ask, Any, Any]


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one module, by name. `needs_logins`: the servers have an authorizer and a listener for SCRAM;
    ANONYMOUS on the plain listener may do everything."""

    by_name: Mapping[str, Callable[[], Script]]
    needs_logins: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Properties of Kafka's that are not its defaults."""
    tailrace: Mapping[str, str] = field(default_factory=dict)
    """`TAILRACE_*` of Tailrace's environment."""
    known: Sequence[Known] = ()
    """The differences that are meant."""


def topic(name: str, partitions: int = 1, **configs: str) -> Script:
    """Make a topic and wait until it can be used. Underscores in the names of configs stand for dots.

    Returns (`made = yield from topic("a")`) its id.
    """
    rows = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    new = CreatableTopic(name, partitions, 1, [], rows)
    made = yield Ask(
        f"make {name}", ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new]), is_compared=False
    )
    yield from topic_is_there(name, partitions)
    return made.topics[0].topic_id


def topic_is_there(name: str, partitions: int = 1) -> Script:
    """Wait until the topic's partitions have leaders: Kafka's brokers learn of a topic after it was made."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def has_leaders(answer: Any) -> bool:
        rows = answer.topics[0].partitions
        return len(rows) == partitions and not any(row.error_code for row in rows)

    yield Ask(f"wait for {name}", ApiKey.METADATA, 12, request, until=has_leaders, is_compared=False)
    rows = [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
    ends = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(name, rows)])

    def is_led(answer: Any) -> bool:
        return not any(row.error_code for row in answer.topics[0].partitions)

    yield Ask(f"wait for leaders of {name}", ApiKey.LIST_OFFSETS, 7, ends, until=is_led, is_compared=False)


def topic_is_gone(name: str) -> Script:
    """Wait until the topic is not known."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def is_unknown(answer: Any) -> bool:
        return answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    yield Ask(f"wait until {name} is gone", ApiKey.METADATA, 12, request, until=is_unknown, is_compared=False)
