"""SaslHandshake, ACLs, delegation tokens, SCRAM credentials: what servers with and without logins say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
from tailrace.kafka.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from tailrace.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tailrace.kafka.messages.describe_acls import DescribeAclsRequest
from tailrace.kafka.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from tailrace.kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tailrace.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.compat.differential.known import Known, says_nothing
from tests.compat.differential.steps import CLOSED, Ask, Script, Scripts

LITERAL, PREFIXED = 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
READ, WRITE, ALTER_CONFIGS = 3, 4, 11
DENY, ALLOW = 2, 3
SALTED = b"p" * 32


def acl(**more: Any) -> AclCreation:
    """A good ACL, but for what is named."""
    row = {
        "resource_type": TOPIC, "resource_name": "t", "resource_pattern_type": LITERAL, "principal": "User:alice",
        "host": "*", "operation": READ, "permission_type": ALLOW, **more,
    }  # fmt: skip
    return AclCreation(**row)


def created(what: str, *rows: AclCreation, version: int = 3) -> Ask:
    """CreateAcls."""
    return Ask(what, ApiKey.CREATE_ACLS, version, CreateAclsRequest(list(rows)))


def asked(what: str, version: int = 3, **more: Any) -> Ask:
    """DescribeAcls: everything, but for what is named."""
    row = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1, **more}
    unordered = ("resources", "acls")
    return Ask(what, ApiKey.DESCRIBE_ACLS, version, DescribeAclsRequest(**row), unordered=unordered)


def removed(what: str, *rows: dict[str, Any], version: int = 3) -> Ask:
    """DeleteAcls: everything, but for what is named."""
    everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    filters = [DeleteAclsFilter(**(everything | row)) for row in rows]
    return Ask(what, ApiKey.DELETE_ACLS, version, DeleteAclsRequest(filters), unordered=("matching_acls",))


def acls_without_authorizer() -> Script:
    """ACLs where nothing is authorized."""
    for version in range(1, 4):
        yield asked("all", version)
        yield created("one", acl(), version=version)
        yield created("none", version=version)
        yield removed("all", {}, version=version)
        yield removed("none", version=version)


def tokens_without_logins() -> Script:
    """Delegation tokens where nobody logs in."""
    for version in range(1, 4):
        yield Ask(
            "create",
            ApiKey.CREATE_DELEGATION_TOKEN,
            version,
            CreateDelegationTokenRequest(max_lifetime_ms=-1),
        )
        request = CreateDelegationTokenRequest(renewers=[CreatableRenewers("User", "alice")])
        yield Ask("create, for another", ApiKey.CREATE_DELEGATION_TOKEN, version, request)
        yield Ask("describe", ApiKey.DESCRIBE_DELEGATION_TOKEN, version, DescribeDelegationTokenRequest(None))
        owner = DescribeDelegationTokenOwner("User", "alice")
        request = DescribeDelegationTokenRequest([owner])
        yield Ask("describe another's", ApiKey.DESCRIBE_DELEGATION_TOKEN, version, request)
    for version in (1, 2):
        yield Ask("renew", ApiKey.RENEW_DELEGATION_TOKEN, version, RenewDelegationTokenRequest(b"x", 1_000))
        yield Ask(
            "expire", ApiKey.EXPIRE_DELEGATION_TOKEN, version, ExpireDelegationTokenRequest(b"x", 1_000)
        )


def handshakes_without_logins() -> Script:
    """SaslHandshake and SaslAuthenticate on a listener without logins."""
    for version in (0, 1):
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "NONE", ""):
            yield Ask(f"{mechanism!r}", ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))
    for version in (0, 1, 2):
        yield Ask("authenticate", ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(b"\0a\0b"))


def scram_users() -> Script:
    """SCRAM credentials: made, replaced, deleted, listed; and what is refused."""

    def listed(what: str, *names: str) -> Ask:
        users = [UserName(name) for name in names] if names else None
        request = DescribeUserScramCredentialsRequest(users)
        unordered = ("results", "credential_infos")
        return Ask(what, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request, unordered=unordered)

    def upsert(
        name: str, mechanism: int = 1, iterations: int = 4096, **more: Any
    ) -> ScramCredentialUpsertion:
        row = {"salt": b"s" * 32, "salted_password": SALTED, **more}
        return ScramCredentialUpsertion(name, mechanism, iterations, **row)

    def altered(what: str, *rows: ScramCredentialUpsertion, gone: list[tuple[str, int]] | None = None) -> Ask:
        deletions = [ScramCredentialDeletion(*row) for row in gone or []]
        request = AlterUserScramCredentialsRequest(deletions, list(rows))
        return Ask(what, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request, unordered=("results",))

    yield listed("an unknown user", "scram-nobody")
    yield altered("one", upsert("alice"))
    yield altered("again", upsert("alice", iterations=8192))
    yield altered("its other mechanism", upsert("alice", 2, salted_password=b"p" * 64))
    yield listed("one", "alice")
    yield listed("one twice", "alice", "alice")
    yield listed("known and unknown", "alice", "scram-nobody")
    yield listed("empty name", "")
    everybody = DescribeUserScramCredentialsRequest([])
    lists = ("results", "credential_infos")
    yield Ask("of nobody", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, everybody, unordered=lists)
    yield altered("no name", upsert(""))
    for mechanism in (0, 3, -1, 99):
        yield altered(f"mechanism {mechanism}", upsert("bob", mechanism))
        yield altered(f"delete mechanism {mechanism}", gone=[("alice", mechanism)])
    for iterations in (0, -1, 4095, 16384, 16385, 1 << 30):
        yield altered(f"{iterations} iterations", upsert("bob", iterations=iterations))
    yield altered("no salt", upsert("bob", salt=b""))
    yield altered("no password", upsert("bob", salted_password=b""))
    yield altered("a short password", upsert("bob", salted_password=b"short"))
    yield altered("twice", upsert("carol"), upsert("carol"))
    yield altered("twice, of two mechanisms", upsert("carol"), upsert("carol", 2, salted_password=b"p" * 64))
    yield altered("upsert and delete", upsert("alice"), gone=[("alice", 1)])
    yield altered("upsert and delete of another mechanism", upsert("alice"), gone=[("alice", 2)])
    yield altered("delete twice", gone=[("alice", 1), ("alice", 1)])
    yield altered("delete an unknown user", gone=[("scram-nobody", 1)])
    yield altered("delete an empty name", gone=[("", 1)])
    yield altered("good and bad", upsert("dave"), upsert("erin", iterations=1))
    yield altered("nothing")
    yield altered("delete", gone=[("alice", 1)])
    yield altered("delete again", gone=[("alice", 1)])
    yield listed("what is left", "alice", "bob", "carol", "dave", "erin")


def acls() -> Script:
    """ACLs with an authorizer: made, twice, refused; found by filters; deleted."""
    for version in range(1, 4):
        yield created("one", acl(resource_name=f"t{version}"), version=version)
        yield asked("by name", version, resource_type_filter=TOPIC, resource_name_filter=f"t{version}")
    yield created("again", acl(resource_name="t1"))
    yield created("twice", acl(resource_name="t4"), acl(resource_name="t4"))
    yield created("prefixed", acl(resource_name="t", resource_pattern_type=PREFIXED))
    yield created("of all topics", acl(resource_name="*"))
    yield created("denied", acl(resource_name="t1", permission_type=DENY, operation=WRITE))
    yield created(
        "of the cluster", acl(resource_type=CLUSTER, resource_name="kafka-cluster", operation=ALTER_CONFIGS)
    )
    for what, row in (
        ("cluster's name", acl(resource_type=CLUSTER, resource_name="other", operation=ALTER_CONFIGS)),
        ("operation of another type", acl(operation=ALTER_CONFIGS, resource_type=GROUP)),
        ("operation any", acl(operation=1)),
        ("operation unknown", acl(operation=0)),
        ("operation 99", acl(operation=99)),
        ("operation all", acl(operation=2)),
        ("permission any", acl(permission_type=1)),
        ("permission unknown", acl(permission_type=0)),
        ("permission 99", acl(permission_type=99)),
        ("type any", acl(resource_type=1)),
        ("type unknown", acl(resource_type=0)),
        ("type 99", acl(resource_type=99)),
        ("pattern any", acl(resource_pattern_type=1)),
        ("pattern match", acl(resource_pattern_type=2)),
        ("pattern unknown", acl(resource_pattern_type=0)),
        ("pattern 99", acl(resource_pattern_type=99)),
        ("empty name", acl(resource_name="")),
        ("empty principal", acl(principal="")),
        ("principal without a type", acl(principal="alice")),
        ("principal of another type", acl(principal="Group:x")),
        ("empty principal name", acl(principal="User:")),
        ("all principals", acl(principal="User:*")),
        ("a host", acl(host="10.0.0.1")),
        ("a network", acl(host="10.0.0.0/8")),
        ("illegal topic", acl(resource_name="a b/c")),
    ):
        yield created(what, row)
        yield created(f"{what}, and a good one", row, acl(resource_name="good"))
    yield created("none")
    for what, filters in (
        ("all", {}),
        ("topics", {"resource_type_filter": TOPIC}),
        ("literal", {"pattern_type_filter": LITERAL}),
        ("prefixed", {"pattern_type_filter": PREFIXED}),
        ("match", {"resource_type_filter": TOPIC, "pattern_type_filter": 2, "resource_name_filter": "t1"}),
        ("any pattern", {"resource_type_filter": TOPIC, "resource_name_filter": "t"}),
        ("name of any type", {"resource_name_filter": "t1"}),
        ("empty name", {"resource_type_filter": TOPIC, "resource_name_filter": ""}),
        ("principal", {"principal_filter": "User:alice"}),
        ("unknown principal", {"principal_filter": "User:nobody"}),
        ("empty principal", {"principal_filter": ""}),
        ("principal without a type", {"principal_filter": "alice"}),
        ("host", {"host_filter": "10.0.0.1"}),
        ("no host", {"host_filter": ""}),
        ("operation", {"operation": WRITE}),
        ("operation all", {"operation": 2}),
        ("operation unknown", {"operation": 0}),
        ("permission", {"permission_type": DENY}),
        ("permission unknown", {"permission_type": 0}),
        ("type unknown", {"resource_type_filter": 0}),
        ("type 99", {"resource_type_filter": 99}),
        ("pattern unknown", {"pattern_type_filter": 0}),
    ):
        for version in (1, 3):
            yield asked(what, version, **filters)
    yield removed("no match", {"principal_filter": "User:nobody"})
    yield removed("unknown type", {"resource_type_filter": 0})
    yield removed("unknown, and good", {"operation": 0}, {"principal_filter": "User:nobody"})
    yield removed("one", {"resource_name_filter": "t1", "operation": WRITE})
    yield removed("overlapping", {"resource_name_filter": "t2"}, {"resource_name_filter": "t2"})
    yield removed("none")
    for version in range(1, 4):
        yield removed("all", {}, version=version)
        yield created("another", acl(resource_name="last"), version=version)
    yield replace(asked("what is left"), until=lambda answer: bool(answer.resources))
    yield created("empty host", acl(host=""))


def delegation_tokens() -> Script:
    """Delegation tokens over a listener without logins, beside one with logins."""
    yield from tokens_without_logins()


def handshakes() -> Script:
    """SaslHandshake on the plain listener, beside one with logins."""
    yield from handshakes_without_logins()


ONE_BY_ONE = "a bad ACL is refused, and the others are made"
ANSWERED = "the request is answered; Kafka closes the connection"
SAYS_NOTHING = "a refusal says no more than its code"
TOKENS = (Known("*tokens", "create*", "*principal_*", SAYS_NOTHING, tailrace=""),)
STRICT = "SCRAM's keys and salts have their sizes"
ONE_MECHANISM = "a user's mechanisms change one by one; Kafka takes one change of a user"


def logins() -> Script:
    """The listener with logins: what is answered before a login, unknown mechanisms, wrong words, wrong order."""

    def asked(what: str, api: ApiKey, version: int, request: Any, line: str, **more: Any) -> Ask:
        return Ask(what, api, version, request, line, "", **more)

    def shaken(what: str, mechanism: str, line: str, version: int = 1) -> Ask:
        request = SaslHandshakeRequest(mechanism)
        return asked(what, ApiKey.SASL_HANDSHAKE, version, request, line, ignored=("mechanisms",))

    def said(what: str, words: bytes, line: str, version: int = 2) -> Ask:
        return asked(what, ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(words), line)

    for version in (0, 1):
        for mechanism in ("NONE", "", "scram-sha-256", "GSSAPI"):
            yield shaken(f"mechanism {mechanism!r}", mechanism, f"mechanism {mechanism} {version}", version)
        yield shaken("after a bad one", "SCRAM-SHA-256", f"mechanism NONE {version}", version)
    yield asked("metadata before a login", ApiKey.METADATA, 12, MetadataRequest([]), "metadata")
    yield said("words before a handshake", b"\0a\0b", "words")
    yield shaken("a handshake", "SCRAM-SHA-256", "twice")
    yield shaken("a second handshake", "SCRAM-SHA-256", "twice")
    yield shaken("a handshake, then metadata", "SCRAM-SHA-256", "then metadata")
    yield asked("metadata in a login", ApiKey.METADATA, 12, MetadataRequest([]), "then metadata")
    for what, words in (
        ("no words", b""),
        ("no SCRAM", b"hello"),
        ("no nonce", b"n,,n=nobody"),
        ("unknown user", b"n,,n=nobody,r=abcdefgh"),
        ("empty user", b"n,,n=,r=abcdefgh"),
        ("another identity", b"n,a=admin,n=nobody,r=abcdefgh"),
        ("channel binding", b"p=tls-unique,,n=nobody,r=abcdefgh"),
        ("not UTF-8", b"\xff\xfe"),
    ):
        for version in (0, 2):
            line = f"{what} {version}"
            yield shaken(f"{line}: a handshake", "SCRAM-SHA-256", line)
            yield said(what, words, line, version)
            yield said(f"{what}, and more", b"c=biws,r=abcdefgh,p=AAAA", line, version)


OPEN = Scripts(
    {
        "acls": acls_without_authorizer,
        "tokens": tokens_without_logins,
        "handshakes": handshakes_without_logins,
        "scram_users": scram_users,
    },
    known=(
        *TOKENS,
        says_nothing("*.scram_users"),
        Known("*.scram_users", "no salt*", "*error_code", STRICT),
        Known("*.scram_users", "no password*", "*error_code", STRICT),
        Known("*.scram_users", "a short password*", "*error_code", STRICT),
        Known("*.scram_users", "twice, of two mechanisms*", "*error_code", ONE_MECHANISM),
        Known("*.scram_users", "upsert and delete of another*", "*error_code", ONE_MECHANISM),
        Known("*.scram_users", "what is left*", "results.*", ONE_MECHANISM),
    ),
)
"""Without logins."""
SCRIPTS = Scripts(
    {"acls": acls, "delegation_tokens": delegation_tokens, "handshakes": handshakes, "logins": logins},
    needs_logins=True,
    known=(
        *TOKENS,
        says_nothing("*.acls"),
        Known("*.acls", "* any*", "results.*.error_code", ONE_BY_ONE, kafka="UNKNOWN_SERVER_ERROR(-1)"),
        Known(
            "*.acls", "pattern match*", "results.*.error_code", ONE_BY_ONE, kafka="UNKNOWN_SERVER_ERROR(-1)"
        ),
        Known("*.acls", "*unknown*", "", ANSWERED, kafka=CLOSED),
        Known("*.acls", "empty host*", "results.0.error_code", "a client's host is never empty"),
        Known("*.acls", "type 99*", "error_code", "a type that there is not is refused"),
        Known("*.logins", "unknown user*", "*", "nobody learns which users there are: the proof is refused"),
        Known("*.logins", "words before a handshake*", "", ANSWERED, kafka=CLOSED),
        Known(
            "*.logins", "metadata in a login*", "", "the connection ends; Kafka answers with nothing in it"
        ),
    ),
)
"""With an authorizer."""
