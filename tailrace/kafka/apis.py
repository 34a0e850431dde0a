"""The served APIs by key, as their request classes declare them (`Api` in schema.py).

The messages of `ApiKey.LIST_GROUPS` are `ListGroupsRequest` and `ListGroupsResponse` in `messages/list_groups.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, MessageType, Versions, parse_versions

MAX_ITEMS = 20_000
"""The most elements in all arrays of one request together. Each element costs some hundred bytes of memory and some
microseconds of the loop, however few bytes it has on the wire."""
MAX_ITEMS_BY_PARTITION = 200_000
"""The same limit for requests that name the partitions or topics of a client: twice those of the largest planned
cluster."""
BY_PARTITION = frozenset(
    (
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    )
)


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """The versions and messages of one API.

    `listed` is wider than `served` if clients expect to see versions that Kafka refuses. Such requests can be decoded,
    and are answered with UNSUPPORTED_VERSION.
    """

    key: ApiKey
    served: Versions
    listed: Versions
    flexible: Versions
    request: MessageType
    response: MessageType

    @property
    def name(self) -> str:
        """The API's name in Kafka, such as ListGroups."""
        return self.request.__name__.removesuffix("Request")

    @property
    def max_items(self) -> int:
        """The most elements in all arrays of a request together."""
        return MAX_ITEMS_BY_PARTITION if self.key in BY_PARTITION else MAX_ITEMS

    def is_flexible(self, version: int) -> bool:
        """Whether the version has tagged fields and compact lengths (KIP-482)."""
        return version in self.flexible


def _spec(key: ApiKey) -> ApiSpec:
    module = import_module(f"tailrace.kafka.messages.{key.name.lower()}")
    name = "".join(word.capitalize() for word in key.name.split("_"))
    request = getattr(module, f"{name}Request")
    api: Api = request.api
    assert api.key is key, f"{request.__name__} declares {api.key.name}"
    return ApiSpec(
        key=key,
        served=parse_versions(api.versions),
        listed=parse_versions(api.listed or api.versions),
        flexible=parse_versions(api.flexible),
        request=request,
        response=getattr(module, f"{name}Response"),
    )


APIS: Mapping[int, ApiSpec] = {key: _spec(key) for key in sorted(ApiKey)}


def listed_versions() -> list[tuple[int, int, int]]:
    """Return (API key, first version, last version) of each API, sorted by key, as ApiVersions lists them."""
    return [(int(spec.key), spec.listed.first, spec.listed.last) for spec in APIS.values()]
