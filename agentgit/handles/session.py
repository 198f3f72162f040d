"""The verbs that move the world of a session, without a graph: plan, roll back, switch, resume, resolve."""

from __future__ import annotations

import importlib
from typing import Any

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR, VIEWER, Role
from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import DECISIONS, DONE
from agentgit.effects.plan import ROLLBACK
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.handles.context import BranchRef, Handle, SessionRef
from agentgit.rollback import Request, SwitchRequest
from agentgit.rollback.crash_recovery import break_off, take_back
from agentgit.sessions import InternalSession
from agentgit.sessions.operation import Operation
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import note
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.operations import value
from agentgit.store.records.sessions import Found, expect_whole
from agentgit.store.sql import process_owner
from agentgit.store.sql.ids import is_id

__all__ = ["BranchRef", "SessionRef", "Verbs"]


class Verbs(Handle):
    """Methods of a repository that act on the world of a session.

    The undo functions and tools at hand are those of the graphs that were wrapped here, and of the modules that
    `agentgit.open(trust=...)` named. What a record says is never imported.
    """

    # -- what tools can be undone and run again

    def trust(self, *modules: str) -> None:
        """Import modules of yours, so that calls of their tools can be undone and made again without a wrapped graph.

        Known are then, in every session and to every handle that comes from this one: what the decorators in a module
        say, what its mappings of tool names to effects say, and its tools, lists of tools and graphs. A call is undone
        only by the function whose name it recorded. What is stored is never imported, whatever it says.

        Args:
            modules: `package.module`; or `package.module:name` for one list of tools or graph in it, or the function
                that makes it.

        Raises:
            NotFound: One cannot be imported, or declares nothing.
            InvalidInput: It is no name of a module, or an effect in it does not fit its tool.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> repo.trust("agentgit.demo.shop")
        """
        if modules:
            importlib.import_module("agentgit.agents.user_modules").trust(
                self.registry, modules
            )  # late: it needs LangGraph

    # -- rollback

    def plan_rollback(
        self,
        to: CheckpointRef,
        session: SessionRef = None,
        *,
        branch: BranchRef = None,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what `rollback` would do, without doing anything.

        Args:
            to: The target, as `checkpoint` takes it.
            session: The session; None is the one that moved last.
            branch: The branch that would be left; None is the current one.
            tools: As `RollbackAgent.plan_rollback` takes it.
            files: True to bring the files of the workspace back, if one is attached; what was there before is kept in
                a safety snapshot.
            conversation: False to take back only what the tools did and the files, and stay on the branch.
            replay: How the tool calls before that point come to the new branch: `record`, `redo` or `execute`.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `RollbackAgent.plan_rollback`.
        """
        source, target, label = self._read(lambda c: self._way(c, session, branch, to))
        return self._engine().plan(
            source.id, target, label, tools=tools, files=files, conversation=conversation, replay=replay
        )

    def rollback(
        self,
        to: CheckpointRef,
        session: SessionRef = None,
        *,
        branch: BranchRef = None,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
        name: str | None = None,
        force: bool = False,
        on_error: str = "stop",
        on_drift: str = "stop",
        request_id: str | None = None,
    ) -> RollbackReport:
        """Go back, as `RollbackAgent.rollback` does; give the report, which has the name of the new branch.

        Args:
            to: The target, as `checkpoint` takes it.
            session: The session; None is the one that moved last.
            branch: The branch that is left; None is the current one.
            tools: As `RollbackAgent.rollback` takes it.
            files: True to bring the files of the workspace back, if one is attached; what was there before is kept in
                a safety snapshot.
            conversation: False to take back only what the tools did and the files, and stay on the branch.
            replay: How the tool calls before that point come to the new branch: `record`, `redo` or `execute`.
            name: The name of the new branch; None for the next one like `main-2`.
            force: True to keep in the world what cannot be reversed, and to bring back files that others have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.
            on_drift: `stop` at the first tool that runs again and returns something else, or `continue`.
            request_id: Your own name for this rollback: the same one twice gives the same branch.

        Raises:
            RollbackBlocked, RollbackIncomplete, Conflict: As `RollbackAgent.rollback`.
            NotFound, Ambiguous, InvalidInput: As `plan_rollback`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> print(repo.rollback("main#1", "s"))
            Rollback done: branch main-2, 0 tool calls replayed from the record.
              reversed  create_order(item='chair', quantity=2)  reversible  its undo takes it back
            1 reversed.
        """
        source, target, label = self._read(lambda c: self._way(c, session, branch, to, EDITOR))
        request = Request(
            user_id=self.user.id,
            source_id=source.id,
            target=target,
            label=label,
            tools=tools,
            files=files,
            conversation=conversation,
            replay=replay,
            name=name,
            force=force,
            on_error=on_error,
            on_drift=on_drift,
            request_id=request_id,
        )
        return self._done(self._engine().run(request), conversation=conversation)

    def rewind_files(
        self, restore_point: CheckpointRef, session: SessionRef = None, *, branch: BranchRef = None, force: bool = False
    ) -> FileChanges:
        """Bring the files of a session back, as `RollbackAgent.rewind_files`; the conversation stays as it is.

        Args:
            restore_point: The id of a user's message, or any place that `checkpoint` takes.
            session: The session; None is the one that moved last.
            branch: The branch whose files these are; None is the current one.
            force: True to bring back files that others have changed since the last turn too.

        Raises:
            NotFound, WorkspaceChanged, RollbackIncomplete, Conflict: As `RollbackAgent.rewind_files`.
        """
        request = self._rewinding(restore_point, session, branch, force=force, needs=EDITOR)
        report = self._done(self._engine().run(request), conversation=False)
        assert report.files is not None  # noqa: S101  # the request names files
        return report.files

    def plan_rewind(
        self, restore_point: CheckpointRef, session: SessionRef = None, *, branch: BranchRef = None
    ) -> RollbackPlan:
        """Return what `rewind_files` would do, without doing anything.

        Args:
            restore_point: As `rewind_files` takes it.
            session: The session; None is the one that moved last.
            branch: The name or id of the branch; None is the current one.

        Raises:
            NotFound: As `rewind_files`.
        """
        asked = self._rewinding(restore_point, session, branch, force=False, needs=VIEWER)
        return self._engine().plan(
            asked.source_id, asked.target, asked.label, tools="keep", files=asked.files, conversation=False
        )

    def _rewinding(
        self, restore_point: CheckpointRef, session: SessionRef, branch: BranchRef, *, force: bool, needs: Role
    ) -> Request:
        def find(connection: Connection) -> Request:
            found = self.lookup.session(connection, session, needs)
            source = self.lookup.branch(connection, found, branch)
            point = self.lookup.restore_point(connection, found, source, restore_point)
            at, label = self.store.snapshots.of_checkpoint(connection, point), f"{point.branch_name}#{point.number}"
            if at is None:
                raise NotFound(
                    f"There are no files of {label}: no workspace was attached when it was made. Wrap the graph with "
                    "workspace=... (agentgit chat --workspace DIR), and its files are kept from then on."
                )
            # Of another session only the files are meant; this one stays at its own head.
            own = point.external_session_id == found.id
            target = point if own else self.lookup.target(connection, found, source, "HEAD")[0]
            return Request(
                user_id=self.user.id,
                source_id=source.id,
                target=target,
                label=label,
                tools="keep",
                files=at,
                conversation=False,
                force=force,
            )

        return self._read(find)

    def _done(self, branch_id: int, *, conversation: bool) -> RollbackReport:
        """Read the report of the rollback that was just done."""

        def read(connection: Connection) -> RollbackReport:
            rows = self.store.operations.of_branches(connection, [branch_id])
            done = [row for row in rows if row.kind == ROLLBACK]
            # What made a branch came first of all that led to it; what only moved its world came last.
            return self._engine().reports.read(connection, done[0] if conversation else done[-1])

        return self._read(read)

    def _way(
        self, connection: Connection, session: SessionRef, branch: BranchRef, to: CheckpointRef, needs: Role = VIEWER
    ) -> tuple[Found, Found, str]:
        """Find the branch that is left, the checkpoint that is meant, and how a person calls it."""
        found = self.lookup.session(connection, session, needs)
        source = self.lookup.branch(connection, found, branch)
        return source, *self.lookup.target(connection, found, source, to)

    # -- switch

    def plan_switch(self, branch: BranchRef, session: SessionRef = None) -> RollbackPlan:
        """Return what `switch(branch, sync="world")` would do, without doing anything.

        Args:
            branch: The name or id of the branch.
            session: The session; None is the one that moved last.

        Raises:
            NotFound: The session has no such branch.
        """
        row = self._read(lambda c: self.lookup.branch(c, self.lookup.session(c, session), branch))
        return self._engine().plan_switch(row.id)

    def switch(
        self,
        branch: BranchRef,
        session: SessionRef = None,
        *,
        sync: str | None = None,
        force: bool = False,
        on_error: str = "stop",
    ) -> RollbackReport | None:
        """Make a branch the one that a session continues on, as `RollbackAgent.switch` does.

        Args:
            branch: The name or id of the branch.
            session: The session; None is the one that moved last.
            sync: As `RollbackAgent.switch` takes it.
            force: True to keep in the world what cannot be reversed, and to bring back files that others have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.

        Returns:
            What was done to the world; None without `sync`.

        Raises:
            NotFound, InvalidInput, RollbackBlocked, RollbackIncomplete, Conflict: As `RollbackAgent.switch`.
        """

        def move(connection: Connection) -> tuple[int, Found]:
            found = self.lookup.session(connection, session, EDITOR)
            row = self.lookup.branch(connection, found, branch)
            expect_whole(row)
            if sync is None:
                self.store.sessions.set_current(connection, found.id, row.id, self.user.id)
            return found.current_internal_session_id or row.id, row

        source_id, row = self._change(move, durable=sync is None)
        if sync is None:
            return None
        asked = SwitchRequest(
            user_id=self.user.id, source_id=source_id, branch=row, sync=sync, force=force, on_error=on_error
        )
        return self._engine().read_report(self._engine().switch(asked))

    # -- what stopped half way

    def operations(self, session: SessionRef = None) -> list[Operation]:
        """List the rollbacks, switches and forks of a session, newest first."""
        return self._read(lambda c: self.store.operations.all(c, self.lookup.session(c, session).id))

    def operation(self, operation: int) -> Operation:
        """Find an operation by its id.

        Raises:
            NotFound: There is none.
        """

        def look(connection: Connection) -> Operation:
            row = self.store.operations.find(connection, operation) if is_id(operation) else None
            if row is None or self.lookup.sees(connection, row.external_session_id) is None:
                raise NotFound(f"There is no operation {operation}. repo.operations() lists those of a session.")
            return value(row)

        return self._read(look)

    def report(self, operation: Operation | int) -> RollbackReport:
        """Return what an operation did; of one that is not done, what it did until now.

        Args:
            operation: The operation as `operations` lists it, or its id.

        Raises:
            NotFound: There is no such operation.
        """
        found = self.operation(operation.id if isinstance(operation, Operation) else operation)
        return self._engine().read_report(found.id)

    def resume(self, operation: Operation | int, *, force: bool = False) -> RollbackReport:
        """Finish a rollback or switch that failed half way or whose process died; what was done is not done again.

        Args:
            operation: The operation as `operations` lists it, or its id.
            force: True to give up what still cannot be done: the world stays so, and the report says where.

        Raises:
            NotFound: There is no such operation.
            Conflict: It is being worked on, or a turn or another operation of its session runs.
            RollbackBlocked: What happened since it was planned cannot be reversed; nothing was done.
            RollbackIncomplete: A reversal or a tool failed again.
        """
        found = self.operation(operation.id if isinstance(operation, Operation) else operation)
        self._read(lambda c: self._admit(c, found.external_session_id))
        return self._engine().resume(found.id, force=force)

    def resolve(self, invocation: ToolInvocation | int, outcome: str, *, result: Any = None) -> ToolInvocation:
        """Record what really happened, where the record could not know, and return the updated invocation.

        For a call that is `unknown`, because it was broken off or raised, the outcome states whether the call happened;
        for one that is `reverse_failed` or `reverse_unknown`, whether its reversal happened.

        Args:
            invocation: The invocation or its id.
            outcome: `happened` or `did_not_happen`.
            result: What a call that happened has returned, JSON-like: its undo function gets it, and so does the model
                when its turn goes on.

        Raises:
            NotFound: There is no such invocation.
            InvalidInput: The outcome is neither, or there is nothing to decide, or there can be no result.
        """
        invocation_id = invocation.id if isinstance(invocation, ToolInvocation) else invocation

        def decide(connection: Connection) -> ToolInvocation:
            call = self._own_invocation(connection, invocation_id)
            branch = self.store.sessions.branch(connection, call.internal_session_id)
            self._admit(connection, branch.external_session_id)
            self.store.sessions.lock(connection, branch.external_session_id)
            take_back(self.store, connection, branch.external_session_id)
            call = self._own_invocation(connection, invocation_id)
            decisions = DECISIONS.get(call.status)
            if decisions is None:
                raise InvalidInput(
                    f"{call} is {call.status}: there is nothing to decide about it. Only a call that is "
                    f"{', '.join(DECISIONS)} can be resolved."
                )
            if outcome not in decisions:
                raise InvalidInput(f"outcome={outcome!r} means nothing; it can be {' or '.join(decisions)}.")
            if result is not None and decisions[outcome] != DONE:
                raise InvalidInput(f"{call} is {call.status}; only a call that happened has a result. Leave it out.")
            if decisions[outcome] != call.status:
                error = None if outcome == "happened" else call.own_error or "somebody saw that it did not happen"
                self.store.journal.move(connection, call.id, decisions[outcome], error=error, result=result)
            note(
                connection,
                self.store.tenant_id,
                "call.resolved",
                branch_id=branch.id,
                user_id=self.user.id,
                invocation=call.id,
                tool=call.tool_name,
                outcome=outcome,
            )
            return self._own_invocation(connection, invocation_id)

        return self._change(decide)

    def _own_invocation(self, connection: Connection, invocation_id: int) -> ToolInvocation:
        call = self.store.journal.invocation(connection, invocation_id) if is_id(invocation_id) else None
        if call is not None:
            branch = self.store.sessions.branch(connection, call.internal_session_id)
            if self.lookup.sees(connection, branch.external_session_id) is not None:
                return call
        raise NotFound(f"There is no tool invocation {invocation_id}. tool_track() lists those of a branch.")

    def recover(self, session: SessionRef = None, branch: BranchRef = None, *, force: bool = False) -> InternalSession:
        """Take back a branch whose turn or rollback died where nobody here can see it, as on another machine.

        The dead of this machine are taken back by themselves, and on a server others when their lease has ended. What
        they were calling or reversing is unknown from then on; a rollback is half done, and `resume` goes on with it.

        Args:
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            force: True to take it also from a process of this machine that lives, such as one that hangs; it can
                neither call tools nor save any more.

        Raises:
            Conflict: Its process is alive, on this machine; nothing was done.
        """

        def take(connection: Connection) -> InternalSession:
            found = self.lookup.session(connection, session, EDITOR)
            self.store.sessions.lock(connection, found.id)
            row = self.lookup.branch(connection, found, branch)
            operations = [
                o for o in self.store.operations.running(connection, found.id).all() if o.internal_session_id == row.id
            ]
            if not force and any(map(process_owner.is_here, [row.owner, *(one.owner for one in operations)])):
                raise Conflict(
                    f"Branch {row.name} is at work in a process of this machine. Wait until it ends, or end that "
                    "process; force=True takes the branch from it."
                )
            self.store.journal.abandon(connection, row.id, row.owner)
            self.store.sessions.release(connection, row.id, row.owner)
            if row.status == RUNNING:
                note(connection, self.store.tenant_id, "turn.abandoned", branch_id=row.id, user_id=self.user.id)
            for operation in operations:
                break_off(self.store, connection, operation)
            return self.views.branch(connection, found, self.store.sessions.branch(connection, row.id))

        return self._change(take)
