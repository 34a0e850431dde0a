"""Client quotas (KIP-546) and client telemetry (KIP-714)."""

from __future__ import annotations

from math import inf, nan
from typing import Any
from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages import alter_client_quotas
from tailrace.kafka.messages.alter_client_quotas import AlterClientQuotasRequest, OpData
from tailrace.kafka.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tailrace.kafka.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from tailrace.kafka.messages.push_telemetry import PushTelemetryRequest
from tests.compat.differential.known import Known, says_nothing
from tests.compat.differential.steps import Ask, Script, Scripts

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, CONSUME, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
NOT_THERE = UUID(int=85)


def described(
    what: str, *parts: tuple[str, int, str | None], strict: bool = False, version: int = 1, until: Any = None
) -> Ask:
    """DescribeClientQuotas, of (entity type, match type, match)."""
    request = DescribeClientQuotasRequest([ComponentData(*part) for part in parts], strict)
    unordered = ("entries", "entity", "values")
    return Ask(what, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request, unordered=unordered, until=until)


def entry(entity: dict[str, str | None], *changes: tuple[str, float | None]) -> Any:
    """Changes of an entity's quotas; None removes one."""
    rows = [alter_client_quotas.EntityData(kind, name) for kind, name in entity.items()]
    ops = [OpData(key, value or 0.0, value is None) for key, value in changes]
    return alter_client_quotas.EntryData(rows, ops)


def altered(what: str, *entries: Any, tried: bool = False, version: int = 1) -> Ask:
    """AlterClientQuotas."""
    request = AlterClientQuotasRequest(list(entries), tried)
    return Ask(what, ApiKey.ALTER_CLIENT_QUOTAS, version, request, unordered=("entries", "entity"))


def quotas() -> Script:
    """Quotas set, changed, removed, found; what is refused."""
    for version in (0, 1):
        yield altered("a user", entry({"user": "u"}, (PRODUCE, 1000.0)), version=version)
        yield described("a user", ("user", EXACT, "u"), version=version, until=lambda row: bool(row.entries))
    yield altered("validate only", entry({"user": "tried"}, (PRODUCE, 1000.0)), tried=True)
    yield described("validated only", ("user", EXACT, "tried"))
    yield altered("the default user", entry({"user": None}, (CONSUME, 5.5)))
    yield altered("a client", entry({"client-id": "c"}, (CONSUME, 2000.0), (REQUEST, 50.0)))
    yield altered("the default client", entry({"client-id": None}, (CONSUME, 3000.0)))
    yield altered("user and client", entry({"user": "u", "client-id": "c"}, (PRODUCE, 10.0)))
    yield altered("user and default client", entry({"user": "u", "client-id": None}, (PRODUCE, 20.0)))
    yield altered("default user and client", entry({"user": None, "client-id": None}, (PRODUCE, 30.0)))
    yield altered("an address", entry({"ip": "127.0.0.1"}, ("connection_creation_rate", 10.0)))
    yield altered("the default address", entry({"ip": None}, ("connection_creation_rate", 20.0)))
    yield altered("a rate of mutations", entry({"user": "u"}, ("controller_mutation_rate", 2.5)))
    for what, row in (
        ("unknown key", entry({"user": "u"}, ("no_such_rate", 1.0))),
        ("empty key", entry({"user": "u"}, ("", 1.0))),
        ("unknown type", entry({"planet": "x"}, (PRODUCE, 1.0))),
        ("empty type", entry({"": "x"}, (PRODUCE, 1.0))),
        ("no entity", entry({}, (PRODUCE, 1.0))),
        ("empty user", entry({"user": ""}, (PRODUCE, 1.0))),
        ("empty client", entry({"client-id": ""}, (PRODUCE, 1.0))),
        ("user and address", entry({"user": "u", "ip": "127.0.0.1"}, (PRODUCE, 1.0))),
        ("client and address", entry({"client-id": "u", "ip": "127.0.0.1"}, (PRODUCE, 1.0))),
        ("bad address", entry({"ip": "not an address"}, ("connection_creation_rate", 1.0))),
        ("an address's bytes", entry({"ip": "127.0.0.1"}, (PRODUCE, 1.0))),
        ("a user's connections", entry({"user": "u"}, ("connection_creation_rate", 1.0))),
        ("zero", entry({"user": "bad"}, (PRODUCE, 0.0))),
        ("zero percent", entry({"user": "bad"}, (REQUEST, 0.0))),
        ("negative", entry({"user": "bad"}, (PRODUCE, -1.0))),
        ("a fraction of a byte", entry({"user": "bad"}, (PRODUCE, 1.5))),
        ("nearly a whole byte", entry({"user": "bad"}, (PRODUCE, 1.0000001))),
        ("too many bytes", entry({"user": "bad"}, (PRODUCE, 1e30))),
        ("too many percent", entry({"user": "bad"}, (REQUEST, 1e9))),
        ("a fraction of a connection", entry({"ip": "127.0.0.1"}, ("connection_creation_rate", 1.5))),
        ("no connection", entry({"ip": "127.0.0.1"}, ("connection_creation_rate", 0.0))),
        ("no change", entry({"user": "u"})),
        ("remove what is not there", entry({"user": "not-there"}, (PRODUCE, None))),
        ("remove an unknown key", entry({"user": "u"}, ("no_such_rate", None))),
        ("a key twice", entry({"user": "twice"}, (PRODUCE, 1.0), (PRODUCE, 2.0))),
        ("set and remove", entry({"user": "both"}, (PRODUCE, 1.0), (PRODUCE, None))),
    ):
        yield altered(what, row)
        yield altered(f"{what}, validate only", row, tried=True)
        yield altered(f"{what}, and a good one", row, entry({"user": "good"}, (CONSUME, 7.0)))
    row = entry({"user": "same"}, (PRODUCE, 1.0))
    yield altered("an entity twice", row, entry({"user": "same"}, (CONSUME, 1.0)))
    yield altered("nothing")
    for strict in (False, True):
        for what, parts in (
            ("everything", []),
            ("a user", [("user", EXACT, "u")]),
            ("the default user", [("user", DEFAULT, None)]),
            ("any user", [("user", ANY, None)]),
            ("a client", [("client-id", EXACT, "c")]),
            ("any client", [("client-id", ANY, None)]),
            ("the default client", [("client-id", DEFAULT, None)]),
            ("user and client", [("user", EXACT, "u"), ("client-id", EXACT, "c")]),
            ("user and any client", [("user", EXACT, "u"), ("client-id", ANY, None)]),
            ("any of both", [("user", ANY, None), ("client-id", ANY, None)]),
            ("an address", [("ip", EXACT, "127.0.0.1")]),
            ("any address", [("ip", ANY, None)]),
            ("address and user", [("ip", ANY, None), ("user", ANY, None)]),
            ("unknown user", [("user", EXACT, "nobody")]),
            ("null user", [("user", EXACT, None)]),
            ("empty user", [("user", EXACT, "")]),
            ("default with a name", [("user", DEFAULT, "u")]),
            ("any with a name", [("user", ANY, "u")]),
            ("unknown match", [("user", 9, "u")]),
            ("unknown type", [("planet", EXACT, "x")]),
            ("empty type", [("", ANY, None)]),
            ("a type twice", [("user", EXACT, "u"), ("user", ANY, None)]),
        ):
            yield described(f"{what}{', strictly' if strict else ''}", *parts, strict=strict)

    def has_one(answer: Any) -> bool:
        return len(answer.entries[0].values) == 1

    yield altered("remove a key", entry({"client-id": "c"}, (REQUEST, None)))
    yield described("a key less", ("client-id", EXACT, "c"), strict=True, until=has_one)
    yield altered("remove it all", entry({"client-id": "c"}, (CONSUME, None)))
    yield described(
        "nothing is left", ("client-id", EXACT, "c"), strict=True, until=lambda row: not row.entries
    )
    yield altered("most bytes", entry({"user": "most"}, (PRODUCE, 9223372036854775807.0)))
    yield described("most bytes", ("user", EXACT, "most"), strict=True, until=lambda row: bool(row.entries))
    yield altered("not a number", entry({"user": "bad"}, (PRODUCE, nan)))
    yield altered("infinity", entry({"user": "bad"}, (REQUEST, inf)))
    rows = [alter_client_quotas.EntityData("user", name) for name in ("a", "b")]
    yield altered("a type twice", alter_client_quotas.EntryData(rows, [OpData(PRODUCE, 1.0)]))


