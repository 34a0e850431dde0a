"""Configs of topics, brokers, groups and clients' metrics: described, set, changed one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.kafka.messages.incremental_alter_configs import AlterableConfig as Changed
from tailrace.kafka.messages.incremental_alter_configs import AlterConfigsResource as ChangedResource
from tailrace.kafka.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tailrace.kafka.messages.list_config_resources import ListConfigResourcesRequest
from tailrace.kafka.messages.metadata import MetadataRequest
from tests.compat.differential.known import Known, says_nothing, says_why
from tests.compat.differential.steps import Ask, Script, Scripts, topic

UNKNOWN, TOPIC, BROKER, LOGGER, METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def described(
    what: str,
    kind: int,
    name: str,
    keys: Sequence[str] | None = None,
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = False,
    times: int = 1,
    until: Callable[[Any], bool] | None = None,
) -> Ask:
    """DescribeConfigs of one resource."""
    rows = [DescribeConfigsResource(kind, name, None if keys is None else list(keys))] * times
    return Ask(
        what,
        ApiKey.DESCRIBE_CONFIGS,
        version,
        DescribeConfigsRequest(rows, synonyms, documentation),
        unordered=("configs", "results"),
        ignored=("documentation",),
        until=until,
    )


def changed(
    what: str,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
    times: int = 1,
) -> Ask:
    """IncrementalAlterConfigs of one resource."""
    rows = [ChangedResource(kind, name, [Changed(*change) for change in changes])] * times
    return Ask(
        what,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        IncrementalAlterConfigsRequest(rows, validate_only),
        unordered=("responses",),
    )


def replaced(
    what: str,
    kind: int,
    name: str,
    *values: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> Ask:
    """AlterConfigs of one resource."""
    rows = [AlterConfigsResource(kind, name, [AlterableConfig(*value) for value in values])]
    return Ask(
        what,
        ApiKey.ALTER_CONFIGS,
        version,
        AlterConfigsRequest(rows, validate_only),
        unordered=("responses",),
    )


def has_value(step: Ask, value: str) -> Ask:
    """The step, repeated until its first config has the value: Kafka's brokers learn of it after it was set."""
    return replace(step, until=lambda answer: any(row.value == value for row in answer.results[0].configs))


def describe() -> Script:
    """DescribeConfigs of each type and version."""
    yield from topic("conf", retention_ms="5000", cleanup_policy="compact")
    for version in range(1, 5):
        yield described("a topic", TOPIC, "conf", version=version)
    yield described("a topic without synonyms", TOPIC, "conf", synonyms=False)
    yield described("two keys", TOPIC, "conf", ["retention.ms", "cleanup.policy"])
    yield described("an unknown key", TOPIC, "conf", ["no.such.key"])
    yield described("no keys", TOPIC, "conf", [])
    yield described("a key twice", TOPIC, "conf", ["retention.ms", "retention.ms"])
    yield described("twice", TOPIC, "conf", ["retention.ms"], times=2)
    yield described("unknown topic", TOPIC, "conf-not")
    yield described("bad topic", TOPIC, "a/b")
    yield described("empty topic", TOPIC, "")
    yield described("unknown type", 3, "conf")
    yield described("type 0", UNKNOWN, "conf")
    yield described("all brokers", BROKER, "")
    yield described("unknown broker", BROKER, "987654")
    yield described("no number", BROKER, "one")
    yield described("loggers of an unknown broker", LOGGER, "987654")
    yield described("loggers without a broker", LOGGER, "")
    yield described("a group", GROUP, "conf-group")
    yield described("no group", GROUP, "")
    yield described("no keys of a group", GROUP, "conf-group", [])
    yield described("metrics", METRICS, "conf-metrics")
    yield described("one key of metrics", METRICS, "conf-metrics", ["interval.ms"])
    yield described("no metrics", METRICS, "")
    yield Ask("nothing", ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([]))
    seen = yield Ask("brokers", ApiKey.METADATA, 12, MetadataRequest([]))
    node = str(seen.brokers[0].node_id)
    keys = [
        "log.retention.ms",
        "log.retention.hours",
        "message.max.bytes",
        "compression.type",
        "num.partitions",
        "auto.create.topics.enable",
        "log.cleanup.policy",
        "ssl.key.password",
        "log.segment.bytes",
        "delete.topic.enable",
        "max.connections",
        "group.initial.rebalance.delay.ms",
        "log.message.timestamp.type",
        "default.replication.factor",
        "transaction.max.timeout.ms",
        "offsets.retention.minutes",
        "broker.rack",
    ]
    yield described("this broker", BROKER, node, keys)
    yield described("loggers of what is no number", LOGGER, "one")


