"""Writes changes of users, ACLs, quotas, delegation tokens and configs, and deletions of topics and groups, to the
audit log: who changed what, and the result.

The text of a line is a pure function of a request and its response. It never contains secrets (salts, keys, HMACs,
values of password configs). A token is named by the first characters of its fingerprint, a hash of its HMAC, which
can't be used to log in.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agent.handlers.config_resources import SCOPES, definition_of
from agent.security.audit_log import changed
from agent.security.delegation_tokens import fingerprint_of
from agent.security.users import NAMES
from agent.services import Handler, RequestContext, Services
from sequencer.api.security import ScramMechanism
from sequencer.api.topics import ConfigOperation, ConfigScope
from tailrace.configs.topic_config import ConfigType
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from tailrace.kafka.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tailrace.kafka.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tailrace.kafka.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tailrace.kafka.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tailrace.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from tailrace.security.acls import Operation, PatternType, Permission, ResourceType
from tailrace.turns import Turns

FINGERPRINT_CHARACTERS = 16
MAX_CHARACTERS = 1_000
"""The most characters of one change: clients may use long names."""

LINES_IN_A_TURN = 100

Change = tuple[str, int]
"""What was requested, in words, and the error code of its result."""


def audited(handle: Handler, changes: Callable[[Any, Any], Iterable[Change]]) -> Handler:
    """Wrap the handler to write a line to the audit log for each change, even if it raises: the client may be gone."""

    async def noted(services: Services, context: RequestContext, request: Any) -> Any:
        api = APIS[request.api.key].name
        try:
            response = await handle(services, context, request)
        except BaseException as error:
            _note(services, context, api, change="unknown: there was no answer", result=type(error).__name__)
            raise
        left, turns = iter(changes(request, response)), Turns(LINES_IN_A_TURN)
        try:
            for change, code in left:
                _note(services, context, api, change=change, result=_named(ErrorCode, code))
                await turns.did()
        except BaseException:  # the client is gone, but its changes were made
            for change, code in left:
                _note(services, context, api, change=change, result=_named(ErrorCode, code))
            raise
        return response

    return noted


def _note(services: Services, context: RequestContext, api: str, *, change: str, result: str) -> None:
    """Write a line. On an agent without logins, where everyone may change everything, failed changes have none."""
    fields = {
        "peer": context.client_host,
        "principal": context.access.principal,
        "broker_id": services.identity.broker_id,
        "api": api,
        "change": change[:MAX_CHARACTERS],
        "result": result,
    }
    if result == ErrorCode.NONE.name:
        changed(**fields)
    elif context.access.audit is not None:
        context.access.audit.not_changed(**fields)


def scram_changes(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterator[Change]:
    """Return the users whose credentials were set or deleted."""
    codes = {result.user: result.error_code for result in response.results}
    for deleted in request.deletions:
        yield f"delete {_mechanism(deleted.mechanism)} of user {deleted.name}", codes.get(deleted.name, 0)
    for stored in request.upsertions:
        text = f"set {_mechanism(stored.mechanism)} of user {stored.name}, {stored.iterations} iterations"
        yield text, codes.get(stored.name, 0)


def created_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[Change]:
    """Return the ACLs that the request adds."""
    for acl, result in zip(request.creations, response.results, strict=True):
        pattern = (acl.resource_type, acl.resource_pattern_type, acl.resource_name)
        yield f"add {_acl(*pattern, acl)}", result.error_code


def deleted_acls(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterator[Change]:
    """Return the ACLs that were removed, and the filters that were refused."""
    for asked, result in zip(request.filters, response.filter_results, strict=True):
        for acl in result.matching_acls:
            yield (
                f"remove {_acl(acl.resource_type, acl.pattern_type, acl.resource_name, acl)}",
                acl.error_code,
            )
        if result.error_code:
            pattern = (asked.resource_type_filter, asked.pattern_type_filter, asked.resource_name_filter)
            yield f"remove ACLs on {_pattern(*pattern)}", result.error_code


def quota_changes(request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterator[Change]:
    """Return the quotas that were set or removed; nothing for a request that only validates."""
    if request.validate_only:
        return
    for entry, result in zip(request.entries, response.entries, strict=True):
        parts = (f"{part.entity_type} {part.entity_name or '<default>'}" for part in entry.entity)
        entity = ", ".join(parts)
        for change in entry.ops:
            text = f"remove {change.key}" if change.remove else f"set {change.key}={change.value:g}"
            yield f"{text} of {entity}", result.error_code


def config_changes(
    request: IncrementalAlterConfigsRequest, response: IncrementalAlterConfigsResponse
) -> Iterator[Change]:
    """Return the configs that were changed; nothing for a request that only validates."""
    if request.validate_only:
        return
    for resource, result in zip(request.resources, response.responses, strict=True):
        whose = _resource(resource.resource_type, resource.resource_name)
        for config in resource.configs:
            yield f"{_config_change(resource.resource_type, config)} of {whose}", result.error_code


def replaced_configs(request: AlterConfigsRequest, response: AlterConfigsResponse) -> Iterator[Change]:
    """Return, for each resource, that its configs were removed, and those that replace them; nothing for a request that
    only validates."""
    if request.validate_only:
        return
    for resource, result in zip(request.resources, response.responses, strict=True):
        kind, whose = resource.resource_type, _resource(resource.resource_type, resource.resource_name)
        yield f"remove all configs of {whose}", result.error_code
        for config in resource.configs:
            yield f"set {config.name}={_shown(kind, config.name, config.value)} of {whose}", result.error_code


def deleted_topics(request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Iterator[Change]:
    """Return the topics that were deleted, with their ids."""
    for topic in response.responses:
        name = f" {topic.name}" if topic.name is not None else ""
        named_by_id = f", id {topic.topic_id}" if topic.topic_id != NIL_TOPIC_ID else ""
        yield f"delete topic{name}{named_by_id}", topic.error_code


def deleted_groups(request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Iterator[Change]:
    """Return the groups that were deleted, with their committed offsets."""
    for group in response.results:
        yield f"delete group {group.group_id}", group.error_code


def created_token(
    request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse
) -> Iterator[Change]:
    """Return the new token; if it was refused, its owner and renewers."""
    renewers = ", ".join(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
    if response.error_code:
        owner = f"User:{request.owner_principal_name}" if request.owner_principal_name else "the client"
        yield f"create a token of {owner}, renewers: {renewers or 'none'}", response.error_code
        return
    owner = f"{response.principal_type}:{response.principal_name}"
    token = f"token {response.token_id} ({_fingerprint(response.hmac)}) of {owner}"
    yield f"create {token}, renewers: {renewers or 'none'}", 0


def altered_token(
    request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest, response: Any
) -> Iterator[Change]:
    """Return the token whose expiry was changed."""
    verb = "renew" if isinstance(request, RenewDelegationTokenRequest) else "expire"
    until = "" if response.error_code else f", it expires at {response.expiry_timestamp_ms} ms"
    yield f"{verb} the token with fingerprint {_fingerprint(request.hmac)}{until}", response.error_code


def _acl(resource_type: int, pattern_type: int, name: str, acl: Any) -> str:
    """`acl`: a message with a principal, a host, an operation and a permission."""
    permission, operation = _named(Permission, acl.permission_type), _named(Operation, acl.operation)
    pattern = _pattern(resource_type, pattern_type, name)
    return f"{permission} {operation} on {pattern} for {acl.principal} from {acl.host}"


def _pattern(resource_type: int, pattern_type: int, name: str | None) -> str:
    return f"{_named(ResourceType, resource_type)} {_named(PatternType, pattern_type)} {name or '(any)'}"


def _resource(resource_type: int, name: str) -> str:
    scope = SCOPES.get(resource_type)
    if scope is None:
        return f"resource type {resource_type} {name}"
    if scope is ConfigScope.BROKER and not name:
        return "all brokers"
    return f"{scope.name.lower().replace('_', ' ')} {name}"


def _config_change(resource_type: int, config: AlterableConfig) -> str:
    value = _shown(resource_type, config.name, config.value)
    match config.config_operation:
        case ConfigOperation.SET:
            return f"set {config.name}={value}"
        case ConfigOperation.DELETE:
            return f"remove {config.name}"
        case ConfigOperation.APPEND:
            return f"append {value} to {config.name}"
        case ConfigOperation.SUBTRACT:
            return f"subtract {value} from {config.name}"
    return f"operation {config.config_operation} on {config.name}"


def _shown(resource_type: int, name: str, value: str | None) -> str:
    """Return the config's value, except that of a password, and of an unknown config, which may be a misspelt one."""
    scope = SCOPES.get(resource_type)
    definition = None if scope is None else definition_of(scope, name)
    return f"{value}" if definition is not None and definition.type is not ConfigType.PASSWORD else "(hidden)"


def _mechanism(number: int) -> str:
    known = list(ScramMechanism)
    return NAMES[ScramMechanism(number)] if number in known else f"mechanism {number}"


def _named(kind: type[enum.IntEnum], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _fingerprint(token_hmac: Any) -> str:
    return fingerprint_of(bytes(token_hmac))[:FINGERPRINT_CHARACTERS]
