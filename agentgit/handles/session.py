"""The `Session` handle: all operations on one session that need no graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from agentgit.async_api import async_twin
from agentgit.auth.principal import EDITOR, OWNER
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.queries import Tag
from agentgit.effects import RollbackReport
from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import DONE
from agentgit.effects.plan import SWITCH
from agentgit.errors import Conflict, InvalidInput
from agentgit.handles.branching import Branching, annotate, recover
from agentgit.handles.context import BranchRef, Context
from agentgit.handles.retention import SessionRetention, delete_unneeded, erase
from agentgit.handles.session_reader import SessionReader
from agentgit.handles.sharing import Sharing
from agentgit.handles.templates import require_name
from agentgit.rollback.request import ConfirmedPlan, FilesOption, RollbackOptions
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.reports import Erased
from agentgit.store.maintenance import erasure
from agentgit.store.queries.explorations import mark_of
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import named_label
from agentgit.store.sql.transaction import Writing

if TYPE_CHECKING:
    from agentgit.workspace.api import Workspace


class Session(SessionReader):
    """A session, with all operations that need no graph. `Repository.session` creates it.

    A branch is given by its name or id; by default it is the current branch. A checkpoint is given as a `Checkpoint`,
    its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`, or `message:<id>`, the restore point
    before a user's message.

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
        Rollback done: session s, branch main-2, 0 tool calls replayed from the record.
          reversed  create_order(item='chair', quantity=2)  reversible  its undo reverses it
        1 reversed.
    """

    def __init__(self, context: Context, session_id: int) -> None:
        super().__init__(context, session_id)
        self._branching = Branching(context, session_id)

    @cached_property
    def sharing(self) -> Sharing:
        """The members of the session, and the links with which others join."""
        return Sharing(self._context, self.id)

    @cached_property
    def retention(self) -> SessionRetention:
        """The retention of the session: the checkpoints that it keeps, and the deletion of others."""
        return SessionRetention(self._context, self.id)

    def checkpoint(
        self,
        name: str | None = None,
        *,
        branch: BranchRef = None,
        description: str | None = None,
        data: Any = None,
        metadata: Mapping[str, Any] | None = None,
        files: bool = True,
    ) -> Checkpoint:
        """Save the current point of a branch as a checkpoint.

        Args:
            name: The name of the checkpoint; names may repeat.
            branch: The branch; None is the current one.
            description: A sentence about the checkpoint.
            data: Any JSON-like data to keep with it.
            metadata: JSON-like entries to add to the checkpoint's `metadata`; those of agentgit are not replaced.
            files: False to save it without the files of the workspace.

        Raises:
            Conflict: The branch is running.
            InvalidInput: The name is empty or too long, or the metadata is no dict.
            Unavailable: The workspace is not available here, or its files cannot be saved.
        """
        label = named_label(self._context.user.id, name, description, data, metadata)
        branch_row = self._access.read_branch(branch, EDITOR)
        snapshot = self._branching.take_snapshot(f"checkpoint {name}") if files else None
        return self._branching.save(branch_row.id, label, snapshot)

    def annotate(
        self,
        ref: CheckpointRef,
        *,
        branch: BranchRef = None,
        name: str | EllipsisType | None = ...,
        description: str | EllipsisType | None = ...,
        data: Any = ...,
    ) -> Checkpoint:
        """Rename a checkpoint, or change its description or data, and return it. Its state never changes.

        An automatic checkpoint stays automatic. With a name, `cleanup_auto_checkpoints` keeps it.

        Args:
            ref: The checkpoint, in one of the forms that the class lists.
            branch: The branch that `HEAD` refers to; None is the current one.
            name: The new name; None removes it. Names may repeat.
            description: The new description; None removes it.
            data: The new JSON-like data; None removes it.

        Raises:
            InvalidInput: The name is empty or too long, the description is not a string, or nothing is to be changed.
            Conflict: The data records a merge.
            NotFound, Ambiguous: As for `get_checkpoint`.

        Example:
            >>> import agentgit
            >>> session = agentgit.open(":memory:").session("support-42", create=True)
            >>> saved = session.checkpoint("tset")
            >>> renamed = session.annotate("tset", name="test", data={"reward": 1.0})
            >>> session.get_checkpoint("test").metadata["data"]
            {'reward': 1.0}
        """
        given = {"name": name, "description": description, "data": data}
        changes = {field: value for field, value in given.items() if value is not ...}
        if not changes:
            raise InvalidInput("There is nothing to change. Give a name, a description or data.")
        return annotate(self._access, ref, branch, changes)

    def delete_checkpoint(self, ref: CheckpointRef, *, branch: BranchRef = None) -> Checkpoint:
        """Delete a checkpoint and return it. The conversation and the tool track are kept.

        Args:
            ref: The checkpoint, in one of the forms that the class lists.
            branch: The branch that `HEAD` refers to; None is the current one.

        Raises:
            Conflict: Something needs it, such as a branch, a tag, a rollback, a merge or an unresolved call.
            NotFound, Ambiguous, InvalidInput: As for `get_checkpoint`.
        """
        checkpoint = self.get_checkpoint(ref, branch=branch)
        checkpoint.to_dict()  # load its content before it is deleted
        for verdict in delete_unneeded(self._access, {checkpoint.id or 0}):
            if not verdict.is_removed:
                raise Conflict(f"Checkpoint {verdict.point.reference} cannot be deleted: {verdict.why}.")
        return checkpoint

    def cleanup_auto_checkpoints(self, *, branch: BranchRef = None, keep: int = 5) -> int:
        """Delete the automatic checkpoints of a path except the newest, and return how many were deleted.

        Named checkpoints are kept, and so is each one that something needs; `retention.set` lists the cases.

        Args:
            branch: The branch at the end of the path; None is the current one.
            keep: The number of automatic checkpoints to keep.

        Raises:
            InvalidInput: `keep` is negative.
        """
        if keep < 0:
            raise InvalidInput(f"keep must be 0 or more automatic checkpoints, not {keep}.")
        self._context.read(lambda c: self._access.load_session(c, EDITOR))
        automatic_ids = [
            checkpoint.id or 0
            for checkpoint in self.checkpoints(branch=branch)
            if checkpoint.is_auto and checkpoint.checkpoint_name is None
        ]
        return sum(
            verdict.is_removed
            for verdict in delete_unneeded(self._access, set(automatic_ids[: max(0, len(automatic_ids) - keep)]))
        )

    def tag(self, ref: CheckpointRef, name: str, *, branch: BranchRef = None, description: str | None = None) -> Tag:
        """Tag a checkpoint with a name that is unique in the session. A tagged checkpoint is kept.

        Args:
            ref: The checkpoint, in one of the forms that the class lists.
            name: The tag: up to 200 characters, not a number, not HEAD, and without # ~ @.
            branch: The branch that `HEAD` refers to; None is the current one.
            description: A sentence about the tag.

        Raises:
            InvalidInput: The name is not valid.
            Conflict: Another checkpoint has this tag, or a branch has this name.
            NotFound, Ambiguous: As for `get_checkpoint`.
        """
        return self._tagging.add(ref, name, branch, description)

    def untag(self, name: str) -> Tag:
        """Remove a tag and return it. The checkpoint is kept.

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
        files: FilesOption = True,
        conversation: bool = True,
        replay: str = "record",
        name: str | None = None,
        force: bool = False,
        on_error: str = "stop",
        on_drift: str = "stop",
        request_id: str | None = None,
        plan: ConfirmedPlan = None,
    ) -> RollbackReport:
        """Create a new branch at an earlier checkpoint and reverse the later effects. The old branch is kept.

        Args:
            to: The checkpoint to go back to.
            branch: The branch to leave; None is the current one.
            tools: `reverse`, `reversible` (reverse only reversible effects), `keep` (leave the world alone) or
                `require_clean` (refuse if anything is to be reversed).
            files: True to restore what turns changed in the workspace, if one is attached; `"overwrite"` to also
                restore files that a turn and somebody else have changed. A safety snapshot keeps the current files.
            conversation: False to roll back only tool effects and files, and stay on the branch.
            replay: How the new branch gets the tool calls before the checkpoint. `record`: from the record, without
                running a tool. `redo`: calls that were reversed since run again. `execute`: effects in the world are
                reversed, then all calls run again. `execute` is refused with `tools="keep"`, because the effects would
                happen twice.
            name: The name of the new branch; None for the next free one, like `main-2`.
            force: True to keep effects that cannot be reversed, and files in conflict.
            on_error: `stop` at the first undo function or tool that fails, or `continue` with the others.
            on_drift: `stop` at the first repeated call that returns a different result, or `continue`.
            request_id: Your own id for this rollback. A second rollback with the same id returns the same branch.
            plan: The plan that was confirmed, or its `identity`; if another one would be carried out, nothing is done.

        Returns:
            The report, with the name of the new branch.

        Raises:
            PlanChanged: Another plan than `plan` would be carried out; nothing was done, and the error has that one.
            RollbackBlocked: An effect cannot be reversed; nothing was done.
            WorkspaceChanged: A turn has changed files, and so has somebody else; nothing was done.
            Unavailable: The files cannot be restored, because the workspace or the snapshot is gone; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` continues from there.
            Conflict: The branch is running.
            NotFound, Ambiguous, InvalidInput: As for `plan_rollback`.
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
            plan=plan,
        )
        return self._rollbacks.report(self._rollbacks.run(to, branch, options), has_new_branch=conversation)

    def undo(
        self,
        steps: int = 1,
        *,
        branch: BranchRef = None,
        files: FilesOption = True,
        force: bool = False,
        plan: ConfirmedPlan = None,
    ) -> RollbackReport:
        """Roll back to the newest checkpoint that differs from the current point of a branch.

        Args:
            steps: The number of such checkpoints to go back, at least 1.
            branch: The branch to leave; None is the current one.
            files: See `rollback`.
            force: See `rollback`.
            plan: See `rollback`.

        Raises:
            NotFound: There are not that many.
            InvalidInput: `steps` is less than 1.
            PlanChanged, RollbackBlocked, WorkspaceChanged, Unavailable, RollbackIncomplete, Conflict: As for
                `rollback`.
        """
        source_id, to = self._rollbacks.find_previous(branch, steps, files)
        return self.rollback(to, branch=source_id, files=files, force=force, plan=plan)

    def redo(self, *, branch: BranchRef = None, force: bool = False, plan: ConfirmedPlan = None) -> RollbackReport:
        """Undo the last rollback: return to the branch that it left, and run the reversed calls again.

        If only files were restored since the last turn, undo that instead.

        Args:
            branch: The branch that the rollback created; None is the current one.
            force: See `switch`.
            plan: See `rollback`.

        Raises:
            NotFound: There is nothing to redo.
            PlanChanged, RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As for `switch`.
        """
        branch_id = self._access.read_branch(branch, EDITOR).id
        rewind_request = self._rollbacks.undo_rewind_request(branch_id)
        if rewind_request is not None:
            return self._rollbacks.rewind(rewind_request, force=force, plan=plan)
        source_id = self._rollbacks.rollback_source_id(branch_id)
        ids = self._rollbacks.switch(source_id, branch_id, sync="world", force=force, plan=plan)
        return self._context.engine().read_report(ids[1])

    def switch(
        self,
        branch: BranchRef,
        sync: str | None = None,
        *,
        force: bool = False,
        on_error: str = "stop",
        plan: ConfirmedPlan = None,
    ) -> RollbackReport:
        """Continue the session on another branch.

        Args:
            branch: The name or id of the branch.
            sync: What to do if another branch has changed the world. None: nothing; the next turn reports the change if
                it matters. `world`: reverse the effects of other branches, and run this branch's reversed calls again.
                `note`: leave the world as it is, and tell the model with the next message. `ignore`: leave the world as
                it is, and record that.
            force: True to keep effects that cannot be reversed or run again, and files in conflict.
            on_error: `stop` at the first undo function or tool that fails, or `continue` with the others.
            plan: See `rollback`. It is carried out with `sync="world"`, which can be left out.

        Returns:
            The report of the changes to the world. Without `sync` there are none, and its `operation_id` is 0.

        Raises:
            NotFound: The session has no such branch.
            InvalidInput: `sync` is not one of these, or not `world` although there is a plan.
            RollbackBlocked: An effect or a call blocks `sync="world"`; nothing was done.
            WorkspaceChanged: A turn has changed files, and so has somebody else; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` continues from there.
            Conflict: The branch's rollback is incomplete.
        """
        if sync is None and plan is None:
            row = self._rollbacks.set_current_branch(branch)
            return RollbackReport(
                operation_id=0,
                status=DONE,
                checkpoint_id=row.head_id or 0,
                branch=row.name,
                kind=SWITCH,
                session_name=self.reference,
            )
        ids = self._rollbacks.switch(branch, None, sync=sync or "world", force=force, on_error=on_error, plan=plan)
        return self._context.engine().read_report(ids[1])

    def fork(
        self,
        to: CheckpointRef | None = None,
        *,
        branch: BranchRef = None,
        name: str | None = None,
        files: bool = True,
        request_id: str | None = None,
    ) -> RollbackReport:
        """Create a branch without changing the world. The session stays on its branch until someone switches.

        Args:
            to: The checkpoint to fork from; None is the branch's current point.
            branch: The branch to fork; None is the current one.
            name: The name of the new branch; None for the next free one, like `main-2`.
            files: False to fork without a snapshot of the workspace's current files.
            request_id: Your own id for this fork. A second fork with the same id returns the same branch.

        Returns:
            The report, with the name of the new branch.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `get_checkpoint`.
            Conflict: A branch with that name exists.
            Unavailable: The workspace is not available here, or its files cannot be saved.
        """
        snapshot = None
        if files and to is None:
            self._access.read_branch(branch, EDITOR)  # nothing is saved for someone who may not fork it
            snapshot = self._branching.take_snapshot("fork")
        return self._branching.fork_once(branch, to, name, snapshot, request_id)

    def rewind_files(
        self,
        restore_point: CheckpointRef,
        *,
        branch: BranchRef = None,
        files: FilesOption = True,
        force: bool = False,
        plan: ConfirmedPlan = None,
    ) -> FileChanges:
        """Restore the files to their state when the user sent a message. The conversation is unchanged.

        Args:
            restore_point: The id of the user's message, or any checkpoint.
            branch: The branch whose files to restore; None is the current one.
            files: `"overwrite"` to also restore the files that a turn and somebody else have changed.
            force: True to leave those as they are, and to restore the others.
            plan: See `rollback`.

        Raises:
            NotFound: No workspace is attached, or there is no such restore point.
            WorkspaceChanged: A turn has changed files, and so has somebody else; no file was changed.
            RollbackIncomplete: The files could not be restored; `repo.resume(operation)` continues from there.
            Conflict: The branch is running.
        """
        request = self._rollbacks.rewind_request(restore_point, branch, files)
        report = self._rollbacks.rewind(request, force=force, plan=plan)
        assert report.files is not None  # noqa: S101  # the request names files
        return report.files

    def workspace(self) -> Workspace:
        """Return the workspace with the session's files, to read its snapshots and its undo stack.

        Raises:
            NotFound: No workspace is attached.
            InvalidInput: Its directory does not exist here, or it has a custom environment; wrap the graph with it.
            NotAllowed: You may not edit the session, or no program of this user has opened that directory.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS, workspace="orders")
            >>> answer = agent.run("order two chairs")
            >>> [snapshot.kind for snapshot in agent.session.workspace().list()]
            ['auto']
        """
        self._context.read(lambda transaction: self._access.load_session(transaction, EDITOR))
        return self._context.engine().files.workspace(self.id)

    def rename(self, name: str) -> ExternalSession:
        """Rename the session, and return its info. Its id, branches and audit trail are unchanged.

        Operations that look sessions up by name create a new session for the old name: `repo.wrap`, and an import of
        the thread that the session came from.

        Args:
            name: The new name, 1 to 200 characters, unique for the owner.

        Raises:
            InvalidInput: The name is not valid for a session.
            Conflict: The owner has another session with that name.
            NotAllowed: You are not the owner.
        """
        require_name(name)
        sessions = self._context.store.sessions

        def rename_session(transaction: Writing) -> ExternalSession:
            session = self._access.load_session(transaction, OWNER)
            sessions.lock(transaction, self.id)
            sessions.rename(transaction, session, name, self._context.user.id)
            return self._access.load_session(transaction)

        return self._context.change(rename_session)

    def rename_branch(self, branch: BranchRef, name: str) -> InternalSession:
        """Rename a branch and return it. Its checkpoints and its thread are unchanged.

        Args:
            branch: The branch; None is the current one.
            name: The new name, unique among the branches and tags of the session.

        Raises:
            InvalidInput: The name is not valid for a branch.
            NotFound: There is no such branch.
            Conflict: A branch or a tag with that name exists, or the branch is part of an exploration, which finds its
                branches by name.
        """
        sessions = self._context.store.sessions

        def rename_row(transaction: Writing) -> InternalSession:
            session = self._access.load_session(transaction, EDITOR)
            sessions.lock(transaction, self.id)
            row = self._context.lookup.branch(transaction, session.id, branch)
            if mark_of(row):
                raise Conflict(
                    f"Branch {row.name} is part of an exploration, which finds it by name. Fork it, and name the fork."
                )
            sessions.rename_branch(transaction, row, name, self._context.user.id)
            return self._context.read_models.branch(transaction, session, sessions.branch(transaction, row.id))

        return self._context.change(rename_row)

    def recover(self, *, branch: BranchRef = None, force: bool = False) -> InternalSession:
        """Recover a branch whose turn or rollback died where this machine cannot detect it, as on another machine.

        Branches of dead processes on this machine are recovered automatically. On a database server, others are
        recovered when their lease has expired. The calls that were running or being reversed become unknown. A
        rollback is left incomplete, and `repo.resume` continues it.

        Args:
            branch: The branch; None is the current one.
            force: True to recover it even from a live process on this machine, such as one that hangs. That process
                can then neither call tools nor save anything.

        Raises:
            Conflict: Its process is alive on this machine; nothing was done.
        """
        return recover(self._access, branch, force=force)

    def delete(self, *, force: bool = False) -> Erased:
        """Erase the session permanently, with all its rows, values, search words and its audit trail.

        Data that it shares with other sessions is kept: messages that they have too, and sessions that began as a copy
        of it. The snapshots of its files are released if their workspace can be reached; the files themselves are not
        changed. An event outside of the session's own trail records its id, when it was erased and by whom.

        Args:
            force: True to erase it although calls that it made stand in the world, or wait and may have acted.

        Returns:
            What was erased, and what could not be reached.

        Raises:
            NotFound: The session no longer exists.
            NotAllowed: You are not its owner.
            Conflict: Someone is using it, or effects of it stand in the world; nothing was erased.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> erased = session.delete()
            >>> repo.sessions(), [event.kind for event in repo.events.audit()]
            ([], ['session.erased'])
        """
        store, context = self._context.store, self._context
        context.read(lambda c: self._access.load_session(c, OWNER))
        return erase(
            context,
            erasure.select_session(self.id),
            lambda c: self._access.load_session(c, OWNER),
            lambda c: erasure.erase_session(store, c, self.id, context.user.id),
            force=force,
        )

    def agent(self, branch: BranchRef = None) -> Any:
        """Return a `RollbackAgent` on a branch, with the graph that was last wrapped here for the session.

        Merging and cherry-picking need the graph, because its reducers apply the changes. If only other users have
        wrapped a graph for the session in this process, it is theirs; the agent has your rights.

        Raises:
            InvalidInput: No graph was wrapped here for the session.
            NotFound: There is no such branch.
        """
        branch_row = self._context.read(lambda c: self._access.find_branch(c, branch))
        factories = self._served.agent_factories
        create_agent = factories.get(self._context) or next(reversed([*factories.values()]), None)
        if create_agent is None:
            reference = self.reference
            raise InvalidInput(
                f"Merging and picking need the graph of session {reference}, because its reducers apply the changes. "
                "Wrap it first."
            )
        return create_agent(self._context, branch_row.id)

    aagent = async_twin(agent)
    acheckpoint = async_twin(checkpoint)
    aannotate = async_twin(annotate)
    adelete_checkpoint = async_twin(delete_checkpoint)
    acleanup_auto_checkpoints = async_twin(cleanup_auto_checkpoints)
    atag = async_twin(tag)
    auntag = async_twin(untag)
    arollback = async_twin(rollback)
    aundo = async_twin(undo)
    aredo = async_twin(redo)
    aswitch = async_twin(switch)
    afork = async_twin(fork)
    aworkspace = async_twin(workspace)
    arewind_files = async_twin(rewind_files)
    arename = async_twin(rename)
    arename_branch = async_twin(rename_branch)
    arecover = async_twin(recover)
    adelete = async_twin(delete)
