"""DescribeClientQuotas: the quotas that are set, with their entities (KIP-546)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ErrorMessage, Float64, Int8, Int16, Int32, Message, On, String


class ComponentData(Message):
    entity_type: String = ""
    match_type: Int8 = 0
    match: Annotated[String | None, On(nullable="0+")] = ""


class DescribeClientQuotasRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", flexible="1+")

    components: list[ComponentData] = []
    strict: Bool = False


class EntityData(Message):
    entity_type: String = ""
    entity_name: Annotated[String | None, On(nullable="0+")] = ""


class ValueData(Message):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Message):
    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    entries: Annotated[list[EntryData] | None, On(nullable="0+")] = []
