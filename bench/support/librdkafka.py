"""confluent-kafka's librdkafka, driven without a Python object or callback per record.

confluent-kafka's `produce` and `consume` cost more than librdkafka and the broker together. This module uses the
library's own batch calls through ctypes, so a load measures the broker. It counts the records and drops them.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka

PRODUCER, CONSUMER = 0, 1
BATCH = 20_000
ANY_PARTITION = -1
COPIES_VALUES = 0x2
"""RD_KAFKA_MSG_F_COPY: every client copies, because its caller may change the value after the call."""


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    ]


def _library() -> Any:
    package = Path(confluent_kafka.__file__).parent
    bundled = sorted(package.parent.glob("confluent_kafka.libs/librdkafka*.so*"))
    if not bundled:
        raise RuntimeError(f"no librdkafka is bundled with {package}")
    library = ctypes.CDLL(str(bundled[0]))
    pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    messages = ctypes.POINTER(pointer)
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", integer, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [integer, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_poll", integer, [pointer, integer]),
        ("rd_kafka_flush", integer, [pointer, integer]),
        ("rd_kafka_outq_len", integer, [pointer]),
        ("rd_kafka_topic_new", pointer, [pointer, text, pointer]),
        ("rd_kafka_topic_destroy", None, [pointer]),
        ("rd_kafka_produce_batch", integer, [pointer, ctypes.c_int32, integer, ctypes.POINTER(_Message), integer]),
        ("rd_kafka_poll_set_consumer", integer, [pointer]),
        ("rd_kafka_topic_partition_list_new", pointer, [integer]),
        ("rd_kafka_topic_partition_list_add", pointer, [pointer, text, ctypes.c_int32]),
        (
            "rd_kafka_topic_partition_list_set_offset",
            integer,
            [pointer, text, ctypes.c_int32, ctypes.c_int64],
        ),
        ("rd_kafka_topic_partition_list_destroy", None, [pointer]),
        ("rd_kafka_assign", integer, [pointer, pointer]),
        ("rd_kafka_queue_get_consumer", pointer, [pointer]),
        ("rd_kafka_queue_destroy", None, [pointer]),
        ("rd_kafka_consume_batch_queue", ctypes.c_ssize_t, [pointer, integer, messages, ctypes.c_size_t]),
        ("rd_kafka_message_destroy", None, [pointer]),
        ("rd_kafka_consumer_close", integer, [pointer]),
    ):  # fmt: skip
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _client(library: Any, kind: int, settings: Mapping[str, object]) -> Any:
    conf, message = library.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), message, 512):
            raise ValueError(message.value.decode())
    client = library.rd_kafka_new(kind, conf, message, 512)
    if not client:
        raise RuntimeError(message.value.decode())
    return client


class BatchProducer:
    """Sends the same value repeatedly. The topic's end offsets show whether all records arrived."""

    def __init__(self, settings: Mapping[str, object], topic: str, value: bytes) -> None:
        self._library = _library()
        self._producer = _client(self._library, PRODUCER, settings)
        self._topic = self._library.rd_kafka_topic_new(self._producer, topic.encode(), None)
        self._value = ctypes.create_string_buffer(value, len(value))
        self._messages = (_Message * BATCH)()
        for message in self._messages:
            message.payload, message.len = ctypes.addressof(self._value), len(value)

    def produce(self, count: int) -> int:
        """Queue up to `count` records. Return how many the queue accepted."""
        taken: int = self._library.rd_kafka_produce_batch(
            self._topic, ANY_PARTITION, COPIES_VALUES, self._messages, min(count, BATCH)
        )
        return taken

    def wait(self, milliseconds: int) -> None:
        """Let librdkafka work."""
        self._library.rd_kafka_poll(self._producer, milliseconds)

    def flush(self, milliseconds: int) -> int:
        """Wait until all records are acknowledged. Return how many are not."""
        self._library.rd_kafka_flush(self._producer, milliseconds)
        left: int = self._library.rd_kafka_outq_len(self._producer)
        return left

    def close(self) -> None:
        """Release librdkafka's handles."""
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy(self._producer)


class CountingConsumer:
    """Reads partitions from given offsets and counts the records."""

    def __init__(self, settings: Mapping[str, object], topic: str, starts: Mapping[int, int]) -> None:
        self._library = _library()
        self._topic = topic
        self._consumer = _client(self._library, CONSUMER, settings)
        self._library.rd_kafka_poll_set_consumer(self._consumer)
        self.seek(starts)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._consumer)
        self._messages = (ctypes.c_void_p * BATCH)()

    def seek(self, starts: Mapping[int, int]) -> None:
        """Read from these offsets on, and drop records that were fetched before."""
        assigned = self._library.rd_kafka_topic_partition_list_new(len(starts))
        for partition, offset in starts.items():
            self._library.rd_kafka_topic_partition_list_add(assigned, self._topic.encode(), partition)
            self._library.rd_kafka_topic_partition_list_set_offset(
                assigned, self._topic.encode(), partition, offset
            )
        self._library.rd_kafka_assign(self._consumer, assigned)
        self._library.rd_kafka_topic_partition_list_destroy(assigned)

    def consume(self, most: int, timeout_ms: int) -> int:
        """Consume up to `most` records; wait until they arrive or the time-out. Return how many arrived."""
        taken: int = self._library.rd_kafka_consume_batch_queue(
            self._queue, timeout_ms, self._messages, min(most, BATCH)
        )
        if taken > 0:
            first = _Message.from_address(self._messages[0])
            if first.err:
                raise RuntimeError(f"librdkafka reports error {first.err}")
            deque(map(self._library.rd_kafka_message_destroy, self._messages[:taken]), 0)
        return max(taken, 0)

    def close(self) -> None:
        """Release librdkafka's handles."""
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_consumer_close(self._consumer)
        self._library.rd_kafka_destroy(self._consumer)
