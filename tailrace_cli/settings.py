"""All settings of a Tailrace process: the shared ones, and one section per part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from agent.gateway.settings import GatewaySettings
from agent.security.settings import SecuritySettings
from agent.settings import AgentSettings
from cache.settings import CacheSettings
from compactor.tables.settings import TableSettings
from sequencer.settings import SequencerSettings
from tailrace.http.http_connections import HttpBounds
from tailrace.rpc.link import split_address
from tailrace.security.credentials import MIN_SECRET_CHARACTERS
from tailrace.settings import LayeredSettings, SettingsSection, separated_by
from tailrace.telemetry.logs import LogFormat, LogLevel


def _checked(address: str) -> str:
    try:
        split_address(address)
    except ValueError:
        raise ValueError(
            "expected HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092 or [::1]:9092"
        ) from None
    return address


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
Addresses = Annotated[tuple[Address, ...], NoDecode, separated_by(",")]


class TlsSettings(SettingsSection):
    """PEM files. A replaced file is reloaded within 10 s. Only the owner may be able to read a key file."""

    rpc_cert_file: Path | None = None
    """This process's certificate for RPC, as a server and as a client (both uses)."""
    rpc_key_file: Path | None = None
    """Its key, without a passphrase."""
    rpc_ca_file: Path | None = None
    """The CA certificates for peers. With all three files, RPC and cache peers use mutual TLS."""
    rpc_name: str = ""
    """A DNS name that each peer's certificate must contain. Without it, a server's certificate must contain the host
    that the client connects to, and a client's certificate may contain any name."""
    kafka_cert_file: Path | None = None
    """The certificate of listeners with protocol SSL or SASL_SSL."""
    kafka_key_file: Path | None = None
    """Its key, without a passphrase."""
    kafka_client_ca_file: Path | None = None
    """The CA certificates for Kafka clients (see security.client_auth)."""
    http_cert_file: Path | None = None
    """The certificate of `http`. With it and its key, `http` serves HTTPS."""
    http_key_file: Path | None = None
    """Its key, without a passphrase."""
    http_client_ca_file: Path | None = None
    """The CA certificates for clients of `http`. With it, `http` requires a client certificate."""
    gateway_cert_file: Path | None = None
    """The certificate of the gateway. With it and its key, the gateway serves HTTPS."""
    gateway_key_file: Path | None = None
    """Its key, without a passphrase."""
    gateway_client_ca_file: Path | None = None
    """The CA certificates for clients of the gateway. With it, the gateway requires a client certificate."""


def _named_folder(given: object) -> object:
    """Refuse an empty name, which a Path would take as the current folder, and one that is not UTF-8, which
    `serve.json` can't name."""
    if given == "":
        raise ValueError("expected a folder, such as ./data")
    if isinstance(given, str) and given.encode(errors="ignore").decode() != given:
        raise ValueError("expected a folder with a name in UTF-8, such as ./data")
    return given


