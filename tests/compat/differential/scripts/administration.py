"""What tools ask of a cluster: its nodes, partitions, logs, leaders, reassignments, features, quotas and users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tailrace.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tailrace.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest
from tailrace.kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tailrace.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tailrace.kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tailrace.kafka.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from tailrace.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.compat.differential.known import Known, says_nothing
from tests.compat.differential.steps import Ask, Script, Scripts, topic

SHA_256, SHA_512 = 1, 2


def versions() -> Script:
    """ApiVersions of every version, and of versions that are not known."""
    for version in range(5):
        yield Ask(
            "asked",
            ApiKey.API_VERSIONS,
            version,
            ApiVersionsRequest("diff", "1.0"),
            unordered=("api_keys", "supported_features", "finalized_features"),
        )
    for version in (5, 99):
        yield Ask("unknown version", ApiKey.API_VERSIONS, version, b"\x00\x02x\x021\x00", answer_version=0)
    for name, software in (("no name", ("", "1")), ("bad name", ("a b", "1")), ("bad version", ("a", "-"))):
        yield Ask(
            name,
            ApiKey.API_VERSIONS,
            3,
            ApiVersionsRequest(*software),
            ignored=("api_keys", "supported_features", "finalized_features"),
        )
    yield Ask("a version that is too new", ApiKey.METADATA, 99, b"\x00" * 20)
    yield Ask("a version that is too old", ApiKey.FETCH, 1, b"\x00" * 20)
    yield Ask("negative version", ApiKey.METADATA, -1, b"\x00" * 20)


def cluster() -> Script:
    """DescribeCluster and DescribeTopicPartitions."""
    for version in range(3):
        for operations in (False, True):
            request = DescribeClusterRequest(operations)
            yield Ask(f"cluster, operations {operations}", ApiKey.DESCRIBE_CLUSTER, version, request)
        if version:
            yield Ask(
                "controllers", ApiKey.DESCRIBE_CLUSTER, version, DescribeClusterRequest(endpoint_type=2)
            )
            yield Ask(
                "unknown endpoints", ApiKey.DESCRIBE_CLUSTER, version, DescribeClusterRequest(endpoint_type=9)
            )
    yield Ask(
        "with fenced ones", ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(include_fenced_brokers=True)
    )
    yield from topic("parts", 3)
    yield from topic("parts-b", 2)

    def asked(what: str, names: Sequence[str], limit: int = 2000, cursor: Cursor | None = None) -> Ask:
        request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
        return Ask(what, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)

    yield asked("two", ["parts-b", "parts"])
    yield asked("unknown", ["parts-not", "parts"])
    yield asked("bad name", ["a/b"])
    yield asked("twice", ["parts", "parts"])
    yield asked("in pages", ["parts", "parts-b"], 2)
    yield asked("next page", ["parts", "parts-b"], 2, Cursor("parts", 2))
    yield asked("last page", ["parts", "parts-b"], 2, Cursor("parts-b", 1))
    yield asked("cursor beyond it", ["parts"], 2, Cursor("parts", 7))
    yield asked("cursor of another", ["parts"], 2, Cursor("parts-b", 0))
    yield asked("negative cursor", ["parts"], 2, Cursor("parts", -1))
    yield asked("full before an unknown one", ["parts", "parts-a", "parts-b"], 3)
    yield asked("from an unknown one on", ["parts", "parts-a", "parts-b"], 3, Cursor("parts-a", 0))
    yield asked("limit 0", ["parts"], 0)
    yield asked("limit -1", ["parts"], -1)


def log_dirs() -> Script:
    """DescribeLogDirs and AlterReplicaLogDirs."""
    yield from topic("dirs", 2)
    for version in range(1, 6):
        for what, rows in (
            ("one partition", [DescribableLogDirTopic("dirs", [0])]),
            ("unknown", [DescribableLogDirTopic("dirs", [9]), DescribableLogDirTopic("dirs-not", [0])]),
            ("none", []),
        ):
            yield Ask(
                what,
                ApiKey.DESCRIBE_LOG_DIRS,
                version,
                DescribeLogDirsRequest(rows),
                unordered=("topics", "partitions"),
            )
    for version in (1, 2):
        for path, name in (
            ("/nowhere", "dirs"),
            ("relative", "dirs"),
            ("/nowhere", "dirs-not"),
            ("", "dirs"),
        ):
            rows = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, [0])])]
            yield Ask(
                f"move {name} to {path!r}",
                ApiKey.ALTER_REPLICA_LOG_DIRS,
                version,
                AlterReplicaLogDirsRequest(rows),
            )


def leaders() -> Script:
    """ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments."""
    yield from topic("led", 2)
    seen = yield Ask("brokers", ApiKey.METADATA, 12, MetadataRequest([]))
    node = seen.brokers[0].node_id
    for version in range(3):
        for kind in (0, 1) if version else (0,):
            for name, index in (("led", 0), ("led", 9), ("led-not", 0)):
                rows = [ElectLeadersTopicPartitions(name, [index])]
                yield Ask(
                    f"elect {kind} {name} {index}",
                    ApiKey.ELECT_LEADERS,
                    version,
                    ElectLeadersRequest(kind, rows),
                )
    yield Ask(
        "unknown kind of election",
        ApiKey.ELECT_LEADERS,
        2,
        ElectLeadersRequest(7, [ElectLeadersTopicPartitions("led", [0])]),
    )
    yield Ask("elect none", ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(0, []))

    def moved(
        what: str, name: str, index: int, replicas: list[int] | None, version: int = 1, **more: Any
    ) -> Ask:
        rows = [ReassignableTopic(name, [ReassignablePartition(index, replicas)])]
        request = AlterPartitionReassignmentsRequest(30_000, topics=rows, **more)
        return Ask(what, ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, request)

    for version in (0, 1):
        yield moved("to where it is", "led", 0, [node], version)
        yield moved("cancel nothing", "led", 0, None, version)
        yield moved("to a stranger", "led", 0, [987], version)
        yield moved("nowhere", "led", 0, [], version)
        yield moved("twice to one", "led", 0, [node, node], version)
        yield moved("unknown partition", "led", 9, [node], version)
        yield moved("unknown topic", "led-not", 0, [node], version)
        yield moved("negative broker", "led", 0, [-1], version)
    yield Ask("reassignments", ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest())
    for name, index in (("led", 0), ("led", 9), ("led-not", 0)):
        rows = [ListPartitionReassignmentsTopics(name, [index])]
        yield Ask(
            f"reassignments {name} {index}",
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            ListPartitionReassignmentsRequest(topics=rows),
        )


def features() -> Script:
    """UpdateFeatures: levels that are, are not, and can't be."""

    def updated(what: str, name: str, level: int, version: int = 2, kind: int = 1, dry: bool = True) -> Ask:
        rows = [FeatureUpdateKey(name, level, version == 0 and kind > 1, kind if version else 1)]
        return Ask(
            what, ApiKey.UPDATE_FEATURES, version, UpdateFeaturesRequest(30_000, rows, dry and version > 0)
        )

    for version in (0, 1, 2):
        yield updated("unknown", "no.such.feature", 1, version)
        yield updated("as it is", "group.version", 1, version)
        yield updated("too high", "group.version", 99, version)
        yield updated("empty name", "", 1, version)
    yield updated("negative", "group.version", -1)
    yield updated("unknown kind", "group.version", 1, kind=7)
    yield updated("a downgrade that says upgrade", "transaction.version", 1)
    yield Ask("none", ApiKey.UPDATE_FEATURES, 2, UpdateFeaturesRequest(30_000, [], True))


