"""Every API and version, asked by a client of one tenant about what is another's: it is answered as what there is not,
no byte of the other's names is in any answer, and nothing outside of the tenant changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from agent.handlers import HANDLERS
from tailrace.kafka import ApiKey, decode_response
from tailrace.kafka.apis import APIS
from tailrace.kafka.schema import NIL_UUID, Entity, Field, Wire, fields_of
from tests.agent.tenants.neighbours import FORBIDDEN, SECRET, Client, neighbourhood, outside
from tests.support.agents import AgentBench, agent_bench

ABSENT = "nixda"
"""As long as SECRET."""
ABSENT_ID = UUID(int=0xDEAD << 64)
INTEGERS = (Wire.INT8, Wire.INT16, Wire.INT32, Wire.INT64)
PLAIN: dict[str, Any] = {
    "acks": -1,
    "duration_filter": -1,
    "endpoint_type": 1,
    "producer_epoch": -1,
    "producer_id": -1,
    "rebalance_timeout_ms": 60_000,
    "response_partition_limit": 100,
    "session_timeout_ms": 60_000,
    "transaction_timeout_ms": 1_000,
    "producer_id_filters": [],
    "resource_types": [],
    "server_assignor": None,
    "state_filters": [],
    "states_filter": [],
    "types_filter": [],
    "transactional_id_pattern": ".*",
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
    "cursor": None,
    "principal_filter": None,
    "host_filter": None,
    "configuration_keys": None,
    "member_epoch": 0,
    "pattern_type_filter": 1,
    "resource_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
    "AclCreation.resource_pattern_type": 3,
    "AclCreation.operation": 3,
    "AclCreation.permission_type": 3,
    "CreateDelegationTokenRequest.owner_principal_type": "User",
    "CreatableRenewers.principal_type": "User",
    "DescribeDelegationTokenOwner.principal_type": "User",
    "ComponentData.entity_type": "user",
    "EntityData.entity_type": "user",
    "OpData.key": "request_percentage",
    "OpData.value": 50.0,
    "ScramCredentialDeletion.mechanism": 2,
    "ScramCredentialUpsertion.iterations": 4_096,
    "ScramCredentialUpsertion.mechanism": 1,
    "ScramCredentialUpsertion.salt": b"s" * 16,
    "ScramCredentialUpsertion.salted_password": b"p" * 32,
}
"""What makes requests pass the first checks of their handlers, by field, or by message and field; other numbers are
0."""


class Asked:
    """What a request is about.

    Args:
        name: of everything that is named; of all but topics, where `topic_id` is given.
        wants_all: lists that may be null are null, and others are empty.
    """

    def __init__(
        self, name: str, topic_id: UUID = NIL_UUID, *, resource_type: int = 2, wants_all: bool = False
    ) -> None:
        self.name, self.topic_id = name, topic_id
        self._resource_type = resource_type
        self._wants_all = wants_all

    def message(self, kind: Any, version: int) -> Any:
        fields = [field for field in fields_of(kind) if version in field.versions]
        values = {field.name: self._value(kind, field, version) for field in fields}
        return kind(**{name: value for name, value in values.items() if value is not ...})

    def _value(self, kind: Any, field: Field, version: int) -> Any:
        if f"{kind.__name__}.{field.name}" in PLAIN:
            return PLAIN[f"{kind.__name__}.{field.name}"]
        if field.name == "principal":
            return f"User:{self.name}"
        if field.name in PLAIN and (kind.__name__, field.name) != ("CreateTopicsRequest", "configs"):
            return PLAIN[field.name]
        if field.name == "resource_type":
            return self._resource_type
        if field.is_array and self._wants_all:
            return None if version in field.nullable else []
        single = self._single(field, version)
        return [single] if field.is_array and single is not ... else single

    def _single(self, field: Field, version: int) -> Any:
        if not isinstance(field.kind, Wire):
            return self.message(field.kind, version)
        if field.entity is Entity.TOPIC_NAME and self.topic_id != NIL_UUID:
            return "mine" if field.is_array else None if version in field.nullable else ""
        if field.entity is Entity.TOPIC_ID:
            return self.topic_id
        if field.entity is Entity.TOPIC_REGEX:
            return ".*"
        if field.kind is Wire.STRING:
            return self.name
        return 0 if field.kind in INTEGERS else ...


def request_of(key: ApiKey, version: int, asked: Asked) -> Any:
    return asked.message(APIS[key].request, version)


def has_ids(kind: Any, version: int) -> bool:
    return any(
        field.entity is Entity.TOPIC_ID or (not isinstance(field.kind, Wire) and has_ids(field.kind, version))
        for field in fields_of(kind)
        if version in field.versions
    )


def alike(frame: bytes | None, key: ApiKey, version: int, asked: Asked) -> str:
    """An answer without what is the request's own, or chance."""
    if frame is None:
        return ""
    text = repr(decode_response(key, version, frame)[1]).replace(asked.name, "NAME")
    text = text.replace(str(asked.topic_id), "ID")
    text = re.sub(r"hmac=b(['\"]).*?(?<!\\)\1, ", "", text)
    text = re.sub("(token_id|member_id|producer_id|session_id|_ms)=[^,)]+", r"\1=...", text)
    return re.sub("0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}", "", text)


