"""Settings in layers: flag, then environment, then file, then default. Errors say what to do.

Every part declares a `SettingsSection`; `tailrace_cli.settings` combines the sections. Every layer refuses unknown
names and suggests the name that was probably meant.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "TAILRACE_"
CONFIG_VARIABLE = "TAILRACE_CONFIG"
"""The variable that names the config file, as `--config` does."""
CLIENT_VARIABLE = "TAILRACE_CLIENT"
"""The variable that names the file with the login of commands. Not a setting of a process."""

_KUBERNETES = re.compile(r"TAILRACE_(\w+_)?(SERVICE_(HOST|PORT)|PORT)(_\w+)?")
"""Variables that Kubernetes sets in every container if a service is named `tailrace` or `tailrace-...`."""

_UNKNOWN = "extra_forbidden"
"""Pydantic's error type for a name that no setting has."""
_HIDDEN = ("secret", "password", "database")
"""Settings with these words in their names have secret values, which no message contains."""

S = TypeVar("S", bound="LayeredSettings")


class BadSettings(ValueError):
    """One or more settings are wrong. The message has a line for each: its name, what was given, what is allowed."""


class SettingsSection(BaseModel):
    """Base class of one part's settings. Each setting is a `Field` with a default, bounds and a docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values, which are checked."""
        return type(self)(**{**dict(self), **values})

    def filled(self, **defaults: Any) -> Self:
        """Return a copy in which settings that are None have these values, which are not checked."""
        unset = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return self.model_copy(update=unset)


def separated_by(separator: str) -> BeforeValidator:
    """Return a validator that splits the text of a variable. The field also needs `NoDecode`."""

    def split(value: Any) -> Any:
        return (
            [part.strip() for part in value.split(separator) if part.strip()]
            if isinstance(value, str)
            else value
        )

    return BeforeValidator(split)


class LayeredSettings(BaseSettings):
    """Base class of a process's settings. Its values come only from `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting: `path` is () for a whole section."""

    path: tuple[str, ...]
    annotation: Any
    default: Any
    description: str
    bounds: str
    """The bounds in words, such as "at least 1, at most 10"; empty without bounds."""

    @property
    def key(self) -> str:
        """The setting's name in the file, with dots."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The setting's name in the environment."""
        return PREFIX + "__".join(self.path).upper()


def load_settings(
    model: type[S],
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
    mistakes_of: Callable[[S], Iterable[str]] | None = None,
) -> S:
    """Load the settings from flags, environment and file.

    Args:
        flags: values from the command line, by setting. None means that a flag was not given.
        file: a TOML file that must exist. Without it, the one that TAILRACE_CONFIG names, if any.
        mistakes_of: returns a line for each mistake that involves more than one value. It gets the settings without the
            refused values, so that one run reports all mistakes.

    Raises:
        BadSettings: the file can't be read, a name is unknown, or a value isn't allowed.
    """
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    from_file = {} if file is None else _read(file)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    names = [field.path for field in fields(model)]
    lines = unknown = _unknown_names(names, from_file, environ, file)
    values = _merged(_merged(from_file, _Environment(model, environ)()), given)
    settings = allowed = None
    try:
        settings = allowed = model(**values)
    except ValidationError as error:
        lines = unknown + [
            _explain(detail, given, environ, file)
            for detail in error.errors(include_url=False)
            if not (unknown and detail["type"] == _UNKNOWN)  # already reported, with a suggestion
        ]
        allowed = _without_refused(model, values, error)
    if mistakes_of is not None and allowed is not None:
        lines = [*lines, *mistakes_of(allowed)]
    if lines or settings is None:
        raise BadSettings("\n".join(dict.fromkeys(lines)))
    return settings