def has_entries(count: int) -> Callable[[Any], bool]:
    """Whether so many quotas are described: Kafka's brokers learn of them after they were set."""
    return lambda answer: len(answer.entries or ()) == count


def quotas() -> Script:
    """Quotas of users, clients and addresses: set, described, refused."""

    def altered(
        what: str,
        entity: list[tuple[str, str | None]],
        *ops: tuple[str, float, bool],
        dry: bool = False,
        version: int = 1,
    ) -> Ask:
        row = EntryData([EntityData(*part) for part in entity], [OpData(*op) for op in ops])
        request = AlterClientQuotasRequest([row], dry)
        return Ask(what, ApiKey.ALTER_CLIENT_QUOTAS, version, request, unordered=("entity",))

    def described(
        what: str, *parts: tuple[str, int, str | None], strict: bool = False, version: int = 1
    ) -> Ask:
        request = DescribeClientQuotasRequest([ComponentData(*part) for part in parts], strict)
        return Ask(
            what, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request, unordered=("entries", "values", "entity")
        )

    rate = ("producer_byte_rate", 1000.0, False)
    for version in (0, 1):
        yield altered("a user", [("user", "qu")], rate, version=version)
        yield altered("user and client", [("user", "qu"), ("client-id", "qc")], rate, version=version)
        yield replace(described("exactly", ("user", 0, "qu"), version=version), until=has_entries(2))
        yield described("strictly", ("user", 0, "qu"), strict=True, version=version)
        yield described("any client", ("client-id", 2, None), version=version)
        yield described("default user", ("user", 1, None), version=version)
    yield altered("the default user", [("user", None)], ("consumer_byte_rate", 5.0, False))
    yield replace(described("default user that is set", ("user", 1, None)), until=has_entries(1))
    yield altered("an address", [("ip", "127.0.0.9")], ("connection_creation_rate", 5.0, False))
    yield replace(described("the address", ("ip", 0, "127.0.0.9")), until=has_entries(1))
    yield altered("a rate of an address", [("ip", "127.0.0.9")], rate)
    yield altered("no address", [("ip", "not an address")], ("connection_creation_rate", 5.0, False))
    yield altered("address and user", [("ip", "127.0.0.9"), ("user", "qu")], rate)
    yield altered("unknown key", [("user", "qu")], ("no_such_rate", 1.0, False))
    yield altered("unknown entity", [("planet", "earth")], rate)
    yield altered("no entity", [], rate)
    yield altered("empty name", [("user", "")], rate)
    yield altered("an entity twice", [("user", "qu"), ("user", "qv")], rate)
    for value in (0.0, -1.0, 0.5, float("nan"), 1e30):
        yield altered(f"rate of {value}", [("user", "qw")], ("producer_byte_rate", value, False))
        yield altered(f"percentage of {value}", [("user", "qw")], ("request_percentage", value, False))
    yield altered("validate only", [("user", "qx")], rate, dry=True)
    yield described("validated only", ("user", 0, "qx"))
    yield altered("remove what isn't there", [("user", "qx")], ("producer_byte_rate", 0.0, True))
    yield altered("remove", [("user", "qu")], ("producer_byte_rate", 0.0, True))
    yield described("unknown entity, described", ("planet", 0, "earth"))
    yield described("unknown match", ("user", 9, "qu"))
    yield described("a type twice", ("user", 0, "qu"), ("user", 1, None))
    yield described("exact without a name", ("user", 0, None))
    yield described("default with a name", ("user", 1, "qu"))
    yield described("empty type", ("", 0, "qu"))
    yield altered("remove the default", [("user", None)], ("consumer_byte_rate", 0.0, True))


