"""`tailrace group`: list, describe (members and lag), delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.asking import BootstrapFlag, ask_broker
from tailrace.cli.bare import group_of_commands
from tailrace.cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from tailrace.cli.kafka_client import KafkaClient

app = group_of_commands("Consumer groups: list, describe with lag, delete.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_groups(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """Show the groups of all coordinators."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from agent.protocol import ApiKey
        from agent.protocol.messages.list_groups import ListGroupsRequest
        from agent.protocol.messages.metadata import MetadataRequest
        from tailrace.cli.kafka_client import KafkaClient, check
        from tailrace.rpc.link import join_address

        # Each coordinator lists its own, as in Kafka: every broker is asked.
        brokers = (await client.ask(ApiKey.METADATA, MetadataRequest(topics=[]))).brokers
        found: dict[str, dict[str, Any]] = {}
        for broker in brokers:
            async with KafkaClient(join_address(broker.host, broker.port)) as each:
                answer = await each.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
            check(answer.error_code, None, f"broker {broker.node_id} does not list its groups")
            for group in answer.groups:
                found[group.group_id] = {
                    "group": group.group_id,
                    "state": group.group_state,
                    "protocol_type": group.protocol_type,
                }
        return [found[name] for name in sorted(found)]

    groups = ask_broker(bootstrap, run)
    if as_json:
        print_json(groups)
    else:
        print_table(
            ("group", "state", "type"),
            [(one["group"], one["state"], one["protocol_type"]) for one in groups],
            if_none="no groups",
        )


@app.command()
def describe(group: Group, bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """Show a group's members, its committed offsets and its lag."""

    async def run(client: KafkaClient) -> dict[str, Any]:
        from agent.protocol import ApiKey
        from agent.protocol.messages.describe_groups import DescribeGroupsRequest
        from tailrace.cli.kafka_client import check

        coordinator = await client.coordinator_of(group)
        try:
            answer = await coordinator.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]))
            (described,) = answer.groups
            check(described.error_code, described.error_message, f"group {group!r}")
            offsets = await _lags(coordinator, group)
        finally:
            coordinator.close()
        return {
            "group": described.group_id,
            "state": described.group_state,
            "protocol": described.protocol_data,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "host": member.client_host,
                }
                for member in described.members
            ],
            "offsets": offsets,
        }

    found = ask_broker(bootstrap, run)
    if as_json:
        print_json(found)
        return
    print(f"{found['group']}  {found['state']}  {found['protocol']}")
    print_table(
        ("member", "instance", "client", "host"),
        [(one["member_id"], one["instance_id"], one["client_id"], one["host"]) for one in found["members"]],
        if_none="no members",
    )
    print_table(
        ("topic", "partition", "committed", "end offset", "lag"),
        [
            (one["topic"], one["partition"], one["committed"], one["end_offset"], one["lag"])
            for one in found["offsets"]
        ],
        if_none="no committed offsets",
    )


@app.command()
def delete(group: Group, bootstrap: BootstrapFlag = None) -> None:
    """Delete a group that has no members, with its offsets."""

    async def run(client: KafkaClient) -> None:
        from agent.protocol import ApiKey
        from agent.protocol.messages.delete_groups import DeleteGroupsRequest
        from tailrace.cli.kafka_client import check

        coordinator = await client.coordinator_of(group)
        try:
            answer = await coordinator.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group]))
        finally:
            coordinator.close()
        check(answer.results[0].error_code, None, f"group {group!r} was not deleted")

    ask_broker(bootstrap, run)
    print(f"deleted group {group}")


async def _lags(client: KafkaClient, group: str) -> list[dict[str, Any]]:
    from agent.protocol import ApiKey
    from agent.protocol.messages.list_offsets import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )
    from agent.protocol.messages.metadata import MetadataRequest
    from agent.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
    from tailrace.cli.kafka_client import check

    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (found,) = (await client.ask(ApiKey.OFFSET_FETCH, asked)).groups
    check(found.error_code, None, f"offsets of group {group!r}")
    known = (await client.ask(ApiKey.METADATA, MetadataRequest(topics=None))).topics
    names = {topic.topic_id: topic.name for topic in known}
    committed = {
        (
            topic.name or names.get(topic.topic_id, str(topic.topic_id)),
            each.partition_index,
        ): each.committed_offset
        for topic in found.topics
        for each in topic.partitions
    }
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=partition, timestamp=-1)
                for topic, partition in committed
                if topic == name
            ],
        )
        for name in sorted({topic for topic, _ in committed})
    ]
    answer = await client.ask(ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=topics))
    ends = {
        (topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
    }
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": offset,
            "end_offset": ends.get(place),
            "lag": max(0, ends[place] - offset) if place in ends else None,
        }
        for place, offset in sorted(committed.items())
    ]