def incremental() -> Script:
    """Each operation, on values and lists; what is refused."""
    yield from topic("inc", retention_ms="5000")
    for version in (0, 1):
        yield changed("set", TOPIC, "inc", ("retention.ms", SET, "6000"), version=version)
        yield changed("delete", TOPIC, "inc", ("retention.ms", DELETE, None), version=version)
    yield changed("delete what isn't set", TOPIC, "inc", ("segment.ms", DELETE, None))
    yield changed("delete with a value", TOPIC, "inc", ("retention.ms", DELETE, "5"))
    yield changed("append", TOPIC, "inc", ("cleanup.policy", APPEND, "compact"))
    yield changed("append again", TOPIC, "inc", ("cleanup.policy", APPEND, "compact"))
    yield has_value(described("appended", TOPIC, "inc", ["cleanup.policy"]), "delete,compact")
    yield changed("subtract", TOPIC, "inc", ("cleanup.policy", SUBTRACT, "delete"))
    yield has_value(described("subtracted", TOPIC, "inc", ["cleanup.policy"]), "compact")
    yield changed("subtract what isn't there", TOPIC, "inc", ("cleanup.policy", SUBTRACT, "delete"))
    yield changed("append to a number", TOPIC, "inc", ("retention.ms", APPEND, "5"))
    yield changed("subtract from a number", TOPIC, "inc", ("retention.ms", SUBTRACT, "5"))
    yield changed("append nothing", TOPIC, "inc", ("cleanup.policy", APPEND, None))
    yield changed("append a bad word", TOPIC, "inc", ("cleanup.policy", APPEND, "keep"))
    yield changed("set null", TOPIC, "inc", ("retention.ms", SET, None))
    yield changed("set empty", TOPIC, "inc", ("retention.ms", SET, ""))
    yield changed("unknown operation", TOPIC, "inc", ("retention.ms", 7, "5"))
    yield changed("unknown key", TOPIC, "inc", ("no.such.key", SET, "5"))
    yield changed("delete an unknown key", TOPIC, "inc", ("no.such.key", DELETE, None))
    yield changed("delete an empty key", TOPIC, "inc", ("", DELETE, None))
    yield changed("empty key", TOPIC, "inc", ("", SET, "5"))
    yield changed("bad number", TOPIC, "inc", ("retention.ms", SET, "soon"))
    yield changed("good and bad", TOPIC, "inc", ("retention.ms", SET, "7000"), ("segment.ms", SET, "soon"))
    yield described("neither", TOPIC, "inc", ["retention.ms"])
    yield changed("a key twice", TOPIC, "inc", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    yield changed("a topic twice", TOPIC, "inc", ("retention.ms", SET, "1"), times=2)
    yield changed("back", TOPIC, "inc", ("retention.ms", DELETE, None))
    yield changed("validate only", TOPIC, "inc", ("retention.ms", SET, "8000"), validate_only=True)
    yield described("only validated", TOPIC, "inc", ["retention.ms"])
    yield changed("no changes", TOPIC, "inc")
    yield changed("unknown topic", TOPIC, "inc-not", ("retention.ms", SET, "1"))
    yield changed("null of an unknown topic", TOPIC, "inc-not", ("retention.ms", SET, None))
    yield changed("unknown topic twice", TOPIC, "inc-not", ("retention.ms", SET, "1"), times=2)
    yield changed("bad topic", TOPIC, "a/b", ("retention.ms", SET, "1"))
    yield changed("empty topic", TOPIC, "", ("retention.ms", SET, "1"))
    yield changed("unknown type", 3, "inc", ("retention.ms", SET, "1"))
    yield changed("type 0", UNKNOWN, "inc", ("retention.ms", SET, "1"))
    yield changed("unknown type twice", 3, "inc", ("retention.ms", SET, "1"), times=2)
    yield Ask("nothing", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([]))


def compaction_lags() -> Script:
    """min.compaction.lag.ms is at most max.compaction.lag.ms, wherever they come from."""
    low, high = "min.compaction.lag.ms", "max.compaction.lag.ms"
    default_low, default_high = f"log.cleaner.{low}", f"log.cleaner.{high}"
    yield from topic("lags")
    yield changed("low above high", TOPIC, "lags", (low, SET, "10"), (high, SET, "5"))
    yield changed("the same", TOPIC, "lags", (low, SET, "5"), (high, SET, "5"))
    yield changed("low rises", TOPIC, "lags", (low, SET, "6"))
    yield changed("low rises, to be tried", TOPIC, "lags", (low, SET, "6"), validate_only=True)
    yield changed("high falls", TOPIC, "lags", (high, SET, "4"))
    yield changed("high is the default", TOPIC, "lags", (low, SET, "6"), (high, DELETE, None))
    yield replaced("low above high, all at once", TOPIC, "lags", (low, "10"), (high, "5"))
    yield changed("defaults", BROKER, "", (default_low, SET, "500"), (default_high, SET, "400"))
    yield changed("low is a default", TOPIC, "lags", (low, DELETE, None), (high, SET, "600"))
    yield has_value(described("the default", TOPIC, "lags", [low]), "500")
    yield changed("high below a default", TOPIC, "lags", (high, SET, "300"))
    yield changed("defaults, back", BROKER, "", (default_low, DELETE, None), (default_high, DELETE, None))


def of_brokers() -> Script:
    """The cluster's defaults and those of one broker; what can't be changed."""
    seen = yield Ask("brokers", ApiKey.METADATA, 12, MetadataRequest([]))
    node = str(seen.brokers[0].node_id)
    yield from topic("of-brokers")
    yield changed("default", BROKER, "", ("log.retention.ms", SET, "777000"))
    yield has_value(described("a topic has it", TOPIC, "of-brokers", ["retention.ms"]), "777000")
    yield has_value(described("the default", BROKER, "", ["log.retention.ms"]), "777000")
    yield changed("one broker", BROKER, node, ("log.retention.ms", SET, "888000"))
    yield has_value(described("the broker", BROKER, node, ["log.retention.ms"]), "888000")
    yield changed("one broker twice", BROKER, node, ("log.retention.ms", SET, "5"), times=2)
    yield changed("all brokers twice", BROKER, "", ("log.retention.ms", SET, "5"), times=2)
    yield changed("null", BROKER, "", ("log.retention.ms", SET, None))
    yield changed("delete what is read only", BROKER, node, ("broker.rack", DELETE, None))
    yield changed("delete what is for one broker only", BROKER, "", ("listeners", DELETE, None))
    yield changed("one broker, back", BROKER, node, ("log.retention.ms", DELETE, None))
    yield changed("default, back", BROKER, "", ("log.retention.ms", DELETE, None))
    yield changed("read only", BROKER, "", ("broker.rack", SET, "x"))
    yield changed("read only of one", BROKER, node, ("num.partitions", SET, "5"))
    yield changed("for one broker only", BROKER, "", ("listeners", SET, "PLAINTEXT://:9"))
    yield changed("unknown key", BROKER, "", ("no.such.key", SET, "x"))
    yield changed("unknown key, back", BROKER, "", ("no.such.key", DELETE, None))
    yield changed("bad value", BROKER, "", ("log.retention.ms", SET, "soon"))
    yield changed("append", BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
    yield changed("append, back", BROKER, "", ("log.cleanup.policy", DELETE, None))
    yield changed("unknown broker", BROKER, "987654", ("log.retention.ms", SET, "1"))
    yield changed("no number", BROKER, "one", ("log.retention.ms", SET, "1"))
    yield changed("loggers", LOGGER, node, ("kafka.server", SET, "NONSENSE"))
    yield changed("loggers of nobody", LOGGER, "", ("root", SET, "INFO"))


def of_groups_and_metrics() -> Script:
    """Configs of groups and of clients' metrics."""

    def is_pushed_often(answer: Any) -> bool:
        return any((row.name, row.value) == ("interval.ms", "10000") for row in answer.results[0].configs)

    yield changed("a group", GROUP, "g1", ("consumer.session.timeout.ms", SET, "50000"))
    yield described("the group", GROUP, "g1")
    yield changed("a group, too short", GROUP, "g1", ("consumer.session.timeout.ms", SET, "5"))
    yield changed("a group, unknown key", GROUP, "g1", ("no.such.key", SET, "5"))
    yield changed("a group, delete an unknown key", GROUP, "g1", ("no.such.key", DELETE, None))
    yield changed("a group twice", GROUP, "g1", ("consumer.session.timeout.ms", SET, "50000"), times=2)
    yield changed("a group, null", GROUP, "g1", ("consumer.session.timeout.ms", SET, None))
    yield changed("a group without a name", GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))
    yield changed("a group, back", GROUP, "g1", ("consumer.session.timeout.ms", DELETE, None))
    yield changed(
        "metrics", METRICS, "m1", ("interval.ms", SET, "10000"), ("metrics", SET, "org.apache.kafka.")
    )
    yield described("the metrics", METRICS, "m1", until=is_pushed_often)
    yield changed("metrics, too often", METRICS, "m1", ("interval.ms", SET, "5"))
    yield changed("metrics, unknown key", METRICS, "m1", ("no.such.key", SET, "5"))
    yield changed("metrics, delete an unknown key", METRICS, "m1", ("no.such.key", DELETE, None))
    yield changed("metrics twice", METRICS, "m1", ("interval.ms", SET, "10000"), times=2)
    yield changed("metrics, null", METRICS, "m1", ("interval.ms", SET, None))
    yield changed("metrics, bad match", METRICS, "m1", ("match", SET, "nonsense"))
    yield changed("metrics without a name", METRICS, "", ("interval.ms", SET, "10000"))
    for version in (0, 1):
        yield Ask(
            "listed",
            ApiKey.LIST_CONFIG_RESOURCES,
            version,
            ListConfigResourcesRequest([METRICS] if version else []),
        )
    yield Ask("listed groups", ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([GROUP]))
    yield Ask("listed, bad type", ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([77]))
    yield changed("metrics, back", METRICS, "m1", ("interval.ms", DELETE, None), ("metrics", DELETE, None))


def all_at_once() -> Script:
    """AlterConfigs, which sets all at once."""
    yield from topic("alter", retention_ms="5000")
    for version in range(3):
        yield replaced("set", TOPIC, "alter", ("segment.ms", "6000"), version=version)
    yield described("the other is gone", TOPIC, "alter", ["retention.ms", "segment.ms"])
    yield replaced("validate only", TOPIC, "alter", ("segment.ms", "7000"), validate_only=True)
    yield replaced("bad", TOPIC, "alter", ("segment.ms", "soon"))
    yield replaced("unknown key", TOPIC, "alter", ("no.such.key", "1"))
    yield replaced("null", TOPIC, "alter", ("segment.ms", None))
    yield replaced("a key twice", TOPIC, "alter", ("segment.ms", "1"), ("segment.ms", "2"))
    yield replaced("unknown topic", TOPIC, "alter-not", ("segment.ms", "1"))
    yield replaced("empty topic", TOPIC, "", ("segment.ms", "1"))
    yield replaced("nothing", TOPIC, "alter")
    yield replaced("unknown type", 3, "alter")
    yield replaced("loggers", LOGGER, "1", ("root", "INFO"))
    yield replaced("unknown broker", BROKER, "987654", ("log.retention.ms", "1"))
    yield replaced("no number", BROKER, "one", ("log.retention.ms", "1"))


KNOWN = (
    says_nothing("configs.*"),
    says_why("configs.describe", "unknown topic*"),
    Known("configs.*", "*", "*.configs.tailrace.*", "Tailrace's own configs"),
    Known(
        "configs.*", "*", "*.configs.errors.deadletterqueue.*", "configs of KIP-1191, newer than Kafka 4.3"
    ),
    Known("configs.*", "*", "*.configs.streams.*", "there are no streams groups"),
    Known("configs.*", "*", "*min.insync.replicas*", "new clusters of Kafka set it for all topics"),
    Known("configs.*", "*", "*.synonyms*", "defaults have one name, that of the config in milliseconds"),
    Known("configs.describe", "twice v4", "*#2", "each resource is answered once"),
    Known(
        "configs.describe", "this broker v4", "*.config_source", "an agent's settings are its static configs"
    ),
    Known(
        "configs.describe",
        "this broker v4",
        "*log.retention.ms.value",
        "in force, whatever unit it was set in",
    ),
    Known(
        "configs.incremental",
        "unknown operation *",
        "*.error_code",
        "Kafka fails; Tailrace has an error for it",
    ),
    Known("configs.of_brokers", "unknown key v1", "*.error_code", "an unknown config is refused"),
    Known("configs.of_brokers", "bad value v1", "*.error_code", "a bad value is an invalid config"),
    Known("configs.of_brokers", "loggers v1", "*.error_code", "an agent has no loggers to set"),
    Known("configs.of_groups_and_metrics", "metrics, *", "*.error_code", "a bad value is an invalid config"),
)

SCRIPTS = Scripts(
    {
        "describe": describe,
        "incremental": incremental,
        "compaction_lags": compaction_lags,
        "of_brokers": of_brokers,
        "of_groups_and_metrics": of_groups_and_metrics,
        "all_at_once": all_at_once,
    },
    tailrace={
        "TAILRACE_AGENT__GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "5000",
        "TAILRACE_AGENT__GROUP_SHARE_AUTO_OFFSET_RESET": "latest",
    },
    known=KNOWN,
)
