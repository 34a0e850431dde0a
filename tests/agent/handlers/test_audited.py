"""The audit log says who changed what, and no line has a secret."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from agent.handlers.audited import LINES_IN_A_TURN
from tailrace.background_tasks import cancel_and_wait
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tailrace.kafka.messages.alter_configs import AlterableConfig as ReplacedConfig
from tailrace.kafka.messages.alter_configs import AlterConfigsRequest
from tailrace.kafka.messages.alter_configs import AlterConfigsResource as ReplacedResource
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
from tailrace.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.handlers.test_delegation_tokens import allowed, ask, create
from tests.support.agents import AgentBench, agent_bench

ADMIN = (
    allowed(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster", "alice"),
    allowed(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "kafka-cluster", "alice"),
)
CONFIGS = (
    *ADMIN,
    allowed(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "*", "alice"),
    allowed(Operation.ALTER_CONFIGS, ResourceType.GROUP, "readers", "alice"),
)
DELETIONS = (
    allowed(Operation.DELETE, ResourceType.TOPIC, "orders", "alice"),
    allowed(Operation.DELETE, ResourceType.TOPIC, "returns", "alice"),
    allowed(Operation.DELETE, ResourceType.GROUP, "readers", "alice"),
)
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SALT, SALTED = b"a salt of 16 byt", b"the salted password, of 32 bytes"


async def lines_of(bench: AgentBench, *requests: Any, acls: tuple[Acl, ...] = ADMIN) -> list[dict[str, Any]]:
    with capture_logs() as lines:
        for request in requests:
            await ask(bench, request, acls=acls)
    told = [dict(line) for line in lines if line["event"] in ("changed", "not changed")]
    for line in told:
        assert (line["principal"], line["peer"]) == ("User:alice", "client-host")
        assert line["broker_id"] == bench.services.identity.broker_id
    return told


def changes(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["change"], line["result"]) for line in lines]


async def test_changes_of_users_are_logged_without_their_keys() -> None:
    async with agent_bench() as bench:
        upsertion = ScramCredentialUpsertion(
            name="bob", mechanism=1, iterations=8192, salt=SALT, salted_password=SALTED
        )
        lines = await lines_of(
            bench,
            AlterUserScramCredentialsRequest(upsertions=[upsertion]),
            AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion("bob", 1)]),
            AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion("bob", 1)]),
        )
        assert changes(lines) == [
            ("set SCRAM-SHA-256 of user bob, 8192 iterations", "NONE"),
            ("delete SCRAM-SHA-256 of user bob", "NONE"),
            ("delete SCRAM-SHA-256 of user bob", "RESOURCE_NOT_FOUND"),
        ]
        assert [line["event"] for line in lines] == ["changed", "changed", "not changed"]
        assert "salt" not in str(lines), "neither the salt nor the salted password"


async def test_changes_of_acls_are_reported() -> None:
    async with agent_bench() as bench:
        pattern = (ResourceType.TOPIC, "orders", PatternType.LITERAL)
        who = ("User:bob", "*", Operation.READ, Permission.ALLOW)
        lines = await lines_of(
            bench,
            CreateAclsRequest([AclCreation(*pattern, *who)]),
            DeleteAclsRequest([DeleteAclsFilter(*pattern, *who)]),
        )
        acl = "ALLOW READ on TOPIC LITERAL orders for User:bob from *"
        assert changes(lines) == [(f"add {acl}", "NONE"), (f"remove {acl}", "NONE")]


async def test_changes_of_quotas_are_logged_and_queries_are_not() -> None:
    async with agent_bench() as bench:

        def setting(key: str) -> list[EntryData]:
            return [EntryData([EntityData("user", "bob")], [OpData(key, 1024.0, False)])]

        lines = await lines_of(
            bench,
            AlterClientQuotasRequest(setting("producer_byte_rate"), validate_only=True),
            AlterClientQuotasRequest(setting("producer_byte_rate")),
            AlterClientQuotasRequest(setting("no_such_rate")),
        )
        assert changes(lines) == [
            ("set producer_byte_rate=1024 of user bob", "NONE"),
            ("set no_such_rate=1024 of user bob", "INVALID_REQUEST"),
        ]


def altering(kind: int, name: str, *configs: tuple[str, int, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        kind, name, [AlterableConfig(config, operation, value) for config, operation, value in configs]
    )


async def test_changes_of_configs_are_logged_and_queries_are_not() -> None:
    async with agent_bench() as bench:
        for topic in ("orders", "returns"):
            await bench.topic(topic)
        short = altering(TOPIC, "orders", ("retention.ms", SET, "1000"), ("max.message.bytes", DELETE, None))
        lines = await lines_of(
            bench,
            IncrementalAlterConfigsRequest([short], validate_only=True),
            IncrementalAlterConfigsRequest(
                [
                    short,
                    altering(TOPIC, "returns", ("cleanup.policy", APPEND, "compact")),
                    altering(GROUP, "readers", ("consumer.session.timeout.ms", SET, "50000")),
                    altering(BROKER, "", ("log.retention.ms", SET, "-7")),
                    altering(99, "moon", ("phase", 7, "full")),
                ]
            ),
            IncrementalAlterConfigsRequest(
                [altering(TOPIC, "returns", ("cleanup.policy", SUBTRACT, "compact"))]
            ),
            AlterConfigsRequest([ReplacedResource(TOPIC, "orders", [ReplacedConfig("retention.ms", "5")])]),
            acls=CONFIGS,
        )
        assert changes(lines) == [
            ("set retention.ms=1000 of topic orders", "NONE"),
            ("remove max.message.bytes of topic orders", "NONE"),
            ("append compact to cleanup.policy of topic returns", "NONE"),
            ("set consumer.session.timeout.ms=50000 of group readers", "NONE"),
            ("set log.retention.ms=-7 of all brokers", "INVALID_CONFIG"),
            ("operation 7 on phase of resource type 99 moon", "INVALID_REQUEST"),
            ("subtract compact from cleanup.policy of topic returns", "NONE"),
            ("remove all configs of topic orders", "NONE"),
            ("set retention.ms=5 of topic orders", "NONE"),
        ]


async def test_changes_of_secret_configs_are_logged_without_their_values() -> None:
    async with agent_bench() as bench:
        configs = ("ssl.keystore.password", "listener.name.tls.ssl.keystore.password")
        lines = await lines_of(
            bench,
            *(
                IncrementalAlterConfigsRequest([altering(BROKER, "", (config, SET, "open sesame"))])
                for config in configs
            ),
        )
        assert [line["change"] for line in lines] == [
            f"set {config}=(hidden) of all brokers" for config in configs
        ]
        assert "sesame" not in str(lines)


async def test_deleted_topics_and_groups_are_reported() -> None:
    async with agent_bench() as bench:
        orders = (await bench.topic("orders")).topic_id
        returns = (await bench.topic("returns")).topic_id
        by_name, by_id = DeleteTopicState("orders"), DeleteTopicState(None, returns)
        lines = await lines_of(
            bench,
            DeleteTopicsRequest([by_name, by_id]),
            DeleteTopicsRequest([by_name]),
            DeleteGroupsRequest(["readers"]),
            acls=DELETIONS,
        )
        assert changes(lines) == [
            (f"delete topic orders, id {orders}", "NONE"),
            (f"delete topic returns, id {returns}", "NONE"),
            ("delete topic orders", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("delete group readers", "GROUP_ID_NOT_FOUND"),
        ]


async def test_changes_of_tokens_are_logged_without_their_secret() -> None:
    async with agent_bench() as bench:
        with capture_logs() as lines:
            token = await ask(bench, create())
            await ask(bench, ExpireDelegationTokenRequest(token.hmac, -1))
        created, ended = [line for line in lines if line["event"] == "changed"]
        assert created["change"].startswith(f"create token {token.token_id} (")
        assert "of User:alice" in created["change"]
        fingerprint = created["change"].split("(")[1].split(")")[0]
        assert len(fingerprint) == 16 and fingerprint in ended["change"]
        assert bytes(token.hmac).hex() not in str(lines) and str(bytes(token.hmac)) not in str(lines)


async def test_all_changes_of_a_request_are_logged_also_if_the_client_leaves_meanwhile() -> None:
    names = [f"user-{number}" for number in range(3 * LINES_IN_A_TURN)]
    pattern = (ResourceType.TOPIC, "orders", PatternType.LITERAL)
    request = CreateAclsRequest(
        [AclCreation(*pattern, f"User:{name}", "*", Operation.READ, Permission.ALLOW) for name in names]
    )

    async with agent_bench() as bench:
        with capture_logs() as lines:
            asked = asyncio.ensure_future(ask(bench, request, acls=ADMIN))
            while not lines:
                await asyncio.sleep(0)
            assert len(lines) < len(names), "others have had their turn"
            await cancel_and_wait(asked)
        assert [line["change"].split(" for User:")[1].split()[0] for line in lines] == names
