"""The gateway's routes: one table, read by the server and by the docs' test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from agent.gateway import events, groups, produce, reading, topic_configs, topics
from agent.gateway.call import HttpCall

ROOTS = ("/v3", "/kafka/v3")
"""Kafka REST serves the same API below both."""
EVENTS = "/events"
_CLUSTER = "/clusters/{cluster_id}"
_TOPIC = f"{_CLUSTER}/topics/{{topic_name}}"
_GROUP = f"{_CLUSTER}/consumer-groups/{{group_id}}"
_PARTITION = f"{_TOPIC}/partitions/{{partition_id}}"


@dataclass(frozen=True, slots=True)
class Route:
    """A method, a path below a root, and the handler. `is_endless`: the request may never end, and calls
    `HttpCall.shared` for the parts that may be long; any other request is shared as a whole."""

    method: str
    path: str
    handle: Callable[[HttpCall], Coroutine[Any, Any, web.StreamResponse]]
    is_endless: bool = False


ROUTES = (
    Route("GET", "/clusters", topics.list_clusters),
    Route("GET", _CLUSTER, topics.get_cluster),
    Route("GET", f"{_CLUSTER}/brokers", topics.list_brokers),
    Route("GET", f"{_CLUSTER}/brokers/{{broker_id}}", topics.get_broker),
    Route("GET", f"{_CLUSTER}/topics", topics.list_topics),
    Route("POST", f"{_CLUSTER}/topics", topics.create_topic),
    Route("GET", _TOPIC, topics.get_topic),
    Route("PATCH", _TOPIC, topics.add_partitions),
    Route("DELETE", _TOPIC, topics.delete_topic),
    Route("GET", f"{_TOPIC}/configs", topic_configs.list_configs),
    Route("POST", f"{_TOPIC}/configs:alter", topic_configs.alter_configs),
    Route("GET", f"{_TOPIC}/configs/{{name}}", topic_configs.get_config),
    Route("PUT", f"{_TOPIC}/configs/{{name}}", topic_configs.set_config),
    Route("DELETE", f"{_TOPIC}/configs/{{name}}", topic_configs.reset_config),
    Route("GET", f"{_TOPIC}/partitions", topics.list_partitions),
    Route("GET", _PARTITION, topics.get_partition),
    Route("GET", f"{_PARTITION}/replicas", topics.list_replicas),
    Route("POST", f"{_TOPIC}/records", produce.produce, is_endless=True),
    Route("GET", f"{_PARTITION}/records", reading.get_records),
    Route("GET", _TOPIC + EVENTS, events.get_events, is_endless=True),
    Route("GET", f"{_CLUSTER}/consumer-groups", groups.list_groups),
    Route("GET", _GROUP, groups.get_group),
    Route("GET", f"{_GROUP}/consumers", groups.list_consumers),
    Route("GET", f"{_GROUP}/consumers/{{consumer_id}}", groups.get_consumer),
    Route("GET", f"{_GROUP}/consumers/{{consumer_id}}/assignments", groups.list_assignments),
    Route("GET", f"{_GROUP}/lags", groups.list_lags),
    Route("GET", f"{_GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}", groups.get_lag),
    Route("GET", f"{_GROUP}/lag-summary", groups.get_lag_summary),
)
