from __future__ import annotations

import pytest

from agent.security.listeners import (
    BadListener,
    SecurityProtocol,
    map_principal,
    parse_listeners,
    parse_rules,
)

DN = "CN=Duke,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"


def test_a_listener_has_the_protocol_of_its_name_or_suffix() -> None:
    plain, outside = parse_listeners(
        ["PLAINTEXT://127.0.0.1:9092", "OUT:SASL_SSL://0.0.0.0:9093"], ["OUT://kafka.example:19093"]
    )
    assert (plain.name, plain.protocol, plain.port) == ("PLAINTEXT", SecurityProtocol.PLAINTEXT, 9092)
    assert (outside.protocol, outside.host) == (SecurityProtocol.SASL_SSL, "0.0.0.0")
    assert (outside.advertise_host, outside.advertise_port) == ("kafka.example", 19093)


@pytest.mark.parametrize(
    ("listeners", "advertised"),
    [
        (["127.0.0.1:9092"], []),
        (["OUT://127.0.0.1:9092"], []),
        (["OUT:TLS://127.0.0.1:9092"], []),
        (["SSL://127.0.0.1:9092", "SSL://127.0.0.1:9093"], []),
        (["SSL://0.0.0.0:9092"], []),
        (["SSL://127.0.0.1:9092"], ["OUT://a:1"]),
        (["SSL://127.0.0.1:99999"], []),
    ],
)
def test_a_listener_that_means_nothing_is_refused(listeners: list[str], advertised: list[str]) -> None:
    with pytest.raises(BadListener):
        parse_listeners(listeners, advertised)


def test_all_mistakes_of_listeners_are_reported_but_those_that_follow_from_others() -> None:
    listeners = [
        "A:TLS://0.0.0.0:1",
        "B:SSL://0.0.0.0:2",
        "C:SSL://0.0.0.0:3",
        "SSL://127.0.0.1",
        "C:SSL://127.0.0.1:4",
    ]
    with pytest.raises(BadListener) as refused:
        parse_listeners(listeners, ["A://a:1", "B://b:99999", "D://d:1"])
    lines = str(refused.value).splitlines()
    starts = [
        "'A:TLS://0.0.0.0:1': 'TLS' is no protocol", "'SSL://127.0.0.1': ", "listener 'C' is given twice",
        "'B://b:99999': ", "'D://d:1' advertises", "listener 'C' has a wildcard address",
    ]  # fmt: skip
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_a_listener_is_not_missed_where_the_name_of_one_cannot_be_read() -> None:
    with pytest.raises(BadListener) as refused:
        parse_listeners(["OUT//127.0.0.1:1", "SSL://0.0.0.0:2"], ["OUT://a:1", "SSL//a:2"])
    assert str(refused.value).count("expected NAME://HOST:PORT") == len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (["DEFAULT"], DN, DN),
        ([], DN, DN),
        (["RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/"], DN, "Duke"),
        (["RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L"], DN, "duke@serviceusers"),
        (["RULE:^cn=(.*?),.*$/$1/", "RULE:^CN=(.*?),.*$/$1/U"], DN, "DUKE"),
        (["RULE:^cn=(.*?),.*$/$1/", "DEFAULT"], DN, DN),
        (["RULE:^cn=(.*?),.*$/$1/"], DN, None),
        ([r"RULE:^CN=a\/(.*?)$/x\/$1/"], "CN=a/b", "x/b"),
    ],
)
def test_principals_are_mapped_as_kafka_does(rules: list[str], name: str, expected: str | None) -> None:
    assert map_principal(name, parse_rules(rules)) == expected


@pytest.mark.parametrize("rule", ["default", "RULE:a", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b/X"])
def test_a_rule_that_means_nothing_is_refused(rule: str) -> None:
    with pytest.raises(BadListener):
        parse_rules([rule])
