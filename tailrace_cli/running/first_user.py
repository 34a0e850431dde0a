"""The first user of a cluster, which creates the other users."""

from __future__ import annotations

from pathlib import Path

import structlog

from agent.security.audit_log import changed
from agent.security.users import NAMES, new_credentials
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.security import AlterScram, ScramMechanism, ScramName
from sequencer.pages import whole_security
from tailrace.security.credentials import BadCredential, read_secrets
from tailrace_cli.errors import CommandFailed

log = structlog.get_logger("tailrace.security")

ITERATIONS = 4_096


def read_first_user(file: Path) -> tuple[str, str]:
    """Read the name and password from the file. Raises CommandFailed."""
    try:
        user, colon, password = read_secrets(file.expanduser())[0].partition(":")
    except BadCredential as error:
        raise CommandFailed(f"security.first_user_file: {error}") from error
    if not (user and colon and password):
        raise CommandFailed(f"security.first_user_file: {str(file)!r} has no line USER:PASSWORD")
    return user, password


async def create_first_user(sequencer: Sequencer, file: Path) -> None:
    """Create the user in this file unless a user of that name exists. Raises CommandFailed, SequencerError."""
    user, password = read_first_user(file)
    security = await whole_security(sequencer)
    if security is None:
        raise SequencerUnavailable("users and ACLs change all the time; try again")
    if any(known_user.name.user == user for known_user in security.users or ()):
        return
    stored = [
        new_credentials(ScramName(user, mechanism), password, iterations=ITERATIONS)
        for mechanism in ScramMechanism
    ]
    await sequencer.alter_scram(AlterScram(stored, []))
    log.info("the first user was created", user=user)
    for credential in stored:
        changed(
            peer="",
            principal="",
            api="security.first_user_file",
            change=f"set {NAMES[credential.name.mechanism]} of user {user}, {ITERATIONS} iterations",
            result="NONE",
        )