def telemetry() -> Script:
    """GetTelemetrySubscriptions and PushTelemetry without a subscription, with a wrong one, of wrong compression."""

    def asked(what: str, client: UUID, ignored: tuple[str, ...] = ("subscription_id",)) -> Ask:
        request = GetTelemetrySubscriptionsRequest(client)
        return Ask(what, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, request, ignored=ignored, connection=what)

    def pushed(what: str, client: UUID, subscription: int, **more: Any) -> Ask:
        request = PushTelemetryRequest(client, subscription, **more)
        return Ask(what, ApiKey.PUSH_TELEMETRY, 0, request, connection=what)

    first = yield asked("a new client", UUID(int=0))
    yield asked("at once again", first.client_instance_id)
    yield asked("a client that names itself", NOT_THERE)
    yield pushed("of no id", UUID(int=0), 0)
    yield pushed("unknown client", UUID(int=86), 0)
    yield pushed("wrong subscription", first.client_instance_id, first.subscription_id + 1)
    yield pushed("nothing", first.client_instance_id, first.subscription_id)
    yield pushed("unknown compression", first.client_instance_id, first.subscription_id, compression_type=9)
    yield pushed("no metrics", first.client_instance_id, first.subscription_id, metrics=b"not metrics")
    yield pushed("too large", first.client_instance_id, first.subscription_id, metrics=b"x" * (2 << 20))
    yield pushed("terminating", first.client_instance_id, first.subscription_id, terminating=True)
    yield pushed("after it ended", first.client_instance_id, first.subscription_id, terminating=True)


SLOWER = "a client may ask as often as its quota allows, and push again unless a push of it was taken"
SCRIPTS = Scripts(
    {"quotas": quotas, "telemetry": telemetry},
    known=(
        says_nothing("*.quotas"),
        Known(
            "*.quotas", "remove an unknown key*", "entries.0.error_code", "a key that there is not is refused"
        ),
        Known("*.quotas", "remove an unknown key, and*", "entries.*", "a key that there is not is refused"),
        Known("*.quotas", "an entity twice*", "entries.*", "both changes are made, in their order"),
        Known("*.quotas", "everything*", "entries.*", "as the entity that was named twice"),
        Known("*.quotas", "any user*", "entries.*", "as the entity that was named twice"),
        Known("*.quotas", "not a number*", "*error_code", "a limit is a number"),
        Known("*.quotas", "infinity*", "*error_code", "a limit is a number"),
        Known(
            "*.quotas",
            "a type twice*",
            "*error_code",
            "an entity has one name of a type; Kafka takes the last",
        ),
        Known("*.telemetry", "a *client*", "delta_temporality", "Tailrace shows the sums as its own metrics"),
        Known("*.telemetry", "*", "error_code", SLOWER, kafka="THROTTLING_QUOTA_EXCEEDED(89)"),
        Known("*.telemetry", "after it ended*", "error_code", "a client that has ended may push again"),
    ),
)