def versions_of(key: ApiKey) -> range:
    return range(APIS[key].served.first, APIS[key].served.last + 1)


WALKED = [ApiKey(key) for key in sorted(HANDLERS)]
About = Callable[[str, UUID], Asked]
ABOUT: dict[str, About] = {
    "a name": lambda name, topic_id: Asked(name),
    "a group's configs": lambda name, topic_id: Asked(name, resource_type=32),
    "a topic id": lambda name, topic_id: Asked("mine", topic_id),
}


@pytest.mark.parametrize("about", ABOUT)
@pytest.mark.parametrize("key", WALKED, ids=lambda key: key.name)
async def test_resources_of_another_tenant_are_answered_as_missing(key: ApiKey, about: str) -> None:
    request = APIS[key].request
    versions = [each for each in versions_of(key) if about != "a topic id" or has_ids(request, each)]
    if about == "a group's configs" and not any(field.name == "resources" for field in fields_of(request)):
        versions = []
    if not versions:
        return

    async with agent_bench() as bench:
        secret_id = await neighbourhood(bench)
        before = await outside(bench)
        for version in versions:
            told = []
            for name, topic_id in ((SECRET, secret_id), (ABSENT, ABSENT_ID)):
                asked = ABOUT[about](name, topic_id)
                frame = await Client(bench).frame(key, version, request_of(key, version, asked))
                for secret in FORBIDDEN:
                    assert frame is None or secret not in frame, f"v{version} tells of {secret!r}"
                told.append(alike(frame, key, version, asked))
            assert told[0] == told[1], f"v{version}"
        assert await outside(bench) == before


WITH_IDS = [key for key in WALKED if any(has_ids(APIS[key].request, each) for each in versions_of(key))]


@pytest.mark.parametrize("is_guarded", [True, False], ids=["with ACLs", "without ACLs"])
@pytest.mark.parametrize("key", WITH_IDS, ids=lambda key: key.name)
async def test_anothers_topic_is_none_also_where_the_sequencer_could_not_be_asked(
    key: ApiKey, is_guarded: bool
) -> None:
    """The topic is new to this agent: the translation's look-up fails, and the handler's own would find it."""

    async with agent_bench() as bench:
        secret_id = await neighbourhood(bench)
        before, committed = await outside(bench), len(bench.sequencer.commits)
        for version in versions_of(key):
            if not has_ids(APIS[key].request, version):
                continue
            told = []
            for topic_id in (secret_id, ABSENT_ID):
                forget(bench, secret_id)
                bench.sequencer.failures["metadata"] = 1
                asked = Asked("mine", topic_id)
                client = Client(bench, is_guarded=is_guarded)
                frame = await client.frame(key, version, request_of(key, version, asked))
                told.append(alike(frame, key, version, asked))
            assert told[0] == told[1], f"v{version}"
        assert len(bench.sequencer.commits) == committed
        assert await outside(bench) == before


def forget(bench: AgentBench, topic_id: UUID) -> None:
    """This agent has not been told of the topic yet."""
    catalog = bench.services.catalog
    topics = {known: topic for known, topic in catalog.snapshot.by_id.items() if known != topic_id}
    by_name = {topic.topic.name: topic for topic in topics.values()}
    catalog.snapshot = replace(catalog.snapshot, version=-1, by_id=topics, by_name=by_name)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["with ACLs", "without ACLs"])
@pytest.mark.parametrize("key", WALKED, ids=lambda key: key.name)
async def test_a_listing_of_all_has_the_tenants_own_alone(key: ApiKey, is_guarded: bool) -> None:
    async with agent_bench() as bench:
        await neighbourhood(bench)
        for version in versions_of(key):
            client = Client(bench, is_guarded=is_guarded)
            frame = await client.frame(key, version, request_of(key, version, Asked("mine", wants_all=True)))
            for secret in (*FORBIDDEN, SECRET.encode()):
                assert frame is None or secret not in frame, f"v{version} tells of {secret!r}"


LISTINGS = {
    ApiKey.METADATA,
    ApiKey.LIST_GROUPS,
    ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.LIST_TRANSACTIONS,
}


@pytest.mark.parametrize("key", sorted(LISTINGS), ids=lambda key: key.name)
async def test_a_listing_of_all_has_what_is_the_tenants(key: ApiKey) -> None:
    async with agent_bench() as bench:
        await neighbourhood(bench)
        version = 7 if key is ApiKey.OFFSET_FETCH else APIS[key].served.last
        frame = await Client(bench).frame(
            key, version, request_of(key, version, Asked("mine", wants_all=True))
        )
        assert frame is not None and b"mine" in frame
