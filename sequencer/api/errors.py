"""The errors that the sequencer raises. Each travels as its code and its text."""

from __future__ import annotations

from typing import ClassVar


class SequencerError(Exception):
    """The sequencer refused the request; the subclass says why in the caller's terms. `code` names it on the wire."""

    code: ClassVar[str] = "sequencer_error"


class SequencerUnavailable(SequencerError):
    """There is no committer, or the database is unreachable. Retry with the same ids."""

    code = "unavailable"


class SequencerOverloaded(SequencerError):
    """The committer's queue is full. Slow down and retry with the same ids."""

    code = "overloaded"


class RequestFailed(SequencerError):
    """The request can't be carried out for an unforeseen reason: its values don't fit the database, or there is a bug.
    It changed nothing. A retry fails too."""

    code = "request_failed"


class IncarnationChanged(SequencerError):
    """The database is not the one that this caller knew (it is older or was recovered): drop all state and stop."""

    code = "incarnation_changed"


class SessionClosed(SequencerError):
    """This upload session has ended; nothing may be committed under it."""

    code = "session_closed"


class CommitOutOfOrder(SequencerError):
    """The commit's number is not the next one; the message says which number is expected."""

    code = "commit_expected"


class LeaseLost(SequencerError):
    """The named lease (agent, compactor, committer) has ended or was taken with a higher epoch."""

    code = "lease_lost"


class TopicExists(SequencerError):
    code = "topic_exists"


class UnknownTopic(SequencerError):
    code = "unknown_topic"


class UnknownPartition(SequencerError):
    code = "unknown_partition"


class InvalidRequest(SequencerError):
    """A value is out of bounds; the message says what was given and what is allowed."""

    code = "invalid_request"


class InvalidConfig(SequencerError):
    code = "invalid_config"


class OffsetOutOfRange(SequencerError):
    code = "offset_out_of_range"


class UnknownGroup(SequencerError):
    code = "unknown_group"


class GroupNotEmpty(SequencerError):
    code = "group_not_empty"


class StaleGroup(SequencerError):
    """Owner epoch, generation or member is not the group's current one."""

    code = "stale_group"


class LimitReached(SequencerError):
    """A configured limit (topics, partitions, groups, ...) is reached; the message names the setting."""

    code = "limit_reached"


class ProducerFenced(SequencerError):
    """The epoch is not the current one of the transactional id. Usually a newer producer has taken it: this one must
    stop."""

    code = "producer_fenced"


class InvalidProducerIdMapping(SequencerError):
    """The producer id is not the current one of this transactional id."""

    code = "invalid_producer_id_mapping"


class InvalidTransactionState(SequencerError):
    """The transaction's state does not allow the request; the message names the state."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(SequencerError):
    code = "invalid_transaction_timeout"


class UnknownTransactionalId(SequencerError):
    code = "unknown_transactional_id"


class SwapRefused(SequencerError):
    """The runs are no longer those that the compactor read, or its lease has ended: plan again."""

    code = "swap_refused"


class UnknownToken(SequencerError):
    """There is no such delegation token, or it no longer exists."""

    code = "unknown_token"


class TokenExpired(SequencerError):
    """The delegation token has expired."""

    code = "token_expired"


class NotTokenOwner(SequencerError):
    """The caller is neither the owner nor a renewer of the delegation token."""

    code = "not_token_owner"


ERRORS: dict[str, type[SequencerError]] = {
    error.code: error
    for error in (
        SequencerError, SequencerUnavailable, SequencerOverloaded, RequestFailed, IncarnationChanged, SessionClosed,
        CommitOutOfOrder, LeaseLost, TopicExists, UnknownTopic, UnknownPartition, InvalidRequest, InvalidConfig,
        OffsetOutOfRange, UnknownGroup, GroupNotEmpty, StaleGroup, LimitReached, ProducerFenced,
        InvalidProducerIdMapping, InvalidTransactionState, InvalidTransactionTimeout,
        UnknownTransactionalId, SwapRefused, UnknownToken, TokenExpired, NotTokenOwner,
    )
}  # fmt: skip
