"""The client of a schema registry, against a stand-in that speaks the same HTTP API."""

from __future__ import annotations

import pytest
from aiohttp import web

from compactor.columns.registered import RegisteredSchema, RegistryUnavailable
from compactor.columns.registry import MAX_ANSWER_BYTES, HttpRegistry
from tests.support.registry import HttpStandIn, served


def reference(name: str) -> dict[str, object]:
    return {"name": name, "subject": f"s/{name}", "version": 1}


async def test_schemas_come_with_what_they_refer_to_deepest_first() -> None:
    stand_in = HttpStandIn(
        {
            "/base/schemas/ids/7": {"schema": "A", "references": [reference("b"), reference("c")]},
            "/base/subjects/s%2Fb/versions/1": {"schema": "B", "references": [reference("c")]},
            "/base/subjects/s%2Fc/versions/1": {"schema": "C", "schemaType": "AVRO"},
            "/base/schemas/ids/8": {"schema": "P", "schemaType": "PROTOBUF"},
            "/base/schemas/ids/9": {"schema": "A", "references": [reference("gone")]},
        }
    )
    stand_in.answers |= {path.replace("%2F", "/"): each for path, each in stand_in.answers.items()}
    async with served(stand_in) as address:
        registry = HttpRegistry(f"http://user:word@{address}/base/")
        try:
            found = await registry.schema(7)
            assert found == RegisteredSchema(7, "avro", "A", [("c", "C"), ("b", "B")])
            assert stand_in.authorization == "Basic dXNlcjp3b3Jk"
            count = len(stand_in.asked)
            assert await registry.schema(7) is found
            assert len(stand_in.asked) == count
            assert (await registry.schema(8)).kind == "protobuf"
            assert (await registry.schema(5)).refusal == "schema 5 is not in the registry"
            assert "reference 'gone' is not in the registry" in (await registry.schema(9)).refusal
        finally:
            await registry.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (500, "HTTP 500"),
        (404, "HTTP 404"),
        (web.HTTPNotFound(text="<html>nginx</html>"), "HTTP 404"),
        (web.HTTPNotFound(text='{"error_code": 404, "message": "HTTP 404 Not Found"}'), "HTTP 404"),
        (401, "HTTP 401"),
        (302, "HTTP 302"),
        (b"<html>", "not an answer of a registry"),
        ({"other": 1}, "not an answer of a registry"),
        (b"x" * (MAX_ANSWER_BYTES + 1), "an answer of more than"),
    ],
)
async def test_a_registry_that_does_not_answer_as_one_is_away(answer: object, reason: str) -> None:
    async with served(HttpStandIn({"/schemas/ids/7": answer})) as address:
        registry = HttpRegistry(f"http://{address}")
        try:
            with pytest.raises(RegistryUnavailable, match=reason):
                await registry.schema(7)
        finally:
            await registry.close()


async def test_a_registry_that_is_not_there_is_named_without_its_password() -> None:
    registry = HttpRegistry("http://user:word@127.0.0.1:1")
    try:
        with pytest.raises(RegistryUnavailable, match=r"see tables\.registry") as raised:
            await registry.schema(7)
        assert "word" not in str(raised.value)
    finally:
        await registry.close()


async def test_a_process_remembers_a_bounded_number_of_bytes_of_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compactor.columns.registry.MAX_KNOWN_BYTES", 10)
    answers = {f"/schemas/ids/{number}": {"schema": "123456"} for number in (7, 8)}
    stand_in = HttpStandIn(answers)
    async with served(stand_in) as address:
        registry = HttpRegistry(f"http://{address}")
        try:
            for schema_id in (7, 7, 8, 8, 7):
                assert (await registry.schema(schema_id)).text == "123456"
            assert stand_in.asked == ["/schemas/ids/7", "/schemas/ids/8", "/schemas/ids/7"]
        finally:
            await registry.close()


async def test_a_schema_whose_references_are_too_large_together_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compactor.columns.registry.MAX_SCHEMA_BYTES", 10)
    stand_in = HttpStandIn(
        {
            "/schemas/ids/7": {"schema": "A", "references": [reference("b"), reference("c")]},
            "/subjects/s/b/versions/1": {"schema": "123456"},
            "/subjects/s/c/versions/1": {"schema": "123456"},
        }
    )
    async with served(stand_in) as address:
        registry = HttpRegistry(f"http://{address}")
        try:
            assert "more than 10 characters" in (await registry.schema(7)).refusal
        finally:
            await registry.close()


async def test_references_in_a_circle_are_refused() -> None:
    stand_in = HttpStandIn(
        {
            "/schemas/ids/7": {"schema": "A", "references": [reference("b")]},
            "/subjects/s/b/versions/1": {"schema": "B", "references": [reference("c")]},
            "/subjects/s/c/versions/1": {"schema": "C", "references": [reference("b")]},
        }
    )
    async with served(stand_in) as address:
        registry = HttpRegistry(f"http://{address}")
        try:
            assert "form a circle" in (await registry.schema(7)).refusal
        finally:
            await registry.close()
