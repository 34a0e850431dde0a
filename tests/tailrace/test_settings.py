"""Settings come in layers, and a wrong one is refused by a line that helps."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from cache.settings import CacheSettings
from tailrace.settings import BadSettings, fields, load_settings
from tailrace_cli.running.checks import agent_mistakes, sequencer_mistakes, serve_mistakes
from tailrace_cli.settings import Settings


def write(folder: Path, text: str) -> Path:
    file = folder / "tailrace.toml"
    file.write_text(text)
    return file


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings(Settings, environ={})
    assert settings.listen == "127.0.0.1:9092"
    assert settings.agent.linger_ms == 250
    assert settings.sequencer.agent_lease_ms == 10_000


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'listen = "1.1.1.1:1"\nhttp = "1.1.1.1:1"\nzone = "file"\n')
    settings = load_settings(
        Settings,
        flags={"listen": "3.3.3.3:3", "http": None},
        environ={"TAILRACE_LISTEN": "2.2.2.2:2", "TAILRACE_HTTP": "2.2.2.2:2"},
        file=file,
    )
    assert (settings.listen, settings.http, settings.zone) == ("3.3.3.3:3", "2.2.2.2:2", "file")


def test_sections_are_merged_name_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nlinger_ms = 5\nflush_lanes = 2\n[sequencer]\nmax_topics = 7\n")
    environ = {"TAILRACE_AGENT__LINGER_MS": "9", "TAILRACE_CACHE__TAIL_GETS": "3"}
    settings = load_settings(Settings, environ=environ, file=file)
    assert (settings.agent.linger_ms, settings.agent.flush_lanes) == (9, 2)
    assert (settings.sequencer.max_topics, settings.cache.tail_gets) == (7, 3)


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'zone = "a"')
    assert load_settings(Settings, environ={"TAILRACE_CONFIG": str(file)}).zone == "a"


def test_addresses_may_be_listed_with_commas() -> None:
    settings = load_settings(Settings, environ={"TAILRACE_SEQUENCERS": "a:1, b:2"})
    assert settings.sequencers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listn = 'a:1'", "listn: no such setting, given in {file}; did you mean listen?"),
        ("[agent]\nlinger = 5", "agent.linger: no such setting, given in {file}; did you mean agent.linger_ms?"),
        ("[agents]\nlinger_ms = 5", "agents: no such setting, given in {file}; did you mean agent?"),
        ("[agent]\nnope = 5", "agent.nope: no such setting, given in {file}; docs/configuration.md lists all of them"),
        ("[agent]\nlinger_ms = 0", "agent.linger_ms: input should be greater than or equal to 1; given was 0 by"),
        ("[sequencer]\nmax_topics = 'x'", "sequencer.max_topics: input should be a valid integer"),
        ("[cache]\nmemory_bytes = -1", "cache.memory_bytes: input should be greater than or equal to 0; given was -1"),
        ("[cache]\nfresh_share = 0.9", "cache: fresh_share 0.9 and catch_up_share 0.35: expected at most 1 together"),
        ("[sequencer]\nmax_topics = 0", "sequencer.max_topics: input should be greater than or equal to 1; given was"),
        ("log_level = 'loud'", "log_level: input should be 'debug', 'info', 'warning' or 'error'; given was 'loud'"),
    ],
)  # fmt: skip
def test_an_error_in_a_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, environ={}, file=file)
    assert expected.format(file=file) in str(refused.value)


def test_a_bad_flag_is_called_by_its_flag() -> None:
    with pytest.raises(BadSettings, match=r"^listen: expected HOST:PORT .*; given was '9092' by --listen$"):
        load_settings(Settings, flags={"listen": "9092"}, environ={})


def test_an_unknown_variable_is_refused_but_kubernetes_own_are_not() -> None:
    with pytest.raises(BadSettings, match="did you mean TAILRACE_AGENT__LINGER_MS"):
        load_settings(Settings, environ={"TAILRACE_AGENT_LINGER_MS": "5"})
    environ = {"TAILRACE_PORT_9092_TCP_ADDR": "10.0.0.1", "TAILRACE_SERVICE_HOST": "10.0.0.1"}
    load_settings(Settings, environ=environ)


def test_every_error_is_reported_at_once_and_secrets_are_not() -> None:
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, flags={"http": "x", "processes": 0, "rpc_secret": 5}, environ={})
    lines = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["http", "rpc_secret", "processes"]
    assert "5" not in lines[1]


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'listn = "a:1"\nhttp = "x"\n[agent]\nlinger = 5\nflush_lanes = 0\n[cache]\nchunk = 1\npeer_failures = "a"\n',
    )
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, environ={"TAILRACE_ZON": "a"}, file=file)
    lines = str(refused.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "TAILRACE_ZON", "agent.flush_lanes", "agent.linger", "cache.chunk", "cache.peer_failures", "http", "listn",
    ]  # fmt: skip


LATE = """
prices = "none.toml"
rpc_secret_file = "no.secret"
database = "sqlite:///x.db"
database_password_file = "no.password"
listeners = ["SSL://127.0.0.1:9092"]
advertised_listeners = ["TLS://127.0.0.1:9092"]
[security]
client_auth = "required"
principal_mapping_rules = ["DEFAULT", "RULE:a", "RULE:(/x/"]
tenant_rules = ["none"]
first_user_file = "no.user"
delegation_token_secret_file = "no.token"
[tls]
kafka_cert_file = "no.pem"
http_key_file = "no.key"
gateway_client_ca_file = "no.pem"
"""
"""Each is a mistake that is only seen beside other settings, or in a file."""


def test_all_mistakes_that_an_agent_would_end_with_are_reported_with_those_of_single_values(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, LATE + "rpc_cert_file = 5\n[agent]\nflush_lanes = 0\nlinger = 1\n")
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, environ={}, file=file, mistakes_of=serve_mistakes)
    lines = str(refused.value).splitlines()
    starts = [
        "agent.flush_lanes: ", "agent.linger: ", "tls.rpc_cert_file: ",
        "security.principal_mapping_rules.1: ", "security.principal_mapping_rules.2: ", "security.tenant_rules.0: ",
        "prices 'none.toml': ", "rpc_secret_file: 'no.secret' ", "database_password_file: 'no.password' ",
        "security.first_user_file: 'no.user' ", "security.delegation_token_secret_file: 'no.token' ",
        "'TLS://127.0.0.1:9092' advertises a listener that is not ",
        "security.client_auth needs ", "tls.kafka_key_file is missing", "tls.http_cert_file is missing",
        "tls.gateway_cert_file is missing",
    ]  # fmt: skip
    assert [start for start in starts if not any(line.startswith(start) for line in lines)] == []
    assert len(lines) == len(starts), lines


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ('listen = "0.0.0.0:9092"', "listen '0.0.0.0:9092' is a wildcard address"),
        ('listeners = ["PLAINTEXT://[::]:9092"]', "listener 'PLAINTEXT' has a wildcard address"),
        ('listeners = ["SSL://127.0.0.1:9092"]', "a listener with TLS needs tls.kafka_cert_file"),
    ],
)
def test_missing_settings_of_listeners_are_reported_to_agents_only(
    tmp_path: Path, listeners: str, expected: str
) -> None:
    file = write(tmp_path, listeners)
    with pytest.raises(BadSettings) as of_sequencer:
        load_settings(Settings, environ={}, file=file, mistakes_of=sequencer_mistakes)
    assert str(of_sequencer.value).startswith("no database; ") and "listener" not in str(of_sequencer.value)
    with pytest.raises(BadSettings, match=f"^{re.escape(expected)}"):
        load_settings(Settings, environ={}, file=file, mistakes_of=serve_mistakes)


def test_all_that_a_sequencer_and_an_agent_would_end_with_is_reported_at_once(tmp_path: Path) -> None:
    places = 'store = "ftp://x"\ndatabase = "mysql://h/n"\nrpc = "0.0.0.0:1"\n'
    unknown, is_open = ["mysql is not", "store 'ftp://x'"], "rpc '0.0.0.0:1' can be reached"
    for file, mistakes_of, expected in (
        (places, sequencer_mistakes, [*unknown, "rpc '0.0.0.0:1' is a wildcard", is_open]),
        ("", sequencer_mistakes, ["no database; "]),
        (places + 'sequencers = "s.example:1"\n', agent_mistakes, [*unknown, "both ", is_open]),
        ("", agent_mistakes, ["no object store; ", "neither --database nor --sequencer was given"]),
        (places, serve_mistakes, unknown),
    ):
        with pytest.raises(BadSettings) as refused:
            load_settings(Settings, environ={}, file=write(tmp_path, file), mistakes_of=mistakes_of)
        lines = str(refused.value).splitlines()
        assert [start for start in expected if not any(line.startswith(start) for line in lines)] == []
        assert len(lines) == len(expected), lines


@pytest.mark.parametrize("mistakes_of", [serve_mistakes, agent_mistakes, sequencer_mistakes])
def test_a_time_in_which_no_compaction_could_end_is_refused_where_a_process_starts(
    tmp_path: Path, mistakes_of: Callable[[Settings], list[str]]
) -> None:
    for given_ms, is_refused in ((1, True), (599_999, True), (600_000, False)):
        file = write(tmp_path, f"[sequencer]\nsweep_interval_ms = {given_ms}\n")
        told = mistakes_of(load_settings(Settings, environ={}, file=file))
        assert any(line.startswith(f"sequencer.sweep_interval_ms {given_ms} ") for line in told) is is_refused


def test_errors_that_follow_from_another_are_not_reported(tmp_path: Path) -> None:
    file = write(tmp_path, 'listeners = ["x"]\n[security]\ntenant_listeners = ["a=b"]\n')
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, environ={}, file=file, mistakes_of=serve_mistakes)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("'x': expected NAME://HOST:PORT")


def test_all_values_of_a_section_that_do_not_fit_are_reported_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[cache]\nchunk_bytes = 0\ntail_gets = 0\n")
    with pytest.raises(BadSettings) as refused:
        load_settings(Settings, environ={}, file=file)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        "cache.chunk_bytes",
        "cache.tail_gets",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="can't be read: No such file"):
        load_settings(Settings, environ={}, file=tmp_path / "none.toml")


def test_every_number_has_bounds_on_both_sides() -> None:
    unbounded = [
        field.key
        for field in fields(Settings)
        if {int, float} & {field.annotation, *typing.get_args(field.annotation)}
        and not ("at most" in field.bounds and ("at least" in field.bounds or "above" in field.bounds))
    ]
    assert unbounded == []


def test_a_changed_section_is_checked_too() -> None:
    settings = CacheSettings().changed(tail_gets=3)
    assert (settings.tail_gets, settings.catch_up_gets) == (3, CacheSettings().catch_up_gets)
    with pytest.raises(ValueError, match="tail_gets"):
        settings.changed(tail_gets=0)
