"""Work in the processes of an executor, of Python, Dask or others: how it is sent, and what it finds there.

A job is pickled, so it names everything: the database by its URL, functions by their modules. It opens the database for
itself, which takes 8 ms. A job may run more than once, because an executor may repeat the jobs of a process that died.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from sqlalchemy import URL

from agentgit.auth import Principal
from agentgit.effects import Effect
from agentgit.errors import AgentGitError, InvalidInput, Unavailable
from agentgit.handles.context import Context
from agentgit.store.database import Database
from agentgit.store.sql.encryption import load_keyring
from agentgit.store.sql.process import LEASE_SECONDS
from agentgit.store.store import Store
from agentgit.values import FAILURES, describe_error

CONNECTIONS = 2
"""The greatest number of connections of one process to a server: one for its turn, one for its leases."""


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """The database and the user who sends the work, for a process that opens it."""

    url: URL = field(repr=False)
    lease_seconds: float
    principal: Principal
    compression: str
    exclude_metadata: frozenset[str]

    @classmethod
    def of(cls, context: Context) -> StoreAddress:
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
        database = Database(
            self.url, pool_size=CONNECTIONS, lease_seconds=self.lease_seconds, keyring=load_keyring(None)
        )
        try:
            return Store.open(
                database,
                create=False,
                compression=self.compression,
                exclude_metadata=self.exclude_metadata,
            )
        except BaseException:
            database.close()
            raise


@dataclass(frozen=True)
class Job:
    """A call of a function in another process: `function(context, address, *args)`."""

    address: StoreAddress
    defaults: Mapping[str, Effect] = field(repr=False)
    function: str
    args: tuple[Any, ...] = field(repr=False)


class Workers:
    """The processes of an executor, which open the database of a context."""

    def __init__(self, context: Context, executor: Any, sent: Mapping[str, Any]) -> None:
        if not isinstance(executor, Executor):
            raise InvalidInput(
                "executor must be a concurrent.futures.Executor, like ProcessPoolExecutor(4) or the get_executor() of "
                f"a Dask client, not {executor!r}."
            )
        for name, value in sent.items():
            require_picklable(value, name)
        require_picklable(context.effects, "effects of agentgit.open")
        self.executor, self._defaults = executor, context.effects
        self.address = StoreAddress.of(context)
        submit_to(executor, os.getpid)  # an executor that was shut down is refused before anything runs

    def submit(self, function: str, *args: Any) -> Future[Any]:
        """Send a call of a function, named as `module:function`."""
        return submit_to(self.executor, run, Job(self.address, self._defaults, function, args))


def submit_to(executor: Executor, function: Callable[..., Any], *args: Any) -> Future[Any]:
    try:
        return executor.submit(function, *args)
    except Exception as error:
        raise Unavailable(
            f"The executor takes no work, for example because it was shut down. {describe_error(error)}. What has "
            "ended is stored. Continue with a new executor."
        ) from error


def result_of(future: Future[Any]) -> Any:
    """Return the result of a call that was sent, or raise why there is none."""
    try:
        return future.result()
    except AgentGitError:
        raise
    except FAILURES as error:
        raise Unavailable(
            f"The executor lost a job, for example because its process was killed. {describe_error(error)}. What has "
            "ended is stored. Continue with a new executor."
        ) from error


def require_picklable(value: Any, what: str) -> None:
    """Check that a value can be sent to another process."""
    try:
        pickle.dumps(value)
    except Exception as error:
        raise InvalidInput(
            f"The {what} cannot be sent to another process. {describe_error(error)}. Use functions of a module, and "
            "values that can be pickled; leave callbacks out of a config."
        ) from error


# -- in the process that received a job


def run(job: Job) -> Any:
    function = resolve_name(job.function)  # by name, because it makes agents, which send jobs
    try:
        store = job.address.open()
    except AgentGitError as error:
        raise Unavailable(f"A process of the executor cannot open the database. {describe_error(error)}") from None
    with closing(store.database):
        return function(Context(store, job.address.principal, job.defaults), job.address, *job.args)
