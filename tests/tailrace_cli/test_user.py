from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tailrace.kafka.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from tailrace_cli.commands import user


def test_a_new_password_is_asked_for_once_and_is_the_same_in_all_mechanisms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = iter(["flights-2013", "another"])
    sent: list[AlterUserScramCredentialsRequest] = []
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(typed))

    def keep(_bootstrap: str | None, _user: str, request: Any) -> None:
        sent.append(request)

    monkeypatch.setattr(user, "_alter", keep)
    user.add("alice")
    (request,) = sent
    assert [row.mechanism for row in request.upsertions] == [1, 2]
    for row, digest in zip(request.upsertions, ("sha256", "sha512"), strict=True):
        expected = hashlib.pbkdf2_hmac(digest, b"flights-2013", bytes(row.salt), row.iterations)
        assert bytes(row.salted_password) == expected
