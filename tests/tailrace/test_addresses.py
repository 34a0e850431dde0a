from __future__ import annotations

import pytest

from tailrace.addresses import counted_address, plain_address


@pytest.mark.parametrize(("text", "plain"), [
    ("10.0.0.1", "10.0.0.1"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("::FFFF:0a00:0001", "10.0.0.1"),
    ("0:0:0:0:0:0:0:1", "::1"),
    ("2001:DB8:0:0::0A", "2001:db8::a"),
    ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0"),
    ("*", "*"),
    ("kafka-1.example", "kafka-1.example"),
    ("", ""),
])  # fmt: skip
def test_an_address_is_written_in_one_way(text: str, plain: str) -> None:
    assert plain_address(text) == plain


@pytest.mark.parametrize(("text", "counted"), [
    ("10.0.0.1", "10.0.0.1"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
    ("2001:DB8:1:2:ffff::9", "2001:db8:1:2::/64"),
    ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
    ("fe80::1%eth0", "fe80::/64"),
    ("local", "local"),
    ("?", "?"),
    ("a:b", "a:b"),
])  # fmt: skip
def test_an_ipv6_address_is_counted_as_its_64(text: str, counted: str) -> None:
    assert counted_address(text) == counted
