"""The gateway's error answers: status, Kafka REST v3's error code, a sentence. Pure."""

from __future__ import annotations

from tailrace.kafka.error_codes import ErrorCode

Table = dict[ErrorCode, tuple[int, int, str]]

_KNOWN: Table = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, 40301, "You are not allowed to do this with this topic."),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, 40301, "You are not allowed to do this with this group."),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, 40301, "You are not allowed to do this with this cluster."),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, 40403, "There is no such topic or partition."),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, 40403, "There is no such topic or partition."),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 40403, "There is no such consumer group."),
    ErrorCode.TOPIC_ALREADY_EXISTS: (400, 40002, "A topic of this name exists already."),
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        416,
        41601,
        "The partition has no record at this offset: it is before the first one or after the last one.",
    ),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 41301, "The record is larger than the topic's max.message.bytes."),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (429, 42901, "You are above your quota. Try again later."),
    ErrorCode.BROKER_NOT_AVAILABLE: (503, 50302, "The agent can't serve requests now. Try again."),
    ErrorCode.UNKNOWN_SERVER_ERROR: (500, 50002, "The request failed. The agent's log says why."),
    ErrorCode.KAFKA_STORAGE_ERROR: (500, 50003, "The object store did not answer as it should. Try again."),
}
_RETRIABLE = (503, 50003, "The request was not done in time, or another agent is taking over. Try again.")
_RETRIED = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class HttpRefusal(Exception):
    """A request, or one record of it, is refused. `code`: Kafka REST v3's error code; by default the status."""

    def __init__(self, status: int, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = status if code is None else code

    @property
    def body(self) -> dict[str, object]:
        """The JSON body of the answer."""
        return {"error_code": self.code, "message": str(self)}


def refusal_of(code: int, message: str | None = None) -> HttpRefusal:
    """Return the refusal for a Kafka error. `message`: the handler's message, if it has one."""
    known = ErrorCode(code)
    if known in _RETRIED:
        status, number, text = _RETRIABLE
    else:
        status, number, text = _KNOWN.get(
            known, (400, 40002, known.name.replace("_", " ").capitalize() + ".")
        )
    return HttpRefusal(
        status, _sentence(message) if message and status < 500 and status != 403 else text, number
    )


def check(code: int, message: str | None = None) -> None:
    """Raise HttpRefusal unless the code is NONE."""
    if code != ErrorCode.NONE:
        raise refusal_of(code, message)


def _sentence(message: str) -> str:
    first = message.partition(" ")[0]
    text = message[0].upper() + message[1:] if first.isalpha() else message  # `retention.ms:` stays as it is
    return text if text.endswith((".", "!", "?")) else f"{text}."
