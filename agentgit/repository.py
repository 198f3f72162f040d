"""The repository: an open handle on one database, bound to one user, with the verbs on its sessions."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import URL, Connection

from agentgit.across import Across
from agentgit.auth import User
from agentgit.carrying import Carrying
from agentgit.checkpoints import Checkpoint
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.finding import Finds
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.imports import ImportReport, Progress
from agentgit.store import schema, templates
from agentgit.store.database import Database
from agentgit.store.lookup import Place
from agentgit.store.sessions import SESSION
from agentgit.store.store import Store
from agentgit.store.tenants import ensure_tenant
from agentgit.store.training import Trained, train_dictionary
from agentgit.telling import Tells
from agentgit.tools import Effect, ToolInvocation
from agentgit.tools.declared import as_effects
from agentgit.upkeep import Upkeep
from agentgit.verbs import BranchRef, SessionRef

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.intervals import AutoCheckpoint
    from agentgit.agents.wrap import Fence
    from agentgit.workspace.workspace import Workspace

ENVIRONMENT = "AGENTGIT_DATABASE_URL"
DEFAULT = "agentgit.db"
LOCAL_USER = "local"
"""The owner of everything in an embedded database that was opened without a user."""


def open(
    where: str | Path | URL | None = None,
    *,
    user: str | None = None,
    create: bool = True,
    effects: Mapping[str, Effect | str] | None = None,
    compression: str = "zstd",
) -> Repository:
    """Open a database, making or upgrading it if it is SQLite.

    Args:
        where: a path, `:memory:` or a URL; None is `$AGENTGIT_DATABASE_URL`, else `./agentgit.db`.
        user: whose sessions to see; None is the local owner.
        create: False to refuse a file that is not there.
        effects: what tools do to the world of which neither `wrap(effects=...)` nor the tool itself says anything, by
            tool name: as `wrap` takes it. `*` is every tool that is not named.
        compression: how new values are packed, `zstd`, `zlib` (bigger and slower) or `none`; all kinds are read.

    Raises:
        InvalidInput: `where` is empty, or `effects` holds something that is no effect.
        NotFound: `create` is False and there is no such file.
        SchemaMismatch: it is older or newer than this library, or not agentgit's; the text has the command to run.
        Unavailable: it cannot be read or written.

    Example:
        >>> with open(":memory:") as repo:
        ...     repo.sessions()
        []
    """
    if where == "":
        raise InvalidInput("An empty text names no database; give a path, a URL, or nothing at all.")
    defaults = as_effects(effects)
    database = Database(where if where is not None else os.environ.get(ENVIRONMENT) or DEFAULT)
    try:
        if not create:
            _expect_file(database)
        schema.ready(database)
        store = Store(database, ensure_tenant(database), compression)
        found = _user(store, user or LOCAL_USER)
    except BaseException:
        database.close()
        raise
    return Repository(store, found, defaults)


def _user(store: Store, name: str) -> User:
    """Find the user, or make one; a database that cannot be written is read all the same."""
    with store.database.reading() as connection:
        found = store.sessions.find_user(connection, name)
    return found or store.database.write(
        lambda c: store.sessions.find_user(c, name) or store.sessions.add_user(c, name)
    )


def _expect_file(database: Database) -> None:
    path = database.url.database
    if database.is_sqlite and not database.in_memory and not Path(path or "").exists():
        raise NotFound(f"There is no database {path}. Make one with: agentgit demo; or name another one: --db PATH")


class Repository(Across, Carrying, Finds, Tells, Upkeep):
    """An open handle on one database, bound to one user. A context manager; safe to use from many threads.

    Args:
        store: the store of one tenant.
        user: whose sessions it shows; what belongs to others is not found.
        effects: what tools do to the world of which nothing else is said, by name; `*` is all of those.
    """

    def __repr__(self) -> str:
        return f"Repository({self.store.database.url.render_as_string(hide_password=True)!r}, user={self.user.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all connections back; the repository and its agents may not be used afterwards."""
        self.store.database.close()

    def train_dictionary(self) -> Trained:
        """Make a zstd dictionary from a sample of the stored messages, so that new short values take about half.

        Repositories and savers with `compression="zstd"` pack with it from then on: this one at once, others when they
        are opened. The dictionary holds pieces of those messages, also when they are deleted.

        Raises:
            InvalidInput: there are too few values yet.
        """
        return train_dictionary(self.store.database, self.store.graphs.content.blobs)

    # -- wrap

    def wrap(
        self,
        graph: Any,
        session: str,
        *,
        effects: Mapping[str, Effect | str] | None = None,
        auto_checkpoint: AutoCheckpoint = "turn",
        branch: str | None = None,
        check_effects: bool = True,
        fence: Fence = "replay",
        workspace: str | Path | Workspace | None = None,
        thread_id: str | None = None,
        template: Place | None = None,
    ) -> RollbackAgent:
        """Wrap a compiled LangGraph graph; the session is made if it does not exist, else its current branch goes on.

        Args:
            graph: any compiled graph; it stays as it is.
            session: the session's name.
            effects: what tools do to the world, by tool name: an Effect, or `read_only`, `idempotent`, `irreversible`.
                It wins over what a tool says of itself, and that over the defaults of `agentgit.open`.
            auto_checkpoint: `turn` (before each user message and after its turn), `tool` (also after each batch of
                tool calls), `tool:10` (only at every tenth call), a number n (after every n-th turn), or `off`.
            branch: which branch to continue; None is the current one.
            check_effects: False if `effects` names tools that nodes call out of sight of the graph.
            fence: what to do, after a rollback, about a call that would do what an irreversible or compensable one has
                done, and what that rollback kept: `replay` (answer it from the record), `raise` (`Fenced`), or `off`
                (make it again). A tool that is declared `once` is never called twice.
            workspace: the directory whose files belong to the session: checkpoints keep them, and rollbacks bring them
                back. Or a Workspace, made with its own options.
            thread_id: a thread of the saver that the graph was compiled with, to be read into the session and
                continued; what was read before is not read again.
            template: the checkpoint that a new session begins as: its conversation and state, and its files if a
                workspace is given. A Checkpoint, its id, or text like `support-42` or `support-42@main#3`. What its
                tools did is history: the new session has a world of its own, and never reverses it.

        Raises:
            InvalidInput: the graph is not compiled, or an effect is declared of a tool that it does not have, or names
                an argument that the tool does not have; or the graph has no saver to read the thread from; or the
                workspace is a directory that is never one, like the home directory.
            NotFound: the session has no such branch, or the saver no such thread; or there is no such template; or a
                function of an effect cannot be imported.
            Conflict: the session has other content than the thread, or began otherwise than as the template.
            WorkspaceChanged: the template's files would take the place of others.
        """
        # Late, so that everything but running an agent works without LangGraph, which takes a second to import.
        agents = importlib.import_module("agentgit.agents.wrap")
        made: RollbackAgent = agents.wrap(
            self,
            graph,
            session,
            effects=effects,
            auto_checkpoint=auto_checkpoint,
            branch=branch,
            check_effects=check_effects,
            fence=fence,
            workspace=workspace,
            thread_id=thread_id,
            template=template,
        )
        return made

    def import_langgraph(
        self,
        saver_or_url: Any,
        threads: Sequence[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        session_prefix: str = "",
        on_error: str = "stop",
    ) -> ImportReport:
        """Make a session of each thread of a LangGraph saver, which is only read. Run again, it adds what is new.

        Args:
            saver_or_url: a saver, or the path or URL of a database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.
            threads: which; None is all.
            progress: told how far it is.
            session_prefix: put before a thread's id to name its session.
            on_error: `stop` at the first thread that cannot be imported, or `continue` with the others.

        Raises:
            NotFound: there is no such file, or no such thread.
            SchemaMismatch: it is not a database of LangGraph's savers.
            Conflict: a session has other content, or went on here while the thread went on there.
            Corrupt: a thread is damaged, or what was stored differs from it; nothing of that thread is visible.
            Unavailable: the source does not answer.
        """
        agents = importlib.import_module("agentgit.agents.import_langgraph")  # late, as in `wrap`
        report: ImportReport = agents.import_langgraph(
            self, saver_or_url, threads=threads, progress=progress, session_prefix=session_prefix, on_error=on_error
        )
        return report

    def ensure_session(self, name: str, template: Place | None = None) -> ExternalSession:
        """Find the session of that name, or make it with its first branch, `main`.

        Args:
            name: the session's name.
            template: as `wrap` takes it.

        Raises:
            InvalidInput: no session can be called so.
            NotFound: there is no such template.
            Conflict: there is a session of that name, which did not begin as the template.
        """
        self.expect_name(name)

        def find_or_make(connection: Connection) -> ExternalSession:
            found = self.store.sessions.sessions(connection, self.user.id, SESSION.c.session_name == name, limit=1)
            if template is not None:
                point = self._template(connection, template)
                if found:
                    templates.expect_same(self.store, connection, found[0].id, name, *point)
                else:
                    session_id = templates.begin(self.store, connection, self.user.id, name, *point)
            elif not found:
                session_id = self.store.sessions.create(connection, self.user.id, name)
            return found[0] if found else self.lookup.session(connection, session_id)

        return self.store.database.write(find_or_make, durable=True)

    # -- look

    def sessions(self) -> list[ExternalSession]:
        """List the sessions, the one that moved last first."""
        return self._read(self.lookup.sessions)

    def session(self, ref: SessionRef = None) -> ExternalSession:
        """Find a session by its name or id.

        Args:
            ref: None is the one that moved last.

        Raises:
            NotFound: there is none.
            Ambiguous: one session has that name and another one that id.
        """
        return self._read(lambda connection: self.lookup.session(connection, ref))

    def branches(self, session: SessionRef = None) -> list[InternalSession]:
        """List the branches of a session in the order they were made."""
        return self._read(lambda c: self.views.branches(c, self.lookup.session(c, session)))

    def branch(self, session: SessionRef = None, name: BranchRef = None) -> InternalSession:
        """Find a branch by its name or id.

        Args:
            session: None is the one that moved last.
            name: None is the current branch.

        Raises:
            NotFound: there is none.
        """

        def look(connection: Connection) -> InternalSession:
            found = self.lookup.session(connection, session)
            return self.views.branch(connection, found, self.lookup.branch(connection, found, name))

        return self._read(look)

    def tree(self, session: SessionRef = None) -> Tree:
        """Give the tree of a session's branches; `str` draws it."""
        return self._read(lambda c: self.views.tree(c, self.lookup.session(c, session)))

    def delete_checkpoint(self, ref: Place, session: SessionRef = None, *, branch: BranchRef = None) -> Checkpoint:
        """Delete a checkpoint; the conversation and the tool track stay. Gives the deleted one.

        Args:
            ref: as `checkpoint` takes it.
            session: as `checkpoint` takes it.
            branch: as `checkpoint` takes it.

        Raises:
            Conflict: something needs it, as a branch, a tag, a rollback, a merge or a call that is not resolved.
            NotFound, Ambiguous, InvalidInput: as `checkpoint`.
        """
        found = self.checkpoint(ref, session, branch=branch)
        found.to_dict()  # its content, while it is there
        for one in self._deleted({found.id or 0}):
            if not one.goes:
                raise Conflict(f"Checkpoint {one.point.reference} stays: {one.why}.")
        return found

    def cleanup_auto_checkpoints(self, session: SessionRef = None, *, branch: BranchRef = None, keep: int = 5) -> int:
        """Delete the automatic checkpoints of a path but the newest ones; tell how many went.

        Named ones stay, and so does each that something needs, as `set_retention` tells it.

        Args:
            session: None is the one that moved last.
            branch: None is the current one.
            keep: how many automatic ones to keep.

        Raises:
            InvalidInput: `keep` is negative.
        """
        if keep < 0:
            raise InvalidInput(f"keep={keep} is negative; give the number of automatic checkpoints to keep.")
        automatic = [point.id or 0 for point in self.checkpoints(session, branch) if point.is_auto]
        return sum(one.goes for one in self._deleted(set(automatic[: max(0, len(automatic) - keep)])))

    def tool_track(self, session: SessionRef = None, branch: BranchRef = None) -> list[ToolInvocation]:
        """List the tool invocations along a branch, from the root of the session, in order."""

        def look(connection: Connection) -> list[ToolInvocation]:
            found = self.lookup.session(connection, session)
            return self.store.live_track(connection, self.lookup.branch(connection, found, branch))

        return self._read(look)
