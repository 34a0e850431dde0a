"""Kafka's broker configs: the cluster's defaults for topics, and all other names that Kafka has.

An agent does not use most of them, such as threads, purgatories, log directories and quorums. Tools still request them,
so each has Kafka's name, type and default (of Kafka 4.3). A config that Kafka can change at run time is accepted: its
value is stored and reported, without effect. The others are reported and can't be altered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tailrace.configs.internal_topics import KEPT
from tailrace.configs.topic_config import TOPIC_CONFIGS, ConfigDefinition, ConfigType, InvalidConfigValue

TOPIC_DEFAULTS: Mapping[str, ConfigDefinition] = {
    definition.broker_name: definition
    for definition in TOPIC_CONFIGS.values()
    if definition.broker_name is not None
}
"""The cluster's defaults for topic configs, by Kafka's broker names. They apply to all agents, because any agent can
serve any partition. A value that is set for one agent is stored and reported, without effect."""


DEAD_LETTER_PREFIX = ConfigDefinition(
    "errors.deadletterqueue.topic.name.prefix",
    ConfigType.STRING,
    "dlq.",
    "The prefix that the name of a share group's dead-letter topic must have (KIP-1191).",
)

_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


_REASSIGNMENT_QUOTAS = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Bytes per second. kafka-reassign-partitions sets and clears them. Kafka describes them only while they are set."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """A broker config of Kafka without effect here. `default` is None if Kafka's is null."""

    name: str
    type: ConfigType
    default: str | None
    is_fixed: bool
    doc: str = "Stored and reported for tools, without effect: agents do not use it."

    def check(self, value: str) -> None:
        """Raise InvalidConfigValue unless the config can be changed and the value has its type."""
        if self.is_fixed:
            raise InvalidConfigValue(f"Cannot update these configs dynamically: [{self.name}]")
        lowest, highest = _BOUNDS.get(self.type, (None, None))
        if self.name in _REASSIGNMENT_QUOTAS:
            lowest = 0
        ConfigDefinition(self.name, self.type, "", "", lowest, highest).check(value)


