from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tailrace_cli.commands import consume
from tailrace_cli.commands.consume import UnreadPartitions
from tailrace_cli.connections.librdkafka import BrokerWatch
from tailrace_cli.errors import CommandFailed


class SilentConsumer:
    """Whose fetches all fail with an error that librdkafka retries, such as KAFKA_STORAGE_ERROR."""

    def consume(self, *_: object) -> list[Any]:
        return []


def test_a_partition_that_can_not_be_read_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "PATIENCE_SECONDS", 0.01)
    unread = UnreadPartitions()
    unread.add([TopicPartition("orders", partition) for partition in (0, 1, 2)], [5, 5, 5])
    unread.ended("orders", 1)
    with pytest.raises(
        CommandFailed, match=r"no records of orders-0 and 1 other partitions came for 0\.01 s"
    ):
        for _ in consume._polled(SilentConsumer(), unread, BrokerWatch("127.0.0.1:1"), follow=False):
            pass


def test_a_group_without_partitions_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consume, "PATIENCE_SECONDS", -1.0)
    polled = consume._polled(SilentConsumer(), UnreadPartitions(), BrokerWatch("127.0.0.1:1"), follow=False)
    assert [next(polled) for _ in range(3)] == [([], {})] * 3
    (said,) = capsys.readouterr().err.splitlines()
    assert "the group has assigned no partitions" in said
