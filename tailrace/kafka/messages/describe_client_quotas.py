"""DescribeClientQuotas (API key 48): which client quotas there are."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Float64, Int8, Int16, Int32, Message, On, String


class ComponentData(Message):
    """Filter components to apply to quota entities."""

    entity_type: String = ""
    match_type: Int8 = 0
    match: Annotated[String | None, On(nullable="0+")] = ""


class DescribeClientQuotasRequest(Message):
    """DescribeClientQuotas request."""

    components: list[ComponentData] = []
    strict: Bool = False


class EntityData(Message):
    """The quota entity description."""

    entity_type: String = ""
    entity_name: Annotated[String | None, On(nullable="0+")] = ""


class ValueData(Message):
    """The quota values for the entity."""

    key: String = ""
    value: Float64 = 0.0


class EntryData(Message):
    """A result entry."""

    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Message):
    """DescribeClientQuotas response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""
    entries: Annotated[list[EntryData] | None, On(nullable="0+")] = []
