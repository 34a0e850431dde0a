"""Schema registries: one in memory, and one that answers over HTTP like Confluent's and Karapace's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from compactor.columns.registered import RegisteredSchema, RegistryUnavailable


@dataclass(slots=True)
class MemoryRegistry:
    """Schemas by id. `is_away`: it does not answer."""

    schemas: dict[int, RegisteredSchema] = field(default_factory=dict)
    is_away: bool = False
    asked: list[int] = field(default_factory=list)

    def add(
        self, schema_id: int, text: str, kind: str = "avro", references: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Register a schema."""
        self.schemas[schema_id] = RegisteredSchema(schema_id, kind, text, list(references))

    async def schema(self, schema_id: int) -> RegisteredSchema:
        """See Registry."""
        self.asked.append(schema_id)
        if self.is_away:
            raise RegistryUnavailable("registry: away")
        unknown = RegisteredSchema(schema_id, refusal=f"schema {schema_id} is not in the registry")
        return self.schemas.get(schema_id, unknown)


@dataclass(slots=True)
class HttpStandIn:
    """Answers by path, and so imitates any registry's HTTP API."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorization: str | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.authorization = request.headers.get("Authorization")
        found = self.answers.get(request.path)
        if found is None:
            return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)
        if isinstance(found, web.HTTPException):
            raise found
        if isinstance(found, int):
            return web.Response(status=found)
        return web.Response(body=found) if isinstance(found, bytes) else web.json_response(found)


@asynccontextmanager
async def served(registry: HttpStandIn) -> AsyncIterator[str]:
    """Serve the registry over HTTP; yields its address (host:port)."""
    app = web.Application()
    app.router.add_get("/{path:.*}", registry.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()
