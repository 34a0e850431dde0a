"""Bytes that no good client sends, over a raw socket: the right error or a closed connection, and the broker lives."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from fastcrc import crc32

from tests.compat.broker import Broker, running_broker

NONE, CORRUPT_MESSAGE, UNSUPPORTED_VERSION, INVALID_RECORD = 0, 2, 35, 87
TOO_LARGE, UNKNOWN_TOPIC, BAD_ACKS, BAD_MAGIC, BAD_CODEC = 10, 3, 21, 43, 76

KAFKA_4_RANGES = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3), 42: (0, 2), 44: (0, 1), 47: (0, 0), 60: (0, 2),
    61: (0, 0), 75: (0, 0),
}  # fmt: skip
"""API key to the (lowest, highest) version that Kafka 4.3.1 says it serves, for the APIs that Tailrace serves."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


# --- ApiVersions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 99])
def test_an_unknown_api_versions_version_gets_error_35_in_a_version_0_body(
    broker: Broker, version: int
) -> None:
    with _connection(broker) as connection:
        body = _ask(connection, 18, version, b"\x00\x02x\x021\x00", header_version=2)
        error, count = struct.unpack_from(">hi", body)
        assert error == UNSUPPORTED_VERSION
        assert len(body) == 6 + 6 * count
        assert (18, 0, 4) in [struct.unpack_from(">hhh", body, 6 + 6 * n) for n in range(count)]
        assert _api_versions(connection)  # the same connection goes on


def test_the_served_versions_are_those_of_kafka_4(broker: Broker) -> None:
    with _connection(broker) as connection:
        assert {
            key: served for key, served in _api_versions(connection).items() if key in KAFKA_4_RANGES
        } == (KAFKA_4_RANGES)


# --- frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", 2_000_000_000) + b"x" * 100, id="oversize frame"),
        pytest.param(struct.pack(">i", -1), id="negative size"),
        pytest.param(struct.pack(">i", 0), id="empty frame"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(bytes.fromhex("1603010200010001fc0303") + b"\xa5" * 80, id="tls hello"),
        pytest.param(struct.pack(">i", 20) + b"\xff" * 20, id="garbage"),
        pytest.param(struct.pack(">ihhih", 10, 9999, 0, 1, -1), id="unknown api key"),
        pytest.param(struct.pack(">ihhih", 10, -7, 0, 1, -1), id="negative api key"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="unknown version"),
        pytest.param(struct.pack(">ihhih", 10, 1, 3, 1, -1), id="version that Kafka 4 removed"),
        pytest.param(struct.pack(">ihh", 4, 3, 1), id="header cut off"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, 500), id="client id longer than the frame"),
        pytest.param(
            struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2_000_000_000), id="array longer than the frame"
        ),
        pytest.param(struct.pack(">ihhihi", 14, 3, 1, 1, -1, -5), id="negative array length"),
        pytest.param(
            struct.pack(">ihhih", 16, 3, 12, 1, -1) + b"\x00\xff\xff\xff\xff\xff", id="endless varint"
        ),
    ],
)
def test_a_frame_that_cannot_be_read_closes_its_connection_alone(broker: Broker, sent: bytes) -> None:
    with _connection(broker) as other, _connection(broker) as connection:
        connection.sendall(sent)
        assert _is_closed(connection)
        assert _api_versions(other)
    assert broker.is_alive


def test_a_frame_cut_off_by_its_client_is_forgotten(broker: Broker) -> None:
    with _connection(broker) as connection:
        connection.sendall(struct.pack(">ihh", 1_000_000, 0, 9) + b"x" * 1000)
    with _connection(broker) as other:
        assert _api_versions(other)


# --- batches ------------------------------------------------------------------------------------------------------


def _batch(**changed: int) -> bytes:
    """One good record in a v2 batch, with fields of its header changed; the CRC right unless `crc` is given."""
    record = b"\x00\x00\x00\x01\x02v\x00"
    records = bytes([len(record) * 2]) + record
    fields = {
        "magic": 2,
        "attributes": 0,
        "last_delta": 0,
        "base": 1_700_000_000_000,
        "max": 1_700_000_000_000,
    }
    fields |= {"count": 1, "length_by": 0} | changed
    after_crc = struct.pack(
        ">hiqqqhii", fields["attributes"], fields["last_delta"], fields["base"], fields["max"], -1, -1, -1,
        fields["count"],
    ) + records  # fmt: skip
    crc = changed.get("crc", _crc32c(after_crc))
    length = 9 + len(after_crc) + fields["length_by"]
    return struct.pack(">qiibI", 0, length, -1, fields["magic"], crc) + after_crc


def _crc32c(data: bytes) -> int:
    return int(crc32.iscsi(data))


