"""The tables of API keys, versions and error codes, held against kio's."""

from __future__ import annotations

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode as KioErrorCode

from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode


def test_error_codes_are_those_of_kafka() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name.upper(): int(code) for code in KioErrorCode
    }
    assert {int(code) for code in ErrorCode if code.retriable} == {
        int(code) for code in KioErrorCode if code.retriable
    }


def test_every_api_agrees_with_kio_on_flexibility() -> None:
    for spec in APIS.values():
        for version in range(spec.served.first, spec.served.last + 1):
            theirs = load_request_schema(spec.key, version)
            assert spec.is_flexible(version) == theirs.__flexible__, (spec.key, version)
            assert theirs.__name__ == spec.request.__name__
