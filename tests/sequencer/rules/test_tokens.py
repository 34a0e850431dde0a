from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from sequencer.api.errors import InvalidRequest, LimitReached, NotTokenOwner, TokenExpired, UnknownToken
from sequencer.api.security import AlterToken, CreateToken, DelegationToken, TokensRequest
from sequencer.rules.time_to_live import forget, row_lifetimes
from sequencer.rules.tokens import alter_token, create_token, tokens
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import DelegationTokenRow
from sequencer.store.state import HotState

SETTINGS = SequencerSettings(max_delegation_tokens=3, max_delegation_tokens_per_owner=2)
NOW, HOUR = 1_000_000, 3_600_000


def asked(number: int = 1, *, owner: str = "User:alice", renewers: tuple[str, ...] = ()) -> CreateToken:
    return CreateToken(f"{number:064}", f"id-{number}", owner, owner, list(renewers), 3 * HOUR, HOUR)


def created(state: HotState, request: CreateToken, now_ms: int = NOW) -> DelegationToken:
    draft = Draft(state, now_ms)
    token = create_token(draft, request, SETTINGS)
    state.apply(draft.changes)
    return token


def altered(state: HotState, principal: str, period_ms: int, now_ms: int = NOW) -> DelegationToken:
    draft = Draft(state, now_ms)
    token = alter_token(draft, AlterToken(f"{1:064}", principal, period_ms))
    state.apply(draft.changes)
    return token


def test_a_token_expires_and_can_be_renewed_until_its_life_ends() -> None:
    state = HotState({})
    token = created(state, asked())
    assert (token.issued_ms, token.expires_ms, token.max_ms) == (NOW, NOW + HOUR, NOW + 3 * HOUR)
    assert altered(state, "User:alice", 2 * HOUR).expires_ms == NOW + 2 * HOUR
    assert altered(state, "User:alice", 9 * HOUR).expires_ms == NOW + 3 * HOUR
    assert altered(state, "User:alice", 1).expires_ms == NOW + 1
    with pytest.raises(TokenExpired):
        altered(state, "User:alice", HOUR, now_ms=NOW + 1)


def test_only_the_owner_and_the_renewers_change_a_token() -> None:
    state = HotState({})
    created(state, replace(asked(renewers=("User:bob", "User:bob")), requester="User:root"))
    assert altered(state, "User:bob", 2 * HOUR).renewers == ["User:bob"]
    for principal in ("User:root", "User:mallory"):
        with pytest.raises(NotTokenOwner):
            altered(state, principal, HOUR)


@pytest.mark.parametrize("period_ms", [0, -1])
def test_a_token_that_is_ended_is_gone_at_once(period_ms: int) -> None:
    state = HotState({})
    created(state, asked())
    assert altered(state, "User:alice", period_ms).expires_ms == NOW
    assert not state.tokens_of and not state.tokens_concerning
    with pytest.raises(UnknownToken):
        altered(state, "User:alice", HOUR)


def test_tokens_are_bounded_for_each_owner_and_for_all() -> None:
    state = HotState({})
    for number in (1, 2):
        created(state, asked(number))
    with pytest.raises(LimitReached, match="max_delegation_tokens_per_owner"):
        created(state, asked(3))
    draft = Draft(state, NOW)
    create_token(draft, asked(3, owner="User:bob"), SETTINGS)
    with pytest.raises(LimitReached, match=r"max_delegation_tokens$"):
        create_token(draft.savepoint(), asked(4, owner="User:carol"), SETTINGS)


def test_expired_entries_do_not_count() -> None:
    state = HotState({})
    for number in (1, 2):
        created(state, asked(number))
    altered(state, "User:alice", 1)
    created(state, asked(3), NOW + 1)
    with pytest.raises(LimitReached, match="max_delegation_tokens_per_owner"):
        created(state, asked(4), NOW + 1)
    created(state, asked(4, owner="User:bob"), NOW + 1)
    created(state, asked(5, owner="User:carol"), NOW + HOUR)
    assert len(list(state.all(DelegationTokenRow))) <= 3, (
        "expired tokens make room, so there are never more rows"
    )


def test_an_expired_token_that_gives_room_is_gone_only_if_the_new_one_is_stored() -> None:
    state = HotState({})
    for number, owner in ((1, "User:bob"), (2, "User:alice"), (3, "User:alice")):
        created(state, asked(number, owner=owner))
    altered(state, "User:bob", 1)
    with pytest.raises(LimitReached, match="max_delegation_tokens_per_owner"):
        created(state, asked(4), NOW + 1)
    assert state.get(DelegationTokenRow, f"{1:064}") is not None


