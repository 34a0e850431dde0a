"""InitProducerId: get a producer id and epoch, or raise the epoch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Int64, Message, On, TransactionalId


class InitProducerIdRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.INIT_PRODUCER_ID, "0-5", flexible="2+")

    transactional_id: Annotated[TransactionalId | None, On(nullable="0+")] = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, On("3+")] = -1
    producer_epoch: Annotated[Int16, On("3+")] = -1


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
