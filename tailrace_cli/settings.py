"""Every setting of a Tailrace process: what all share, and a section for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from agent.settings import AgentSettings
from cache.settings import CacheSettings
from sequencer.settings import SequencerSettings
from tailrace.credentials import MIN_SECRET_CHARACTERS
from tailrace.rpc.link import split_address
from tailrace.settings import LayeredSettings, SettingsSection
from tailrace.telemetry import LogFormat, LogLevel


def _checked(address: str) -> str:
    try:
        split_address(address)
    except ValueError:
        raise ValueError(
            "expected HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092 or [::1]:9092"
        ) from None
    return address


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


def _long_enough(secret: SecretStr) -> SecretStr:
    if 0 < len(secret.get_secret_value()) < MIN_SECRET_CHARACTERS:
        raise ValueError(
            f"at least {MIN_SECRET_CHARACTERS} characters are wanted; make one with `openssl rand -base64 32`"
        )
    return secret


Url = Annotated[str | None, BeforeValidator(_none_if_empty)]
RpcSecret = Annotated[SecretStr, AfterValidator(_long_enough)]
Address = Annotated[str, AfterValidator(_checked)]
Addresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_listed)]


class TlsSettings(SettingsSection):
    """PEM files, taken up within 10 s when they are replaced. Keys are readable by their owner alone."""

    rpc_cert_file: Path | None = None
    """The certificate of this process towards the others of its cluster, as a server and as a client (both uses)."""
    rpc_key_file: Path | None = None
    """Its key, without a passphrase."""
    rpc_ca_file: Path | None = None
    """The authorities of the others' certificates. With these three, RPC and cache peers use mutual TLS."""
    rpc_name: str = ""
    """A DNS name that each of the others' certificates must have. Without it, a server's must have the host that is
    connected to, and a client's any name."""
    http_cert_file: Path | None = None
    """The certificate of `http`. With it and its key, `http` is HTTPS."""
    http_key_file: Path | None = None
    """Its key, without a passphrase."""
    http_client_ca_file: Path | None = None
    """The authorities of clients' certificates; with it, `http` serves no client without one."""


class Settings(LayeredSettings):
    """What `tailrace serve`, `agent`, `sequencer` and `compact` may be told."""

    store: Url = None
    """The object store: a folder, file:///path, s3://bucket/prefix?endpoint=...&region=..., or memory:. `serve` uses
    DATA/objects."""
    database: Url = Field(default=None, repr=False)
    """The sequencer's database: sqlite:///PATH or postgresql://USER@HOST/NAME. `serve` uses DATA/tailrace.db. For
    `agent`: the sequencer runs inside it. A password in it is refused in a command; see `database_password_file`."""
    database_password_file: Path | None = None
    """A file (mode 0600) with PostgreSQL's password, read for each new connection. Without it: the password in
    `database`, else PGPASSWORD, else the file that PGPASSFILE names."""
    sequencers: Addresses = ()
    """Addresses (HOST:PORT, comma-separated in a variable) of the sequencers an agent uses."""
    data: Path = Path("data")
    """The folder in which `serve` keeps everything."""
    listen: Address = "127.0.0.1:9092"
    """Where Kafka clients are served."""
    advertise: Address | None = None
    """The address that clients are told to use; the one that is listened on, if not given."""
    http: Address = "127.0.0.1:9644"
    """Where metrics, health and the overview are served."""
    rpc: Address | None = None
    """Where other Tailrace processes are served: cache peers by an agent, agents by a sequencer. An agent without it
    shares no cache."""
    rpc_advertise: Address | None = None
    """The address at which other Tailrace processes reach `rpc`; `rpc` itself if not given."""
    rpc_secret: RpcSecret = SecretStr("")
    """Shared by all processes of a cluster; they refuse others. At least 16 characters. Needed where `rpc` or
    `sequencers` are not of this machine."""
    rpc_secret_file: Path | None = None
    """A file (mode 0600) with it, in the place of `rpc_secret`. `serve` makes and uses DATA/rpc.secret where neither
    is given."""
    zone: str = ""
    """The zone this agent is in; clients that say theirs stay in it."""
    processes: int = Field(default=1, ge=1, le=256)
    """Agent processes to run, on the ports from each address's on."""
    max_rpc_connections: int = Field(default=4_096, ge=1, le=1_000_000)
    """Connections by RPC that are served at once: agents at a sequencer, peers at an agent."""
    maintenance_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """Pause between rounds of retention and of deleting garbage."""
    log_level: LogLevel = "info"
    """The least severe lines that are logged."""
    log_format: LogFormat = "auto"
    """`auto`: console on a terminal, JSON elsewhere."""
    agent: AgentSettings = AgentSettings()
    sequencer: SequencerSettings = SequencerSettings()
    cache: CacheSettings = CacheSettings()
    tls: TlsSettings = TlsSettings()
