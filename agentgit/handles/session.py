"""The session: every verb on one session, without a graph."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.auth.principal import EDITOR, OWNER
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.checkpoints.queries import Tag
from agentgit.effects import RollbackReport
from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import DONE
from agentgit.effects.plan import SWITCH
from agentgit.errors import Conflict, InvalidInput
from agentgit.handles.branching import Branching, recover
from agentgit.handles.context import BranchRef, Context, WrappedGraph
from agentgit.handles.retention import SessionRetention, delete_unneeded, erase
from agentgit.handles.rollbacks import RollbackOptions
from agentgit.handles.session_reader import SessionReader
from agentgit.handles.sharing import Sharing
from agentgit.handles.templates import require_name
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.reports import Erased
from agentgit.store.maintenance import erasure
from agentgit.store.queries.explorations import mark_of
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import named


class Session(SessionReader):
    """Every verb on one session, without a graph. Made by `Repository.session`.

    A branch is named by its name or id; where none is named, the current branch is meant. A checkpoint is named by a
    `Checkpoint`, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`, or `message:<id>`, the
    restore point before a user's message.

    Args:
        context: The store and the principal.
        session_id: The id of the session.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build
        >>> repo = agentgit.open(":memory:")
        >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
        >>> session = repo.session("s")
        >>> session.checkpoint("before payment").metadata["reference"]
        'main#3'
        >>> print(session.rollback("main#1"))
        Rollback done: branch main-2, 0 tool calls replayed from the record.
          reversed  create_order(item='chair', quantity=2)  reversible  its undo reverses it
        1 reversed.
    """

    def __init__(self, context: Context, session_id: int) -> None:
        super().__init__(context, session_id)
        self._branching = Branching(context, session_id)

    @cached_property
    def sharing(self) -> Sharing:
        """The members of the session, and the links by which others join."""
        return Sharing(self._context, self.id)

    @cached_property
    def retention(self) -> SessionRetention:
        """The checkpoints that the session keeps, and their removal."""
        return SessionRetention(self._context, self.id)

    def checkpoint(
        self,
        name: str | None = None,
        *,
        branch: BranchRef = None,
        description: str | None = None,
        data: Any = None,
        files: bool = True,
    ) -> Checkpoint:
        """Save the point where a branch stands.

        Args:
            name: The name of the checkpoint; names may repeat.
            branch: The branch; None is the current one.
            description: A sentence about the checkpoint.
            data: Any JSON-like data to keep with it.
            files: False to save it without the files of the workspace.

        Raises:
            Conflict: The branch is running.
            InvalidInput: The name is empty or too long.
            Unavailable: The workspace is not here, or its files cannot be kept.
        """
        label = named(self._context.user.id, name, description, data)
        row = self._access.read_branch(branch, EDITOR)
        kept = self._branching.files(f"checkpoint {name}") if files else None
        return self._branching.save(row.id, label, kept)

    def delete_checkpoint(self, ref: CheckpointRef, *, branch: BranchRef = None) -> Checkpoint:
        """Delete a checkpoint, and return what it was; the conversation and the tool track stay.

        Args:
            ref: The checkpoint, as the class describes it.
            branch: The branch of `HEAD`; None is the current one.

        Raises:
            Conflict: Something needs it, as a branch, a tag, a rollback, a merge or a call that is not resolved.
            NotFound, Ambiguous, InvalidInput: As `get_checkpoint`.
        """
        found = self.get_checkpoint(ref, branch=branch)
        found.to_dict()  # its content, while it is there
        for one in delete_unneeded(self._access, {found.id or 0}):
            if not one.goes:
                raise Conflict(f"Checkpoint {one.point.reference} cannot be deleted: {one.why}.")
        return found

    def cleanup_auto_checkpoints(self, *, branch: BranchRef = None, keep: int = 5) -> int:
        """Delete the automatic checkpoints of a path but the newest ones; return how many were deleted.

        Named ones stay, and so does each that something needs, as `retention.set` lists it.

        Args:
            branch: The branch; None is the current one.
            keep: The number of automatic checkpoints to keep.

        Raises:
            InvalidInput: `keep` is negative.
        """
        if keep < 0:
            raise InvalidInput(f"keep must be 0 or more automatic checkpoints, not {keep}.")
        self._context.read(lambda c: self._access.find(c, EDITOR))
        automatic = [point.id or 0 for point in self.checkpoints(branch=branch) if point.is_auto]
        return sum(one.goes for one in delete_unneeded(self._access, set(automatic[: max(0, len(automatic) - keep)])))

    def tag(self, ref: CheckpointRef, name: str, *, branch: BranchRef = None, description: str | None = None) -> Tag:
        """Tag a checkpoint: the tag is a name for the place, unique in the session. A tagged checkpoint is kept.

        Args:
            ref: The checkpoint, as the class describes it.
            name: A text of up to 200 characters that is not a number, not HEAD, and without # ~ @.
            branch: The branch of `HEAD`; None is the current one.
            description: A sentence about it.

        Raises:
            InvalidInput: The name is not valid.
            Conflict: Another checkpoint has this tag, or a branch this name.
            NotFound, Ambiguous: As `get_checkpoint`.
        """
        return self._tagging.add(ref, name, branch, description)

    def untag(self, name: str) -> Tag:
        """Remove a tag, and return what it was; the checkpoint stays.

        Raises:
            NotFound: The session has no such tag.
        """
        return self._tagging.remove(name)

    def rollback(
        self,
        to: CheckpointRef,
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
        """Go back: a new branch at an earlier point, with the later effects reversed. The branch that is left stays.

        Args:
            to: The checkpoint to go back to.
            branch: The branch that is left; None is the current one.
            tools: `reverse`, `keep` (leave the world alone) or `require_clean` (refuse if anything is to be reversed).
            files: True to bring the files of the workspace back, if one is attached; what was there before is kept in
                a safety snapshot.
            conversation: False to take back only what the tools did and the files, and stay on the branch.
            replay: How the tool calls before that point come to the new branch. `record`: from the record, no tool
                runs. `redo`: those that were reversed since run again. `execute`: what stands is reversed, then all
                of them run again; refused with `tools="keep"`, because their effects would happen twice.
            name: The name of the new branch; None for the next one like `main-2`.
            force: True to keep in the world what cannot be reversed, and to bring back files that others have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.
            on_drift: `stop` at the first tool that runs again and returns something else, or `continue`.
            request_id: Your own name for this rollback: the same one twice gives the same branch.

        Returns:
            The report, with the name of the new branch.

        Raises:
            RollbackBlocked: An effect that cannot be reversed stands in the way; nothing was done.
            WorkspaceChanged: Somebody else has changed the files since the last turn; nothing was done.
            Unavailable: The files are to come back, and the workspace or the snapshot is gone; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
            NotFound, Ambiguous, InvalidInput: As `plan_rollback`.
        """
        options = RollbackOptions(
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
        return self._rollbacks.report(self._rollbacks.run(to, branch, options), made=conversation)

    def undo(self, steps: int = 1, *, branch: BranchRef = None, force: bool = False) -> RollbackReport:
        """Roll back to the newest checkpoint that differs from where a branch stands now.

        Args:
            steps: The number of such points to go back, at least 1.
            branch: The branch that is left; None is the current one.
            force: As `rollback` takes it.

        Raises:
            NotFound: There are not so many.
            InvalidInput: `steps` is less than 1.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`.
        """
        left, to = self._rollbacks.previous(branch, steps)
        return self.rollback(to, branch=left, force=force)

    def redo(self, *, branch: BranchRef = None, force: bool = False) -> RollbackReport:
        """Take back the last rollback: go on where the branch was that it left, with what it reversed run again.

        If files alone were brought back since the last turn, these are as before that again.

        Args:
            branch: The branch that the rollback made; None is the current one.
            force: As `switch` takes it.

        Raises:
            NotFound: There is nothing to take back.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `switch`.
        """
        made = self._access.read_branch(branch, EDITOR).id
        rewound = self._rollbacks.rewound(made, force=force)
        if rewound is not None:
            return self._rollbacks.rewind(rewound)
        left = self._rollbacks.left_by(made)
        return self._rollbacks.operation(self._rollbacks.switch(left, made, sync="world", force=force)[1])

    def switch(
        self, branch: BranchRef, sync: str | None = None, *, force: bool = False, on_error: str = "stop"
    ) -> RollbackReport:
        """Make a branch the one that the session continues on.

        Args:
            branch: The name or id of the branch.
            sync: What to do about a world that another branch has changed. None: nothing; the next turn says so if it
                matters. `world`: reverse what is not of that branch, and run again what of it was reversed. `note`:
                leave the world, and tell the model with the next message. `ignore`: leave it, and record that.
            force: True to keep in the world what cannot be reversed or run again, and to bring back files that others
                have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.

        Returns:
            The report of what was done to the world; without `sync` that is nothing, and its `operation_id` is 0.

        Raises:
            NotFound: The session has no such branch.
            InvalidInput: `sync` is none of these.
            RollbackBlocked: Something stands in the way of `sync="world"`; nothing was done.
            WorkspaceChanged: Somebody else has changed the files; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: The branch's rollback is half done.
        """
        if sync is None:
            row = self._rollbacks.enter(branch)
            return RollbackReport(
                operation_id=0, status=DONE, checkpoint_id=row.head_id or 0, branch=row.name, kind=SWITCH
            )
        done = self._rollbacks.switch(branch, None, sync=sync, force=force, on_error=on_error)
        return self._rollbacks.operation(done[1])

    def fork(
        self, to: CheckpointRef | None = None, *, branch: BranchRef = None, name: str | None = None, files: bool = True
    ) -> RollbackReport:
        """Make a branch without touching the world; the session stays where it is until somebody switches.

        Args:
            to: The checkpoint where it leaves; None is where the branch stands now.
            branch: The branch that is left; None is the current one.
            name: The name of the new branch; None for the next one like `main-2`.
            files: False not to look at the files of the workspace now.

        Returns:
            The report, with the name of the new branch.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `get_checkpoint`.
            Conflict: There is a branch of that name.
            Unavailable: The workspace is not here, or its files cannot be kept.
        """
        left = self._access.read_branch(branch, EDITOR)
        kept = self._branching.files("fork") if files and to is None else None
        return self._rollbacks.report(self._branching.fork(left.id, to, name, kept), kind="fork")

    def rewind_files(
        self, restore_point: CheckpointRef, *, branch: BranchRef = None, force: bool = False
    ) -> FileChanges:
        """Bring the files back to what they were when the user said something; the conversation stays as it is.

        Args:
            restore_point: The id of the user's message, or any checkpoint.
            branch: The branch whose files these are; None is the current one.
            force: True to bring back files that others have changed since the last turn too.

        Raises:
            NotFound: No workspace is attached, or there is no such restore point.
            WorkspaceChanged: Somebody else has changed the files since the last turn; none was touched.
            RollbackIncomplete: They could not be brought back; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
        """
        report = self._rollbacks.rewind(self._rollbacks.rewind_request(restore_point, branch, force=force))
        assert report.files is not None  # noqa: S101  # the request names files
        return report.files

    def rename(self, name: str) -> ExternalSession:
        """Rename the session, and return the facts about it; its id, branches and trail stay.

        What finds a session by its name makes a new one of the old name: `repo.wrap`, and an import of the thread that
        it was made of.

        Args:
            name: The new name, 1 to 200 characters, unique for the owner.

        Raises:
            InvalidInput: No session can have that name.
            Conflict: The owner has another session of that name.
            NotAllowed: You are not the owner.
        """
        require_name(name)
        sessions = self._context.store.sessions

        def change(connection: Connection) -> ExternalSession:
            found = self._access.find(connection, OWNER)
            sessions.lock(connection, self.id)
            sessions.rename(connection, found, name, self._context.user.id)
            return self._access.find(connection)

        # The names of the owner count, also where a co-owner does not see all of these sessions.
        return self._context.change(change, on=self._context.store.everybodys)

    def rename_branch(self, branch: BranchRef, name: str) -> InternalSession:
        """Rename a branch, and return it; its checkpoints and its thread stay.

        Args:
            branch: The branch; None is the current one.
            name: The new name, unique among the branches and tags of the session.

        Raises:
            InvalidInput: No branch can have that name.
            NotFound: There is no such branch.
            Conflict: There is a branch or a tag of that name, or the branch is part of an exploration, whose branches
                are found by their names.
        """
        sessions = self._context.store.sessions

        def change(connection: Connection) -> InternalSession:
            found = self._access.find(connection, EDITOR)
            sessions.lock(connection, self.id)
            row = self._context.lookup.branch(connection, found, branch)
            if mark_of(row):
                raise Conflict(
                    f"Branch {row.name} is part of an exploration, which finds it by name. Fork it, and name the fork."
                )
            sessions.rename_branch(connection, row, name, self._context.user.id)
            return self._context.views.branch(connection, found, sessions.branch(connection, row.id))

        return self._context.change(change)

    def recover(self, *, branch: BranchRef = None, force: bool = False) -> InternalSession:
        """Take back a branch whose turn or rollback died where nobody here can see it, as on another machine.

        The dead of this machine are taken back by themselves, and on a server others when their lease has ended. What
        they were calling or reversing is unknown from then on; a rollback is half done, and `repo.resume` goes on with
        it.

        Args:
            branch: The branch; None is the current one.
            force: True to take it also from a process of this machine that lives, such as one that hangs; it can
                neither call tools nor save any more.

        Raises:
            Conflict: Its process is alive, on this machine; nothing was done.
        """
        return recover(self._access, branch, force=force)

    def delete(self) -> Erased:
        """Erase the session for good: no row, no value and no word of it stays, and its trail goes with it.

        What other sessions share with it stays theirs: a message that two of them have, and what began as a copy of
        it. The snapshots of its files are released where their workspace can be reached; the files themselves are
        left alone. That it was erased, when and by whom stays in the trail, by its id.

        Returns:
            What went, and what could not be reached.

        Raises:
            NotFound: There is no such session any more.
            NotAllowed: It is somebody else's.
            Conflict: Somebody works on it; nothing was erased.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> erased = session.delete()
            >>> repo.sessions(), repo.events.verify().erased == [session.id]
            ([], True)
        """
        store, context = self._context.store, self._context
        context.read(lambda c: self._access.find(c, OWNER))
        return erase(
            context,
            erasure.only(store, self.id),
            lambda c: self._access.find(c, OWNER),
            lambda c: erasure.erase_session(store, c, self.id, context.user.id),
        )

    def agent(self, branch: BranchRef = None) -> WrappedGraph:
        """Return an agent on a branch, with the graph that was last wrapped here for the session.

        Merging and picking need it: its reducers write what comes.

        Raises:
            InvalidInput: No graph was wrapped here for the session.
            NotFound: There is no such branch.
        """
        found = self._context.read(lambda c: self._access.branch(c, branch))
        wrapped = self._context.wrapped.get(self.id)
        if wrapped is None:
            reference = self.reference
            raise InvalidInput(
                f"Merging and picking need the graph of session {reference}, because its reducers apply the changes. "
                f"First call repo.wrap(graph, {reference!r})."
            )
        return wrapped(found.id)

    def plan_merge(self, source: CheckpointRef, *, into: BranchRef = None, resolve: Resolve = None) -> MergePlan:
        """Return what merging a branch into another one would bring, and what stands against it.

        Args:
            source: The branch, or any checkpoint of it; of a branch its newest checkpoint counts.
            into: The branch that it would come to; None is the current one.
            resolve: The resolution of values that both changed, as `RollbackAgent.merge` takes it.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `agent`, and as `RollbackAgent.plan_merge`.
        """
        return self.agent(into).plan_merge(source, resolve=resolve)

    def plan_cherry_pick(self, what: Any, *, onto: BranchRef = None) -> MergePlan:
        """Return what cherry-picking onto a branch would bring.

        Args:
            what: As `RollbackAgent.cherry_pick` takes it.
            onto: The branch that it would come to; None is the current one.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `agent`, and as `RollbackAgent.plan_cherry_pick`.
        """
        return self.agent(onto).plan_cherry_pick(what)

    acheckpoint = async_twin(checkpoint)
    adelete_checkpoint = async_twin(delete_checkpoint)
    acleanup_auto_checkpoints = async_twin(cleanup_auto_checkpoints)
    atag = async_twin(tag)
    auntag = async_twin(untag)
    arollback = async_twin(rollback)
    aundo = async_twin(undo)
    aredo = async_twin(redo)
    aswitch = async_twin(switch)
    afork = async_twin(fork)
    arewind_files = async_twin(rewind_files)
    arename = async_twin(rename)
    arename_branch = async_twin(rename_branch)
    arecover = async_twin(recover)
    adelete = async_twin(delete)
    aplan_merge = async_twin(plan_merge)
    aplan_cherry_pick = async_twin(plan_cherry_pick)
