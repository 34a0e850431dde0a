"""`tailrace config`: Kafka's configs of a topic, or of the whole cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker, parse_pairs
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag, switch
from tailrace_cli.output import JsonFlag, print_json, print_rows

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Configs of a topic or of the cluster: list, get, set, unset.")

RESOURCE_TOPIC, RESOURCE_BROKER = 2, 4
_KINDS = {RESOURCE_TOPIC: "topic", RESOURCE_BROKER: "broker"}
_SET, _DELETE = 0, 1
_SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "static", 5: "default"}

TopicFlag = Annotated[str | None, flag("--topic -t", "TOPIC", "The topic. Default: the whole cluster.")]


@app.command("list")
def list_configs(
    topic: TopicFlag = None,
    every: Annotated[
        bool, switch("--all", "Also show configs that are not set, with their defaults and settings.")
    ] = False,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the configs that are set; with --all, every config."""
    rows = ask_broker(bootstrap, lambda client: _described(client, topic))
    if not every:
        rows = [row for row in rows if row["source"] in ("topic", "broker", "cluster")]
    columns = {"config": "name", "value": "value", "from": "source"}
    print_rows(columns, rows, as_json=as_json, if_none="no config is set; --all shows the defaults")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    topic: TopicFlag = None,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Print one config's value."""
    rows = {row["name"]: row for row in ask_broker(bootstrap, lambda client: _described(client, topic))}
    check_known(rows, [name])
    if as_json:
        print_json(rows[name])
    else:
        print("" if rows[name]["value"] is None else rows[name]["value"])


@app.command("set")
def set_configs(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
    topic: TopicFlag = None,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Set configs."""
    configs = parse_pairs(pairs, "config")

    async def run(client: KafkaClient) -> None:
        await alter_resource(client, *_resource(topic), configs, [])

    ask_broker(bootstrap, run)
    print(f"set {', '.join(configs)} of {_resource_shown(topic)}")


@app.command()
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    topic: TopicFlag = None,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Reset configs to their defaults."""

    async def run(client: KafkaClient) -> None:
        check_known([row["name"] for row in await _described(client, topic)], names)
        await alter_resource(client, *_resource(topic), {}, names)

    ask_broker(bootstrap, run)
    print(f"unset {', '.join(names)} of {_resource_shown(topic)}")


def check_known(known: Collection[str], names: Sequence[str]) -> None:
    """Raise CommandFailed for a name that no config has; a broker takes the deletion of any name."""
    for name in names:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            raise CommandFailed(
                f"no config {name!r}; "
                + (f"did you mean {close[0]}?" if close else "`tailrace config list --all` shows all configs")
            )


async def describe_resource(client: KafkaClient, kind: int, name: str) -> list[dict[str, Any]]:
    """Return all configs of a topic or of the cluster, sorted by name. Raises KafkaRefused."""
    from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
    from tailrace_cli.connections.kafka_client import check

    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = await client.ask(DescribeConfigsRequest(resources=[resource]))
    (result,) = answer.results
    check(result.error_code, result.error_message, f"configs of {_KINDS[kind]} {name!r}")
    rows = [
        {
            "name": row.name,
            "value": row.value,
            "source": _SOURCES.get(row.config_source, str(row.config_source)),
            "read_only": row.read_only,
        }
        for row in result.configs
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


async def alter_resource(
    client: KafkaClient, kind: int, name: str, configs: Mapping[str, str], unset: Sequence[str]
) -> None:
    """Set and unset configs of a topic or of the cluster. Raises KafkaRefused."""
    from tailrace.kafka.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from tailrace_cli.connections.kafka_client import check

    changes = [
        AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in configs.items()
    ]
    changes += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in unset]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = (await client.ask(request)).responses
    check(result.error_code, result.error_message, f"configs of {name or 'the cluster'} were not changed")


def _resource(topic: str | None) -> tuple[int, str]:
    return (RESOURCE_BROKER, "") if topic is None else (RESOURCE_TOPIC, topic)


def _resource_shown(topic: str | None) -> str:
    return "the cluster" if topic is None else f"topic {topic}"


async def _described(client: KafkaClient, topic: str | None) -> list[dict[str, Any]]:
    """Return all configs of a topic, or of the cluster: its own, and the settings and defaults of one broker."""
    if topic is not None:
        return await describe_resource(client, RESOURCE_TOPIC, topic)
    async for broker in client.brokers():
        return await describe_resource(broker, RESOURCE_BROKER, str(broker.broker_id))
    raise CommandFailed("the cluster has no brokers now; try again later")
