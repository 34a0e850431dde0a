"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable

from agent.errors import EXPECTED, RequestRefused, code_of, invalid
from agent.quotas.precedence import quotas_of
from agent.services import RequestContext, Services
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from sequencer.rules.access import MAX_CHANGES
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntry,
)
from tailrace.kafka.messages.alter_client_quotas import EntryData as AlteredEntity
from tailrace.kafka.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from tailrace.quotas import (
    CLIENT_ID,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    USER,
    InvalidQuota,
    QuotaEntity,
    checked_entity,
    checked_limit,
)

ENTITY_BYTES = 1_000
"""Estimated bytes of an entity with its quotas in an answer, as objects and encoded."""
MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY = 0, 1, 2
_WITH_A_NAME = {MATCH_DEFAULT: "MATCH_TYPE_DEFAULT", MATCH_ANY: "MATCH_TYPE_SPECIFIED"}


async def describe(
    services: Services, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Return the quotas of the entities that the filter matches."""
    try:
        is_wanted = _filter(request)
        await services.catalog.refresh()
    except (RequestRefused, *EXPECTED) as error:
        return DescribeClientQuotasResponse(error_code=code_of(error), error_message=str(error), entries=None)
    configs = services.catalog.client_configs.configs
    await context.reservation.needs(ENTITY_BYTES * len(configs))
    quotas = quotas_of(configs)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                [EntityData(kind, name or None) for kind, name in entity.parts.items()],
                [ValueData(key, limit) for key, limit in limits.items()],
            )
            for entity, limits in quotas.items()
            if is_wanted(entity)
        ],
    )


def _filter(request: DescribeClientQuotasRequest) -> Callable[[QuotaEntity], bool]:
    """Return a function that tells whether an entity matches. Raises RequestRefused, with Kafka's messages."""
    names: dict[str, str | None] = {}
    names_nobody = False  # by the empty name, which is DEFAULT's here
    for component in request.components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise invalid("Invalid empty entity type.")
        if kind in names:
            raise invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise RequestRefused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:100]}")
        if component.match_type == MATCH_EXACT and match is None:
            raise invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if component.match_type in _WITH_A_NAME and match is not None:
            said = (
                f"Request specified {_WITH_A_NAME[component.match_type]}, but also specified a match string."
            )
            raise invalid(said)
        if component.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY):
            raise invalid(f"Unknown match type {component.match_type}")
        names_nobody |= match == ""
        names[kind] = None if component.match_type == MATCH_ANY else match or DEFAULT
    if IP in names and names.keys() & {USER, CLIENT_ID}:
        raise invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component."
        )

    def is_wanted(entity: QuotaEntity) -> bool:
        parts = entity.parts
        if names_nobody or (request.strict and len(parts) != len(names)):
            return False
        return all(kind in parts and name in (None, parts[kind]) for kind, name in names.items())

    return is_wanted


async def alter(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Change the quotas of each entity; a refused entity does not affect the others."""
    response = AlterClientQuotasResponse()
    for number, entry in enumerate(request.entries):
        row = AlteredEntry(error_message=None, entity=entry.entity)
        response.entries.append(row)
        try:
            if number >= MAX_CHANGES:
                raise InvalidQuota(f"more than {MAX_CHANGES} entities in one request")
            await services.sequencer.alter_config(_change(entry, request.validate_only))
        except InvalidQuota as error:
            row.error_code, row.error_message = ErrorCode.INVALID_REQUEST, str(error)
        except EXPECTED as error:
            row.error_code, row.error_message = code_of(error), str(error)
    await services.catalog.refresh_if_possible()
    return response


def _change(entry: AlteredEntity, validate_only: bool) -> AlterConfig:
    """Return the change for the sequencer. Raises InvalidQuota."""
    parts: list[tuple[str, str]] = []
    for part in entry.entity:
        if part.entity_name == "":
            raise InvalidQuota(f"Empty {part.entity_type[:100]} not supported")
        parts.append((part.entity_type, part.entity_name or DEFAULT))
    entity = checked_entity(parts)
    changes: dict[str, ConfigChange] = {}
    for change in entry.ops:
        if change.key in changes:
            raise InvalidQuota(f"Duplicate quota key {change.key[:100]} in one entry")
        value = checked_limit(entity, change.key, 1.0 if change.remove else change.value)
        operation = ConfigOperation.DELETE if change.remove else ConfigOperation.SET
        changes[change.key] = ConfigChange(change.key, operation, None if change.remove else repr(value))
    return AlterConfig(ConfigScope.QUOTA, entity.text, list(changes.values()), validate_only=validate_only)
