"""The librdkafka that confluent-kafka brings, driven without a Python object per record.

confluent-kafka's `consume` builds a Message per record, which costs more than librdkafka and the broker together. Here
the library's own batch call is used through ctypes, so a fetch load measures the broker.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka

CONSUMER = 1
BATCH = 50_000


def _library() -> Any:
    package = Path(confluent_kafka.__file__).parent
    bundled = sorted(package.parent.glob("confluent_kafka.libs/librdkafka*.so*"))
    if not bundled:
        raise RuntimeError(f"no librdkafka is bundled beside {package}")
    library = ctypes.CDLL(str(bundled[0]))
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        (
            "rd_kafka_conf_set",
            ctypes.c_int,
            [pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
        ),
        ("rd_kafka_new", pointer, [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]),
        ("rd_kafka_poll_set_consumer", ctypes.c_int, [pointer]),
        ("rd_kafka_topic_partition_list_new", pointer, [ctypes.c_int]),
        ("rd_kafka_topic_partition_list_add", pointer, [pointer, ctypes.c_char_p, ctypes.c_int32]),
        (
            "rd_kafka_topic_partition_list_set_offset",
            ctypes.c_int,
            [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64],
        ),
        ("rd_kafka_topic_partition_list_destroy", None, [pointer]),
        ("rd_kafka_assign", ctypes.c_int, [pointer, pointer]),
        ("rd_kafka_queue_get_consumer", pointer, [pointer]),
        ("rd_kafka_queue_destroy", None, [pointer]),
        (
            "rd_kafka_consume_batch_queue",
            ctypes.c_ssize_t,
            [pointer, ctypes.c_int, ctypes.POINTER(pointer), ctypes.c_size_t],
        ),
        ("rd_kafka_message_destroy", None, [pointer]),
        ("rd_kafka_consumer_close", ctypes.c_int, [pointer]),
        ("rd_kafka_destroy", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class CountingConsumer:
    """Reads partitions from offset 0 and counts what comes; the records themselves are thrown away."""

    def __init__(self, settings: Mapping[str, object], topic: str, partitions: int) -> None:
        self._library = _library()
        conf, message = self._library.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._library.rd_kafka_conf_set(conf, name.encode(), text.encode(), message, 512):
                raise ValueError(message.value.decode())
        self._consumer = self._library.rd_kafka_new(CONSUMER, conf, message, 512)
        if not self._consumer:
            raise RuntimeError(message.value.decode())
        self._library.rd_kafka_poll_set_consumer(self._consumer)
        assigned = self._library.rd_kafka_topic_partition_list_new(partitions)
        for index in range(partitions):
            self._library.rd_kafka_topic_partition_list_add(assigned, topic.encode(), index)
            self._library.rd_kafka_topic_partition_list_set_offset(assigned, topic.encode(), index, 0)
        self._library.rd_kafka_assign(self._consumer, assigned)
        self._library.rd_kafka_topic_partition_list_destroy(assigned)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._consumer)
        self._messages = (ctypes.c_void_p * BATCH)()

    def consume(self, most: int, timeout_ms: int) -> int:
        """Take up to `most` records, waiting until they are there or the time is over; how many came without error."""
        taken = self._library.rd_kafka_consume_batch_queue(
            self._queue, timeout_ms, self._messages, min(most, BATCH)
        )
        destroy, good = self._library.rd_kafka_message_destroy, 0
        for place in range(taken):
            message = self._messages[place]
            good += ctypes.c_int.from_address(message).value == 0  # rd_kafka_message_t begins with its error
            destroy(message)
        return good

    def close(self) -> None:
        """Give the handle back."""
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_consumer_close(self._consumer)
        self._library.rd_kafka_destroy(self._consumer)
