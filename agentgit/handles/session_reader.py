"""Read access to one session: branches, checkpoints, calls, diffs, plans and statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from agentgit.async_api import async_iterator_twin, async_twin
from agentgit.auth.principal import VIEWER
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff
from agentgit.checkpoints.queries import Filter, Hits, Tags
from agentgit.effects import RollbackPlan
from agentgit.effects.invocation import ToolTrack
from agentgit.handles.branching import Tagging
from agentgit.handles.comparison import Comparator
from agentgit.handles.context import BranchRef, Context, SessionAccess
from agentgit.handles.export import Exporter
from agentgit.handles.log import Log, LogReader, Scope, TextSearch
from agentgit.handles.reruns import RerunReader
from agentgit.handles.rollbacks import Rollbacks
from agentgit.rollback.request import FilesOption, RollbackOptions
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.folded_tree import FoldedTree
from agentgit.sessions.reports import OnProgress, Operation
from agentgit.sessions.rerun import RerunComparison
from agentgit.sessions.session import Branches
from agentgit.sessions.stats import Prices, Stats, Usage, require_prices
from agentgit.store.maintenance import statistics
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.queries.read_models import FoldChoice
from agentgit.store.sql.transaction import Reading
from agentgit.store.transfer.redaction import RedactText
from agentgit.store.transfer.summary import TransferSummary

SessionRef = ExternalSession | str | int | None
"""A session, its name or its id; None is the most recently updated one."""


class SessionReader:
    """The read-only operations on one session. `Session` adds those that change it."""

    def __init__(self, context: Context, session_id: int) -> None:
        self.id = session_id
        self._context = context
        self._served = context.registry.session(session_id)  # what this process has for it lives as long as this
        self._access = SessionAccess(context, session_id)
        self._rollbacks = Rollbacks(context, session_id)
        self._tagging = Tagging(context, session_id)

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionReader) and (self.id, self._context) == (other.id, other._context)

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str:
        return self.info._repr_html_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.info._repr_mimebundle_(include, exclude)

    @property
    def context(self) -> Context:
        """The store and the principal, for extensions. Its interface may change."""
        return self._context

    @property
    def info(self) -> ExternalSession:
        """The session's name, owner, times and current branch, as they are now."""
        return self._context.read(self._access.load_session)

    @property
    def name(self) -> str:
        """The name of the session."""
        return self.info.session_name

    @property
    def reference(self) -> str:
        """The name by which this user refers to the session: plain if it is their own, else like `alice/support-42`."""
        return self.info.reference

    def branches(self) -> Branches:
        """List the branches in the order of their creation."""
        return Branches(
            self._context.read(lambda c: self._context.read_models.branches(c, self._access.load_session(c)))
        )

    def branch(self, name: BranchRef = None) -> InternalSession:
        """Find a branch by its name or id; None is the current one."""

        def load(transaction: Reading) -> InternalSession:
            session = self._access.load_session(transaction)
            return self._context.read_models.branch(
                transaction, session, self._context.lookup.branch(transaction, session.id, name)
            )

        return self._context.read(load)

    def tree(self) -> Tree:
        """Return the tree of the branches; `str()` renders it as text."""
        return self._context.read(lambda c: self._context.read_models.tree(c, self._access.load_session(c)))

    def folded_tree(
        self,
        *,
        limit: int | None = None,
        branch: BranchRef = None,
        expand: Collection[int] = (),
        collapse: Collection[int] = (),
        points: int = 100,
    ) -> FoldedTree:
        """Return the tree of the branches around the current one, and count the rest; `str()` renders it as text.

        Only the checkpoints of the branches that are shown are read, so this is quick in a session with thousands of
        branches.
        """

        def load(transaction: Reading) -> FoldedTree:
            session = self._access.load_session(transaction)
            branch_id = self._access.find_branch(transaction, branch).id if branch is not None else None
            choice = FoldChoice(limit=limit, branch=branch_id, expand=expand, collapse=collapse, points=points)
            return self._context.read_models.folded_tree(transaction, session, choice)

        return self._context.read(load)

    def tool_track(self, *, branch: BranchRef = None) -> ToolTrack:
        """List the tool invocations along a branch, from the root of the session, in order.

        If the tool of a call ran again, the track shows the newest run that did not fail. Calls that wait for an answer
        come last.
        """

        def load(transaction: Reading) -> ToolTrack:
            return ToolTrack(self._context.store.calls_of(transaction, self._access.find_branch(transaction, branch)))

        return self._context.read(load)

    def checkpoints(self, *, branch: BranchRef = None) -> Checkpoints:
        """List the checkpoints from the root of the session to the head of a branch, oldest first."""

        def load(transaction: Reading) -> Checkpoints:
            rows = self._context.lookup.path_checkpoints(transaction, self._access.find_branch(transaction, branch))
            return Checkpoints(self._context.read_models.checkpoints(transaction, rows))

        return self._context.read(load)

    def get_checkpoint(self, ref: CheckpointRef, *, branch: BranchRef = None) -> Checkpoint:
        """Find a checkpoint."""
        return LogReader(self._context, self.id).get(ref, Scope(branch=branch))

    def log(
        self,
        *,
        branch: BranchRef = None,
        which: str = "path",
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tag: str | None = None,
        author: str | None = None,
        auto: bool | None = None,
        with_calls: bool | None = None,
    ) -> Log:
        """List checkpoints by page, newest first. All conditions must hold.

        On a path, the first checkpoint of a branch replaces the checkpoint that the branch was forked from. With
        `name`, `tag` or `auto=False`, the path includes that checkpoint itself.
        """
        reader, scope = LogReader(self._context, self.id), Scope(branch=branch, which=which)
        author_id = reader.author_id(author) if author is not None else None
        conditions = Filter(
            name=name, since=since, until=until, tag=tag, author=author_id, auto=auto, with_calls=with_calls
        )
        return Log(reader, scope, conditions)

    def search(
        self,
        text: str,
        *,
        branch: BranchRef = None,
        all_branches: bool = False,
        limit: int = 20,
        after: str | None = None,
        progress: OnProgress | None = None,
    ) -> Hits:
        """Find messages, tool calls and named checkpoints by their words.

        Names and descriptions of checkpoints come first, then messages and calls, each newest first. All words must
        occur in one text, as whole words; case and accents are ignored. Adjacent parts of the query, as in
        `create_order` or `日本`, must be adjacent in the text. There are no operators. In an encrypted database only
        the names of checkpoints are searched, and `names_only` of the result is True.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> for hit in repo.session("s").search("TWO chairs"):
            ...     print(hit.reference, hit.role, hit.snippet)
            main#2 user order two chairs
        """
        scope = Scope(branch=branch, which="all" if all_branches else "path")
        return TextSearch(self._context, self.id).find_words(text, scope, limit, after, progress)

    def tags(self) -> Tags:
        """List the tags, newest first."""
        return self._tagging.all()

    def diff(self, a: CheckpointRef, b: CheckpointRef = "HEAD", *, other: SessionReader | SessionRef = None) -> Diff:
        """Compare two checkpoints: state, messages, tool calls, tokens, and files if both have them.

        What the checkpoints share is not loaded, so the cost does not grow with the length of the conversation.
        """
        other_access = self._access
        if (other_id := session_id(self._context, other)) is not None:
            other_access = SessionAccess(self._context, other_id)
        return Comparator(self._context, self.id).diff(a, b, other_access)

    def compare(self, a: CheckpointRef, b: CheckpointRef) -> Comparison:
        """Compare two branches: what each did since they diverged, and how they differ now.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> retry = agent.fork(name="retry")
            >>> print(repo.session("s").compare("main", "retry"))
            main#2 and retry#1 diverge at main#2 (4 messages and 1 tool call in common)
            main#2: unchanged
            retry#1: unchanged
        """
        return Comparator(self._context, self.id).compare(a, b)

    def compare_rerun(self, branch: BranchRef = None) -> RerunComparison:
        """Return the report of a rerun, with its messages beside the recorded ones, from where they diverge.

        The messages are read from the two branches: at most 200 of each, from a few before the first that differs.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("beside.db")), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> agent.session.compare_rerun(agent.rerun().branch.name).diverges_at is None
            True
        """
        return RerunReader(self._context, self.id).compare(branch)

    def plan_rollback(
        self,
        to: CheckpointRef,
        *,
        branch: BranchRef = None,
        tools: str = "reverse",
        files: FilesOption = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what `rollback` would do, without doing anything."""
        options = RollbackOptions(tools=tools, files=files, conversation=conversation, replay=replay)
        return self._rollbacks.plan(to, branch, options)

    def plan_undo(self, steps: int = 1, *, branch: BranchRef = None, files: FilesOption = True) -> RollbackPlan:
        """Return what `undo` would do, without doing anything."""
        source_id, to = self._rollbacks.find_previous(branch, steps, files, VIEWER)
        return self.plan_rollback(to, branch=source_id, files=files)

    def plan_redo(self, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `redo` would do, without doing anything."""
        branch_id = self._access.read_branch(branch).id
        rewind_request = self._rollbacks.undo_rewind_request(branch_id, VIEWER)
        if rewind_request is not None:
            return self._context.engine().plan(rewind_request)
        return self.plan_switch(self._rollbacks.rollback_source_id(branch_id, VIEWER))

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        """Return what `switch(branch, sync="world")` would do, without doing anything."""
        return self._rollbacks.plan_switch(branch)

    def plan_rewind(
        self, restore_point: CheckpointRef, *, branch: BranchRef = None, files: FilesOption = True
    ) -> RollbackPlan:
        """Return what `rewind_files` would do, without doing anything."""
        request = self._rollbacks.rewind_request(restore_point, branch, files, VIEWER)
        return self._context.engine().plan(request)

    def operations(self) -> list[Operation]:
        """List the rollbacks, switches and forks, newest first."""
        return self._context.read(lambda c: self._context.store.operations.all(c, self._access.load_session(c).id))

    def stats(self, *, branch: BranchRef = None, prices: Prices | None = None, storage: bool = False) -> Stats:
        """Count checkpoints, calls, rollbacks, reversals and tokens, in total and for each branch.

        Tokens are taken from the `usage_metadata` with which models replied. The tokens of a branch are those used on
        it, without those that it inherited.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.session("s").stats().total.calls
            {'done': 1}
        """

        def load(transaction: Reading) -> Stats:
            session = self._access.load_session(transaction)
            return collect_stats(
                transaction, self._context, [session], f"session {session.reference}", branch, prices, storage=storage
            )

        return self._context.read(load)

    def export(
        self,
        path: str | Path | IO[bytes],
        *,
        branch: BranchRef = None,
        checkpoint: CheckpointRef | None = None,
        files: bool = False,
        redact: bool | RedactText = False,
        progress: OnProgress | None = None,
    ) -> TransferSummary:
        """Write the session, one branch or one checkpoint to a file that any agentgit can read with `import_`.

        The file is in JSON Lines format. It has the conversation and state at every checkpoint, the tool track, the
        world log, rollbacks as history, and pending questions. A branch or a checkpoint is written as a session with
        one branch; the effects of other branches in its world are on a branch named `elsewhere`. Undo functions and
        secrets are not included. The files of the workspace are included only with `files=True`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.session("s").export("s.jsonl").tool_calls
            1
            >>> repo.import_("s.jsonl").session.session_name
            's-2'
        """
        return Exporter(self._context, self.id).export(
            path, branch, checkpoint, files=files, progress=progress, redact=redact
        )

    def trajectories(self, *, branch: BranchRef = None) -> Iterator[dict[str, Any]]:
        """Return the steps of branches, each with what the agent saw, what it did, the results, a reward and a label.

        A step is one AI message. Its reward and label come from the `data` of the checkpoints after it; without a label
        there, the checkpoint's name is the label. The score of an exploration is the reward of its branch's last step.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> [[result["tool"] for result in step["results"]] for step in repo.session("s").trajectories()]
            [['create_order'], []]
        """
        return Exporter(self._context, self.id).trajectories(branch)

    abranches = async_twin(branches)
    abranch = async_twin(branch)
    atree = async_twin(tree)
    afolded_tree = async_twin(folded_tree)
    atool_track = async_twin(tool_track)
    acheckpoints = async_twin(checkpoints)
    aget_checkpoint = async_twin(get_checkpoint)
    alog = async_twin(log)
    asearch = async_twin(search)
    atags = async_twin(tags)
    adiff = async_twin(diff)
    acompare = async_twin(compare)
    acompare_rerun = async_twin(compare_rerun)
    aplan_rollback = async_twin(plan_rollback)
    aplan_undo = async_twin(plan_undo)
    aplan_redo = async_twin(plan_redo)
    aplan_switch = async_twin(plan_switch)
    aplan_rewind = async_twin(plan_rewind)
    aoperations = async_twin(operations)
    astats = async_twin(stats)
    aexport = async_twin(export)
    atrajectories = async_iterator_twin(trajectories)


def session_id(context: Context, ref: SessionReader | SessionRef) -> int | None:
    """Return the id of a session; None if none was given."""
    if ref is None:
        return None
    session_ref = ref.id if isinstance(ref, SessionReader) else ref
    return context.read(lambda transaction: context.lookup.session(transaction, session_ref)).id


def collect_stats(
    transaction: Reading,
    context: Context,
    sessions: Sequence[ExternalSession],
    subject: str,
    branch: BranchRef,
    prices: Prices | None,
    *,
    storage: bool,
    erased: Usage | None = None,
) -> Stats:
    checked_prices, store = require_prices(prices) if prices is not None else None, context.store
    rows = [row for session in sessions for row in store.sessions.branches(transaction, session.id)]
    if branch is not None:
        rows = [context.lookup.branch(transaction, sessions[0].id, branch)]
        subject = f"branch {rows[0].name} of {subject}"
    return Stats(
        subject=subject,
        branches=tuple(statistics.count_figures(transaction, store, sessions, rows)),
        names=statistics.count_names(transaction, [row.id for row in rows]),
        sessions=len(sessions),
        prices=checked_prices,
        storage=statistics.measure_storage(transaction, store, rows) if storage else None,
        erased=erased or {},
    )
