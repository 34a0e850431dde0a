"""A change of a user or an ACL sends that one; a caller with too old a version gets everything."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from agent.catalog import KnownSecurity
from sequencer.api.interface import Sequencer
from sequencer.api.security import AlterScram, CreateAcls, DeleteAcls, Security, SecurityRequest
from sequencer.bounds import MAX_ANSWER_BYTES
from sequencer.pages import whole_security
from sequencer.reading import security_changes
from sequencer.reading.security_changes import SecurityChanges
from sequencer.rules import access
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.state import HotState
from tailrace.rpc.frames import encode_body
from tailrace.security.acls import Acl, AclFilter
from tailrace.turns import at_once
from tests.sequencer.rules.test_access import acl, credentials

SETTINGS = SequencerSettings()


class Driver:
    """A state with its changes, as a committer moves them, for `whole_security`."""

    def __init__(self, acls: int = 0) -> None:
        self.state = HotState({})
        self.changes = SecurityChanges(self.state)
        self.answers: list[Security] = []
        for first in range(0, acls, 1_000):
            self.add(*(acl(f"t{number}") for number in range(first, first + 1_000)))

    def write(self, draft: Draft) -> None:
        self.state.apply(draft.changes)
        self.changes.apply(draft.changes)

    def add(self, *acls: Acl) -> None:
        draft = Draft(self.state, 1)
        access.create_acls(draft, CreateAcls([*acls]), SETTINGS)
        self.write(draft)

    def remove(self, name: str) -> None:
        draft = Draft(self.state, 1)
        at_once(access.delete_acls(draft, DeleteAcls([AclFilter(resource_name=name)])))
        self.write(draft)

    def alter(self, request: AlterScram) -> None:
        draft = Draft(self.state, 1)
        access.alter_scram(draft, request, SETTINGS)
        self.write(draft)

    async def security(self, request: SecurityRequest) -> Security:
        self.answers.append(self.changes.answer(request))
        return self.answers[-1]

    def refreshed(self, known: KnownSecurity) -> KnownSecurity:
        answer = asyncio.run(whole_security(cast("Sequencer", self), known.version))
        return known if answer is None else known.after(answer)


def test_a_change_of_one_acl_of_many_sends_that_one() -> None:
    driver = Driver(acls=6_000)
    known = driver.refreshed(KnownSecurity())
    assert len(known.acls) == 6_000 and len(driver.answers) > 1
    driver.answers.clear()
    driver.add(acl("new"))
    driver.remove("t7")
    known = driver.refreshed(known)
    (answer,) = driver.answers
    assert answer.deleted is not None and (answer.acls, answer.deleted.acls) == ([acl("new")], [acl("t7")])
    assert len(known.acls) == 6_000 and acl("new") in known.acls and acl("t7") not in known.acls
    assert driver.refreshed(known) is known


@pytest.mark.parametrize("most", [3, 1_000])
def test_whoever_asks_and_when_has_the_users_and_acls_of_the_newest_version(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_changes, "MAX_CHANGES", most)
    driver, luck = Driver(), random.Random(most)
    agents = [KnownSecurity() for _ in range(4)]
    for _ in range(300):
        name = f"n{luck.randrange(6)}"
        user = credentials(name, iterations=luck.randrange(4_096, 5_000))
        luck.choice((
            lambda: driver.add(acl(name), acl("x")),  # noqa: B023 - called at once
            lambda: driver.remove(name),  # noqa: B023
            lambda: driver.alter(AlterScram([user], [])),  # noqa: B023
            lambda: driver.alter(AlterScram([], [user.name])),  # noqa: B023
        ))()  # fmt: skip
        number = luck.randrange(len(agents))
        agents[number] = known = driver.refreshed(agents[number])
        whole = access.security(driver.state, SecurityRequest())
        assert known.version == whole.version
        assert known.users == {each.name: each for each in whole.users or ()}
        assert set(known.acls) == set(whole.acls or ())
    kinds = {answer.deleted is None for answer in driver.answers if answer.users is not None}
    assert kinds == ({True, False} if most == 3 else {False})


def test_more_changes_than_a_page_holds_are_sent_as_everything() -> None:
    driver = Driver()
    known = driver.refreshed(KnownSecurity())
    for first in range(4):
        driver.add(*(acl(f"{first} {number} " + "x" * 900) for number in range(100)))
    known = driver.refreshed(known)
    assert len(known.acls) == 400 and driver.answers[-1].deleted is None
    assert all(len(encode_body(answer)) <= MAX_ANSWER_BYTES for answer in driver.answers)


@pytest.mark.parametrize("version", [-1, 7])
def test_a_caller_with_an_unknown_version_gets_everything(version: int) -> None:
    driver = Driver()
    driver.add(acl())
    answer = driver.changes.answer(SecurityRequest(version, takes_changes=True))
    assert (answer.acls, answer.deleted) == ([acl()], None)
