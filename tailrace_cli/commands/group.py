"""`tailrace group`: list, describe, reset and delete groups of all kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.printable import printable
from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ExecuteFlag, PartitionsFlag, ask_broker
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag
from tailrace_cli.output import JsonFlag, print_json, print_rows, print_table

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Groups of all kinds: list, describe with lag, reset, delete.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]
SHOWN_PARTITIONS = 6


@app.command("list")
def list_groups(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """List all groups."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace.kafka.messages.list_groups import ListGroupsRequest
        from tailrace_cli.connections.kafka_client import check

        rows: dict[str, dict[str, Any]] = {}
        async for broker in client.brokers():  # each coordinator lists its own, as in Kafka
            answer = await broker.ask(ListGroupsRequest())
            check(answer.error_code, None, "groups")
            for group in answer.groups:
                rows[group.group_id] = {
                    "group": group.group_id,
                    "kind": group.group_type.lower(),
                    "state": group.group_state,
                    "protocol_type": group.protocol_type,
                }
        return [rows[name] for name in sorted(rows)]

    groups = ask_broker(bootstrap, run)
    columns = {"group": "group", "kind": "kind", "state": "state", "protocol type": "protocol_type"}
    print_rows(columns, groups, as_json=as_json, if_none="no groups")


@app.command()
def describe(group: Group, bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """Show a group's members, its committed offsets and its lag."""

    async def run(client: KafkaClient) -> dict[str, Any]:
        from tailrace_cli.connections.groups import describe_group, group_offsets, lags

        async with await client.coordinator_of(group) as coordinator:
            described = await describe_group(coordinator, group)
            committed = await group_offsets(coordinator, group, described.kind)
            offsets = {**dict.fromkeys(described.partitions), **committed}
            return {**described.as_json(), "offsets": await lags(coordinator, offsets)}

    shown = ask_broker(bootstrap, run)
    if as_json:
        print_json(shown)
        return
    print(printable(f"{shown['group']}  {shown['kind']}  {shown['state']}  {shown['protocol']}"))
    print_table(
        ("member", "instance", "client", "host", "assigned"),
        [
            (row["member_id"], row["instance_id"], row["client_id"], row["host"], _shown(row["assigned"]))
            for row in shown["members"]
        ],
        if_none="no members",
    )
    columns = {
        "topic": "topic",
        "partition": "partition",
        "committed": "committed",
        "end offset": "end_offset",
        "lag": "lag",
    }
    print_rows(columns, shown["offsets"], if_none="no committed offsets")


def _shown(assigned: list[str] | None) -> str | None:
    """Return the first few partitions and, if there are more, their number."""
    if assigned is None or len(assigned) <= SHOWN_PARTITIONS:
        return None if assigned is None else " ".join(assigned)
    return f"{' '.join(assigned[:SHOWN_PARTITIONS])} ... ({len(assigned)})"


To = Annotated[
    str, flag("--to", "POSITION", "start, end, an offset, +N or -N from the committed offset, or a time.")
]
Topic = Annotated[str | None, flag("--topic -t", "TOPIC", "Default: all topics with committed offsets.")]


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

    The group must have no members. Without --execute, it only shows a preview.
    """

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace_cli.connections.groups import group_offsets, kind_of, move_group
        from tailrace_cli.connections.offsets import chosen_partitions, offsets_at, partitions_of

        async with await client.coordinator_of(group) as coordinator:
            kind = await kind_of(coordinator, group)
            committed = await group_offsets(coordinator, group, kind)
            if topic is None and not committed:
                raise CommandFailed(
                    f"group {group!r} has no committed offsets to move; name a topic with --topic"
                )
            if topic is None:
                whose = f"what group {group!r} has committed"
                partitions = chosen_partitions(sorted(committed), partition, whose)
            else:
                of_topic = await partitions_of(coordinator, topic)
                partitions = chosen_partitions(of_topic, partition, f"topic {topic!r}")
            targets = await offsets_at(coordinator, partitions, to, committed)
            if execute:
                await move_group(coordinator, group, kind, targets)
        return [
            {"topic": key[0], "partition": key[1], "committed": committed.get(key), "new": targets[key]}
            for key in partitions
        ]

    moved = ask_broker(bootstrap, run)
    if as_json:
        print_json(moved)
        return
    new = "new" if execute else "would be"
    print_rows({"topic": "topic", "partition": "partition", "committed": "committed", new: "new"}, moved)
    print(f"group {group} was reset" if execute else "nothing was changed; run it again with --execute")


@app.command()
def delete(group: Group, bootstrap: BootstrapFlag = None) -> None:
    """Delete a group and its offsets. It must have no members."""

    async def run(client: KafkaClient) -> None:
        from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
        from tailrace_cli.connections.kafka_client import check

        async with await client.coordinator_of(group) as coordinator:
            answer = await coordinator.ask(DeleteGroupsRequest(groups_names=[group]))
        check(answer.results[0].error_code, None, f"group {group!r} was not deleted")

    ask_broker(bootstrap, run)
    print(f"deleted group {group}")
