"""Flags that name stored data or a cluster's log, and the settings that they load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from tailrace_cli.settings import Settings

from tailrace_cli.flags import flag

Store = Annotated[str | None, flag("--store", "URL", "The agents' object store.")]
Config = Annotated[Path | None, flag("--config", "FILE", "A TOML file of settings.")]


@dataclass(frozen=True, slots=True)
class StoredFlags:
    """Flags that name stored data: a store and its database, or a data folder with both."""

    store: Store = None
    database: Annotated[str | None, flag("--database", "URL", "The sequencer's database.")] = None
    data: Annotated[
        str | None, flag("--data", "DIR", "The folder of `tailrace serve`, in place of both.")
    ] = None
    config: Config = None

    def load(self) -> Settings:
        """The settings. Sets up logging. Raises CommandFailed and BadSettings."""
        return _load(self.config, store=self.store, database=self.database, data=self.data)


@dataclass(frozen=True, slots=True)
class LogFlags:
    """Flags that name a log to read without a broker: a store with its sequencers or database, or a data folder."""

    data: Annotated[
        str | None,
        flag("--data", "DIR", "The folder of `tailrace serve`, running or not."),
    ] = None
    store: Store = None
    database: Annotated[str | None, flag("--database", "URL", "The database, if no sequencer runs.")] = None
    sequencer: Annotated[
        str | None, flag("--sequencer", "HOST:PORT,...", "Addresses of running sequencers.")
    ] = None
    rpc_secret_file: Annotated[
        Path | None, flag("--rpc-secret-file", "FILE", "A file with the cluster's secret.")
    ] = None
    config: Config = None

    def load(self) -> Settings:
        """The settings. Sets up logging. Raises CommandFailed and BadSettings."""
        return _load(
            self.config,
            data=self.data,
            store=self.store,
            database=self.database,
            sequencers=self.sequencer,
            rpc_secret_file=self.rpc_secret_file,
        )


def _load(config: Path | None, *, database: str | None, **given: Any) -> Settings:
    from tailrace.settings import load_settings
    from tailrace.telemetry.logs import configure_logging
    from tailrace_cli.running.security import refuse_password_in_command
    from tailrace_cli.settings import Settings

    configure_logging("warning", "auto")
    refuse_password_in_command(database)
    return load_settings(Settings, flags={**given, "database": database}, file=config)
