"""A bench with two tenants, resources without a tenant, and clients of one tenant."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from agent.dispatch import Dispatcher
from agent.handlers import AT_ONCE, HANDLERS
from agent.security.access import Access
from agent.security.authorize import AclIndex
from agent.security.guarded_handlers import GUARDED, GUARDED_AT_ONCE
from agent.security.users import new_credentials
from agent.tenants.tenant_handlers import tenant_handlers, tenant_handlers_at_once
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.security import AlterScram, CreateAcls, ScramMechanism, ScramName
from sequencer.api.topics import AlterConfig, BrokerConfigsRequest, ConfigChange, ConfigOperation, ConfigScope
from sequencer.api.transactions import AddToTransaction, TransactionRef
from sequencer.pages import all_groups, all_transactions
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.quotas import QuotaEntity
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tailrace.tenants import Tenant
from tests.support.agents import AgentBench, connection, made, token_of
from tests.support.listings import all_positions, all_tokens

ACME, OTHER = Tenant.named("acme"), Tenant.named("zwilling")
SECRET, HIDDEN, NOBODYS = "umbra", "penumbra", "communal"
"""Names of things of the other tenant, of which a client of `acme` guesses the first; and of no tenant's."""
FORBIDDEN = (b"acme~", b"zwilling", HIDDEN.encode(), NOBODYS.encode())
"""What no answer to a client of `acme` may contain."""


class Client:
    """A connection of a tenant's client that may do everything in its tenant."""

    def __init__(self, bench: AgentBench, tenant: Tenant | None = ACME, *, is_guarded: bool = True) -> None:
        self._bench = bench
        handlers, at_once = (GUARDED, GUARDED_AT_ONCE) if is_guarded else (HANDLERS, AT_ONCE)
        if tenant is not None:
            handlers, at_once = tenant_handlers(handlers), tenant_handlers_at_once(at_once)
        self._dispatch = Dispatcher(bench.services, handlers, at_once)
        principal = "User:root" if tenant is None else f"User:{tenant.stored('root')}"
        index = AclIndex((), {principal})
        self.connection = connection()
        self.connection.access = Access(
            listener="INSIDE",
            host="10.0.0.1",
            principal=principal,
            acls=(lambda: index) if is_guarded else None,
            tenant=tenant,
        )

    async def frame(self, key: ApiKey, version: int, request: Any) -> bytes | None:
        """The bytes of the answer, without their size; None for no answer."""
        sent = b"".join(encode_request(7, key, version, request, "client"))
        view = memoryview(sent)[4:]
        reply = self._dispatch.at_once(view, self.connection)
        if reply is None:
            asked = asyncio.ensure_future(self._dispatch(view, self.connection))
            reply = await self._bench.until(asked)
        assert not reply.close, f"{key.name} v{version} is answered"
        parts = await self._bench.until(asyncio.ensure_future(made(reply)))
        return None if parts is None else b"".join(parts)[4:]

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        frame = await self.frame(key, version, request)
        return None if frame is None else decode_response(key, version, frame)[1]


async def there_is(bench: AgentBench, stored: str) -> UUID:
    """A topic, a group with a position, a transactional id with an open transaction, a user with a delegation token, a
    quota, an ACL and a group's config of this stored name. Returns the topic's id."""
    sequencer = bench.services.sequencer
    topic_id = (await bench.topic(stored)).topic_id
    position = OffsetPosition(topic_id=topic_id, partition=0, offset=1, leader_epoch=-1, metadata="")
    await sequencer.commit_offsets(CommitOffsets(stored, -1, -1, -1, [], [position]))
    grant = await sequencer.init_producer(InitProducer(-1, -1, stored, 60_000))
    reference = TransactionRef(stored, grant.producer_id, grant.producer_epoch)
    await sequencer.add_to_transaction(AddToTransaction(reference, [(topic_id, 0)]))
    name = ScramName(stored, ScramMechanism.SCRAM_SHA_256)
    await sequencer.alter_scram(AlterScram([new_credentials(name, "secret", iterations=4096)], []))
    await sequencer.create_acls(CreateAcls([acl_of(stored)]))
    await sequencer.create_token(token_of(f"User:{stored}", stored.rpartition("~")[2]))
    session = ConfigChange("consumer.session.timeout.ms", ConfigOperation.SET, "50000")
    await sequencer.alter_config(AlterConfig(ConfigScope.GROUP, stored, [session]))
    rate = ConfigChange("request_percentage", ConfigOperation.SET, "1000000.0")
    await sequencer.alter_config(AlterConfig(ConfigScope.QUOTA, QuotaEntity(user=stored).text, [rate]))
    await bench.services.catalog.refresh()
    return topic_id


def acl_of(stored: str) -> Acl:
    return Acl(
        ResourceType.TOPIC,
        stored,
        PatternType.LITERAL,
        f"User:{stored}",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


async def neighbourhood(bench: AgentBench) -> UUID:
    """Everything of every tenant's. Returns the id of the other tenant's topic SECRET."""
    await there_is(bench, NOBODYS)
    await there_is(bench, ACME.stored("mine"))
    await there_is(bench, OTHER.stored(HIDDEN))
    return await there_is(bench, OTHER.stored(SECRET))


async def outside(bench: AgentBench) -> list[str]:
    """All that is stored and not `acme`'s."""
    sequencer = bench.services.sequencer
    await bench.services.catalog.refresh()
    catalog = bench.services.catalog
    transactions, groups = await all_transactions(sequencer, None), await all_groups(sequencer)
    stored: list[tuple[str, Any]] = [
        *((known.topic.name, known.topic) for known in catalog.snapshot.by_id.values()),
        *((name.user, credentials) for name, credentials in catalog.security.users.items()),
        *((acl.principal.partition(":")[2], acl) for acl in catalog.security.acls),
        *(
            (unquote(config.name).partition("=")[2] or config.name, config)
            for config in catalog.client_configs.configs
        ),
        *((each.transactional_id, each) for each in transactions),
        *((each.group_id, each) for each in groups),
        *((each.owner.partition(":")[2], each) for each in await all_tokens(sequencer, None)),
        ("broker", await sequencer.broker_configs(BrokerConfigsRequest(""))),
    ]
    for name in (OTHER.stored(SECRET), NOBODYS):
        stored.append((name, await all_positions(sequencer, name)))
    return sorted(f"{name}: {value}" for name, value in stored if not ACME.owns(name))
