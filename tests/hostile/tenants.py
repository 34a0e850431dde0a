"""Clients of one tenant, while the bystanders belong to another: cases for `make hostile CASES=tenants`, in addition to
those in cases.

They have the other tenant's names and ids: of its topics, its group and its members. The broker would carry out all
their requests if these names were theirs. No answer may reveal whose names they are (`Stage.secrets`).
"""

from __future__ import annotations

import random

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.kafka.messages.metadata import MetadataRequest
from tests.hostile.cases import Case, Connection, Stage, ends_of_int64, values_of
from tests.hostile.known import QUIET_GROUP, QUIET_TOPIC, Known, parts_of
from tests.hostile.storms import group_storm, metadata_storm

TENANT, NEIGHBOUR = "hostile", "neighbour"
"""The hostile clients' tenant, and the bystanders'."""
TOPIC, GROUP, CLUSTER, BROKER = 2, 3, 4, 4
ALL_OPERATIONS, DENY = 2, 2


async def neighbours_known(stage: Stage) -> Known:
    """Return the bystanders' topic ids, group and members, which an operator looks up, together with the tenant's own
    names."""
    known = Known(changes_defaults=True)
    known.topics.append(QUIET_TOPIC)
    known.groups.append(QUIET_GROUP)
    operator = Connection(stage, "operator", stage.operator_port)
    topic, group = f"{NEIGHBOUR}~{QUIET_TOPIC}", f"{NEIGHBOUR}~{QUIET_GROUP}"
    while not (stage.is_over.is_set() or (known.foreign_topic_ids and known.members)):
        topics = parts_of(await operator.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)))
        known.foreign_topic_ids = tuple(
            each.topic_id for each in topics if getattr(each, "name", "") == topic
        )
        known.learn(await operator.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group])))
    operator.close()
    return known


async def neighbours_names(stage: Stage, rng: random.Random) -> None:
    """Every API and version with extreme values, and with the names and ids of what the bystanders have."""
    known = await neighbours_known(stage)
    known.own_member = f"hostile-{rng.random()}"
    await values_of(stage, rng, known)


async def what_is_everybodys(stage: Stage, rng: random.Random) -> None:
    """Deletions of what the bystanders have, and changes of what applies to everybody: defaults, denials, brokers'
    configs."""
    connection, known = Connection(stage, "hostile"), await neighbours_known(stage)
    while not stage.is_over.is_set():
        api, version, request = rng.choice(_changes_for_all(known))
        await connection.ask(api, version, request)
    connection.close()


def _changes_for_all(known: Known) -> list[tuple[ApiKey, int, object]]:
    everyone = [AclCreation(kind, name, 3, "User:*", "*", ALL_OPERATIONS, DENY)
                for kind, name in ((TOPIC, "*"), (GROUP, "*"), (CLUSTER, "kafka-cluster"))]  # fmt: skip
    ids = [DeleteTopicState(None, topic_id) for topic_id in known.foreign_topic_ids]
    leaving = [MemberIdentity(member) for member in known.members]
    retention = [AlterableConfig("retention.ms", 0, "1"), AlterableConfig("max.message.bytes", 0, "1")]
    return [
        (ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState(QUIET_TOPIC), *ids], timeout_ms=1_000)),
        (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([QUIET_GROUP])),
        (ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(QUIET_GROUP, members=leaving)),
        (ApiKey.CREATE_ACLS, 3, CreateAclsRequest(everyone)),
        *((ApiKey.ALTER_CLIENT_QUOTAS, 1, _default_quota(kind, is_over))
          for kind in ("user", "client-id", "ip") for is_over in (True, False)),
        *((ApiKey.INCREMENTAL_ALTER_CONFIGS, 1,
           IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, retention)]))
          for kind, name in ((BROKER, ""), (BROKER, "1"), (TOPIC, QUIET_TOPIC))),
    ]  # fmt: skip


def _default_quota(kind: str, is_over: bool) -> AlterClientQuotasRequest:
    """Set a default quota of one byte a second for everybody, or remove it."""
    key = "connection_creation_rate" if kind == "ip" else "producer_byte_rate"
    return AlterClientQuotasRequest([EntryData([EntityData(kind, None)], [OpData(key, 1.0, is_over)])])


TENANTS = (
    Case(
        "neighbours' names", "every API and version, with what belongs to another tenant", 3, neighbours_names
    ),
    Case("what is everybody's", "deletions, denials and defaults that hold for all", 1, what_is_everybodys),
    Case("ends of int64", "sound but for one field of 64 bits, at an end of its type", 1, ends_of_int64),
    Case("metadata storm", "metadata of everything, and of topics that there are not", 1, metadata_storm),
    Case("group storm", "a group whose members come and go", 1, group_storm),
)
