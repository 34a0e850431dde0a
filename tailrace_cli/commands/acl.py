"""`tailrace acl`: who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker
from tailrace_cli.errors import CommandFailed
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from tailrace.acls import AclFilter
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Access control lists: list, add, remove.")

PrincipalFlag = Annotated[
    str | None, typer.Option("--principal", metavar="User:NAME", help="Who. User:* is everybody.")
]
OperationFlag = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="OPERATION", help="read, write, describe, all, ... Can be repeated."),
]
TopicFlag = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="A topic; * for all.")]
GroupFlag = Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="A group; * for all.")]
TransactionFlag = Annotated[
    str | None, typer.Option("--transactional-id", metavar="NAME", help="A transactional id; * for all.")
]
ClusterFlag = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
PrefixFlag = Annotated[bool, typer.Option("--prefix", help="The name is a prefix.")]
HostFlag = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="From this address. Default: any.")
]
DenyFlag = Annotated[bool, typer.Option("--deny", help="Deny, instead of allowing.")]


@app.command("list")
def list_acls(
    principal: PrincipalFlag = None,
    topic: TopicFlag = None,
    group: GroupFlag = None,
    transactional_id: TransactionFlag = None,
    cluster: ClusterFlag = False,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the ACLs of a principal, of a resource, or all."""
    resource = _resource(topic, group, transactional_id, cluster)
    rows = ask_broker(bootstrap, lambda client: _described(client, _wanted(resource, principal)))
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    if as_json:
        print_json(rows)
    else:
        print_table(columns, [[row[name] for name in columns] for row in rows], if_none="no ACLs")


@app.command()
def add(
    principal: PrincipalFlag = None,
    operation: OperationFlag = None,
    topic: TopicFlag = None,
    group: GroupFlag = None,
    transactional_id: TransactionFlag = None,
    cluster: ClusterFlag = False,
    prefix: PrefixFlag = False,
    host: HostFlag = None,
    deny: DenyFlag = False,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Allow (or deny) a principal operations on a resource."""
    from tailrace.acls import PatternType, Permission
    from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest

    resource = _resource(topic, group, transactional_id, cluster)
    if principal is None or not operation or resource is None:
        raise CommandFailed("--principal, --operation and a resource (such as --topic) are needed")
    kind, name = resource
    creations = [
        AclCreation(
            kind,
            name,
            PatternType.PREFIXED if prefix else PatternType.LITERAL,
            principal,
            host or "*",
            _operation(each),
            Permission.DENY if deny else Permission.ALLOW,
        )
        for each in operation
    ]

    async def run(client: KafkaClient) -> None:
        from tailrace.kafka import ApiKey
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations))
        for result in answer.results:
            check(result.error_code, result.error_message, "the ACL")

    ask_broker(bootstrap, run)


@app.command()
def remove(
    principal: PrincipalFlag = None,
    operation: OperationFlag = None,
    topic: TopicFlag = None,
    group: GroupFlag = None,
    transactional_id: TransactionFlag = None,
    cluster: ClusterFlag = False,
    prefix: PrefixFlag = False,
    host: HostFlag = None,
    deny: DenyFlag = False,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Delete the ACLs that have all that is given."""
    from tailrace.acls import PatternType, Permission
    from tailrace.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    resource = _resource(topic, group, transactional_id, cluster)
    if principal is None and resource is None:
        raise CommandFailed("give --principal or a resource (such as --topic): else all ACLs would go")
    kind, name = resource or (_types().ANY, None)
    filters = [
        DeleteAclsFilter(
            kind,
            name,
            PatternType.PREFIXED if prefix else PatternType.LITERAL if resource else PatternType.ANY,
            principal,
            host,
            _operation(each),
            Permission.DENY if deny else Permission.ANY,
        )
        for each in operation or ["any"]
    ]

    async def run(client: KafkaClient) -> int:
        from tailrace.kafka import ApiKey
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters))
        for result in answer.filter_results:
            check(result.error_code, result.error_message, "the ACLs")
        return sum(len(result.matching_acls) for result in answer.filter_results)

    print(ask_broker(bootstrap, run))


async def _described(client: KafkaClient, wanted: AclFilter) -> list[dict[str, Any]]:
    from tailrace.acls import Operation, PatternType, Permission, ResourceType
    from tailrace.kafka import ApiKey
    from tailrace.kafka.messages.describe_acls import DescribeAclsRequest
    from tailrace_cli.connections.kafka_client import check

    request = DescribeAclsRequest(
        wanted.resource_type,
        wanted.resource_name,
        wanted.pattern_type,
        wanted.principal,
        wanted.host,
        wanted.operation,
        wanted.permission,
    )
    answer = await client.ask(ApiKey.DESCRIBE_ACLS, request)
    check(answer.error_code, answer.error_message, "the ACLs")
    return [
        {
            "principal": acl.principal,
            "permission": Permission(acl.permission_type).name.lower(),
            "operation": Operation(acl.operation).name.lower(),
            "resource": ResourceType(resource.resource_type).name.lower(),
            "name": resource.resource_name,
            "pattern": PatternType(resource.pattern_type).name.lower(),
            "host": acl.host,
        }
        for resource in answer.resources
        for acl in resource.acls
    ]


def _wanted(resource: tuple[Any, str] | None, principal: str | None) -> AclFilter:
    from tailrace.acls import AclFilter, PatternType

    if resource is None:
        return AclFilter(principal=principal)
    return AclFilter(resource[0], resource[1], PatternType.MATCH, principal)


def _types() -> Any:
    from tailrace.acls import ResourceType

    return ResourceType


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, cluster: bool
) -> tuple[Any, str] | None:
    """The one resource that flags name. Raises CommandFailed."""
    from tailrace.acls import CLUSTER_NAME, ResourceType

    named = [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
            (ResourceType.CLUSTER, CLUSTER_NAME if cluster else None),
        )
        if name is not None
    ]
    if len(named) > 1:
        raise CommandFailed("give one of --topic, --group, --transactional-id and --cluster")
    return named[0] if named else None


def _operation(text: str) -> int:
    from tailrace.acls import Operation

    try:
        return Operation[text.strip().upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(each.name.lower() for each in Operation)
        raise CommandFailed(f"--operation {text!r}: expected one of {known}") from None
