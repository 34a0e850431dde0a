"""Converts a PostgreSQL URL as people write it into one that asyncpg reads, or says what is wrong with it.

asyncpg sends an unknown parameter to the server as a setting, which the server may obey or refuse with an obscure
message. So only asyncpg's own parameters are accepted.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import sqlalchemy as sa

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
PARAMETERS = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "target_session_attrs",
    "host",
    "port",
    "user",
    "password",
    "passfile",
    "service",
    "krbsrvname",
    "gsslib",
)
"""asyncpg's parameters (`connect`, "dsn"), except the database name, which is in the path."""


class UnknownDatabase(ValueError):
    """The URL names no supported database; the message lists what is supported and contains no password."""


def read_url(url: str) -> sa.URL:
    """Parse the URL; PostgreSQL URLs are returned as asyncpg and libpq read them. Raises UnknownDatabase."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise UnknownDatabase(
            "the database's URL can't be read: want sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
        ) from error
    except ValueError:  # the port, which must not be shown: without a host it is the password
        raise UnknownDatabase(
            "the database's URL has a port that is no number: want postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from None
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        return _postgres_url(parsed)
    if parsed.get_backend_name() == "sqlite" and parsed.host:
        raise UnknownDatabase(
            "the database's URL names a host: a path follows three slashes, as in sqlite:///PATH, sqlite:////var/PATH"
        )
    return parsed


def without_password(url: sa.URL) -> sa.URL:
    return sa.URL.create(
        url.drivername, url.username, host=url.host, port=url.port, database=url.database,
        query={name: value for name, value in url.query.items() if "password" not in name},
    )  # fmt: skip


def _postgres_url(url: sa.URL) -> sa.URL:
    """Remove the driver, and replace `ssl=` (SQLAlchemy's name) by `sslmode=` (PostgreSQL's). Raises
    UnknownDatabase."""
    if "@" in (url.host or ""):
        raise UnknownDatabase("the database's URL has more than one @: write that of a password as %40")
    if url.port is not None and not 0 < url.port < 65_536:
        raise UnknownDatabase(f"the database's URL has port {url.port}: allowed is 1 to 65535")
    query = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    if "ssl" in query:
        mode = query.pop("ssl")
        if query.setdefault("sslmode", mode) != mode:
            raise UnknownDatabase(
                f"the database's URL has ssl={mode} and sslmode={query['sslmode']}: give sslmode alone"
            )
    if query.get("sslmode", "prefer") not in SSL_MODES:
        raise UnknownDatabase(
            f"the database's URL has sslmode={query['sslmode']}: allowed are {', '.join(SSL_MODES)}"
        )
    unknown = [name for name in query if name not in PARAMETERS]
    if unknown:
        close = difflib.get_close_matches(unknown[0], PARAMETERS, n=1)
        meant = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(PARAMETERS)}"
        raise UnknownDatabase(f"the database's URL has a parameter {unknown[0]!r} that is not known; {meant}")
    return url.set(drivername="postgresql", query=query)


def check_files(url: sa.URL) -> None:
    """Check that the files named in the URL exist, because asyncpg does not say which one is missing. Raises
    UnknownDatabase."""
    for name in ("sslrootcert", "sslcert", "sslkey"):
        path = url.query.get(name)
        if path is not None and not Path(str(path)).is_file():
            raise UnknownDatabase(f"the database's URL has {name}={path}: there is no such file")
