from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.security.settings import SecuritySettings
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.security.credentials import MIN_SECRET_CHARACTERS
from tailrace_cli.connections.login import client_properties
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.secure_serve import secured
from tailrace_cli.running.security import read_token_secret
from tailrace_cli.settings import Settings

QUIET = ("debug", "info")


def tailrace(*words: str, client: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if client is None else {"TAILRACE_CLIENT": str(client)})}
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


def test_the_files_of_secure_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    first = secured(Settings(), tmp_path, SystemClock(), SystemEntropy())
    files = {path.name: path.read_bytes() for path in (tmp_path / "secure").iterdir()}
    again = secured(Settings(), tmp_path, SystemClock(), SystemEntropy())
    assert {path.name: path.read_bytes() for path in (tmp_path / "secure").iterdir()} == files
    assert first == again
    assert stat.S_IMODE((tmp_path / "secure" / "key.pem").stat().st_mode) == 0o600
    assert first.security.super_users == ("User:admin",)


def test_secure_makes_a_secret_for_delegation_tokens_unless_there_is_one(tmp_path: Path) -> None:
    made = secured(Settings(), tmp_path, SystemClock(), SystemEntropy())
    file = made.security.delegation_token_secret_file
    assert file is not None and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_token_secret(made)) >= MIN_SECRET_CHARACTERS
    given = Settings(security=SecuritySettings(delegation_token_secret_file=tmp_path / "given"))
    kept = secured(given, tmp_path, SystemClock(), SystemEntropy())
    assert kept.security.delegation_token_secret_file == tmp_path / "given"


def test_a_secure_serve_is_used_with_the_files_that_it_wrote(tmp_path: Path) -> None:
    client = tmp_path / "data" / "secure" / "client.properties"
    serve = [sys.executable, "-m", "tailrace", "serve", "--secure", "--data", str(tmp_path / "data")]
    serve += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"]
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Clients connect to"):
                    break
            password = tmp_path / "alice"
            password.touch(0o600)
            password.write_text("alices-password\n")
            added = tailrace("user", "add", "alice", "--password-file", str(password), client=client)
            assert (added.returncode, added.stdout) == (0, "set the password of user alice\n"), added.stderr
            users = json.loads(tailrace("user", "list", "--json", client=client).stdout)
            assert {row["user"] for row in users} == {"admin", "alice"}
            flags = ("--principal", "User:alice", "--topic", "fli", "--prefix")
            assert (
                tailrace("acl", "add", *flags, "--operation", "read", client=client).stdout == "added 1 ACL\n"
            )
            [acl] = json.loads(tailrace("acl", "list", "--topic", "flights", "--json", client=client).stdout)
            assert (acl["principal"], acl["operation"], acl["pattern"]) == ("User:alice", "read", "prefixed")

            mine = tmp_path / "alice.properties"
            mine.touch(0o600)
            lines = client.read_text().splitlines()
            mine.write_text(
                "\n".join(
                    line for line in lines if "sasl.username" not in line and "sasl.password" not in line
                )
                + "\nsasl.username=alice\nsasl.password=alices-password\n"
            )
            unwritten = tailrace("produce", "flights", "x", client=mine).stderr
            assert "1 were not: flights: TOPIC_AUTHORIZATION_FAILED" in unwritten
            refused = tailrace("user", "list", client=mine)
            assert (
                refused.returncode == 1
                and "CLUSTER_AUTHORIZATION_FAILED; no ACL allows this" in refused.stderr
            )
            assert "closed the connection" in tailrace("user", "list", "-b", _bootstrap(client)).stderr
            assert tailrace("acl", "remove", *flags, client=client).stdout == "removed 1 ACL\n"
            assert tailrace("user", "remove", "alice", client=client).stdout == "removed user alice\n"
            assert "check the user and password" in tailrace("topic", "list", client=mine).stderr
            for command in (("produce", "flights", "x"), ("consume", "flights")):
                unknown = tailrace(*command, client=mine)
                assert unknown.returncode == 1 and "tailrace: the login failed: " in unknown.stderr
        finally:
            process.terminate()
            process.wait(30)
    assert process.returncode == 0
    loud = [line for line in map(json.loads, log.read_text().splitlines()) if line["level"] not in QUIET]
    assert [line for line in loud if line["logger"] not in ("tailrace.audit", "tailrace.loop")] == []
    refusals = [line for line in loud if line["event"] == "refused"]
    assert {line["principal"] for line in refusals} == {"User:alice"}
    assert refusals[-1]["resource_type"] == "CLUSTER"


def _bootstrap(client: Path) -> str:
    return client_properties({"TAILRACE_CLIENT": str(client)})["bootstrap.servers"]


def test_a_properties_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=secret\n")
    path.chmod(0o644)
    with pytest.raises(CommandFailed, match="chmod 600"):
        client_properties({"TAILRACE_CLIENT": str(path)})
