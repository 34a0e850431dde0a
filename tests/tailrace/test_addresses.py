from __future__ import annotations

import pytest

from tailrace.addresses import plain_address


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
