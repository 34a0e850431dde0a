from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import TestServer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from joserfc import jws, jwt
from joserfc.jwk import ECKey, KeySet

from agent.security.oauthbearer import (
    MAX_JWKS_BYTES,
    UNKNOWN_KEY_SECONDS,
    OAuthBearerExchange,
    SigningKeys,
    TokenCheck,
)
from agent.security.sasl import Login, LoginFailed
from agent.security.settings import SecuritySettings
from tailrace.clock import SystemClock
from tests.agent.security.secured import in_thread, secured_agent
from tests.support.agents import settle
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS

KEY = ECKey.generate_key("P-256", {"kid": "one"})
OTHER = ECKey.generate_key("P-256", {"kid": "two"})


def jwks(path: Path, *keys: ECKey) -> str:
    path.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))
    return str(path)


def token(key: ECKey = KEY, **changes: Any) -> str:
    claims = {
        "sub": "alice",
        "iss": "https://issuer",
        "aud": "kafka",
        "scope": "read kafka",
        "exp": time.time() + 60,
    }
    claims = {name: value for name, value in (claims | changes).items() if value is not None}
    return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)


def nested() -> str:
    """JSON that is nested deeper than Python's parser goes."""
    return '{"a":' + "[" * 10_000 + "]" * 10_000 + "}"


def with_header(header: str) -> str:
    return ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (header, "{}", "x")
    )


def signed(payload: str) -> str:
    return jws.serialize_compact({"alg": "ES256", "kid": KEY.kid}, payload, KEY)


def message(bearer: str) -> bytes:
    return f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()


def settings(path: Path, **more: Any) -> SecuritySettings:
    return SecuritySettings.model_validate(
        {
            "sasl_mechanisms": ("OAUTHBEARER",),
            "oauth_jwks": str(path),
            "oauth_issuer": "https://issuer",
            "oauth_audience": "kafka",
            "oauth_scopes": ("kafka",),
        }
        | more
    )


def logged_in(path: Path, *messages: bytes, **more: Any) -> str:
    """The user of the login that these messages make."""

    async def exchange() -> str:
        with ThreadPoolExecutor(1) as executor:
            check = TokenCheck(settings(path, **more), SystemClock(), executor)
            begun = OAuthBearerExchange(check)
            for each in messages:
                step = await begun.answer(each)
            assert step.login is not None
            return step.login.user

    return asyncio.run(exchange())


def test_a_token_that_says_what_it_must_logs_in(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, OTHER, KEY)
    assert logged_in(path, message(token())) == "alice"
    assert logged_in(path, message(token(exp=time.time() - 10))) == "alice", "within the clocks' skew"
    assert logged_in(path, message(token(name="bob")), oauth_principal_claim="name") == "bob"
    assert logged_in(path, message(token(scope=None, scp=["kafka"]))) == "alice"


