"""A client that grants a right and revokes it again: ACLs, through the sequencer's own interface.

A later question to any server is answered with the last change, also if only changes are requested, as agents do. A
revoked right is never reported again.
"""

from __future__ import annotations

from contextlib import suppress

from agent.catalog import KnownSecurity
from sequencer.api.errors import SequencerError
from sequencer.api.security import CreateAcls, DeleteAcls, SecurityRequest
from sequencer.client import SequencerClient
from sequencer.pages import whole_security
from tailrace.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.simulation.clients import Client

RIGHT = Acl(
    ResourceType.TOPIC, "events", PatternType.LITERAL, "User:reader", "*", Operation.READ, Permission.ALLOW
)
THAT_RIGHT = AclFilter(
    RIGHT.resource_type,
    RIGHT.resource_name,
    RIGHT.pattern_type,
    RIGHT.principal,
    RIGHT.host,
    RIGHT.operation,
    RIGHT.permission,
)


class Granter(Client):
    """The only client that changes ACLs. A change without an answer may be carried out at any time, so the client ends
    there."""

    async def run(self, changes: int) -> None:
        remote = self.stage.cluster.sequencer_of(self.process)
        self.known = KnownSecurity()
        try:
            for _ in range(changes):
                is_given = bool(self.luck.below(2))
                await self._change(remote, is_given)
                for _ in range(2):
                    await self._look(remote, is_given)
                    await self.pause(0.0, 0.4)
        except SequencerError as error:
            self.stage.note(f"{self.name}: {type(error).__name__}")
        finally:
            with suppress(SequencerError):
                await remote.close()

    async def _change(self, remote: SequencerClient, is_given: bool) -> None:
        if is_given:
            await remote.create_acls(CreateAcls([RIGHT]))
        else:
            await remote.delete_acls(DeleteAcls([THAT_RIGHT]))
        self.stage.note(f"{self.name}: the right is {'given' if is_given else 'taken away'}")

    async def _look(self, remote: SequencerClient, is_given: bool) -> None:
        told = await remote.security(SecurityRequest())
        changed = await whole_security(remote, self.known.version)
        if changed is not None:
            self.known = self.known.after(changed)
        if {RIGHT in (told.acls or ()), RIGHT in self.known.acls} != {is_given}:
            self.stage.violated(f"the right is {'given' if is_given else 'taken away'}, and told otherwise")
