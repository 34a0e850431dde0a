"""`tailrace user`: list, add and remove users that log in with a password."""

from __future__ import annotations

import getpass
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag
from tailrace_cli.output import JsonFlag, print_rows

if TYPE_CHECKING:
    from tailrace.kafka.messages.alter_user_scram_credentials import ScramCredentialUpsertion
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Users that log in with a password: list, add, remove.")

ITERATIONS = 4_096
_NAMES = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_DIGESTS = {1: "sha256", 2: "sha512"}

UserArgument = Annotated[str, typer.Argument(metavar="USER")]


@app.command("list")
def list_users(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """List users and their mechanisms."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace.kafka.messages.describe_user_scram_credentials import (
            DescribeUserScramCredentialsRequest,
        )
        from tailrace_cli.connections.kafka_client import check

        request = DescribeUserScramCredentialsRequest(users=None)
        answer = await client.ask(request)
        check(answer.error_code, answer.error_message, "the users")
        return [
            {"user": row.user, "mechanism": _NAMES[info.mechanism], "iterations": info.iterations}
            for row in answer.results
            for info in row.credential_infos
        ]

    rows = ask_broker(bootstrap, run)
    columns = {"user": "user", "mechanism": "mechanism", "iterations": "iterations"}
    print_rows(columns, rows, as_json=as_json, if_none="no users")


@app.command()
def add(
    user: UserArgument,
    password_file: Annotated[
        Path | None,
        flag("--password-file", "FILE", "A file with the password (mode 0600). Default: prompt for it."),
    ] = None,
    bootstrap: BootstrapFlag = None,
) -> None:
    """Create a user, or change a user's password."""
    from tailrace.kafka.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest

    password = _password(password_file)
    upsertions = [_credentials(user, password, mechanism) for mechanism in _NAMES]
    _alter(bootstrap, user, AlterUserScramCredentialsRequest(upsertions=upsertions))
    print(f"set the password of user {user}")


@app.command()
def remove(user: UserArgument, bootstrap: BootstrapFlag = None) -> None:
    """Delete a user. Agents close the user's connections within seconds.

    Connections that use a delegation token of the user stay open.
    """
    from tailrace.kafka.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
    )

    mechanisms = _mechanisms_of(bootstrap, user)
    deletions = [ScramCredentialDeletion(user, mechanism) for mechanism in mechanisms]
    _alter(bootstrap, user, AlterUserScramCredentialsRequest(deletions=deletions))
    print(f"removed user {user}")


def _mechanisms_of(bootstrap: str | None, user: str) -> list[int]:
    async def run(client: KafkaClient) -> list[int]:
        from tailrace.kafka.messages.describe_user_scram_credentials import (
            DescribeUserScramCredentialsRequest,
            UserName,
        )
        from tailrace_cli.connections.kafka_client import check

        request = DescribeUserScramCredentialsRequest(users=[UserName(user)])
        answer = await client.ask(request)
        check(answer.error_code, answer.error_message, f"user {user!r}")
        [row] = answer.results
        check(row.error_code, row.error_message, f"user {user!r}")
        return [info.mechanism for info in row.credential_infos]

    return ask_broker(bootstrap, run)


def _alter(bootstrap: str | None, user: str, request: Any) -> None:
    async def run(client: KafkaClient) -> None:
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(request)
        for row in answer.results:
            check(row.error_code, row.error_message, f"user {user!r}")

    ask_broker(bootstrap, run)


def _password(file: Path | None) -> str:
    if file is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            try:
                return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
            except getpass.GetPassWarning:
                raise WrongUsage(
                    "there is no terminal on which to ask for the password; give --password-file FILE (mode 0600)"
                ) from None
    from tailrace.security.credentials import BadCredential, read_secrets

    try:
        return read_secrets(file.expanduser())[0]
    except BadCredential as error:
        raise CommandFailed(f"--password-file: {error}") from error


def _credentials(user: str, password: str, mechanism: int) -> ScramCredentialUpsertion:
    """Return the salted and iterated password (RFC 5802's SaltedPassword). The password itself is never sent."""
    import hashlib

    from scramp import ScramException
    from scramp.utils import saslprep

    from tailrace.clock import SystemEntropy
    from tailrace.kafka.messages.alter_user_scram_credentials import ScramCredentialUpsertion

    entropy = SystemEntropy()
    salt = entropy.uuid().bytes + entropy.uuid().bytes
    try:
        prepared = saslprep(password).encode()
    except ScramException as error:
        raise CommandFailed(f"the password has characters that are not allowed: {error}") from error
    salted = hashlib.pbkdf2_hmac(_DIGESTS[mechanism], prepared, salt, ITERATIONS)
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=ITERATIONS, salt=salt, salted_password=salted
    )
