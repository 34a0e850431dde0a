"""AddOffsetsToTxn (API key 25): let a group's offsets take part in a transaction."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Int32, Int64, Message, String


class AddOffsetsToTxnRequest(Message):
    """AddOffsetsToTxn request."""

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Message):
    """AddOffsetsToTxn response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
