"""`tailrace topic`: create, list, describe, alter, trim and delete topics. Works with any Kafka broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import (
    BootstrapFlag,
    ExecuteFlag,
    PartitionsFlag,
    ask_broker,
    parse_pairs,
)
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch
from tailrace_cli.output import JsonFlag, print_json, print_rows
from tailrace_cli.record_text import MAX_PARTITION

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient, KafkaRefused

app = group_of_commands("Topics: list, create, describe, alter, trim, delete.")

LATENCY, FLUSH = "tailrace.latency", "tailrace.flush"
"""Configs that only Tailrace has."""


def _partition_count(help: str) -> Any:
    return flag("--partitions -p", "N", help, min=1, max=MAX_PARTITION)


Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC")]
Configs = Annotated[list[str] | None, flag("--config -c", "NAME=VALUE", "A config to set. Can be repeated.")]


@app.command("list")
def list_topics(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """List topics and their number of partitions."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        return [_summary(topic) for topic in await client.topics(None)]

    topics = sorted(ask_broker(bootstrap, run), key=lambda topic: str(topic["name"]))
    columns = {"topic": "name", "partitions": "partitions", "id": "topic_id"}
    print_rows(columns, topics, as_json=as_json, if_none="no topics")


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, _partition_count("The number of partitions. Default: the broker's num.partitions.")
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, switch("--if-not-exists", "Do not fail if the topic exists.")] = False,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a topic."""
    configs = parse_pairs(config or [], "--config")

    async def run(client: KafkaClient) -> dict[str, Any]:
        from tailrace.kafka.error_codes import ErrorCode
        from tailrace.kafka.messages.create_topics import (
            CreatableTopic,
            CreatableTopicConfig,
            CreateTopicsRequest,
        )
        from tailrace_cli.connections.kafka_client import check

        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        (result,) = (await client.ask(CreateTopicsRequest(topics=[topic]))).topics
        is_new = not (if_not_exists and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS)
        if is_new:
            check(result.error_code, result.error_message, f"topic {name!r} was not created")
        (created,) = await client.topics([name])
        return {**_summary(created), "created": is_new}

    made = ask_broker(bootstrap, run)
    if as_json:
        print_json(made)
    else:
        verb = "created" if made["created"] else "already exists:"
        count = made["partitions"]
        print(f"{verb} topic {made['name']} with {count} partition{'' if count == 1 else 's'}")


@app.command()
def describe(names: Names, bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """Show partitions, offsets, leaders, changed configs and costs.

    The costs are modelled from the topic's `tailrace.latency`.
    """
    from tailrace_cli.latency_figures import in_words

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace_cli.commands.config import RESOURCE_TOPIC, describe_resource

        described = []
        for topic in await client.topics(names):
            configs = await describe_resource(client, RESOURCE_TOPIC, topic.name)
            described.append(
                {
                    **_summary(topic),
                    "configs": {row["name"]: row["value"] for row in configs if row["source"] == "topic"},
                    "latency": next((row["value"] for row in configs if row["name"] == LATENCY), None),
                    "flush": next((row["value"] for row in configs if row["name"] == FLUSH), None),
                    "partition_list": await _partitions(client, topic),
                }
            )
        return described

    topics = ask_broker(bootstrap, run)
    if as_json:
        print_json(topics)
        return
    for topic in topics:
        print(f"{topic['name']}  id {topic['topic_id']}")
        for name, value in topic["configs"].items():
            print(f"  {name} = {value}")
        if topic["latency"] is not None:
            print(f"  {in_words(topic['latency'])}")
        if topic["flush"] == "async":
            print("  async: acknowledged on receipt, and lost if the agent dies before it is stored")
        columns = {
            "partition": "partition",
            "leader": "leader",
            "first offset": "start_offset",
            "end offset": "end_offset",
        }
        print_rows(columns, topic["partition_list"])


@app.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None, _partition_count("The new number of partitions, higher than the current one.")
    ] = None,
    config: Configs = None,
    unset: Annotated[
        list[str] | None, flag("--unset", "NAME", "A config to reset to its default. Can be repeated.")
    ] = None,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Add partitions; set or unset configs."""
    configs = parse_pairs(config or [], "--config")
    if partitions is None and not configs and not unset:
        raise WrongUsage("nothing to alter; give --partitions, --config NAME=VALUE or --unset NAME")

    async def run(client: KafkaClient) -> None:
        from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
        from tailrace_cli.commands.config import (
            RESOURCE_TOPIC,
            alter_resource,
            check_known,
            describe_resource,
        )
        from tailrace_cli.connections.kafka_client import check

        if unset:
            check_known([row["name"] for row in await describe_resource(client, RESOURCE_TOPIC, name)], unset)
        if configs or unset:
            await alter_resource(
                client=client, kind=RESOURCE_TOPIC, name=name, configs=configs, unset=unset or []
            )
        if partitions is not None:
            request = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=partitions, assignments=None)],
                timeout_ms=30_000,
            )
            (result,) = (await client.ask(request)).results
            check(result.error_code, result.error_message, f"topic {name!r} did not get more partitions")

    ask_broker(bootstrap, run)
    print(f"altered topic {name}")


