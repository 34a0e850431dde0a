"""One handler per API; this table is what is served."""

from __future__ import annotations

from agent.handlers import (
    acls,
    api_versions,
    configs,
    consumer_groups,
    describe_topic_partitions,
    fetch,
    group_admin,
    group_offsets,
    groups,
    list_offsets,
    logins,
    metadata,
    produce,
    producers,
    topics,
    transaction_admin,
    transactions,
    users,
)
from agent.handlers.current_topics import of_added_partitions, of_markers, of_partitions, with_current_topics
from agent.services import Handler, HandlerAtOnce
from tailrace.kafka import ApiKey

HANDLERS: dict[int, Handler] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: with_current_topics(list_offsets.handle, of_partitions),
    ApiKey.METADATA: metadata.handle,
    ApiKey.OFFSET_COMMIT: with_current_topics(group_offsets.offset_commit, of_partitions),
    ApiKey.OFFSET_FETCH: group_offsets.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.DESCRIBE_GROUPS: group_admin.describe_groups,
    ApiKey.LIST_GROUPS: group_admin.list_groups,
    ApiKey.SASL_HANDSHAKE: logins.handshake,
    ApiKey.API_VERSIONS: api_versions.handle,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: with_current_topics(topics.delete_records, of_partitions),
    ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: with_current_topics(list_offsets.offset_for_leader_epoch, of_partitions),
    ApiKey.ADD_PARTITIONS_TO_TXN: with_current_topics(transactions.add_partitions, of_added_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.END_TXN: transactions.end,
    ApiKey.WRITE_TXN_MARKERS: with_current_topics(transaction_admin.write_txn_markers, of_markers),
    ApiKey.TXN_OFFSET_COMMIT: with_current_topics(transactions.txn_offset_commit, of_partitions),
    ApiKey.DESCRIBE_ACLS: acls.describe_acls,
    ApiKey.CREATE_ACLS: acls.create_acls,
    ApiKey.DELETE_ACLS: acls.delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.DESCRIBE_LOG_DIRS: topics.describe_log_dirs,
    ApiKey.SASL_AUTHENTICATE: logins.authenticate,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: group_admin.delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.OFFSET_DELETE: with_current_topics(group_offsets.offset_delete, of_partitions),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: with_current_topics(producers.describe_producers, of_partitions),
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_admin.list_transactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
}

AT_ONCE: dict[int, HandlerAtOnce] = {ApiKey.PRODUCE: produce.handle_at_once}
"""Tried before the handler of the API, for what comes in such numbers that a task for each would be dear."""
