"""A schema registry over HTTP, with the API of Confluent's registry, Karapace and Apicurio.

Responses are limited in bytes and time. The schema of an id never changes, so a process remembers the schemas that it
used last. It requests a schema again that the registry did not know.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
import msgspec

from compactor.columns.registered import RegisteredSchema, RegistryUnavailable
from compactor.lru_cache import LruCache

ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 2 << 20
MAX_REFERENCES = 100
MAX_SCHEMA_BYTES = 4 << 20
"""The most characters of what a schema refers to."""
MAX_KNOWN_BYTES = 64 << 20
"""The most characters of the schemas that a process remembers."""


UNKNOWN = range(40401, 40500)
"""A registry's error codes for missing things: 40401 subject, 40402 version, 40403 schema."""


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    schema: str
    schema_type: str = "AVRO"
    references: list[_Reference] = []


class _Error(msgspec.Struct, frozen=True):
    error_code: int


class HttpRegistry:
    """See compactor.columns.registered.Registry. `url` may contain a user and password."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._auth = aiohttp.BasicAuth(parts.username, parts.password or "") if parts.username else None
        self._session: aiohttp.ClientSession | None = None
        self._schemas = LruCache[int, RegisteredSchema](MAX_KNOWN_BYTES)

    async def close(self) -> None:
        """Release the connections."""
        if self._session is not None:
            await self._session.close()

    async def schema(self, schema_id: int) -> RegisteredSchema:
        cached = self._schemas.get(schema_id)
        if cached is not None:
            return cached
        answer = await self._ask(f"/schemas/ids/{schema_id}")
        if answer is None:
            return RegisteredSchema(schema_id, refusal=f"schema {schema_id} is not in the registry")
        references: dict[str, str] = {}
        try:
            await self._add_references(answer, references, ())
        except _BadReference as error:
            return RegisteredSchema(schema_id, refusal=f"schema {schema_id}: {error}")
        schema = RegisteredSchema(
            schema_id,
            kind=answer.schema_type.lower(),
            text=answer.schema,
            references=list(references.items()),
        )
        self._schemas.keep(schema_id, schema, schema.held_bytes)
        return schema

    async def _add_references(
        self, answer: _Answer, references: dict[str, str], above: tuple[str, ...]
    ) -> None:
        """Add the schemas that a schema needs to `references`, the deepest first."""
        for reference in answer.references:
            if reference.name in references:
                continue
            if reference.name in above or len(above) + len(references) >= MAX_REFERENCES:
                raise _BadReference(f"it has more than {MAX_REFERENCES} references, or they form a circle")
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            needed = await self._ask(path)
            if needed is None:
                raise _BadReference(f"its reference {reference.name!r} is not in the registry")
            await self._add_references(needed, references, (*above, reference.name))
            references[reference.name] = needed.schema
            if sum(map(len, references.values())) > MAX_SCHEMA_BYTES:
                raise _BadReference(f"its references have more than {MAX_SCHEMA_BYTES} characters")

    async def _ask(self, path: str) -> _Answer | None:
        """Request a path and return the response; None if the registry does not have it."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            self._session = aiohttp.ClientSession(auth=self._auth, timeout=timeout)
        try:
            async with self._session.get(f"{self._url}{path}", allow_redirects=False) as response:
                body = await _read(response) if response.status in (200, 404) else b""
                if response.status == 404 and _says_unknown(body):
                    return None
                if response.status != 200:
                    raise RegistryUnavailable(f"registry {self._url}{path}: HTTP {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            line = f"{type(error).__name__}: {error}".rstrip(": ")
            raise RegistryUnavailable(f"registry {self._url}: {line}; see tables.registry") from error
        try:
            return msgspec.json.decode(body, type=_Answer)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RegistryUnavailable(
                f"registry {self._url}{path}: not an answer of a registry: {error}"
            ) from error


class _BadReference(ValueError):
    """A schema refers to a schema that can't be resolved."""


def _says_unknown(body: bytes) -> bool:
    """Whether a 404 response comes from the registry itself. A proxy's response does not have its codes."""
    try:
        return msgspec.json.decode(body, type=_Error).error_code in UNKNOWN
    except (msgspec.MsgspecError, UnicodeError):
        return False


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise RegistryUnavailable(f"registry: an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)
