"""`tailrace group`: list, describe (members and lag), reset, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ExecuteFlag, PartitionsFlag, ask_broker
from tailrace_cli.errors import CommandFailed
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient
    from tailrace_cli.connections.offsets import Place

app = group_of_commands("Consumer groups: list, describe with lag, reset, delete.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_groups(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """List the groups of all coordinators."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace.kafka import ApiKey
        from tailrace.kafka.messages.list_groups import ListGroupsRequest
        from tailrace_cli.connections.kafka_client import check

        found: dict[str, dict[str, Any]] = {}
        async for broker in client.brokers():  # each coordinator lists its own, as in Kafka
            answer = await broker.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
            check(answer.error_code, None, "groups")
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
        from tailrace.kafka import ApiKey
        from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
        from tailrace_cli.connections.kafka_client import check

        async with await client.coordinator_of(group) as coordinator:
            answer = await coordinator.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]))
            (described,) = answer.groups
            check(described.error_code, described.error_message, f"group {group!r}")
            offsets = await _lags(coordinator, group)
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


To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="POSITION",
        help="start, end, an offset, +N or -N from the committed one, or a time.",
    ),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Default: all topics with committed offsets."),
]


@app.command()
def reset(
    group: Group,
    to: To,
    topic: Topic = None,
    partition: PartitionsFlag = None,
    execute: ExecuteFlag = False,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a group's committed offsets.

    The group must have no members. Without --execute, only shows a preview.
    """

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace_cli.connections.offsets import offsets_at, partitions_of

        async with await client.coordinator_of(group) as coordinator:
            committed = await _committed(coordinator, group)
            if topic is None:
                places = sorted(committed)
            else:
                places = await partitions_of(coordinator, topic)
            places = [place for place in places if not partition or place[1] in partition]
            if not places:
                raise CommandFailed(f"group {group!r} has no offsets there; name a topic with --topic")
            targets = await offsets_at(coordinator, places, to, committed)
            if execute:
                await _commit(coordinator, group, targets)
        return [
            {
                "topic": place[0],
                "partition": place[1],
                "committed": committed.get(place),
                "new": targets[place],
            }
            for place in places
        ]

    moved = ask_broker(bootstrap, run)
    if as_json:
        print_json(moved)
        return
    print_table(
        ("topic", "partition", "committed", "new" if execute else "would be"),
        [(each["topic"], each["partition"], each["committed"], each["new"]) for each in moved],
    )
    print(f"group {group} was reset" if execute else "nothing was changed; run it again with --execute")


@app.command()
def delete(group: Group, bootstrap: BootstrapFlag = None) -> None:
    """Delete a group that has no members, with its offsets."""

    async def run(client: KafkaClient) -> None:
        from tailrace.kafka import ApiKey
        from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
        from tailrace_cli.connections.kafka_client import check

        async with await client.coordinator_of(group) as coordinator:
            answer = await coordinator.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group]))
        check(answer.results[0].error_code, None, f"group {group!r} was not deleted")

    ask_broker(bootstrap, run)
    print(f"deleted group {group}")


async def _lags(client: KafkaClient, group: str) -> list[dict[str, Any]]:
    from tailrace_cli.connections.offsets import LATEST, list_offsets

    committed = await _committed(client, group)
    ends = await list_offsets(client, list(committed), LATEST)
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


async def _committed(client: KafkaClient, group: str) -> dict[Place, int]:
    """The group's offsets by topic and partition."""
    from tailrace.kafka import ApiKey
    from tailrace.kafka.messages.metadata import MetadataRequest
    from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
    from tailrace_cli.connections.kafka_client import check

    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (found,) = (await client.ask(ApiKey.OFFSET_FETCH, asked)).groups
    check(found.error_code, None, f"offsets of group {group!r}")
    known = (await client.ask(ApiKey.METADATA, MetadataRequest(topics=None))).topics
    names = {topic.topic_id: topic.name for topic in known}
    return {
        (
            topic.name or names.get(topic.topic_id, str(topic.topic_id)),
            each.partition_index,
        ): each.committed_offset
        for topic in found.topics
        for each in topic.partitions
    }


async def _commit(client: KafkaClient, group: str, offsets: dict[Place, int]) -> None:
    """Commit for a group without members. Raises CommandFailed."""
    from tailrace.kafka import ApiKey
    from tailrace.kafka.error_codes import ErrorCode
    from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
    from tailrace.kafka.messages.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )
    from tailrace_cli.connections.kafka_client import check

    names = sorted({topic for topic, _ in offsets})
    known = await client.ask(
        ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    )
    ids = {topic.name: topic.topic_id for topic in known.topics}
    asked = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                topic_id=ids[name],
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                    for (topic, partition), offset in offsets.items()
                    if topic == name
                ],
            )
            for name in names
        ],
    )
    for topic in (await client.ask(ApiKey.OFFSET_COMMIT, asked)).topics:
        for each in topic.partitions:
            has_members = each.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            check(
                each.error_code,
                "the group has members; stop its consumers first" if has_members else None,
                f"group {group!r} was not reset",
            )
