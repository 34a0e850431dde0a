"""EndTxn: commit or abort a transaction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, Int16, Int32, Int64, Message, On, TransactionalId


class EndTxnRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.END_TXN, "0-5", flexible="3+")

    transactional_id: TransactionalId = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, On("5+", ignorable=True)] = -1
    producer_epoch: Annotated[Int16, On("5+", ignorable=True)] = -1
