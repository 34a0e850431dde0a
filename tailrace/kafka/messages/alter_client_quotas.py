"""AlterClientQuotas: set and remove quotas (KIP-546)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ErrorMessage, Float64, Int16, Int32, Message, On, String


class EntityData(Message):
    entity_type: String = ""
    entity_name: Annotated[String | None, On(nullable="0+")] = ""


class OpData(Message):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryData(Message):
    entity: list[EntityData] = []
    ops: list[OpData] = []


class AlterClientQuotasRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", flexible="1+")

    entries: list[EntryData] = []
    validate_only: Bool = False


class AlteredEntry(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    entity: list[EntityData] = []


class AlterClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    entries: list[AlteredEntry] = []
