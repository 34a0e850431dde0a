"""Client configs (quotas, group configs, client metrics subscriptions): which are valid, and how they change.

Agents keep all of them in memory and reload them when their version has changed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from sequencer.api.errors import InvalidConfig, LimitReached
from sequencer.api.topics import AlterConfig, ClientConfig, ClientConfigs, ClientConfigsRequest, ConfigScope
from sequencer.api.values import Empty
from sequencer.bounds import MAX_PAGE, PageBudget, text_bytes
from sequencer.rules.topics import changed_configs
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import ClientConfigRow
from sequencer.store.state import CLIENT_CONFIGS_VERSION, HotState
from tailrace.configs.client_metrics_config import check_client_metrics_configs
from tailrace.configs.group_config import check_group_configs
from tailrace.configs.topic_config import InvalidConfigValue
from tailrace.limits import MAX_NAME_BYTES, is_name
from tailrace.quotas import InvalidQuota, entity_of, limits_of


def client_configs(state: HotState, request: ClientConfigsRequest) -> ClientConfigs:
    """Return all client configs, or a page of them; nothing if the caller has this version."""
    version, after = state.counter(CLIENT_CONFIGS_VERSION), request.after
    if after is None and request.known_version == version:
        return ClientConfigs(version, None)
    if not request.takes_pages:
        return ClientConfigs(version, [_config(row) for row in state.all(ClientConfigRow)])
    budget, configs = PageBudget(), list[ClientConfig]()
    key = (int(after[1]), after[2]) if after is not None and after[0] == version else None
    for row in state.rows_after(ClientConfigRow, key, MAX_PAGE + 1):
        if not budget.takes(16 + text_bytes(row.name, *row.configs, *row.configs.values())):
            last = configs[-1]
            return ClientConfigs(version, configs, (version, last.scope, last.name))
        configs.append(_config(row))
    return ClientConfigs(version, configs)


def _config(row: ClientConfigRow) -> ClientConfig:
    return ClientConfig(ConfigScope(row.scope), row.name, row.configs)


def alter_client_config(draft: Draft, request: AlterConfig, settings: SequencerSettings) -> Empty:
    """Change the configs under one name; delete the name if it has no configs left."""
    row = draft.get(ClientConfigRow, int(request.scope), request.name)
    before = {} if row is None else row.configs
    configs = changed_configs(before, request)
    _check(request.scope, request.name, configs)
    if request.validate_only or configs == before:
        return Empty()
    if configs:
        draft.put(ClientConfigRow(int(request.scope), request.name, configs))
    else:
        draft.delete(ClientConfigRow, int(request.scope), request.name)
    if row is None:
        count = draft.count(ClientConfigRow)
        if count > settings.max_client_configs:
            raise LimitReached(
                f"{count} quotas and groups with configs; sequencer.max_client_configs allows"
                f" {settings.max_client_configs}"
            )
    draft.bump_once(CLIENT_CONFIGS_VERSION)
    return Empty()


def _check(scope: ConfigScope, name: str, configs: Mapping[str, str]) -> None:
    try:
        if scope is ConfigScope.QUOTA:
            _check_quota(name, configs)
            return
        check = check_group_configs if scope is ConfigScope.GROUP else check_client_metrics_configs
        check(configs)
        if not is_name(name):
            raise InvalidConfigValue(f"{name[:100]!r}: 1 to {MAX_NAME_BYTES} bytes are allowed")
    except (InvalidQuota, InvalidConfigValue) as error:
        raise InvalidConfig(str(error)) from error


def _check_quota(name: str, configs: Mapping[str, str]) -> None:
    entity = entity_of(name)
    limits_of(entity, configs)
    if entity.text != name:
        raise InvalidQuota(f"{name!r} is written {entity.text!r}")