def users() -> Script:
    """SCRAM credentials: made, described, deleted, refused."""

    def altered(
        what: str, gone: Sequence[tuple[str, int]] = (), made: Sequence[tuple[str, int, int]] = ()
    ) -> Ask:
        deletions = [ScramCredentialDeletion(*row) for row in gone]
        passwords = {SHA_512: b"p" * 64}
        upsertions = [
            ScramCredentialUpsertion(*row, salt=b"s" * 16, salted_password=passwords.get(row[1], b"p" * 32))
            for row in made
        ]
        request = AlterUserScramCredentialsRequest(deletions, upsertions)
        return Ask(what, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request, unordered=("results",))

    def described(what: str, *names: str) -> Ask:
        request = DescribeUserScramCredentialsRequest([UserName(name) for name in names])
        return Ask(
            what,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            0,
            request,
            unordered=("results", "credential_infos"),
        )

    yield altered("made", made=[("su", SHA_256, 4096)])
    yield altered("made with the other", made=[("su", SHA_512, 8192)])
    yield described("described", "su")
    yield described("unknown", "su-not")
    yield described("twice", "su", "su")
    yield described("empty name", "")
    yield Ask("all", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, DescribeUserScramCredentialsRequest(None))
    yield altered("too few iterations", made=[("sv", SHA_256, 4095)])
    yield altered("too many iterations", made=[("sv", SHA_256, 16385)])
    yield altered("unknown mechanism", made=[("sv", 9, 4096)])
    yield altered("mechanism 0", made=[("sv", 0, 4096)])
    yield altered("empty name, made", made=[("", SHA_256, 4096)])
    yield altered("made twice", made=[("sw", SHA_256, 4096), ("sw", SHA_256, 8192)])
    yield altered("made and deleted", [("sw", SHA_256)], [("sw", SHA_256, 4096)])
    yield altered("two mechanisms at once", made=[("sx", SHA_256, 4096), ("sx", SHA_512, 4096)])
    yield altered("good and bad", made=[("sy", SHA_256, 4096), ("sz", SHA_256, 1)])
    yield altered("delete unknown", [("su-not", SHA_256)])
    yield altered("delete unknown mechanism", [("su", 9)])
    yield altered("delete one", [("su", SHA_512)])
    yield altered("delete the last", [("su", SHA_256)])
    yield described("deleted", "su")
    yield altered("nothing")


