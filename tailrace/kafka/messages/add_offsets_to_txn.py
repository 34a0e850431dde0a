"""AddOffsetsToTxn: let a group's offsets take part in a transaction."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Int64, Message, TransactionalId


class AddOffsetsToTxnRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", flexible="3+")

    transactional_id: TransactionalId = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: GroupId = ""


class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
