"""The turn of an exploration as a job for a process of an executor.

A job is pickled, so it names everything: the database by its URL, the branch by its id, the graph by the function that
builds it, and the function that runs the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from langchain_core.runnables import RunnableConfig
from sqlalchemy import URL

from agentgit.agents.branch_context import Interval
from agentgit.agents.explore.turns import Outcome
from agentgit.auth import Principal
from agentgit.effects import Effect
from agentgit.errors import InvalidInput
from agentgit.handles.context import Context
from agentgit.store.database import Database
from agentgit.store.sql.encryption import load_keyring
from agentgit.store.sql.process import LEASE_SECONDS
from agentgit.store.store import Store

CONNECTIONS = 2
"""The greatest number of connections of one process to a server: one for its turn, one for its leases."""

_WORKER = "agentgit.agents.explore.worker:run_job"
"""The function that runs a job. It makes an agent, so it lies above the code that sends jobs."""


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """The database of an exploration and the user who explores, for a process that opens it."""

    url: URL = field(repr=False)
    lease_seconds: float
    principal: Principal
    compression: str
    exclude_metadata: frozenset[str]

    @classmethod
    def of(cls, context: Context) -> StoreAddress:
        """Return the address of the database of a context."""
        store = context.store
        database = store.database
        if database.in_memory:
            raise InvalidInput("No other process can open a database in memory. Use a file or a server.")
        return cls(
            url=database.absolute_url,
            lease_seconds=database.leases.seconds if database.leases is not None else LEASE_SECONDS,
            principal=context.principal,
            compression=store.compression,
            exclude_metadata=store.exclude_metadata,
        )

    def open(self) -> Store:
        """Open the database."""
        database = Database(
            self.url, pool_size=CONNECTIONS, lease_seconds=self.lease_seconds, keyring=load_keyring(None)
        )
        try:
            return Store.open(
                database,
                lambda _: self.principal.tenant_id,
                create=False,
                compression=self.compression,
                exclude_metadata=self.exclude_metadata,
            )
        except BaseException:
            database.close()
            raise


@dataclass(frozen=True, kw_only=True)
class Job:
    """One turn to run in another process."""

    address: StoreAddress
    coordinator: int
    session_id: int
    branch_id: int
    branch_name: str
    is_new: bool
    factory: Callable[[str], Any] = field(repr=False)
    state_channels: frozenset[str] = field(repr=False)
    effects: Mapping[str, Effect] = field(repr=False)
    defaults: Mapping[str, Effect] = field(repr=False)
    interval: Interval = field(repr=False)
    fence: str = field(repr=False)
    value: Any = field(repr=False)
    config: RunnableConfig = field(repr=False)


def run(job: Job) -> Outcome:
    """Run a job, in the process that received it."""
    outcome: Outcome = resolve_name(_WORKER)(job)
    return outcome