KNOWN = (
    says_nothing("administration.quotas"),
    says_nothing("administration.users"),
    Known(
        "administration.versions",
        "asked *",
        "api_keys.55.max_version",
        "DescribeQuorum 2 has only endpoints more",
    ),
    Known(
        "administration.versions", "asked *", "api_keys.6?", "UnregisterBroker: agents come and go by leases"
    ),
    Known(
        "administration.versions",
        "asked *",
        "api_keys.8?",
        "voters of KRaft, streams groups, brokers' share state",
    ),
    Known(
        "administration.versions",
        "asked *",
        "*_features.*",
        "features of KRaft, of replicas and of streams groups",
    ),
    Known("administration.versions", "* name v3", "error_code", "what a client calls itself is not checked"),
    Known(
        "administration.versions", "bad version v3", "error_code", "what a client calls itself is not checked"
    ),
    Known("administration.cluster", "controllers *", "error_code", "agents have no listeners of controllers"),
    Known("administration.cluster", "unknown endpoints *", "endpoint_type", "the type that was asked for"),
    Known(
        "administration.cluster",
        "*unknown* v0",
        "*.topic_authorized_operations",
        "what is not there has none",
    ),
    Known(
        "administration.cluster",
        "bad name v0",
        "*.topic_authorized_operations",
        "what can't be there has none",
    ),
    Known(
        "administration.cluster",
        "cursor of another v0",
        "*",
        "it begins with the topics behind the cursor",
    ),
    Known("administration.log_dirs", "*", "*_bytes", "a bucket has no size"),
    Known("administration.quotas", "an entity twice v1", "*.error_code", "Kafka takes one of the two"),
    Known("administration.quotas", "* nan v1", "*.error_code", "not a number is no quota"),
    Known(
        "administration.users", "*", "*", "passwords are kept as SCRAM-SHA-256 alone; a row for each mention"
    ),
)


SCRIPTS = Scripts(
    {
        "versions": versions,
        "cluster": cluster,
        "log_dirs": log_dirs,
        "leaders": leaders,
        "features": features,
        "quotas": quotas,
        "users": users,
    },
    known=KNOWN,
)
