"""Connections to one server: a step is sent as it is, and its answer decoded by Tailrace's codec."""

from __future__ import annotations

import socket
import time
from typing import Any

import msgspec
from scramp import ScramClient

from tailrace.kafka import ApiKey, MalformedRequest, UnsupportedVersion, decode_response, encode_request
from tailrace.kafka.headers import request_header
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.compat.differential.steps import CLOSED, LATER_ON, SILENT, WAITING, Ask

ANSWER_SECONDS = 10.0
UNTIL_SECONDS = 10.0
REPEAT_SECONDS = 1.0
PAUSE_SECONDS = 0.05
CLIENT = "differential"
MECHANISM = "SCRAM-SHA-256"


class Connections:
    """The connections of one script to one server, by name. `login_port`: its listener with logins."""

    def __init__(self, port: int, login_port: int = 0) -> None:
        self._port = port
        self._login_port = login_port
        self._open: dict[tuple[str, str | None], socket.socket] = {}

    def ask(self, step: Ask) -> Any:
        """The step's answer, asked again as the step says."""
        started = time.monotonic()
        while True:
            answer = self._ask_once(step)
            seconds = time.monotonic() - started
            if step.until is not None:
                if step.until(answer) or seconds > UNTIL_SECONDS:
                    return answer
            elif seconds > REPEAT_SECONDS or not (error_codes(answer) & step.repeat_on):
                return answer
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """Close all of them."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _ask_once(self, step: Ask) -> Any:
        name = (step.connection, step.user)
        try:
            if name not in self._open:
                self._open[name] = self._opened(step.user)
            connection = self._open[name]
            if step.request is not None:
                connection.sendall(_framed(step))
            if step.is_answered_later:
                return LATER_ON
            if step.is_answered:
                version = step.version if step.answer_version is None else step.answer_version
                frame = _received(connection)
                try:
                    return decode_response(step.api, version, frame)[1]
                except (MalformedRequest, UnsupportedVersion):
                    return f"<bytes {frame.hex()}>"
            probe = Ask("probe", ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            connection.sendall(_framed(probe))
            decode_response(probe.api, probe.version, _received(connection))
            return SILENT
        except ConnectionError:
            self._open.pop(name).close()
            return CLOSED
        except TimeoutError:
            self._open.pop(name).close()
            return WAITING

    def _opened(self, user: str | None) -> socket.socket:
        port = self._port if user is None else self._login_port
        connection = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        if user:
            try:
                _log_in(connection, *user.split(":"))
            except BaseException:
                connection.close()
                raise
        return connection


def error_codes(answer: Any) -> set[int]:
    """Every error code in the answer."""
    if isinstance(answer, list | tuple):
        return {code for item in answer for code in error_codes(item)}
    if not isinstance(answer, msgspec.Struct):
        return set()
    found = set()
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        found |= {value} if name == "error_code" else error_codes(value)
    return found


def _framed(step: Ask) -> bytes:
    if isinstance(step.request, bytes):
        body = bytes(request_header(step.api, step.version, 1, CLIENT)) + step.request
        return len(body).to_bytes(4, "big") + body
    return b"".join(encode_request(1, step.api, step.version, step.request, CLIENT))


def _received(connection: socket.socket) -> bytes:
    return _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the server closed the connection")
        data += part
    return bytes(data)


def _log_in(connection: socket.socket, name: str, password: str) -> None:
    def ask(api: ApiKey, version: int, request: Any) -> Any:
        connection.sendall(b"".join(encode_request(1, api, version, request, CLIENT)))
        answer = decode_response(api, version, _received(connection))[1]
        if answer.error_code:
            raise PermissionError(f"{name} can't log in: error {answer.error_code}")
        return answer

    def said(words: str) -> str:
        answer = ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(words.encode()))
        return bytes(answer.auth_bytes).decode()

    ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(MECHANISM))
    client = ScramClient([MECHANISM], name, password)
    client.set_server_first(said(client.get_client_first()))
    client.set_server_final(said(client.get_client_final()))
