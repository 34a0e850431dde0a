"""Kafka's rules, as org.apache.kafka.metadata.authorizer.StandardAuthorizerTest states them."""

from __future__ import annotations

import sys

import pytest

from agent.security import authorize
from agent.security.authorize import MAX_REMEMBERED_BYTES, AclIndex
from tailrace.addresses import plain_address
from tailrace.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
O = Operation  # noqa: E741 - the table below is read by its columns


def acl(
    permission: Permission,
    operation: Operation,
    name: str = "flights",
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = LITERAL,
    resource: ResourceType = TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def allows(acls: list[Acl], operation: Operation, **asked: object) -> bool:
    values: dict[str, object] = {
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": operation,
        "resource_type": TOPIC,
        "name": "flights",
    }
    return AclIndex(acls, ("User:root",)).allows(**(values | asked))  # type: ignore[arg-type]


READ = acl(ALLOW, O.READ)
RULES = [
    # (the ACLs, what is asked, whether it is allowed)
    ("nothing is allowed without an ACL", [], O.READ, {}, False),
    ("a super user", [acl(DENY, O.ALL, principal="User:*")], O.READ, {"principal": "User:root"}, True),
    ("what is allowed", [READ], O.READ, {}, True),
    ("only what is allowed", [READ], O.WRITE, {}, False),
    ("only who is allowed", [READ], O.READ, {"principal": "User:bob"}, False),
    ("only the resource that is named", [READ], O.READ, {"name": "flights2"}, False),
    ("only the type that is named", [READ], O.READ, {"resource_type": GROUP}, False),
    ("everybody by User:*", [acl(ALLOW, O.READ, principal="User:*")], O.READ, {"principal": "User:bob"}, True),
    ("every operation by ALL", [acl(ALLOW, O.ALL)], O.DELETE, {}, True),
    ("a host that is named", [acl(ALLOW, O.READ, host="10.0.0.1")], O.READ, {}, True),
    ("a host in Java's form", [acl(ALLOW, O.READ, host="0:0:0:0:0:0:0:1")], O.READ, {"host": "::1"}, True),
    ("a host of IPv4 mapped into IPv6", [acl(ALLOW, O.READ, host="::ffff:10.0.0.1")], O.READ, {}, True),
    ("DENY of a host in capitals", [READ, acl(DENY, O.READ, host="2001:DB8::A")], O.READ,
     {"host": "2001:db8::a"}, False),
    ("no other host", [acl(ALLOW, O.READ, host="10.0.0.2")], O.READ, {}, False),
    ("every resource by *", [acl(ALLOW, O.READ, "*")], O.READ, {}, True),
    ("a prefix", [acl(ALLOW, O.READ, "fli", pattern=PREFIXED)], O.READ, {}, True),
    ("the whole name as a prefix", [acl(ALLOW, O.READ, "flights", pattern=PREFIXED)], O.READ, {}, True),
    ("no longer prefix", [acl(ALLOW, O.READ, "flights2", pattern=PREFIXED)], O.READ, {}, False),
    ("no prefix by a literal", [acl(ALLOW, O.READ, "fli")], O.READ, {}, False),
    ("no wildcard by a prefix *", [acl(ALLOW, O.READ, "*", pattern=PREFIXED)], O.READ, {}, False),
    ("READ implies DESCRIBE", [READ], O.DESCRIBE, {}, True),
    ("WRITE implies DESCRIBE", [acl(ALLOW, O.WRITE)], O.DESCRIBE, {}, True),
    ("DELETE implies DESCRIBE", [acl(ALLOW, O.DELETE)], O.DESCRIBE, {}, True),
    ("ALTER implies DESCRIBE", [acl(ALLOW, O.ALTER)], O.DESCRIBE, {}, True),
    ("CREATE implies nothing", [acl(ALLOW, O.CREATE)], O.DESCRIBE, {}, False),
    ("DESCRIBE implies nothing", [acl(ALLOW, O.DESCRIBE)], O.READ, {}, False),
    ("ALTER_CONFIGS implies DESCRIBE_CONFIGS", [acl(ALLOW, O.ALTER_CONFIGS)], O.DESCRIBE_CONFIGS, {}, True),
    ("ALTER does not imply DESCRIBE_CONFIGS", [acl(ALLOW, O.ALTER)], O.DESCRIBE_CONFIGS, {}, False),
    ("ALTER_CONFIGS does not imply DESCRIBE", [acl(ALLOW, O.ALTER_CONFIGS)], O.DESCRIBE, {}, False),
    ("DENY wins over ALLOW", [READ, acl(DENY, O.READ)], O.READ, {}, False),
    ("DENY wins in any order", [acl(DENY, O.READ), READ], O.READ, {}, False),
    ("DENY of ALL", [READ, acl(DENY, O.ALL)], O.READ, {}, False),
    ("DENY by a prefix", [READ, acl(DENY, O.READ, "f", pattern=PREFIXED)], O.READ, {}, False),
    ("DENY by *", [READ, acl(DENY, O.READ, "*")], O.READ, {}, False),
    ("DENY of everybody", [READ, acl(DENY, O.READ, principal="User:*")], O.READ, {}, False),
    ("DENY of another host", [READ, acl(DENY, O.READ, host="10.0.0.9")], O.READ, {}, True),
    ("DENY of another operation", [READ, acl(DENY, O.WRITE)], O.READ, {}, True),
    ("DENY of READ does not deny DESCRIBE", [acl(ALLOW, O.WRITE), acl(DENY, O.READ)], O.DESCRIBE, {}, True),
    ("DENY of DESCRIBE wins over what is implied", [READ, acl(DENY, O.DESCRIBE)], O.DESCRIBE, {}, False),
    ("DENY of DESCRIBE leaves READ", [READ, acl(DENY, O.DESCRIBE)], O.READ, {}, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("acls", "operation", "asked", "expected"),
    [rule[1:] for rule in RULES],
    ids=[rule[0] for rule in RULES],
)
def test_kafkas_rule(acls: list[Acl], operation: Operation, asked: dict[str, object], expected: bool) -> None:
    assert allows(acls, operation, **asked) is expected


WRITE = acl(ALLOW, O.WRITE)
SOME = [
    ("nothing without an ACL", [], False),
    ("one topic", [WRITE], True),
    ("all topics", [acl(ALLOW, O.WRITE, "*")], True),
    ("ALL operations", [acl(ALLOW, O.ALL)], True),
    ("another operation", [READ], False),
    ("the same topic denied", [WRITE, acl(DENY, O.WRITE)], False),
    ("another topic denied", [WRITE, acl(DENY, O.WRITE, "other")], True),
    ("all topics denied", [WRITE, acl(DENY, O.WRITE, "*")], False),
    ("everything denied by ALL", [WRITE, acl(DENY, O.ALL, "*")], False),
    ("its prefix denied", [WRITE, acl(DENY, O.WRITE, "fl", pattern=PREFIXED)], False),
    ("a longer prefix denied", [acl(ALLOW, O.WRITE, "fl", pattern=PREFIXED),
                                acl(DENY, O.WRITE, "flights", pattern=PREFIXED)], True),
    ("a prefix, its name denied", [acl(ALLOW, O.WRITE, "fl", pattern=PREFIXED), acl(DENY, O.WRITE, "fl")], True),
    ("denied elsewhere", [WRITE, acl(DENY, O.WRITE, host="10.9.9.9")], True),
]  # fmt: skip


@pytest.mark.parametrize(("acls", "expected"), [rule[1:] for rule in SOME], ids=[rule[0] for rule in SOME])
def test_some_topic_may_be_written(acls: list[Acl], expected: bool) -> None:
    assert AclIndex(acls).allows_some("User:alice", "10.0.0.1", O.WRITE, TOPIC) is expected


def test_a_filter_of_pattern_type_match_finds_all_that_apply() -> None:
    acls = [
        READ,
        acl(ALLOW, O.READ, "*"),
        acl(ALLOW, O.READ, "fli", pattern=PREFIXED),
        acl(ALLOW, O.READ, "other"),
    ]
    found = AclFilter(resource_name="flights", pattern_type=PatternType.MATCH)
    assert [found.matches(each) for each in acls] == [True, True, True, False]
    exact = AclFilter(resource_name="flights", pattern_type=PatternType.ANY)
    assert [exact.matches(each) for each in acls] == [True, False, False, False]


def test_decisions_on_names_that_nothing_can_have_are_not_remembered() -> None:
    index = AclIndex([acl(ALLOW, O.READ, "*")])
    for number in range(10):
        assert index.allows("User:alice", "10.0.0.1", O.READ, TOPIC, f"{number}" * 32_000)
    assert not index._remembered
    assert index.allows("User:alice", "10.0.0.1", O.READ, TOPIC, "flights")
    assert len(index._remembered) == 1


def test_decisions_on_long_names_take_no_more_memory_than_those_on_short_ones() -> None:
    index = AclIndex([acl(ALLOW, O.READ, "*")])
    most, name = 0, "\N{CAT FACE}" * 1_000
    for number in range(3 * MAX_REMEMBERED_BYTES // sys.getsizeof(name)):
        assert index.allows("User:alice", "10.0.0.1", O.READ, TOPIC, f"{name}{number}")
        most = max(most, len(index._remembered))
    assert 100 < most <= MAX_REMEMBERED_BYTES // sys.getsizeof(name)


def test_a_decision_looks_at_no_other_users_acls() -> None:
    users = 100_000
    everybody = acl(DENY, O.READ, principal="User:*", host="10.9.9.9")
    prefix = acl(ALLOW, O.READ, "fli", principal="User:7", pattern=PREFIXED)
    others = (acl(ALLOW, O.READ, principal=f"User:{number}") for number in range(users))
    index = AclIndex([*others, everybody, prefix])
    concerning = list(index.concerning("User:7", TOPIC, "flights"))
    assert concerning == [acl(ALLOW, O.READ, principal="User:7"), prefix, everybody]
    assert index.allows("User:7", "10.0.0.1", O.READ, TOPIC, "flights")
    assert not index.allows(f"User:{users}", "10.0.0.1", O.READ, TOPIC, "flights")


def test_an_index_reads_each_host_once_as_every_change_of_an_acl_makes_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def plain(host: str) -> str:
        read.append(host)
        return plain_address(host)

    monkeypatch.setattr(authorize, "plain_address", plain)
    hosts = ("*", "::ffff:10.0.0.1", "10.0.0.2")
    acls = [acl(ALLOW, O.READ, f"t{number}", host=hosts[number % 3]) for number in range(9)]
    index = AclIndex([*acls, acl(ALLOW, O.READ, "g", resource=GROUP, host="10.0.0.3")])
    assert not index.allows("User:bob", "10.0.0.1", O.READ, TOPIC, "t0")
    assert read == [], "nobody whom they concern has asked"
    allowed = [index.allows("User:alice", "10.0.0.1", O.READ, TOPIC, f"t{number}") for number in range(3)]
    assert allowed == [True, True, False]
    assert sorted(read) == sorted(hosts), "no ACLs of other resource types"
