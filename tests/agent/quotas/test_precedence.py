"""The most specific quota applies, in Kafka's order."""

from __future__ import annotations

import pytest

from agent.quotas.precedence import Holder, QuotaBook, book_of
from sequencer.api.topics import ClientConfig, ConfigScope
from tailrace.quotas import (
    CONNECTION_CREATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    InvalidQuota,
    QuotaEntity,
    checked_entity,
    checked_limit,
    entity_of,
)

ORDER = [
    (QuotaEntity("u", "c"), Holder("u", "c")),
    (QuotaEntity("u", DEFAULT), Holder("u", "c")),
    (QuotaEntity("u"), Holder("u")),
    (QuotaEntity(DEFAULT, "c"), Holder("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), Holder("u", "c")),
    (QuotaEntity(DEFAULT), Holder("u")),
    (QuotaEntity(None, "c"), Holder(None, "c")),
    (QuotaEntity(None, DEFAULT), Holder(None, "c")),
]


def test_the_most_exact_entity_wins_and_says_who_shares_the_quota() -> None:
    for first in range(len(ORDER)):
        book = QuotaBook(
            {
                entity: {PRODUCER_BYTE_RATE: float(at + 1)}
                for at, (entity, _) in enumerate(ORDER)
                if at >= first
            }
        )
        assert book.of_client(PRODUCER_BYTE_RATE, "u", "c") == (ORDER[first][1], first + 1)


def test_others_quotas_and_other_keys_do_not_hold() -> None:
    book = QuotaBook(
        {QuotaEntity("v"): {PRODUCER_BYTE_RATE: 1.0}, QuotaEntity("u"): {"consumer_byte_rate": 1.0}}
    )
    assert book.of_client(PRODUCER_BYTE_RATE, "u", "c") is None


def test_an_address_has_its_own_quota_or_the_default() -> None:
    key = CONNECTION_CREATION_RATE
    book = QuotaBook({QuotaEntity(ip="10.0.0.1"): {key: 1.0}, QuotaEntity(ip=DEFAULT): {key: 9.0}})
    assert book.of_address(key, "10.0.0.1") == (Holder(ip="10.0.0.1"), 1.0)
    assert book.of_address(key, "10.0.0.2") == (Holder(ip="10.0.0.2"), 9.0)
    assert book.of_address(key, "2001:db8::1") == book.of_address(key, "2001:db8::2"), (
        "a /64 shares the default"
    )
    assert not book.has_client_quotas


@pytest.mark.parametrize(
    "entity", [*(entity for entity, _ in ORDER), QuotaEntity("a=&b %", "\x00ä"), QuotaEntity(ip="::1")]
)
def test_an_entity_is_read_as_it_is_written(entity: QuotaEntity) -> None:
    assert entity_of(entity.text) == entity


@pytest.mark.parametrize(
    "text", ["", "user", "group=g", "user=a&user=b", "ip=a.example", "ip=::1&user=a", "user=" + "x" * 1_100]
)
def test_a_request_without_an_entity_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuota):
        entity_of(text)


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        ("user", "connection_creation_rate", 1.0),
        ("ip", "producer_byte_rate", 1.0),
        ("user", "producer_byte_rate", 0.0),
        ("user", "producer_byte_rate", 1.5),
        ("user", "request_percentage", float("nan")),
        ("ip", "connection_creation_rate", 2.0**31),
        ("user", "producer_byte_rate", 2.0**64),
    ],
)
def test_kafka_s_bounds_of_values_hold(parts: str, key: str, value: float) -> None:
    with pytest.raises(InvalidQuota):
        checked_limit(checked_entity([(parts, DEFAULT)]), key, value)


def test_rows_of_a_newer_version_are_left_out() -> None:
    book = book_of([ClientConfig(ConfigScope.QUOTA, "tenant=a", {"x": "1"})])
    assert not book.has_client_quotas
