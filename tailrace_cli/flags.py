"""Flags of commands: their declaration, and dataclasses of them, which a command takes as one parameter each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

import typer

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
