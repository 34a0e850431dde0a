"""Where an agent listens, how others reach it, and which version it is of."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from agent.security.listener_contexts import ClientSecurity
from agent.security.listeners import Listener, SecurityProtocol
from tailrace.rpc import RpcSecurity


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Where an agent listens and how others reach it. Port 0 binds a free port; `advertise_port` 0 advertises the bound
    port. `listen_*` and `advertise_*` describe the only listener if `clients` names none.

    If `peer_port` is None, the agent serves no peers and owns no chunks for others.
    """

    listen_host: str = "127.0.0.1"
    listen_port: int = 9092
    advertise_host: str = ""
    advertise_port: int = 0
    zone: str = ""
    peer_host: str = "127.0.0.1"
    peer_port: int | None = None
    peer_advertise_host: str = ""
    http_port: int = 0
    max_rpc_connections: int = 4096
    rpc: RpcSecurity = field(default_factory=RpcSecurity)
    clients: ClientSecurity = field(default_factory=ClientSecurity)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners of `clients`; if it names none, a single listener without a name."""
        plain = Listener(
            name="",
            protocol=SecurityProtocol.PLAINTEXT,
            host=self.listen_host,
            port=self.listen_port,
            advertise_host=self.advertise_host,
            advertise_port=self.advertise_port,
        )
        return self.clients.listeners or (plain,)


def package_version() -> str:
    """Return the version of the installed tailrace package, "0" if there is none."""
    try:
        return version("tailrace")
    except PackageNotFoundError:
        return "0"
