"""Topics over HTTP: the same as Kafka's clients see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.gateway.serving import Served, opened_gateway

pytestmark = pytest.mark.uvloop


async def test_topics_are_made_listed_described_changed_and_deleted(tmp_path: Path) -> None:
    async def configs_change(there: Served) -> None:
        path = "/topics/flights/configs"

        async def config(name: str) -> Any:
            return (await there.get(f"{path}/{name}"))["value"]

        assert await config("retention.ms") == "1000"
        assert await there.ask("PUT", f"{path}/retention.ms", {"value": "2000"}) == (204, None)
        assert await config("retention.ms") == "2000"
        assert await there.ask("DELETE", f"{path}/retention.ms") == (204, None)
        assert (await there.get(f"{path}/retention.ms"))["is_default"] is True
        change = {
            "data": [{"name": "segment.ms", "value": "7000"}, {"name": "retention.ms", "operation": "DELETE"}]
        }
        assert await there.ask("POST", f"{path}:alter", change) == (204, None)
        assert await config("segment.ms") == "7000"
        status, refused = await there.ask("PUT", f"{path}/no.such", {"value": "1"})
        assert status == 400 and "no.such" in refused["message"]
        assert (await there.ask("GET", f"{path}/no.such"))[0] == 404
        names = [each["name"] for each in (await there.get(path))["data"]]
        assert "retention.ms" in names

    async with opened_gateway(tmp_path) as there:
        configs = [{"name": "retention.ms", "value": "1000"}]
        wanted = {"topic_name": "flights", "partitions_count": 2, "configs": configs}
        assert await there.ask("POST", "/topics", {**wanted, "validate_only": True}) != (201, None)
        assert (await there.get("/topics"))["data"] == []
        status, made = await there.ask("POST", "/topics", wanted)
        assert status == 201 and made["kind"] == "KafkaTopic" and made["partitions_count"] == 2
        status, again = await there.ask("POST", "/topics", wanted)
        assert (status, again["error_code"]) == (400, 40002) and "exists" in again["message"]

        [listed] = (await there.get("/topics"))["data"]
        assert await there.get("/topics/flights") == listed
        assert listed["topic_name"] == "flights" and listed["metadata"]["self"].endswith("/topics/flights")
        partitions = (await there.get(listed["partitions"]["related"]))["data"]
        assert [each["partition_id"] for each in partitions] == [0, 1]
        assert (await there.get(partitions[1]["replicas"]["related"]))["data"][0]["is_leader"] is True

        status, grown = await there.ask("PATCH", "/topics/flights", {"partitions_count": 3})
        assert (status, grown["partitions_count"]) == (200, 3)
        await configs_change(there)
        assert await there.ask("DELETE", "/topics/flights") == (204, None)
        status, gone = await there.ask("GET", "/topics/flights")
        assert (status, gone) == (
            404,
            {"error_code": 40403, "message": "There is no such topic or partition."},
        )


async def test_the_cluster_and_its_brokers_are_shown_below_both_roots(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        cluster = await there.get("")
        for root in ("/v3", "/kafka/v3"):
            url = f"http://127.0.0.1:{there.gateway.port}{root}/clusters"
            listed = await there.get(url)
            assert listed["data"][0]["cluster_id"] == cluster["cluster_id"]
            assert f"{root}/clusters" in listed["data"][0]["topics"]["related"]
        [broker] = (await there.get("/brokers"))["data"]
        assert broker["port"] == there.wired.agent.kafka_port
        assert (await there.get(f"/brokers/{broker['broker_id']}")) == broker
        assert (await there.ask("GET", "/brokers/77"))[0] == 404


async def test_an_unserved_path_is_answered_in_json(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_record_bytes=4096) as there:
        root = f"http://127.0.0.1:{there.gateway.port}"
        assert await there.ask("GET", f"{root}/nothing") == (
            404,
            {"error_code": 404, "message": "Not Found."},
        )
        assert (await there.ask("GET", f"{root}/v3/clusters/other/topics"))[1] == {
            "error_code": 404,
            "message": "There is no cluster other here.",
        }
        assert (await there.ask("PUT", "/topics"))[0] == 405
        assert (await there.ask("POST", "/topics", data="{"))[1]["message"].startswith(
            "The body can't be read"
        )
        status, large = await there.ask("POST", "/topics", data=b" " * 5_000)
        assert status == 413 and "larger than 4096 bytes" in large["message"]
        assert (await there.ask("GET", "/topics/t/partitions/x"))[0] == 400
        assert (
            there.wired.metric("gateway_requests_total", route="(none)", method="(none)", status="404") == 1
        )