class Settings(LayeredSettings):
    """The settings of `tailrace serve`, `agent`, `sequencer` and `compact`."""

    store: Url = None
    """The object store: a folder, file:///path, s3://bucket/prefix?endpoint=...&region=..., or memory:. `serve` uses
    DATA/objects."""
    database: Url = Field(default=None, repr=False)
    """The sequencer's database: sqlite:///PATH or postgresql://USER@HOST/NAME. `serve` uses DATA/tailrace.db. An
    `agent` with a database runs the sequencer itself. The `--database` flag refuses a URL with a password; see
    `database_password_file`."""
    database_password_file: Path | None = None
    """A file (mode 0600) with the PostgreSQL password. It is read for each new connection. Without it, the password
    comes from `database`, else from PGPASSWORD, else from the file that PGPASSFILE names."""
    sequencers: Addresses = ()
    """Addresses (HOST:PORT; separated by commas in a variable) of the sequencers that an agent uses."""
    data: Annotated[Path, BeforeValidator(_named_folder)] = Path("data")
    """The folder in which `serve` keeps all its data."""
    listen: Address = "127.0.0.1:9092"
    """The address for Kafka clients."""
    advertise: Address | None = None
    """The address that clients connect to. Default: that of `listen`."""
    listeners: Annotated[tuple[str, ...], NoDecode, separated_by(",")] = ()
    """Addresses for Kafka clients in place of `listen`, for several listeners or for TLS and SASL. Each is
    NAME://HOST:PORT with a protocol (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL) as its name, or
    NAME:PROTOCOL://HOST:PORT."""
    advertised_listeners: Annotated[tuple[str, ...], NoDecode, separated_by(",")] = ()
    """NAME://HOST:PORT: the address that clients of this listener connect to. Default: the listener's own."""
    http: Address = "127.0.0.1:9644"
    """The address for metrics, health and the overview page."""
    http_max_connections: int = Field(default=256, ge=1, le=100_000)
    """The most open connections of `http`. Further connections are closed at once."""
    http_max_connections_per_address: int = Field(default=64, ge=1, le=100_000)
    """The most open connections of `http` from one IP address, or from one IPv6 /64."""
    http_head_ms: int = Field(default=10_000, ge=100, le=3_600_000)
    """`http` disconnects a client that has not sent the head of its request after this time."""
    http_idle_ms: int = Field(default=60_000, ge=100, le=3_600_000)
    """`http` disconnects a client that sends no request, or does not read its response, for this time."""
    rpc: Address | None = None
    """The address for other Tailrace processes: on an agent for cache peers, on a sequencer for agents. An agent
    without it does not share its cache."""
    rpc_advertise: Address | None = None
    """The address at which other Tailrace processes reach `rpc`. Default: `rpc` itself."""
    rpc_secret: RpcSecret = SecretStr("")
    """The secret that all processes of a cluster share, at least 16 characters. They refuse peers without it. Required
    if `rpc` or `sequencers` are not on loopback."""
    rpc_secret_file: Path | None = None
    """A file (mode 0600) with the secret, in place of `rpc_secret`. If neither is set, `serve` creates and uses
    DATA/rpc.secret."""
    prices: str = ""
    """The prices of requests, bytes and CPU for pages and metrics: s3-standard, s3-express, own-machine (all free),
    own-store (S3's prices, but the store is free), or a TOML file. Empty: s3-standard for a store on S3; for a folder,
    own-machine with SQLite and own-store with another database."""
    zone: str = Field(default="", max_length=255)
    """The zone of this agent. Clients that name their zone use the agents of that zone."""
    processes: int = Field(default=1, ge=1, le=256)
    """How many agent processes to run. The first uses the ports of the addresses, the others the ports after them."""
    max_rpc_connections: int = Field(default=4_096, ge=1, le=1_000_000)
    """The most RPC connections that a process serves at once: from agents on a sequencer, from peers on an agent."""
    maintenance_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """The pause between rounds of retention and of deleting unused objects."""
    log_level: LogLevel = "info"
    """The lowest level to log."""
    log_format: LogFormat = "auto"
    """`auto` means console on a terminal and JSON elsewhere."""
    agent: AgentSettings = AgentSettings()
    sequencer: SequencerSettings = SequencerSettings()
    cache: CacheSettings = CacheSettings()
    security: SecuritySettings = SecuritySettings()
    gateway: GatewaySettings = GatewaySettings()
    tls: TlsSettings = TlsSettings()
    tables: TableSettings = TableSettings()

    @property
    def http_bounds(self) -> HttpBounds:
        """The limits on connections of `http`."""
        return HttpBounds(
            max_connections=self.http_max_connections,
            max_connections_per_address=self.http_max_connections_per_address,
            head_seconds=self.http_head_ms / 1000,
            idle_seconds=self.http_idle_ms / 1000,
        )
