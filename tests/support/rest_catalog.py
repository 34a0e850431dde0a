"""An Iceberg REST catalog on loopback, with the part of the API that pyiceberg's client uses for tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CommitTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table

_STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}
TOKEN = "of-the-test"


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Serve the catalog; yields its address. A request without the bearer token is refused."""
    held = SqlCatalog("behind", uri=f"sqlite:///{folder}/rest.db")

    class Handler(_Handler):
        catalog = held

    with _served(Handler) as address:
        yield address


@contextmanager
def lost_catalog(status: int, answer: bytes) -> Iterator[str]:
    """Serve a proxy that lets the catalog's config through, and answers everything else itself."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing, to keep the tests' output clean."""

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            is_config = self.path.startswith("/v1/config")
            data = b'{"defaults": {}, "overrides": {}}' if is_config else answer
            self.send_response(200 if is_config else status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with _served(Handler) as address:
        yield address


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    catalog: SqlCatalog

    def log_message(self, *_: Any) -> None:
        """Log nothing, to keep the tests' output clean."""

    def do_GET(self) -> None:
        self._answer(lambda _: self._load())

    def do_POST(self) -> None:
        self._answer(self._change)

    def do_DELETE(self) -> None:
        self._answer(lambda _: self.catalog.drop_table(self._table()))

    def _answer(self, carry_out: Callable[[Any], Any]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = 200, None
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, answer = 401, _error("NotAuthorizedException", "no token", 401)
        else:
            try:
                answer = carry_out(json.loads(body or b"null"))
            except tuple(_STATUS) as error:
                status = _STATUS[type(error)]
                answer = _error(type(error).__name__.replace("Error", "Exception"), str(error), status)
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status if data else 204)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _table(self) -> tuple[str, str]:
        _, _, _, namespace, _, name = self.path.partition("?")[0].split("/")
        return namespace, name

    def _load(self) -> Any:
        if self.path.startswith("/v1/config"):
            return {"defaults": {}, "overrides": {}}
        _, _, _, namespace, *rest = self.path.partition("?")[0].split("/")
        if not rest:
            return {"namespace": [namespace], "properties": self.catalog.load_namespace_properties(namespace)}
        return _loaded(self.catalog.load_table(self._table()))

    def _change(self, asked: Any) -> Any:
        if self.path == "/v1/namespaces":
            self.catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
            return {"namespace": asked["namespace"], "properties": {}}
        if self.path == "/v1/tables/rename":
            names = [(*each["namespace"], each["name"]) for each in (asked["source"], asked["destination"])]
            self.catalog.rename_table(*names)
            return None
        if self.path.endswith("/tables"):
            made = self.catalog.create_table(
                (self.path.split("/")[3], asked["name"]), Schema.model_validate(asked["schema"]),
                location=asked["location"], properties=asked["properties"],
            )  # fmt: skip
            return _loaded(made)
        commit = CommitTableRequest.model_validate(asked)
        table = self.catalog.load_table(self._table())
        done = self.catalog.commit_table(table, commit.requirements, commit.updates)
        return json.loads(done.model_dump_json(by_alias=True))


def _loaded(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(kind: str, message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}
