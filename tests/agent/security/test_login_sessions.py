"""A login session decides what its connection may do, and until when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent.security.access import Access
from agent.security.login_sessions import ListenerContext
from agent.security.sasl import Login, Step
from agent.security.settings import SecuritySettings
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.agents import connection, settle
from tests.support.clocks import ManualClock


def context(clock: ManualClock, login: Login) -> ListenerContext:
    """A listener where every exchange ends with this login."""

    async def answer(token: bytes) -> Step:
        return Step(b"", login)

    def nothing(*_: object, **__: object) -> None:
        return None

    parts: dict[str, Any] = {
        "listener": SimpleNamespace(name="", protocol=SimpleNamespace(has_sasl=True)),
        "admission": SimpleNamespace(access=lambda user, **_: Access("SASL", "", f"User:{user}")),
        "mechanisms": {"OAUTHBEARER": lambda: SimpleNamespace(answer=answer)},
        "settings": SecuritySettings(failed_authentication_delay_ms=1),
        "audit": SimpleNamespace(logged_in=nothing, login_failed=nothing),
        "limits": SimpleNamespace(logged_in=lambda _: True, login_failed=nothing),
    }
    return ListenerContext(
        dispatch=Any, dispatch_of_tenants=Any, max_request_bytes=1 << 20, clock=clock, **parts
    )


@pytest.mark.parametrize(("left_ms", "error", "lifetime_ms"), [
    (5, ErrorCode.NONE, 5),
    (0, ErrorCode.SASL_AUTHENTICATION_FAILED, 0),
    (-5, ErrorCode.SASL_AUTHENTICATION_FAILED, 0),
])  # fmt: skip
async def test_a_token_that_has_ended_when_it_was_checked_is_no_login_without_an_end(
    left_ms: int, error: ErrorCode, lifetime_ms: int
) -> None:
    clock, client = ManualClock(), connection()
    client._budget, client._limits = SimpleNamespace(largest=1 << 20), None  # type: ignore[assignment]
    session = context(clock, Login("alice", expires_ms=clock.wall_ms() + left_ms)).session()

    async def asked(key: ApiKey, version: int, request: Any) -> Any:
        sent = memoryview(b"".join(encode_request(7, key, version, request)))[4:]
        asking = asyncio.ensure_future(session(sent, client))
        await settle()
        if not asking.done():
            clock.advance(0.001)  # a client whose login failed is told later
        reply = await asking
        return decode_response(key, version, memoryview(b"".join(reply.parts or ()))[4:])[1]

    await asked(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER"))
    answer = await asked(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"token"))
    assert (answer.error_code, answer.session_lifetime_ms) == (error, lifetime_ms)