@pytest.mark.parametrize(
    ("records", "codes"),
    [
        pytest.param(_batch(), {NONE}, id="good"),
        pytest.param(_batch(crc=12345), {CORRUPT_MESSAGE}, id="wrong crc"),
        pytest.param(_batch()[:-1] + b"\x01", {CORRUPT_MESSAGE}, id="a flipped bit"),
        pytest.param(_batch(count=7), {INVALID_RECORD}, id="count beyond the last offset delta"),
        pytest.param(_batch(count=0), {INVALID_RECORD}, id="no records"),
        pytest.param(_batch(count=-3), {INVALID_RECORD}, id="negative count"),
        pytest.param(_batch(last_delta=9), {INVALID_RECORD}, id="last offset delta beyond the count"),
        pytest.param(_batch(last_delta=-1), {INVALID_RECORD}, id="negative last offset delta"),
        pytest.param(_batch(length_by=1000), {CORRUPT_MESSAGE}, id="length beyond the data"),
        pytest.param(_batch(length_by=-30), {CORRUPT_MESSAGE}, id="length below a header"),
        pytest.param(_batch(length_by=-(10**9)), {CORRUPT_MESSAGE}, id="negative length"),
        pytest.param(_batch()[:40], {CORRUPT_MESSAGE}, id="cut off"),
        pytest.param(_batch()[:7], {CORRUPT_MESSAGE}, id="cut off in the first field"),
        pytest.param(b"", {CORRUPT_MESSAGE, INVALID_RECORD}, id="no batch"),
        pytest.param(_batch() + _batch(), {INVALID_RECORD}, id="two batches"),
        pytest.param(_batch(magic=9), {CORRUPT_MESSAGE}, id="unknown magic"),
        pytest.param(
            _batch(attributes=7), {BAD_CODEC, CORRUPT_MESSAGE, INVALID_RECORD}, id="unknown compression"
        ),
        pytest.param(_batch(attributes=0x20), {INVALID_RECORD}, id="a control batch"),
    ],
)
def test_a_bad_batch_gets_kafkas_error_code(broker: Broker, records: bytes, codes: set[int]) -> None:
    with _connection(broker) as connection:
        _auto_create(connection, "bad-batches")
        assert _produce(connection, "bad-batches", records) in codes
        assert _produce(connection, "bad-batches", _batch()) == NONE  # on the same connection
    assert broker.is_alive


def test_an_unknown_topic_and_acks_that_do_not_exist_get_their_codes(broker: Broker) -> None:
    with _connection(broker) as connection:
        _auto_create(connection, "bad-acks")
        assert _produce(connection, "never-made", _batch()) == UNKNOWN_TOPIC
        assert _produce(connection, "bad-acks", _batch(), partition=77) == UNKNOWN_TOPIC
        assert _produce(connection, "bad-acks", _batch(), partition=-1) == UNKNOWN_TOPIC
        assert _produce(connection, "bad-acks", _batch(), acks=5) == BAD_ACKS


def test_a_batch_over_the_topics_limit_is_too_large(broker: Broker) -> None:
    with _connection(broker) as connection:
        _auto_create(connection, "too-large")
        assert _produce(connection, "too-large", _oversize_batch()) == TOO_LARGE


# --- details --------------------------------------------------------------------------------------------------------


def _oversize_batch() -> bytes:
    good = _batch()
    after_crc = good[21:] + b"\x00" * 2_000_000
    return struct.pack(">qiibI", 0, 9 + len(after_crc), -1, 2, _crc32c(after_crc)) + after_crc


def _connection(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), 10)


def _ask(connection: socket.socket, key: int, version: int, body: bytes, header_version: int = 1) -> bytes:
    """The response's body (after the correlation id) to one request."""
    head = struct.pack(">hhih", key, version, 7, 1) + b"t"
    connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
    answer = _read(connection, struct.unpack(">i", _read(connection, 4))[0])
    assert answer[:4] == struct.pack(">i", 7)
    return answer[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        assert more, "the connection was closed"
        found += more
    return found


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _api_versions(connection: socket.socket) -> dict[int, tuple[int, int]]:
    body = _ask(connection, 18, 0, b"")
    error, count = struct.unpack_from(">hi", body)
    assert error == NONE
    rows = [struct.unpack_from(">hhh", body, 6 + 6 * n) for n in range(count)]
    return {key: (lowest, highest) for key, lowest, highest in rows}


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _auto_create(connection: socket.socket, topic: str) -> None:
    _ask(connection, 3, 4, struct.pack(">i", 1) + _string(topic) + b"\x01")


def _produce(
    connection: socket.socket, topic: str, records: bytes, partition: int = 0, acks: int = -1
) -> int:
    """The error code that one partition's records get, by Produce v7."""
    body = struct.pack(">hhi", -1, acks, 10_000) + struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">iii", 1, partition, len(records)) + records
    answer = _ask(connection, 0, 7, body)
    return int(struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0])
