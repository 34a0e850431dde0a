"""`tailrace acl`: list, add and remove access control lists."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.output import JsonFlag, print_rows

if TYPE_CHECKING:
    from tailrace.security.acls import AclFilter, ResourceType
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Access control lists: list, add, remove.")

Principal = Annotated[str | None, flag("--principal", "User:NAME", "The principal; User:* means everybody.")]


@dataclass(frozen=True, slots=True)
class ResourceFlags:
    """Flags that name at most one resource."""

    topic: Annotated[str | None, flag("--topic -t", "NAME", "A topic; * for all.")] = None
    group: Annotated[str | None, flag("--group -g", "NAME", "A group; * for all.")] = None
    transactional_id: Annotated[
        str | None, flag("--transactional-id", "NAME", "A transactional id; * for all.")
    ] = None
    cluster: Annotated[bool, switch("--cluster", "The cluster.")] = False

    def named(self) -> tuple[ResourceType, str] | None:
        """Return the type and name of the resource, None without one. Raises WrongUsage if there are several."""
        from tailrace.security.acls import CLUSTER_NAME, ResourceType

        named = [
            (kind, name)
            for kind, name in (
                (ResourceType.TOPIC, self.topic),
                (ResourceType.GROUP, self.group),
                (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
                (ResourceType.CLUSTER, CLUSTER_NAME if self.cluster else None),
            )
            if name is not None
        ]
        if len(named) > 1:
            raise WrongUsage("give one of --topic, --group, --transactional-id and --cluster")
        return named[0] if named else None


@dataclass(frozen=True, slots=True)
class AccessFlags:
    """Flags for the other fields of an ACL: principal, operations, pattern, host, permission."""

    principal: Principal = None
    operation: Annotated[
        list[str] | None, flag("--operation", "OPERATION", "read, write, describe, all, ... Can be repeated.")
    ] = None
    prefix: Annotated[bool, switch("--prefix", "Treat the resource's name as a prefix.")] = False
    host: Annotated[str | None, flag("--host", "ADDRESS", "The client's address. Default: any.")] = None
    deny: Annotated[bool, switch("--deny", "Deny instead of allow.")] = False


@app.command("list")
@with_flags
def list_acls(
    resource: ResourceFlags,
    principal: Principal = None,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the ACLs of a principal or resource, or all ACLs."""
    _check_principal(principal)
    acl_filter = _wanted(resource.named(), principal)
    rows = ask_broker(bootstrap, lambda client: _described(client, acl_filter))
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    print_rows({name: name for name in columns}, rows, as_json=as_json, if_none="no ACLs")


@app.command()
@with_flags
def add(access: AccessFlags, resource: ResourceFlags, bootstrap: BootstrapFlag = None) -> None:
    """Allow (or deny) a principal operations on a resource."""
    from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
    from tailrace.security.acls import WILDCARD, PatternType, Permission

    named = resource.named()
    if access.principal is None or not access.operation or named is None:
        raise WrongUsage("--principal, --operation and a resource (such as --topic) are needed")
    _check_principal(access.principal)
    host = access.host or WILDCARD
    _check_host(host)
    kind, name = named
    creations = [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PatternType.PREFIXED if access.prefix else PatternType.LITERAL,
            principal=access.principal,
            host=host,
            operation=_operation(operation),
            permission_type=Permission.DENY if access.deny else Permission.ALLOW,
        )
        for operation in access.operation
    ]

    async def run(client: KafkaClient) -> None:
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(CreateAclsRequest(creations))
        for result in answer.results:
            _check_enabled(result.error_code)
            check(result.error_code, result.error_message, "the ACL")

    ask_broker(bootstrap, run)
    print(f"added {_counted(len(creations))}")


@app.command()
@with_flags
def remove(access: AccessFlags, resource: ResourceFlags, bootstrap: BootstrapFlag = None) -> None:
    """Delete the ACLs that match all flags."""
    from tailrace.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
    from tailrace.security.acls import PatternType, Permission, ResourceType

    named = resource.named()
    if access.principal is None and named is None:
        raise WrongUsage(
            "give --principal or a resource (such as --topic); without them all ACLs would be deleted"
        )
    _check_principal(access.principal)
    kind, name = named or (ResourceType.ANY, None)
    filters = [
        DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=PatternType.PREFIXED
            if access.prefix
            else PatternType.LITERAL
            if named
            else PatternType.ANY,
            principal_filter=access.principal,
            host_filter=access.host,
            operation=_operation(operation),
            permission_type=Permission.DENY if access.deny else Permission.ANY,
        )
        for operation in access.operation or ["any"]
    ]

    async def run(client: KafkaClient) -> int:
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(DeleteAclsRequest(filters))
        for result in answer.filter_results:
            _check_enabled(result.error_code)
            check(result.error_code, result.error_message, "the ACLs")
        return sum(len(result.matching_acls) for result in answer.filter_results)

    print(f"removed {_counted(ask_broker(bootstrap, run))}")


async def _described(client: KafkaClient, acl_filter: AclFilter) -> list[dict[str, Any]]:
    from tailrace.kafka.messages.describe_acls import DescribeAclsRequest
    from tailrace.security.acls import Operation, PatternType, Permission, ResourceType
    from tailrace_cli.connections.kafka_client import check

    request = DescribeAclsRequest(
        resource_type_filter=acl_filter.resource_type,
        resource_name_filter=acl_filter.resource_name,
        pattern_type_filter=acl_filter.pattern_type,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )
    answer = await client.ask(request)
    _check_enabled(answer.error_code)
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


def _counted(acls: int) -> str:
    return f"{acls} ACL{'' if acls == 1 else 's'}"


def _check_principal(principal: str | None) -> None:
    """Raise WrongUsage for a principal that no client can have."""
    if principal is not None and ":" not in principal:
        raise WrongUsage(f"--principal {principal!r}: expected TYPE:NAME, such as User:{principal}")


def _check_host(host: str) -> None:
    """Raise WrongUsage for a host that no client's address can match."""
    from tailrace.security.acls import WILDCARD

    try:
        if host != WILDCARD:
            ipaddress.ip_address(host)
    except ValueError:
        raise WrongUsage(f"--host {host!r}: expected an IP address, or {WILDCARD} for any") from None


def _check_enabled(error_code: int) -> None:
    """Raise CommandFailed if the broker does not check ACLs."""
    from tailrace.kafka.error_codes import ErrorCode

    if error_code == ErrorCode.SECURITY_DISABLED:
        raise CommandFailed(
            "the broker does not check ACLs, because none of its listeners authenticates clients: run `tailrace serve "
            "--secure`, or configure a SASL_SSL listener, or an SSL listener with security.client_auth = 'required' "
            "(SECURITY_DISABLED)"
        )


def _wanted(resource: tuple[ResourceType, str] | None, principal: str | None) -> AclFilter:
    from tailrace.security.acls import AclFilter, PatternType

    if resource is None:
        return AclFilter(principal=principal)
    return AclFilter(resource[0], resource[1], PatternType.MATCH, principal)


def _operation(text: str) -> int:
    from tailrace.security.acls import Operation

    try:
        return Operation[text.strip().upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(operation.name.lower() for operation in Operation)
        raise WrongUsage(f"--operation {text!r}: expected one of {names}") from None
