from __future__ import annotations

import pytest

from sequencer.api import (
    AlterScram,
    CreateAcls,
    DeleteAcls,
    InvalidRequest,
    LimitReached,
    ScramCredentials,
    ScramMechanism,
    ScramName,
    SecurityRequest,
)
from sequencer.rules import access
from sequencer.settings import SequencerSettings
from sequencer.store.state import Draft, HotState
from tailrace.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

SETTINGS = SequencerSettings(max_users=2, max_acls=3)


def state_after(state: HotState, draft: Draft) -> HotState:
    state.apply(draft.changes)
    return state


def credentials(user: str, *, iterations: int = 4096, key: bytes = b"k" * 32) -> ScramCredentials:
    return ScramCredentials(ScramName(user, ScramMechanism.SCRAM_SHA_256), b"s" * 12, key, key, iterations)


def acl(name: str = "flights", **changes: object) -> Acl:
    values: dict[str, object] = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(**(values | changes))  # type: ignore[arg-type]


def test_users_are_stored_replaced_and_deleted_and_each_change_has_a_version() -> None:
    state = HotState({})
    draft = Draft(state, 1)
    access.alter_scram(draft, AlterScram([credentials("alice"), credentials("bob")], []), SETTINGS)
    state_after(state, draft)
    first = access.security(state, SecurityRequest())
    assert [each.name.user for each in first.users or []] == ["alice", "bob"]
    assert access.security(state, SecurityRequest(first.version)).users is None
    draft = Draft(state, 2)
    carol = ScramName("carol", ScramMechanism.SCRAM_SHA_512)
    request = AlterScram(
        [credentials("bob", iterations=8192)], [ScramName("alice", ScramMechanism(1)), carol]
    )
    assert access.alter_scram(draft, request, SETTINGS).missing == [carol]
    state_after(state, draft)
    after = access.security(state, SecurityRequest(first.version))
    assert after.version > first.version
    assert [(each.name.user, each.iterations) for each in after.users or []] == [("bob", 8192)]


def test_more_users_than_the_limit_are_refused() -> None:
    draft = Draft(HotState({}), 1)
    with pytest.raises(LimitReached):
        access.alter_scram(draft, AlterScram([credentials(name) for name in "abc"], []), SETTINGS)


@pytest.mark.parametrize(
    "bad",
    [
        credentials(""),
        credentials("a", iterations=4095),
        credentials("a", iterations=16_385),
        credentials("a", key=b"short"),
        credentials("a" * 1025),
    ],
)
def test_credentials_out_of_bounds_are_refused(bad: ScramCredentials) -> None:
    with pytest.raises(InvalidRequest):
        access.alter_scram(Draft(HotState({}), 1), AlterScram([bad], []), SETTINGS)


def test_an_acl_that_exists_changes_nothing() -> None:
    state = HotState({})
    for now_ms in (1, 2):
        draft = Draft(state, now_ms)
        access.create_acls(draft, CreateAcls([acl(), acl()]), SETTINGS)
        state_after(state, draft)
    answer = access.security(state, SecurityRequest())
    assert (answer.version, answer.acls) == (1, [acl()])


def test_acls_are_deleted_by_filters_and_each_filter_says_what_it_found() -> None:
    state = HotState({})
    prefixed = acl("fli", pattern_type=PatternType.PREFIXED)
    draft = Draft(state, 1)
    access.create_acls(draft, CreateAcls([acl(), prefixed, acl("other")]), SETTINGS)
    state_after(state, draft)
    draft = Draft(state, 2)
    found = access.delete_acls(
        draft,
        DeleteAcls([AclFilter(resource_name="flights", pattern_type=PatternType.MATCH), AclFilter(host="h")]),
    )
    assert found.matches == [[acl(), prefixed], []]
    state_after(state, draft)
    assert access.security(state, SecurityRequest()).acls == [acl("other")]


@pytest.mark.parametrize(
    "bad",
    [
        acl(resource_type=ResourceType.ANY),
        acl(operation=Operation.CLUSTER_ACTION),
        acl(operation=Operation.ANY),
        acl(pattern_type=PatternType.MATCH),
        acl(permission=Permission.ANY),
        acl(principal="alice"),
        acl(host=""),
        acl("t" * 1020),
    ],
)
def test_an_acl_that_means_nothing_is_refused(bad: Acl) -> None:
    with pytest.raises(InvalidRequest):
        access.create_acls(Draft(HotState({}), 1), CreateAcls([bad]), SETTINGS)


def test_more_acls_than_the_limit_are_refused() -> None:
    with pytest.raises(LimitReached):
        access.create_acls(Draft(HotState({}), 1), CreateAcls([acl(name) for name in "abcd"]), SETTINGS)
