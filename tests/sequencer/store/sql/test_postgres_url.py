"""PostgreSQL's URL: what a person writes, and what asyncpg is given."""

from __future__ import annotations

import pytest

from sequencer.store.sql.postgres_url import UnknownDatabase, read_url


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg", "postgresql+psycopg"])
@pytest.mark.parametrize("name", ["ssl", "sslmode"])
def test_tls_is_asked_for_in_either_spelling(scheme: str, name: str) -> None:
    url = read_url(f"{scheme}://u:p@h:5433/n?{name}=verify-full&sslrootcert=/ca.pem")

    assert (url.drivername, url.password, url.port) == ("postgresql", "p", 5433)
    assert url.query == {"sslmode": "verify-full", "sslrootcert": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "can't be read: want sqlite:///PATH or postgresql://"),
        ("postgresql://u:hush@h:abc/n", "a port that is no number: want postgresql://"),
        ("postgresql://u:hush", "a port that is no number: want postgresql://"),
        ("postgresql://u:x@hush@h/n", "more than one @: write that of a password as %40"),
        ("postgresql://u:hush@h:0/n", "has port 0: allowed is 1 to 65535"),
        ("postgresql://u:hush@h/n?ssl=yes", "sslmode=yes: allowed are disable, allow, "),
        ("postgresql://u:hush@h/n?ssl=disable&sslmode=require", "give sslmode alone"),
        ("postgresql://u:hush@h/n?sslrootcrt=/ca.pem", "'sslrootcrt' that is not known; did you mean sslrootcert?"),
        ("postgresql://u:hush@h/n?x=1", "'x' that is not known; allowed are sslmode, "),
    ],
)  # fmt: skip
def test_a_url_that_is_wrong_is_one_line_without_the_password(url: str, said: str) -> None:
    with pytest.raises(UnknownDatabase, match=said) as refused:
        read_url(url)
    assert "\n" not in str(refused.value)
    assert "hush" not in str(refused.value)
