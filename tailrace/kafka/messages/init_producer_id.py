"""InitProducerId (API key 22): get, or renew, a producer's id and epoch."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int16, Int32, Int64, Message, On, String


class InitProducerIdRequest(Message):
    """InitProducerId request."""

    transactional_id: Annotated[String | None, On(nullable="0+")] = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, On("3+")] = -1
    producer_epoch: Annotated[Int16, On("3+")] = -1


class InitProducerIdResponse(Message):
    """InitProducerId response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
