"""A process that consumes, transforms and produces in transactions, and may be killed within one.

python -m tests.compat.transforming BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID WANTED [KILLED_IN]

It reads SOURCE as a member of GROUP, writes each record's value, doubled, to the same partition of TARGET, and commits
its positions within the same transaction, until the group's positions say that WANTED records were transformed. In
transaction number KILLED_IN (from 1 on) it kills itself when all is sent and nothing is committed.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.patience import PATIENCE_SECONDS

SECONDS = PATIENCE_SECONDS
WHOLE_SECONDS = PATIENCE_SECONDS
BATCH = 25


def main(words: list[str]) -> int:
    """Transform until all is done; the exit code."""
    bootstrap, source, target, group, transactional_id, wanted, *more = words
    killed_in = int(more[0]) if more else 0
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 2}
    )
    producer.init_transactions(SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": "transformer",  # the next one needs not wait for this one's session to end
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    deadline, transactions = time.monotonic() + WHOLE_SECONDS, 0
    while time.monotonic() < deadline:
        messages = [each for each in consumer.consume(BATCH, 0.2) if each.error() is None]
        if not messages:
            if _is_done(consumer, source, int(wanted)):
                consumer.close()
                return 0
            continue
        transactions += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, b"%d" % (int(message.value()) * 2), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), SECONDS
        )
        producer.flush(SECONDS)
        if transactions == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        producer.commit_transaction(SECONDS)
    print(f"not done after {WHOLE_SECONDS} s and {transactions} transactions", file=sys.stderr)
    return 1


def _is_done(consumer: Consumer, source: str, wanted: int) -> bool:
    assigned = consumer.assignment()
    if not assigned:
        return False
    asked = [TopicPartition(source, each.partition) for each in assigned]
    return sum(max(each.offset, 0) for each in consumer.committed(asked, SECONDS)) >= wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
