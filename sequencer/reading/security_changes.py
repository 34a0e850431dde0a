"""Users and ACLs for agents: all of them once, then only the changes.

It accompanies a state, as of the newest change that readers see. It is only in memory: a server remembers the changes
that it made or followed itself; an agent that knows less gets everything.
"""

from __future__ import annotations

import msgspec

from sequencer.api.security import ScramCredentials, ScramName, Security, SecurityDeletions, SecurityRequest
from sequencer.bounds import PageBudget, text_bytes
from sequencer.rules import access
from sequencer.store.rows import AclRow, Changes, Row, ScramRow
from sequencer.store.state import SECURITY_VERSION, HotState
from tailrace.security.acls import Acl

MAX_CHANGES = 5_000
"""Limit of users and ACLs whose last change is remembered."""


class SecurityChanges:
    """The users and ACLs of one loaded state. Call `apply` after each change of that state."""

    def __init__(self, state: HotState) -> None:
        self._state = state
        self._known_from = state.counter(SECURITY_VERSION)
        """All changes after this version are remembered."""
        self._changed: dict[tuple[type[Row], tuple[object, ...]], int] = {}
        """The version at which each row last changed, oldest first."""

    def apply(self, changes: Changes) -> None:
        """Remember which users and ACLs a transaction changed."""
        version = self._state.counter(SECURITY_VERSION)
        for kind in (ScramRow, AclRow):
            for key in changes.by_kind.get(kind, ()):
                self._changed.pop((kind, key), None)
                self._changed[kind, key] = version
        while len(self._changed) > MAX_CHANGES:
            self._known_from = self._changed.pop(next(iter(self._changed)))

    def answer(self, request: SecurityRequest) -> Security:
        """Return what the caller does not know yet, or a page of everything."""
        known, version = request.known_version, self._state.counter(SECURITY_VERSION)
        if request.takes_changes and request.after is None and self._known_from <= known < version:
            changes = self._since(known, version)
            if changes is not None:
                return changes
        return access.security(self._state, request)

    def _since(self, known: int, version: int) -> Security | None:
        """Return the changes after a version; None if they are more than a page."""
        users, acls, deleted = list[ScramCredentials](), list[Acl](), SecurityDeletions([], [])
        budget = PageBudget()
        for (kind, key), changed_at in reversed(self._changed.items()):
            if changed_at <= known:
                break
            if not budget.takes(
                access.SCRAM_BYTES + text_bytes(*(part for part in key if isinstance(part, str)))
            ):
                return None
            row = self._state.get(kind, *key)
            if isinstance(row, ScramRow):
                users.append(access.credentials_of(row))
            elif kind is ScramRow:
                deleted.users.append(msgspec.convert(key, ScramName))
            else:
                (deleted.acls if row is None else acls).append(msgspec.convert(key, Acl))
        return Security(version, users, acls, deleted=deleted)