def test_keys_of_unknown_kinds_do_not_hinder_the_others(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    keys = json.loads(Path(jwks(path, KEY)).read_text())["keys"]
    unknown = [{"kty": "OKP", "crv": "X9999", "x": "AA"}, {"kty": "AKP", "pub": "AA"}, {"kty": "RSA"}, "key"]
    path.write_text(json.dumps({"keys": [*unknown, *keys]}))
    assert logged_in(path, message(token())) == "alice"
    path.write_text(json.dumps({"keys": unknown}))
    with pytest.raises(LoginFailed):
        logged_in(path, message(token()), b"\x01")


def test_keys_come_whole_however_a_server_sends_them(tmp_path: Path) -> None:
    keys = Path(jwks(tmp_path / "jwks", OTHER, KEY)).read_bytes()

    async def exchange() -> str:
        is_read = asyncio.Event()

        async def serve(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse(headers={"Content-Length": str(len(keys))})
            await answer.prepare(request)
            await answer.write(keys[:100])
            await is_read.wait()
            await answer.write(keys[100:])
            return answer

        app = web.Application()
        app.router.add_get("/jwks", serve)
        read_any = StreamReader.readany

        async def noted(self: StreamReader) -> bytes:
            part = await read_any(self)
            is_read.set()
            return part

        async with TestServer(app) as server:
            with ThreadPoolExecutor(1) as executor, pytest.MonkeyPatch.context() as patch:
                patch.setattr(StreamReader, "readany", noted)
                source = str(server.make_url("/jwks"))
                check = TokenCheck(settings(Path("x"), oauth_jwks=source), SystemClock(), executor)
                try:
                    return (await check.login(token())).user
                finally:
                    is_read.set()

    assert asyncio.run(exchange()) == "alice"


@pytest.mark.parametrize(
    "broken", [b"[" * 100_000, b'{"keys":5}', b'{"keys":[]}', b"\xff", b"{}" * (1 << 20)]
)
def test_keys_that_cannot_be_read_refuse_logins(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "jwks").write_bytes(broken)
    with pytest.raises(LoginFailed):
        logged_in(tmp_path / "jwks", message(token()), b"\x01")


def test_a_client_may_name_nobody_but_the_owner_of_its_token(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, KEY)
    assert logged_in(path, f"n,a=alice,\x01auth=Bearer {token()}\x01\x01".encode()) == "alice"
    with pytest.raises(LoginFailed, match="authorization id"):
        logged_in(path, f"n,a=bob,\x01auth=Bearer {token()}\x01\x01".encode(), b"\x01")


@pytest.mark.parametrize(
    "bad",
    [
        message(token(exp=time.time() - 3600)),
        message(token(exp=None)),
        message(token(nbf=time.time() + 3600)),
        message(token(iss="https://another")),
        message(token(iss=None)),
        message(token(aud="another")),
        message(token(scope="read")),
        message(token(sub=None)),
        message(token(sub="")),
        message(token(OTHER)),
        message(token()[:-4] + "AAAA"),
        message(jwt.encode({"alg": "ES256", "kid": "one"}, {"sub": "alice"}, OTHER)),
        message("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."),
        message(with_header(nested())),
        message(signed(nested())),
        message("no token"),
        b"n,,",
        b"",
    ],
)
def test_a_token_that_does_not_is_refused_after_the_reason_was_sent(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, KEY)
    with pytest.raises(LoginFailed):
        logged_in(path, bad, b"\x01")


async def test_librdkafka_logs_in_with_a_token_and_gets_a_session_as_long_as_the_token(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, KEY)

    options = dict(settings(path, super_users=("User:alice",)))

    async with secured_agent(tmp_path, "SASL_SSL", **options) as secured:
        await secured.wired.topic()

        def produce() -> int:
            client = secured.librdkafka("SASL_SSL")
            del client["sasl.username"], client["sasl.password"]
            bearer = {"oauth_cb": lambda _: (token(), time.time() + 60)}
            producer = Producer(client | bearer | {"sasl.mechanism": "OAUTHBEARER"})
            producer.produce("t", b"hello")
            return producer.flush(PATIENCE_SECONDS)

        assert await in_thread(produce) == 0

        def refused() -> None:
            client = secured.librdkafka("SASL_SSL")
            del client["sasl.username"], client["sasl.password"]
            bearer = {"oauth_cb": lambda _: (token(OTHER), time.time() + 60)}
            with pytest.raises(KafkaException):
                AdminClient(client | bearer | {"sasl.mechanism": "OAUTHBEARER"}).list_topics(timeout=3)

        await in_thread(refused)


def served_keys(*keys: ECKey) -> bytes:
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


def test_a_server_of_keys_that_hangs_blocks_unknown_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        clock = ManualClock(int(time.time() * 1000))
        check = TokenCheck(settings(Path("x"), oauth_jwks="https://issuer/keys"), clock, executor)
        hangs, answers = asyncio.Event(), asyncio.Event()

        async def read(keys: SigningKeys) -> bytes:
            if check_has_read:
                hangs.set()
                await answers.wait()
                return served_keys(KEY, OTHER)
            return served_keys(KEY)

        check_has_read: list[Login] = []
        monkeypatch.setattr(SigningKeys, "_read", read)
        later = time.time() + 3600
        check_has_read.append(await check.login(token(exp=later)))
        await settle()
        clock.advance(settings(Path("x")).oauth_jwks_refresh_seconds)
        unknown = asyncio.create_task(check.login(token(OTHER, exp=later)))
        await hangs.wait()
        assert (await check.login(token(exp=later))).user == "alice"
        assert not unknown.done()
        answers.set()
        assert (await unknown).user == "alice"
        await check.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(scenario(executor), PATIENCE_SECONDS))


def test_keys_that_could_not_be_read_at_first_are_asked_for_soon_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        clock = ManualClock(int(time.time() * 1000))
        check = TokenCheck(settings(Path("x"), oauth_jwks="https://issuer/keys"), clock, executor)
        answers: list[bytes] = [b"", served_keys(KEY)]

        async def read(keys: SigningKeys) -> bytes:
            return answers.pop(0)

        monkeypatch.setattr(SigningKeys, "_read", read)
        for _ in range(2):
            with pytest.raises(LoginFailed):
                await check.login(token())
        assert len(answers) == 1, "not for each login"
        clock.advance(UNKNOWN_KEY_SECONDS)
        assert (await check.login(token())).user == "alice"
        await check.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(scenario(executor), PATIENCE_SECONDS))


def test_a_key_file_that_is_too_long_is_read_only_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    path.touch()
    os.truncate(path, 64 * MAX_JWKS_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(LoginFailed):
            logged_in(path, message(token()), b"\x01")
        assert tracemalloc.get_traced_memory()[1] < 16 * MAX_JWKS_BYTES
    finally:
        tracemalloc.stop()


def unsigned(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("claims", [
    *({"exp": value} for value in (math.inf, -math.inf, math.nan, 1e300, 2**63, -1, True, "soon", [1], {})),
    *({name: value} for name in ("nbf", "iat") for value in (math.inf, math.nan, "soon", [1], {}, True)),
    {"scope": 5}, {"scope": {}}, {"aud": {}}, {"aud": [{}]}, {"sub": 5}, {"sub": ["alice"]}, {"iss": 5},
])  # fmt: skip
def test_a_claim_of_another_kind_is_a_failed_login(tmp_path: Path, claims: dict[str, Any]) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, KEY)
    with pytest.raises(LoginFailed):
        logged_in(path, message(token(**claims)), b"\x01")


@pytest.mark.parametrize("part", [0, 1])
def test_a_token_that_is_nested_too_deep_is_a_failed_login(tmp_path: Path, part: int) -> None:
    path = tmp_path / "jwks.json"
    jwks(path, KEY)
    parts = token().split(".")
    parts[part] = unsigned("[" * 40_000)
    with pytest.raises(LoginFailed):
        logged_in(path, message(".".join(parts)), b"\x01")
