"""Flags that several commands share, as dataclasses. A command takes each dataclass as one parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from tailrace_cli.settings import Settings

R = TypeVar("R")


def flag(names: str, metavar: str | None, help: str, **limits: Any) -> Any:
    """Declare a flag with a value: its names (`--topic -t`), what stands for the value in the help, and the help."""
    return typer.Option(*names.split(), metavar=metavar, help=help, **limits)


def switch(names: str, help: str) -> Any:
    """Declare a flag without a value."""
    return typer.Option(*names.split(), help=help)


def with_flags(command: Callable[..., R]) -> Callable[..., R]:
    """Replace each dataclass parameter of a command by the dataclass's fields.

    Typer turns every parameter of a command's signature into a flag, so each field needs a default and a type that
    Typer knows.
    """
    hints = get_type_hints(command, include_extras=True)
    kinds = {name: hints[name] for name in signature(command).parameters if is_dataclass(hints[name])}
    parameters: list[Parameter] = []
    for name, given in signature(command).parameters.items():
        if name not in kinds:
            parameters.append(given.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        of_field = get_type_hints(kinds[name], include_extras=True)
        parameters += [
            Parameter(flag.name, Parameter.KEYWORD_ONLY, default=flag.default, annotation=of_field[flag.name])
            for flag in fields(kinds[name])
        ]

    @wraps(command)
    def run(**given: Any) -> R:
        made = {
            name: kind(**{flag.name: given.pop(flag.name) for flag in fields(kind)})
            for name, kind in kinds.items()
        }
        return command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {flag.name: flag.annotation for flag in parameters}
    return run


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