def check_broker_configs(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigValue for the first unknown name or invalid value."""
    definitions = broker_configs()
    for name, value in configs.items():
        definition = definitions.get(name)
        if definition is None:
            raise InvalidConfigValue(f"Unknown broker config name: {name}")
        definition.check(value)


@cache
def broker_configs() -> Mapping[str, ConfigDefinition | KafkaConfig]:
    """Return all broker configs by name."""
    configs: dict[str, ConfigDefinition | KafkaConfig] = {
        **TOPIC_DEFAULTS,
        DEAD_LETTER_PREFIX.name: DEAD_LETTER_PREFIX,
        KEPT.name: KEPT,
    }
    for table, is_fixed in ((_DYNAMIC, False), (_FIXED, True)):
        for line in table.strip().splitlines():
            name, kind, default = line.split(" ", 2)
            value = None if default == "-" else default.replace('""', "")
            configs[name] = KafkaConfig(name, ConfigType[kind.upper()], value, is_fixed)
    for name in _REASSIGNMENT_QUOTAS:
        configs[name] = KafkaConfig(name, ConfigType.LONG, str(2**63 - 1), is_fixed=False)
    return configs


_DYNAMIC = """
background.threads int 10
config.providers list ""
cordoned.log.dirs list ""
follower.fetch.last.tiered.offset.enable boolean false
group.consumer.assignment.interval.ms int 1000
group.coordinator.cached.buffer.max.bytes int 1048588
group.share.assignment.interval.ms int 1000
group.streams.assignment.interval.ms int 1000
log.cleaner.backoff.ms long 15000
log.cleaner.dedupe.buffer.size long 134217728
log.cleaner.io.buffer.load.factor double 0.9
log.cleaner.io.buffer.size int 524288
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308
log.cleaner.threads int 1
max.connection.creation.rate int 2147483647
max.connections int 2147483647
max.connections.per.ip int 2147483647
max.connections.per.ip.overrides string ""
metric.reporters list org.apache.kafka.common.metrics.JmxReporter
num.io.threads int 8
num.network.threads int 3
num.recovery.threads.per.data.dir int 2
num.replica.fetchers int 1
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
producer.id.expiration.ms int 86400000
remote.fetch.max.wait.ms int 500
remote.list.offsets.request.timeout.ms long 30000
remote.log.index.file.cache.total.size.bytes long 1073741824
remote.log.manager.copier.thread.pool.size int 10
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807
remote.log.manager.expiration.thread.pool.size int 10
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807
remote.log.manager.follower.thread.pool.size int 2
remote.log.reader.threads int 10
sasl.enabled.mechanisms list GSSAPI
sasl.jaas.config password -
sasl.kerberos.kinit.cmd string /usr/bin/kinit
sasl.kerberos.min.time.before.relogin long 60000
sasl.kerberos.principal.to.local.rules list DEFAULT
sasl.kerberos.service.name string -
sasl.kerberos.ticket.renew.jitter double 0.05
sasl.kerberos.ticket.renew.window.factor double 0.8
sasl.login.refresh.buffer.seconds short 300
sasl.login.refresh.min.period.seconds short 60
sasl.login.refresh.window.factor double 0.8
sasl.login.refresh.window.jitter double 0.05
sasl.mechanism.inter.broker.protocol string GSSAPI
share.coordinator.cached.buffer.max.bytes int 1048588
ssl.cipher.suites list ""
ssl.client.auth string none
ssl.enabled.protocols list TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm string https
ssl.engine.factory.class class -
ssl.key.password password -
ssl.keymanager.algorithm string SunX509
ssl.keystore.certificate.chain password -
ssl.keystore.key password -
ssl.keystore.location string -
ssl.keystore.password password -
ssl.keystore.type string JKS
ssl.protocol string TLSv1.3
ssl.provider string -
ssl.secure.random.implementation string -
ssl.trustmanager.algorithm string PKIX
ssl.truststore.certificates password -
ssl.truststore.location string -
ssl.truststore.password password -
ssl.truststore.type string JKS
transaction.partition.verification.enable boolean true
"""
"""Name, type and default (- for none) of each config that Kafka can change at run time."""

_FIXED = """
add.partitions.to.txn.retry.backoff.max.ms int 100
add.partitions.to.txn.retry.backoff.ms int 20
advertised.listeners list -
allow.everyone.if.no.acl.found boolean false
alter.config.policy.class.name class -
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
authorizer.class.name string ""
auto.create.topics.enable boolean true
auto.leader.rebalance.enable boolean true
broker.heartbeat.interval.ms int 2000
broker.id int -1
broker.rack string -
broker.session.timeout.ms int 9000
client.quota.callback.class class -
connection.failed.authentication.delay.ms int 100
connections.max.idle.ms long 600000
connections.max.reauth.ms long 0
controlled.shutdown.enable boolean true
controller.listener.names list -
controller.quorum.append.linger.ms int 25
controller.quorum.auto.join.enable boolean false
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.max.bytes int 1048576
controller.quorum.fetch.snapshot.max.bytes int 1048576
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quorum.voters list ""
controller.quota.window.num int 11
controller.quota.window.size.seconds int 1
controller.socket.timeout.ms int 30000
create.topic.policy.class.name class -
default.replication.factor int 1
delegation.token.expiry.check.interval.ms long 3600000
delegation.token.expiry.time.ms long 86400000
delegation.token.max.lifetime.ms long 604800000
delegation.token.secret.key password -
delete.records.purgatory.purge.interval.requests int 1
delete.topic.enable boolean true
early.start.listeners list -
fetch.max.bytes int 57671680
fetch.purgatory.purge.interval.requests int 1000
group.consumer.assignors list uniform,range
group.consumer.heartbeat.interval.ms int 5000
group.consumer.max.assignment.interval.ms int 15000
group.consumer.max.heartbeat.interval.ms int 15000
group.consumer.max.session.timeout.ms int 60000
group.consumer.max.size int 2147483647
group.consumer.migration.policy string bidirectional
group.consumer.min.assignment.interval.ms int 0
group.consumer.min.heartbeat.interval.ms int 5000
group.consumer.min.session.timeout.ms int 45000
group.consumer.session.timeout.ms int 45000
group.coordinator.append.linger.ms int -1
group.coordinator.background.threads int 2
group.coordinator.rebalance.protocols list classic,consumer,streams
group.coordinator.threads int 4
group.initial.rebalance.delay.ms int 3000
group.max.session.timeout.ms int 1800000
group.max.size int 2147483647
group.min.session.timeout.ms int 6000
group.share.assignors list simple
group.share.delivery.count.limit int 5
group.share.heartbeat.interval.ms int 5000
group.share.max.assignment.interval.ms int 15000
group.share.max.delivery.count.limit int 10
group.share.max.heartbeat.interval.ms int 15000
group.share.max.partition.max.record.locks int 4000
group.share.max.record.lock.duration.ms int 60000
group.share.max.session.timeout.ms int 60000
group.share.max.share.sessions int 2000
group.share.max.size int 200
group.share.min.assignment.interval.ms int 0
group.share.min.delivery.count.limit int 2
group.share.min.heartbeat.interval.ms int 5000
group.share.min.partition.max.record.locks int 100
group.share.min.record.lock.duration.ms int 15000
group.share.min.session.timeout.ms int 45000
group.share.partition.max.record.locks int 2000
group.share.record.lock.duration.ms int 30000
group.share.session.timeout.ms int 45000
group.streams.heartbeat.interval.ms int 5000
group.streams.initial.rebalance.delay.ms int 3000
group.streams.max.assignment.interval.ms int 15000
group.streams.max.heartbeat.interval.ms int 15000
group.streams.max.session.timeout.ms int 60000
group.streams.max.size int 2147483647
group.streams.max.standby.replicas int 2
group.streams.min.assignment.interval.ms int 0
group.streams.min.heartbeat.interval.ms int 5000
group.streams.min.session.timeout.ms int 45000
group.streams.num.standby.replicas int 0
group.streams.session.timeout.ms int 45000
initial.broker.registration.timeout.ms int 60000
inter.broker.listener.name string -
kafka.metrics.polling.interval.secs int 10
kafka.metrics.reporters list ""
leader.imbalance.check.interval.seconds long 300
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
listeners list PLAINTEXT://:9092
log.cleaner.enable boolean true
log.dir list -
log.dir.failure.timeout.ms long 30000
log.dirs list -
log.flush.offset.checkpoint.interval.ms int 60000
log.flush.scheduler.interval.ms long 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms int 60000
log.retention.check.interval.ms long 300000
log.retention.hours int 168
log.retention.minutes int -
log.roll.hours int 168
log.roll.jitter.hours int 0
max.incremental.fetch.session.cache.slots int 1000
max.request.partition.size.limit int 2000
metadata.log.dir string -
metadata.log.max.record.bytes.between.snapshots long 20971520
metadata.log.max.snapshot.interval.ms long 3600000
metadata.log.segment.bytes int 1073741824
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
node.id int -
num.partitions int 1
num.replica.alter.log.dirs.threads int -
offset.metadata.max.bytes int 4096
offsets.commit.timeout.ms int 5000
offsets.load.buffer.size int 5242880
offsets.retention.check.interval.ms long 600000
offsets.retention.minutes int 10080
offsets.topic.compression.codec int 0
offsets.topic.num.partitions int 50
offsets.topic.replication.factor short 3
offsets.topic.segment.bytes int 104857600
process.roles list ""
producer.purgatory.purge.interval.requests int 1000
queued.max.request.bytes long -1
queued.max.requests int 500
quota.window.num int 11
quota.window.size.seconds int 1
remote.log.manager.copy.quota.window.num int 11
remote.log.manager.copy.quota.window.size.seconds int 1
remote.log.manager.fetch.quota.window.num int 11
remote.log.manager.fetch.quota.window.size.seconds int 1
remote.log.manager.task.interval.ms long 30000
remote.log.manager.thread.pool.size int 2
remote.log.metadata.custom.metadata.max.bytes int 128
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
replica.fetch.backoff.ms int 1000
replica.fetch.max.bytes int 1048576
replica.fetch.min.bytes int 1
replica.fetch.response.max.bytes int 10485760
replica.fetch.wait.max.ms int 500
replica.high.watermark.checkpoint.interval.ms long 5000
replica.lag.time.max.ms long 30000
replica.selector.class string -
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
replication.quota.window.num int 11
replication.quota.window.size.seconds int 1
request.timeout.ms int 30000
sasl.client.callback.handler.class class -
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string -
sasl.oauthbearer.assertion.claim.exp.seconds int 300
sasl.oauthbearer.assertion.claim.iss string -
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60
sasl.oauthbearer.assertion.claim.sub string -
sasl.oauthbearer.assertion.file string -
sasl.oauthbearer.assertion.private.key.file string -
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.assertion.template.file string -
sasl.oauthbearer.client.credentials.client.id string -
sasl.oauthbearer.client.credentials.client.secret password -
sasl.oauthbearer.clock.skew.seconds int 30
sasl.oauthbearer.expected.audience list ""
sasl.oauthbearer.expected.issuer string -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
sasl.oauthbearer.jwks.endpoint.url string -
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope string -
sasl.oauthbearer.scope.claim.name string scope
sasl.oauthbearer.sub.claim.name string sub
sasl.oauthbearer.token.endpoint.url string -
sasl.server.callback.handler.class class -
sasl.server.max.receive.size int 524288
security.inter.broker.protocol string PLAINTEXT
security.providers string -
share.coordinator.append.linger.ms int -1
share.coordinator.load.buffer.size int 5242880
share.coordinator.snapshot.update.records.per.snapshot int 500
share.coordinator.state.topic.compression.codec int 0
share.coordinator.state.topic.min.isr short 2
share.coordinator.state.topic.num.partitions int 50
share.coordinator.state.topic.replication.factor short 3
share.coordinator.state.topic.segment.bytes int 104857600
share.coordinator.threads int 1
share.coordinator.write.timeout.ms int 5000
share.fetch.purgatory.purge.interval.requests int 1000
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50
socket.receive.buffer.bytes int 102400
socket.request.max.bytes int 104857600
socket.send.buffer.bytes int 102400
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.principal.mapping.rules string DEFAULT
telemetry.max.bytes int 1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
transaction.max.timeout.ms int 900000
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
transaction.state.log.load.buffer.size int 5242880
transaction.state.log.min.isr int 2
transaction.state.log.num.partitions int 50
transaction.state.log.replication.factor short 3
transaction.state.log.segment.bytes int 104857600
transaction.two.phase.commit.enable boolean false
transactional.id.expiration.ms int 604800000
"""
"""Name, type and default (- for none) of each config that Kafka reads only at its start."""