@app.command()
def trim(
    name: Name,
    before: Annotated[
        str, flag("--before", "POSITION", "An offset, end, or a time: 2026-01-31T12:00, or 2h (2 hours ago).")
    ],
    partition: PartitionsFlag = None,
    execute: ExecuteFlag = False,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Permanently delete a topic's records before a position.

    Without --execute, it only shows a preview.
    """

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace_cli.connections.offsets import (
            EARLIEST,
            chosen_partitions,
            list_offsets,
            offsets_at,
            partitions_of,
        )

        partitions = chosen_partitions(await partitions_of(client, name), partition, f"topic {name!r}")
        firsts = await list_offsets(client, partitions, EARLIEST)
        targets = await offsets_at(client, partitions, before, firsts)
        if execute:
            await _delete_records(client, name, {index: targets[name, index] for _, index in partitions})
        return [
            {"partition": key[1], "start_offset": firsts[key], "new_start_offset": targets[key]}
            for key in partitions
        ]

    trimmed = ask_broker(bootstrap, run)
    if as_json:
        print_json(trimmed)
        return
    new = "new first offset" if execute else "would become"
    print_rows({"partition": "partition", "first offset": "start_offset", new: "new_start_offset"}, trimmed)
    print(f"topic {name} was trimmed" if execute else "nothing was changed; run it again with --execute")


@app.command()
def delete(names: Names, bootstrap: BootstrapFlag = None) -> None:
    """Permanently delete topics with all their records."""

    async def run(client: KafkaClient) -> tuple[list[str], list[KafkaRefused]]:
        from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
        from tailrace_cli.connections.kafka_client import KafkaRefused, check

        topics = [DeleteTopicState(name=name) for name in dict.fromkeys(names)]
        request = DeleteTopicsRequest(topics=topics, timeout_ms=30_000)
        deleted: list[str] = []
        refusals: list[KafkaRefused] = []
        for result in (await client.ask(request)).responses:
            try:
                check(result.error_code, result.error_message, f"topic {result.name!r} was not deleted")
                deleted.append(result.name)
            except KafkaRefused as refused:
                refusals.append(refused)
        return deleted, refusals

    deleted, refusals = ask_broker(bootstrap, run)
    if deleted:
        print(f"deleted {', '.join(deleted)}")
    if refusals:
        others = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        raise CommandFailed(f"{refusals[0]}{others}")


async def _delete_records(client: KafkaClient, topic: str, before: dict[int, int]) -> None:
    from tailrace.kafka.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )
    from tailrace_cli.connections.kafka_client import check

    partitions = [DeleteRecordsPartition(partition_index=index, offset=before[index]) for index in before]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=30_000
    )
    for response in (await client.ask(request)).topics:
        for partition in response.partitions:
            check(partition.error_code, None, f"{topic}-{partition.partition_index} was not trimmed")


def _summary(topic: Any) -> dict[str, Any]:
    return {"name": topic.name, "topic_id": str(topic.topic_id), "partitions": len(topic.partitions)}


async def _partitions(client: KafkaClient, topic: Any) -> list[dict[str, Any]]:
    from tailrace_cli.connections.offsets import EARLIEST, LATEST, list_offsets

    partitions = [(topic.name, row.partition_index) for row in topic.partitions]
    firsts = await list_offsets(client, partitions, EARLIEST)
    ends = await list_offsets(client, partitions, LATEST)
    return [
        {
            "partition": row.partition_index,
            "leader": row.leader_id,
            "start_offset": firsts.get((topic.name, row.partition_index)),
            "end_offset": ends.get((topic.name, row.partition_index)),
        }
        for row in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    ]