def test_those_of_one_group_count() -> None:
    first = Draft(HotState({}), NOW)
    create_token(first, asked(1), SETTINGS)
    second = first.savepoint()
    create_token(second, asked(2), SETTINGS)
    with pytest.raises(LimitReached):
        create_token(second.savepoint(), asked(3), SETTINGS)


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "f"},
        {"token_id": ""},
        {"owner": "User:" + "x" * 2_000},
        {"renewers": [""]},
        {"renewers": ["User:a"] * 101},
        {"renewers": ["User:" + "x" * 1_000] * 5},
        {"lifetime_ms": 0},
        {"expiry_ms": -1},
    ],
)
def test_bytes_that_cannot_be_a_token_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        create_token(Draft(HotState({}), NOW), replace(asked(), **changes), SETTINGS)


def test_no_two_tokens_have_a_fingerprint() -> None:
    state = HotState({})
    created(state, asked())
    with pytest.raises(InvalidRequest):
        created(state, asked(owner="User:bob"))


def test_a_listing_has_what_concerns_the_principal() -> None:
    state = HotState({})
    created(state, asked(1))
    created(state, asked(2, owner="User:bob", renewers=("User:alice",)))
    created(state, asked(3, owner="User:bob"))

    def ids(**request: str) -> list[str]:
        return [each.token_id for each in tokens(state, TokensRequest(**request), NOW).tokens]

    assert ids() == ["id-1", "id-2", "id-3"]
    assert ids(principal="User:alice") == ["id-1", "id-2"]
    assert ids(principal="User:mallory") == []
    assert ids(fingerprint=f"{3:064}") == ["id-3"]
    assert ids(fingerprint="none") == []


def test_a_long_listing_has_pages_also_where_little_concerns_the_principal() -> None:
    rows = [
        DelegationTokenRow(
            f"{each:064}", f"id-{each}", f"User:{each % 6_000}", "User:root", ["User:" + "r" * 200], 1, 2, 3
        )
        for each in range(12_000)
    ]
    state = HotState({DelegationTokenRow: rows})
    for principal, count, most in ((None, 12_000, 20), ("User:5999", 2, 1), ("User:mallory", 0, 1)):
        found, pages, request = 0, 0, TokensRequest(principal=principal)
        while True:
            page = tokens(state, request, 1)
            found += len(page.tokens)
            pages += 1
            if page.next is None:
                break
            request = replace(request, after=page.next)
        assert found == count and pages <= most


def test_a_page_looks_at_the_tokens_of_its_principal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    state = HotState({})
    created(state, asked(1, renewers=("User:alice", "User:bob")))
    created(state, asked(2, owner="User:bob"))
    looked_at: list[object] = []
    rows = HotState.rows

    def noted(self: HotState, kind: type[DelegationTokenRow], ids: Iterable[object]) -> object:
        return rows(self, kind, (looked_at.append(each) or each for each in ids))  # type: ignore[func-returns-value]

    monkeypatch.setattr(HotState, "rows", noted)
    for principal, numbers in (
        ("User:alice", [1]),
        ("User:bob", [1, 2]),
        ("User:mallory", []),
        (None, [1, 2]),
    ):
        looked_at.clear()
        page = tokens(state, TokensRequest(principal=principal), NOW)
        assert [each.token_id for each in page.tokens] == [f"id-{number}" for number in numbers]
        assert looked_at == [f"{number:064}" for number in numbers]
    rest = tokens(state, TokensRequest(principal="User:bob", after=f"{1:064}"), NOW)
    assert [each.token_id for each in rest.tokens] == ["id-2"]


def test_expired_tokens_take_a_bounded_part_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.rules.tokens.MAX_PAGE", 1)
    state = HotState({})
    created(state, asked(1))
    created(state, asked(2), NOW + 1)
    page = tokens(state, TokensRequest(), NOW + HOUR)
    assert (page.tokens, page.next) == ([], f"{1:064}")
    assert [each.token_id for each in tokens(state, TokensRequest(after=page.next), NOW + HOUR).tokens] == [
        "id-2"
    ]


def test_an_expired_token_is_removed() -> None:
    state = HotState({})
    created(state, asked())
    kept = row_lifetimes(SETTINGS)[DelegationTokenRow]
    for now_ms, gone in ((NOW + HOUR - 1, 0), (NOW + HOUR, 1)):
        assert forget(Draft(state, now_ms), DelegationTokenRow, [(f"{1:064}",)], kept) == gone
