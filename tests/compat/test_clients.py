"""The Python clients against `tailrace serve`; the Java clients and kcat join them in `make compat`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat import with_aiokafka, with_confluent, with_kafka_python
from tests.compat.areas import AREAS, Client
from tests.compat.broker import Broker, running_broker

CLIENTS = (with_confluent.CLIENT, with_kafka_python.CLIENT, with_aiokafka.CLIENT)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_works_unchanged(broker: Broker, client: Client, area: str) -> None:
    client.checks[area](broker)
    assert broker.is_alive
