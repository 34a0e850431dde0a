"""Records over HTTP, into a topic and out of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.catalog import Snapshot
from sequencer.api.topics import CreatePartitions, CreateTopic
from tests.agent.gateway.serving import opened_gateway
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.uvloop


def text(value: str) -> dict[str, object]:
    return {"type": "STRING", "data": value}


async def test_a_record_that_is_acknowledged_on_receipt_is_reported_without_an_offset(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.sequencer.create_topic(CreateTopic("t", 1, {"tailrace.flush": "async"}))
        [report] = await there.produce("t", {"value": text("x")})
        assert (report["error_code"], report["partition_id"], report["offset"]) == (200, 0, -1)
        read = await there.get("/topics/t/partitions/0/records?timeout_ms=5000&value_format=string")
        assert [(each["offset"], each["value"]["data"]) for each in read["data"]] == [(0, "x")]


async def test_records_are_reported_in_order_and_read_as_they_were_sent(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t", partitions=3)
        sent: list[dict[str, Any]] = [
            {"partition_id": 1, "key": text("k"), "value": {"type": "JSON", "data": {"n": 1}},
             "headers": [{"name": "h", "value": "eA=="}], "timestamp": "2026-01-31T12:00:00Z"},
            {"value": text("x")},
            {"partition_id": 7, "value": text("nowhere")},
            {"partition_id": 1, "value": {"type": "AVRO", "data": 1}},
            {"partition_id": 1, "value": {"type": "BINARY", "data": "AAE="}},
        ]  # fmt: skip
        reports = await there.produce("t", *sent)
        assert [each["error_code"] for each in reports] == [200, 200, 40402, 400, 200]
        assert reports[0] == {
            "error_code": 200, "cluster_id": reports[1]["cluster_id"], "topic_name": "t", "partition_id": 1,
            "offset": 0, "timestamp": "2026-01-31T12:00:00.000Z", "key": {"type": "STRING", "size": 1},
            "value": {"type": "JSON", "size": 7},
        }  # fmt: skip
        assert (reports[4]["partition_id"], reports[4]["offset"]) == (1, 1)

        first = await there.get(
            "/topics/t/partitions/1/records?value_format=json&key_format=string&max_records=1"
        )
        [record] = first["data"]
        assert {name: record[name] for name in sent[0]} == {
            **sent[0],
            "timestamp": "2026-01-31T12:00:00.000Z",
        }
        assert first["next_offset"] == 1
        rest = await there.get(first["metadata"]["next"] + "&value_format=json")
        assert [each["value"] for each in rest["data"]] == [{"type": "BINARY", "data": "AAE="}]
        assert (await there.get("/topics/t/partitions/1/records?offset=latest"))["data"] == []
        status, beyond = await there.ask("GET", "/topics/t/partitions/1/records?offset=9")
        assert (status, beyond["error_code"]) == (416, 41601)
        assert there.wired.metric("gateway_records_total", kind="produced") == 3
        assert there.wired.metric("gateway_records_total", kind="refused") == 2
        route = "/v3/clusters/{cluster_id}/topics/{topic_name}/records"
        assert there.wired.metric("gateway_requests_total", route=route, method="POST", status="200") == 1


async def test_records_without_a_key_that_come_in_requests_of_their_own_go_to_all_partitions(
    tmp_path: Path,
) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t", partitions=3)
        reports = [report for _ in range(6) for report in await there.produce("t", {}, {})]
        assert [report["partition_id"] for report in reports] == [0, 0, 1, 1, 2, 2] * 2


async def test_records_to_a_known_topic_are_stored_without_asking_for_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_gateway(tmp_path) as there:
        topic = await there.wired.topic("t")
        await there.produce("t", {"value": text("x")})
        catalog, refreshes = there.wired.agent.catalog, 0
        refresh = catalog.refresh

        async def counted() -> Snapshot:
            nonlocal refreshes
            refreshes += 1
            return await refresh()

        monkeypatch.setattr(catalog, "refresh", counted)
        [report] = await there.produce("t", {"value": text("y")})
        assert (report["error_code"], report["offset"], refreshes) == (200, 1, 0)
        await there.wired.sequencer.create_partitions(CreatePartitions(topic.topic_id, 2))
        sent = [{"partition_id": 1}, {"partition_id": 2}, {"partition_id": 0}]
        reports = await there.produce("t", *sent)
        assert [each["error_code"] for each in reports] == [200, 40402, 200]
        assert refreshes == 1, "once for each request at most"


async def test_the_link_to_the_next_records_keeps_how_they_are_read(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        await there.produce("t", {"value": text("x")}, {"value": text("y")})
        read = await there.get(
            "/topics/t/partitions/0/records?offset=earliest&value_format=string&max_records=1"
        )
        then = await there.get(read["metadata"]["next"])
        assert [each["value"] for each in then["data"]] == [text("y")]


async def test_a_stream_of_records_gets_its_reports_while_it_continues(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        go_on = asyncio.Queue[bytes]()

        async def body() -> AsyncIterator[bytes]:
            while data := await go_on.get():
                yield data

        one = json.dumps({"value": text("x")}).encode()
        go_on.put_nowait(one + one[:9])
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            there.session.post(f"{there.base}/topics/t/records", data=body()) as answer,
        ):
            for offset in range(3):
                report = json.loads(await answer.content.readline())
                assert (report["error_code"], report["offset"]) == (200, offset)
                go_on.put_nowait(one[9:] + one[:9])
            go_on.put_nowait(b"")
            last = [json.loads(line) async for line in answer.content]
        assert last[-1] == {"error_code": 400, "message": "The body ends within an object."}


async def test_a_record_that_is_too_large_fails_alone(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_record_bytes=4096) as there:
        await there.ask(
            "POST", "/topics", {"topic_name": "t", "configs": [{"name": "max.message.bytes", "value": "300"}]}
        )
        values = ["a" * 100, "b" * 100, "c" * 500, "d" * 100, "e"]
        reports = await there.produce("t", *({"value": text(value)} for value in values))
        assert [each["error_code"] for each in reports] == [200, 200, 41301, 200, 200]
        read = await there.get("/topics/t/partitions/0/records?value_format=string")
        assert [each["value"]["data"][0] for each in read["data"]] == ["a", "b", "d", "e"]
        status, refused = await there.ask("POST", "/topics/t/records", data=b'{"value": "' + b"x" * 5_000)
        assert (status, refused["error_code"]) == (413, 413)


async def test_an_error_before_the_first_record_has_its_own_status(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_records_per_request=1_000) as there:
        await there.wired.topic("t")
        assert (await there.ask("POST", "/topics/other/records", {"value": text("x")}))[0] == 404
        assert (await there.ask("GET", "/topics"))[1]["data"][0]["topic_name"] == "t", "nothing was created"
        assert (await there.ask("POST", "/topics/t/records", data="[]"))[1]["error_code"] == 400
        assert (await there.ask("POST", "/topics/t/records", data=""))[1][
            "message"
        ] == "The body has no record."
        gzipped = await there.ask(
            "POST", "/topics/t/records", data=b"x", headers={"Content-Encoding": "gzip"}
        )
        assert gzipped[0] == 415
        status, body = await there.ask("POST", "/topics/t/records", data="{} {} {}")
        assert status == 200 and [each["error_code"] for each in body] == [200, 200, 200]
        many = "{}" * 1_500
        status, body = await there.ask("POST", "/topics/t/records", data=many)
        assert len(body) == 1_001 and body[-1]["error_code"] == 413


async def test_an_offset_of_too_many_digits_is_no_offset(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        for offset in ("9" * 5_000, "9" * 19):
            for path in (f"partitions/0/records?offset={offset}", f"events?offset={offset}"):
                status, refusal = await there.ask("GET", f"/topics/t/{path}")
                assert status == 400 and refusal["message"] == "offset must be earliest, latest or a number."
