"""The runner, against Tailrace on both sides: what is alike is no difference, and what is not alike is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.produce import ProduceRequest
from tests.compat.broker import running_broker
from tests.compat.differential import connection
from tests.compat.differential.compare import Difference, differences
from tests.compat.differential.connection import Connections
from tests.compat.differential.known import Known
from tests.compat.differential.plain import Ids, plain
from tests.compat.differential.run import answers
from tests.compat.differential.servers import Server
from tests.compat.differential.steps import CLOSED, LATER_ON, SILENT, WAITING, Ask, Script, topic


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_broker() as broker:
        yield Server(broker.port)


def created(name: str) -> Ask:
    return Ask("create", ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(name, 1, 1)]))


def found(kafka: Any, tailrace: Any, *unordered: str) -> list[tuple[str, Any, Any]]:
    return [
        (row.path, row.kafka, row.tailrace) for row in differences("s", "step", kafka, tailrace, unordered)
    ]


def test_a_script_gets_the_answers_of_a_server(server: Server) -> None:
    def script() -> Script:
        yield from topic("script")
        yield created("script")

    (answer,) = answers(script(), server)
    assert answer.name == "create v7"
    assert answer.value["topics"][0]["error_code"] == "TOPIC_ALREADY_EXISTS(36)"
    assert answer.value["topics"][0]["error_message"] == "<text>"
    assert "throttle_time_ms" not in answer.value


def test_ids_are_alike_once_their_names_are_known(server: Server) -> None:
    connections = Connections(server.port)
    ids = Ids()
    rows = [plain(connections.ask(created(name)), created(name), ids)["topics"][0] for name in ("one", "two")]
    connections.close()
    assert [row["topic_id"] for row in rows] == ["<id of one>", "<id of two>"]


def test_a_closed_connection_is_an_answer_and_the_next_request_opens_another(server: Server) -> None:
    connections = Connections(server.port)
    assert connections.ask(Ask("broken", ApiKey.METADATA, 12, b"\xff")) == CLOSED
    assert connections.ask(created("after")).topics[0].error_code == 0
    connections.close()


def test_a_request_without_an_answer_is_silent_where_the_connection_continues(server: Server) -> None:
    connections = Connections(server.port)
    step = Ask("nothing", ApiKey.PRODUCE, 7, ProduceRequest(acks=0, timeout_ms=1), is_answered=False)
    assert connections.ask(step) == SILENT
    connections.close()


def test_an_answer_is_received_later(server: Server) -> None:
    connections = Connections(server.port)
    sent = Ask("sent", ApiKey.METADATA, 12, MetadataRequest([]), "one", is_answered_later=True)
    assert connections.ask(sent) == LATER_ON
    assert connections.ask(created("meanwhile")).topics[0].error_code == 0
    assert connections.ask(Ask("received", sent.api, sent.version, None, "one")).brokers
    connections.close()


def test_a_server_that_does_not_answer_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    connections = Connections(server.port)
    assert connections.ask(created("waited-for")).topics[0].error_code == 0
    topics = [FetchTopic("waited-for", partitions=[FetchPartition(0)])]
    waits = Ask("waits", ApiKey.FETCH, 12, FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics))
    assert connections.ask(waits) == WAITING
    connections.close()


def test_items_of_lists_are_compared_by_their_names() -> None:
    one = {"topics": [{"name": "a", "code": 1}, {"name": "b", "code": 2}]}
    other = {"topics": [{"name": "b", "code": 2}, {"name": "a", "code": 3}]}
    assert found(one, other) == [
        ("topics.<order>", ["a", "b"], ["b", "a"]),
        ("topics.a.code", 1, 3),
    ]
    assert found(one, other, "topics") == [("topics.a.code", 1, 3)]


def test_items_without_names_are_compared_in_their_order_or_sorted() -> None:
    one = {"rows": [{"parts": [1, 2], "code": 1}, {"parts": [3], "code": 2}]}
    other = {"rows": [{"parts": [3], "code": 2}, {"parts": [2, 1], "code": 1}]}
    assert found(one, other, "rows", "parts") == []
    assert ("rows.0.code", 1, 2) in found(one, other)


def test_an_item_that_one_lacks_is_a_difference() -> None:
    assert found([{"name": "a"}, {"name": "a"}], [{"name": "a"}]) == [("a#2", {"name": "a"}, "<missing>")]


def test_null_is_not_empty_and_false_is_not_zero() -> None:
    assert found({"a": None, "b": 0}, {"a": [], "b": False}) == [("a", None, []), ("b", 0, False)]


def test_answers_with_different_errors_are_not_compared_further() -> None:
    one, other = {"error_code": "NONE(0)", "offset": 5}, {"error_code": "UNKNOWN(3)", "offset": -1}
    assert found(one, other) == [("error_code", "NONE(0)", "UNKNOWN(3)")]


def test_a_known_difference_from_null_covers_no_text() -> None:
    known = Known("s", "step", "message", "why", kafka="", tailrace=None)
    covered = [known.covers(Difference("s", "step", "message", "", other)) for other in (None, "<text>")]
    assert covered == [True, False]


def test_a_known_difference_covers_its_values_alone() -> None:
    known = Known("s", "st*", "topics.*.code", "why", kafka=1)
    one, other = (
        differences("s", "step", {"topics": {"a": {"code": code}}}, {"topics": {"a": {"code": 3}}})[0]
        for code in (1, 2)
    )
    assert known.covers(one)
    assert not known.covers(other)
