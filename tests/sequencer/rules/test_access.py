from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from sequencer.api.errors import InvalidRequest, LimitReached
from sequencer.api.interface import Sequencer
from sequencer.api.security import (
    AlterScram,
    CreateAcls,
    DeleteAcls,
    ScramCredentials,
    ScramMechanism,
    ScramName,
    Security,
    SecurityRequest,
)
from sequencer.bounds import MAX_ANSWER_BYTES
from sequencer.pages import whole_security
from sequencer.rules import access
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import AclRow, ScramRow
from sequencer.store.state import HotState
from tailrace.rpc.frames import encode_body
from tailrace.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tailrace.turns import at_once

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
    found = at_once(
        access.delete_acls(
            draft,
            DeleteAcls(
                [AclFilter(resource_name="flights", pattern_type=PatternType.MATCH), AclFilter(host="h")]
            ),
        )
    )
    assert found.matches == [[acl(), prefixed], []]
    state_after(state, draft)
    assert access.security(state, SecurityRequest()).acls == [acl("other")]


def many_acls(count: int) -> HotState:
    return HotState(
        {AclRow: [access._row(acl(f"t{each}", principal="User:" + "u" * 90), 1) for each in range(count)]}
    )


@given(st.sampled_from([None, "flights", "fli"]), st.sampled_from(PatternType), st.sampled_from([None, "h", "*"]),
       st.sampled_from([Operation.ANY, Operation.READ, Operation.ALL]))  # fmt: skip
def test_a_filter_that_names_one_acl_matches_that_one_only(
    name: str | None, pattern: PatternType, host: str | None, operation: Operation
) -> None:
    wanted = AclFilter(ResourceType.TOPIC, name, pattern, "User:alice", host, operation, Permission.ALLOW)
    others = [
        acl(name, pattern_type=pattern, host=host, operation=operation)
        for name in ("flights", "fli")
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        for host in ("h", "*")
        for operation in (Operation.READ, Operation.ALL)
    ]
    matched = [each for each in others if wanted.matches(each)]
    assert (wanted.only is not None) == (len(matched) == 1)
    assert wanted.only in (None, *matched)


def test_filters_that_match_more_than_an_answer_holds_delete_part_by_part() -> None:
    state = many_acls(12_000)
    left = [AclFilter(resource_name="t7", pattern_type=PatternType.LITERAL), *[AclFilter()] * 20]
    deleted: dict[Acl, None] = {}
    parts = 0
    while left:
        draft = Draft(state, 2)
        answer = at_once(access.delete_acls(draft, DeleteAcls(left, takes_parts=True)))
        assert len(encode_body(answer)) <= MAX_ANSWER_BYTES
        deleted.update((acl, None) for acls in answer.matches for acl in acls)
        left = left[answer.done :]
        state.apply(draft.changes)
        parts += 1
    assert (len(deleted), state.count(AclRow)) == (12_000, 0)
    assert parts > 3


def test_a_caller_that_takes_no_parts_is_refused_and_nothing_is_deleted() -> None:
    draft = Draft(many_acls(12_000), 2)
    with pytest.raises(LimitReached):
        at_once(access.delete_acls(draft, DeleteAcls([AclFilter()])))
    assert not draft.changes


def test_wide_filters_are_compared_some_at_a_time_and_named_acls_are_looked_up() -> None:
    state = many_acls(5_000)
    wide = [AclFilter(resource_name=f"t{each}", pattern_type=PatternType.LITERAL) for each in range(200)]
    answer = at_once(access.delete_acls(Draft(state, 2), DeleteAcls(wide, takes_parts=True)))
    assert (answer.done, len(answer.matches)) == (access.MAX_COMPARED // 5_000,) * 2
    named = [AclFilter(*astuple(access._acl(row))) for row in list(state.all(AclRow))[:1_000]]
    answer = at_once(access.delete_acls(Draft(state, 2), DeleteAcls(named)))
    assert [len(acls) for acls in answer.matches] == [1] * 1_000


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


def test_users_and_acls_are_given_in_pages_that_start_over_when_something_changes() -> None:
    state = many_acls(6_000)
    names = [f"user {each}" for each in range(3_000)]
    state.add_loaded(ScramRow, [ScramRow(name, 1, b"s" * 12, b"k" * 32, b"k" * 32, 4096) for name in names])
    changes_at = {2}
    asked: list[SecurityRequest] = []

    class Asked:
        async def security(self, request: SecurityRequest) -> Security:
            asked.append(request)
            if len(asked) in changes_at:
                draft = Draft(state, 2)
                access.create_acls(draft, CreateAcls([acl(f"new {len(asked)}")]), SequencerSettings())
                state.apply(draft.changes)
            page = access.security(state, request)
            assert len(encode_body(page)) <= MAX_ANSWER_BYTES
            return page

    def known(version: int = -1) -> Security | None:
        return asyncio.run(whole_security(cast("Sequencer", Asked()), version))

    whole = known()
    assert whole is not None and whole.version == 1
    assert sorted(each.name.user for each in whole.users or ()) == sorted(names)
    assert len(set(whole.acls or ())) == len(whole.acls or ()) == 6_001
    assert asked[2].after is not None and asked[2].after.version == 1, (
        "the second page was the first of a new listing"
    )
    assert known(1) is None
    changes_at.update(range(1_000))
    assert known() is None, "it changes before each page"
    assert len(asked) < 100
    all_at_once = access.security(state, SecurityRequest())
    assert len(all_at_once.users or ()) == 3_000 and all_at_once.next is None
