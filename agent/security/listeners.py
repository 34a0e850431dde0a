"""Listeners: the name, protocol and address that clients connect to, and the mapping of certificates to principals.

The notation is Kafka's: `NAME://HOST:PORT` if the name is a protocol, else `NAME:PROTOCOL://HOST:PORT`. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tailrace.rpc.link import split_address

_LISTENER = re.compile(r"([A-Za-z0-9_]{1,64})(?::([A-Z_]+))?://(.+)")
_RULE = re.compile(r"RULE:((?:\\/|[^/])*)/((?:\\/|[^/])*)/([LU]?)")
_REFERENCE = re.compile(r"\$(\d)")
EVERY_ADDRESS = ("0.0.0.0", "::")


class BadListener(ValueError):
    """A listener or a mapping rule is invalid. The message says which, what was given and what is expected."""


class SecurityProtocol(enum.Enum):
    """Kafka's four protocols of a connection."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """The address that clients connect to, and the advertised one (port 0: the bound port)."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertise_host: str = ""
    advertise_port: int = 0


def parse_listeners(given: Sequence[str], advertised: Sequence[str]) -> tuple[Listener, ...]:
    """Parse the settings' listeners. Raises BadListener, with a line for each mistake."""
    listeners, mistakes = read_listeners(given, advertised)
    if mistakes:
        raise BadListener("\n".join(mistakes))
    return listeners


def read_listeners(given: Sequence[str], advertised: Sequence[str]) -> tuple[tuple[Listener, ...], list[str]]:
    """Return the valid listeners, and a line for each mistake that does not follow from another."""
    listeners: dict[str, Listener] = {}
    mistakes: list[str] = []
    for text in given:
        with _noted(mistakes):
            _add(listeners, text)
    names = [_name(text) for text in given]
    for text in advertised:
        with _noted(mistakes):
            _advertise(listeners, text, names)
    reachable = [_name(text) for text in advertised]
    for listener in listeners.values():
        if listener.host in EVERY_ADDRESS and not {listener.name, None} & set(reachable):
            mistakes.append(
                f"listener {listener.name!r} has a wildcard address, so clients can't be sent there; "
                f"give advertised_listeners = [{listener.name + '://HOST:PORT'!r}]"
            )
    return tuple(listeners.values()), mistakes


def _name(text: str) -> str | None:
    """Return the name of a listener, even if the rest is invalid; None if it can't be read."""
    match = _LISTENER.fullmatch(text)
    return match and match[1]


@contextmanager
def _noted(mistakes: list[str]) -> Iterator[None]:
    try:
        yield
    except BadListener as error:
        mistakes.append(str(error))


def _add(listeners: dict[str, Listener], text: str) -> None:
    name, protocol, host, port = _parse(text)
    if name in listeners:
        raise BadListener(f"listener {name!r} is given twice; each needs its own name")
    listeners[name] = Listener(name, protocol or _protocol(name, text), host, port)


def _advertise(listeners: dict[str, Listener], text: str, names: Sequence[str | None]) -> None:
    name, _, host, port = _parse(text)
    if name not in names and None not in names:
        raise BadListener(f"{text!r} advertises a listener that is not among {', '.join(map(str, names))}")
    if name in listeners:
        listeners[name] = replace(listeners[name], advertise_host=host, advertise_port=port)


def _parse(text: str) -> tuple[str, SecurityProtocol | None, str, int]:
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise BadListener(f"{text!r}: expected NAME://HOST:PORT or NAME:PROTOCOL://HOST:PORT")
    try:
        host, port = split_address(match[3])
    except ValueError as error:
        raise BadListener(f"{text!r}: {error}") from None
    return match[1], _protocol(match[2], text) if match[2] else None, host, port


def _protocol(name: str, text: str) -> SecurityProtocol:
    try:
        return SecurityProtocol(name)
    except ValueError:
        known = ", ".join(protocol.value for protocol in SecurityProtocol)
        raise BadListener(
            f"{text!r}: {name!r} is no protocol; write NAME:PROTOCOL:// with one of {known}"
        ) from None


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule of Kafka's ssl.principal.mapping.rules. `pattern` None: DEFAULT, which keeps the name."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the mapped name; None if the rule does not match the whole name."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = _REFERENCE.sub(lambda reference: match[int(reference[1])] or "", self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


def parse_rules(rules: Sequence[str]) -> tuple[PrincipalRule, ...]:
    """Parse rules, each `DEFAULT` or `RULE:pattern/replacement/[LU]`. Raises BadListener."""
    parsed = []
    for text in rules:
        if text.strip() == "DEFAULT":
            parsed.append(PrincipalRule())
            continue
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise BadListener(f"principal rule {text!r}: expected DEFAULT or RULE:pattern/replacement/[LU]")
        try:
            pattern = re.compile(match[1].replace(r"\/", "/"))
        except re.error as error:
            raise BadListener(f"principal rule {text!r}: {error}") from None
        if any(int(number) > pattern.groups for number in _REFERENCE.findall(match[2])):
            raise BadListener(f"principal rule {text!r} refers to a group that its pattern does not have")
        parsed.append(PrincipalRule(pattern, match[2].replace(r"\/", "/"), match[3]))
    return tuple(parsed)


def map_principal(distinguished_name: str, rules: Sequence[PrincipalRule]) -> str | None:
    """Map a name by the first matching rule; None if no rule matches, and the client is refused."""
    for rule in rules or (PrincipalRule(),):
        mapped = rule.apply(distinguished_name)
        if mapped is not None:
            return mapped
    return None