def _without_refused(model: type[S], values: Mapping[str, Any], error: ValidationError) -> S | None:
    """Return the settings with defaults in place of refused values; None if they are still invalid."""
    kept = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for detail in error.errors(include_url=False):
        outer, *inner = detail["loc"] or ("",)
        section = kept.get(str(outer))
        if inner and isinstance(section, dict):
            section.pop(inner[0], None)
        else:
            kept.pop(str(outer), None)
    try:
        return model(**kept)
    except ValidationError:
        return None


def fields(model: type[BaseModel], parents: tuple[str, ...] = ()) -> Iterator[SettingField]:
    """Yield every setting of a model and its sections, in the order of declaration."""
    for name, field in model.model_fields.items():
        path, annotation = (*parents, name), field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from fields(annotation, path)
        else:
            default = field.get_default(call_default_factory=True)
            yield SettingField(
                path=path,
                annotation=annotation,
                default=default,
                description=field.description or "",
                bounds=_bounds(field.metadata),
            )


_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _bounds(metadata: Sequence[Any]) -> str:
    return ", ".join(
        f"{words} {getattr(bound, key):,}".replace(",", " ")
        for bound in metadata
        for key, words in _BOUNDS.items()
        if getattr(bound, key, None) is not None
    )


class _Environment(EnvSettingsSource):
    """Reads variables from a given mapping."""

    def __init__(self, model: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = {name.lower(): value for name, value in environ.items() if value}
        super().__init__(model)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._environ


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"config file {str(file)!r} can't be read: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise BadSettings(f"config file {str(file)!r} is not TOML: {error}") from error


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers section by section. `high` wins where both have a name."""
    merged = dict(low)
    for name, value in high.items():
        before = merged.get(name)
        is_section = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if is_section else value  # type: ignore[arg-type]
    return merged


def _unknown_names(
    names: Sequence[tuple[str, ...]],
    from_file: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
) -> list[str]:
    """Return a line for each name in the file and the environment that no setting has."""
    lines: list[str] = []
    known = {".".join(name) for name in names}
    sections = {name[0] for name in names if len(name) > 1}
    for key in _keys(from_file, sections):
        if key not in known:
            lines.append(
                f"{key}: no such setting, given in {file}; {_suggestion(key, sorted(known | sections))}"
            )
    variables = {PREFIX + "__".join(name).upper() for name in names} | {CONFIG_VARIABLE, CLIENT_VARIABLE}
    for variable in sorted(environ):
        if (
            variable.upper().startswith(PREFIX)
            and variable.upper() not in variables
            and _KUBERNETES.fullmatch(variable) is None
        ):
            lines.append(
                f"{variable}: no setting has this environment variable; {_suggestion(variable, sorted(variables))}"
            )
    return lines


def _keys(values: Mapping[str, Any], sections: set[str]) -> Iterator[str]:
    for name, value in values.items():
        if name in sections and isinstance(value, Mapping):
            for inner in value:
                yield f"{name}.{inner}"
        elif name not in sections:
            yield name


def _suggestion(given: str, known: Sequence[str]) -> str:
    section = given[: given.rfind(".") + 1]
    names = [name.removeprefix(section) for name in known if name.startswith(section)]
    close = difflib.get_close_matches(given.removeprefix(section), names, n=1, cutoff=0.6)
    close = [section + name for name in close]
    if not close:
        last = [name for name in known if name.rpartition(".")[2] == given.rpartition(".")[2]]
        close = last[:1]
    return f"did you mean {close[0]}?" if close else "docs/configuration.md lists all of them"


def _explain(
    error: ErrorDetails, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None
) -> str:
    path = tuple(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if not path:
        return message
    variable = PREFIX + "__".join(path).upper()
    if path[0] in flags:
        source = f"--{path[0].replace('_', '-')}"
    elif any(name.upper() == variable for name in environ):
        source = variable
    else:
        source = str(file) if file is not None else "default"
    is_hidden = any(word in path[-1] for word in _HIDDEN) or isinstance(error["input"], Mapping)
    given = "" if is_hidden else f" {error['input']!r}"
    return f"{'.'.join(path)}: {message[:1].lower()}{message[1:]}; given was{given} by {source}"
