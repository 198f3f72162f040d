"""Reading one session: branches, checkpoints, calls, differences, plans and figures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.auth.principal import VIEWER
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff
from agentgit.checkpoints.queries import Filter, Hits, Tag
from agentgit.effects import RollbackPlan, ToolInvocation
from agentgit.effects.invocation import ToolTrack
from agentgit.handles.branching import Tagging
from agentgit.handles.comparison import Comparator
from agentgit.handles.context import BranchRef, Context, SessionAccess
from agentgit.handles.export import Exporter
from agentgit.handles.log import Log, LogReader, Scope, TextSearch
from agentgit.handles.rollbacks import RollbackOptions, Rollbacks
from agentgit.handles.statistics import count
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.operation import Operation
from agentgit.sessions.reports import OnProgress
from agentgit.sessions.session import Branches
from agentgit.sessions.stats import Prices, Stats
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.transfer.summary import Carried

SessionRef = ExternalSession | str | int | None
"""A session, its name or its id; None is the one that moved last."""


class SessionReader:
    """The verbs on one session that change nothing. `Session` adds those that do.

    Args:
        context: The store and the principal.
        session_id: The id of the session.
    """

    def __init__(self, context: Context, session_id: int) -> None:
        self.id = session_id
        self._context = context
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
        """The store and the principal, for extensions; what it offers may change."""
        return self._context

    @property
    def info(self) -> ExternalSession:
        """The facts about the session: its name, owner, times and current branch, as they are now."""
        return self._context.read(self._access.find)

    @property
    def name(self) -> str:
        """The name of the session."""
        return self.info.session_name

    @property
    def reference(self) -> str:
        """The name of the session for the user who looks: plain for their own, like `alice/support-42` for others'."""
        return self.info.reference

    def branches(self) -> list[InternalSession]:
        """List the branches in the order they were made."""
        return Branches(self._context.read(lambda c: self._context.views.branches(c, self._access.find(c))))

    def branch(self, name: BranchRef = None) -> InternalSession:
        """Find a branch by its name or id; None is the current one.

        Raises:
            NotFound: There is none.
        """

        def look(connection: Connection) -> InternalSession:
            found = self._access.find(connection)
            return self._context.views.branch(connection, found, self._context.lookup.branch(connection, found, name))

        return self._context.read(look)

    def tree(self) -> Tree:
        """Return the tree of the branches; `str` draws it."""
        return self._context.read(lambda c: self._context.views.tree(c, self._access.find(c)))

    def tool_track(self, *, branch: BranchRef = None) -> list[ToolInvocation]:
        """List the tool invocations along a branch, from the root of the session, in order."""
        return self._context.read(
            lambda c: ToolTrack(self._context.store.live_track(c, self._access.branch(c, branch)))
        )

    def checkpoints(self, *, branch: BranchRef = None) -> list[Checkpoint]:
        """List the checkpoints from the root of the session to the head of a branch, oldest first."""

        def look(connection: Connection) -> list[Checkpoint]:
            rows = self._context.lookup.path(connection, self._access.branch(connection, branch))
            return Checkpoints(self._context.views.checkpoints(connection, rows))

        return self._context.read(look)

    def get_checkpoint(self, ref: CheckpointRef, *, branch: BranchRef = None) -> Checkpoint:
        """Find a checkpoint.

        Args:
            ref: The checkpoint, as the class describes it.
            branch: The branch of `HEAD`; None is the current one.

        Raises:
            NotFound: There is no such checkpoint; the error lists near names.
            Ambiguous: Several have that name.
            InvalidInput: It belongs to another session.
        """
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
    ) -> Log:
        """List checkpoints, the newest first, by page; all conditions hold at once.

        The first checkpoint of a branch stands for the one that it left from. Asked for by name, by tag or with
        `auto=False`, that one itself is on the path.

        Args:
            branch: The branch; None is the current one.
            which: `path` (from the head of the branch to the root of the session), `branch` (only those that were made
                on it) or `all` (those of all branches of the session).
            name: Only those that a person called exactly so.
            since: Only those made then or later, a time with a zone.
            until: Only those made then or earlier.
            tag: Only the one that has this tag.
            author: Only those that this user made.
            auto: True for automatic ones only, False for those that somebody asked for.

        Raises:
            InvalidInput: A condition is not valid.
            NotFound: There is no such user. A missing branch or tag is reported where the log is read.
        """
        reader, scope = LogReader(self._context, self.id), Scope(branch=branch, which=which)
        by = reader.author(author) if author is not None else None
        return Log(reader, scope, Filter(name=name, since=since, until=until, tag=tag, author=by, auto=auto))

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

        What people wrote at checkpoints (names and descriptions) comes first, then messages and calls, each the newest
        first. All words must be in one text, whole, whatever their case and accents. What stands together in the query,
        like `create_order` or `日本`, is found where it stands together. Nothing in it is an operator. In an
        encrypted database only the names of checkpoints are found, and the answer says so (`names_only`).

        Args:
            text: The words to look for.
            branch: The branch whose path to the root is searched; None is the current one.
            all_branches: True to search all branches of the session.
            limit: The largest number of results, 1 to 1,000.
            after: The `next` of the page before; None for the first one.
            progress: Called with how many of the checkpoints are indexed that were not, as after an import.

        Raises:
            InvalidInput: The text is empty or too long, or the limit or the cursor is not valid.
            NotFound: There is no such branch.
            Corrupt: A text that was found is damaged.

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

    def tags(self) -> list[Tag]:
        """List the tags, the newest first."""
        return self._tagging.all()

    def diff(self, a: CheckpointRef, b: CheckpointRef, *, other: SessionReader | SessionRef = None) -> Diff:
        """Compare two checkpoints: state, messages, tool calls, tokens, and files where both have them.

        What both share is not loaded, so it costs the same in a long conversation as in a short one.

        Args:
            a: The checkpoint to start from, as the class describes it.
            b: The checkpoint to compare it with.
            other: The session in which the name of `b` is looked up; None is this session.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `get_checkpoint`.
        """
        there = self._access
        if (found := session_id(self._context, other)) is not None:
            there = SessionAccess(self._context, found)
        return Comparator(self._context, self.id).diff(a, b, there)

    def compare(self, a: CheckpointRef, b: CheckpointRef) -> Comparison:
        """Put two branches side by side: what each did since they parted, and how they differ now.

        Args:
            a: The first: a branch, or any checkpoint.
            b: The second.

        Raises:
            NotFound, Ambiguous: As `get_checkpoint`.
            InvalidInput: They are of two sessions, and so never parted.

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

    def plan_rollback(
        self,
        to: CheckpointRef,
        *,
        branch: BranchRef = None,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what `rollback` would do, without doing anything.

        Args:
            to: The checkpoint to go back to.
            branch: The branch that would be left; None is the current one.
            tools: `reverse`, `keep` (leave the world alone) or `require_clean` (refuse if anything is to be reversed).
            files: False to leave the files of the workspace alone.
            conversation: False to plan for the world only.
            replay: `record`, `redo` or `execute`, as `rollback` takes it.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `get_checkpoint`.
        """
        options = RollbackOptions(tools=tools, files=files, conversation=conversation, replay=replay)
        return self._rollbacks.plan(to, branch, options)

    def plan_undo(self, steps: int = 1, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `undo` would do, without doing anything.

        Args:
            steps: As `undo` takes it.
            branch: The branch that would be left; None is the current one.

        Raises:
            NotFound, InvalidInput: As `undo`.
        """
        left, to = self._rollbacks.previous(branch, steps, VIEWER)
        return self.plan_rollback(to, branch=left)

    def plan_redo(self, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `redo` would do, without doing anything.

        Raises:
            NotFound: There is nothing to take back.
        """
        made = self._access.read_branch(branch).id
        rewound = self._rollbacks.rewound(made, VIEWER)
        if rewound is not None:
            return self._rollbacks.plan_request(rewound)
        return self.plan_switch(self._rollbacks.left_by(made, VIEWER))

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        """Return what `switch(branch, sync="world")` would do, without doing anything.

        Raises:
            NotFound: The session has no such branch.
        """
        return self._rollbacks.plan_switch(branch)

    def plan_rewind(self, restore_point: CheckpointRef, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `rewind_files` would do, without doing anything.

        Raises:
            NotFound: As `rewind_files`.
        """
        return self._rollbacks.plan_request(self._rollbacks.rewind_request(restore_point, branch, VIEWER))

    def operations(self) -> list[Operation]:
        """List the rollbacks, switches and forks, newest first."""
        return self._context.read(lambda c: self._context.store.operations.all(c, self._access.find(c).id))

    def stats(self, *, branch: BranchRef = None, prices: Prices | None = None, storage: bool = False) -> Stats:
        """Count checkpoints, calls, rollbacks, reversals and tokens, in all and for each branch; no state is read.

        Tokens are counted from the `usage_metadata` of the messages as they are saved; those of a branch are what was
        used on it, without what it began with.

        Args:
            branch: Only this branch; None is all.
            prices: What a million tokens cost by the name of the model, of input and of output: `{"m": (1.25, 10)}`;
                a third and a fourth number are for input that a cache had, and that was put into one; `*` is every
                other model.
            storage: True to also measure what it takes of the database, which looks at all that is stored.

        Raises:
            NotFound: There is no such branch.
            InvalidInput: A price is not valid.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.session("s").stats().total.calls
            {'done': 1}
        """

        def look(connection: Connection) -> Stats:
            found = self._access.find(connection)
            return count(
                connection, self._context, [found], f"session {found.reference}", branch, prices, storage=storage
            )

        return self._context.read(look)

    def export(
        self,
        path: str | Path | IO[bytes],
        *,
        branch: BranchRef = None,
        checkpoint: CheckpointRef | None = None,
        files: bool = False,
        progress: OnProgress | None = None,
    ) -> Carried:
        """Write the session, one branch or one checkpoint of it to one file, which any agentgit reads with `import_`.

        The file is JSON lines: conversation and state at every checkpoint, the tool track, the world log, rollbacks as
        history, pending questions. A branch or a checkpoint is written as a session of one branch; what other branches
        did in its world stands on a branch `elsewhere`. Undo functions and secrets are not in it, and the files of the
        workspace only if you ask for them.

        Args:
            path: The file, which is replaced in one step; or a binary stream.
            branch: One branch; None for all.
            checkpoint: One checkpoint; None for all.
            files: True to take the files along that its checkpoints have. A snapshot that cannot go along, such as the
                image of a container, is counted in `left_out`; a single path that cannot is named in `left_paths`.
            progress: Called with how many bytes are checked, and of how many, when all of it is written.

        Raises:
            NotFound: There is no such branch or checkpoint.
            Conflict: A rollback of it is half done.
            Corrupt: Something of it is gone or damaged; nothing was written.
            Unavailable: The file cannot be written.

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
        return Exporter(self._context, self.id).export(path, branch, checkpoint, files=files, progress=progress)

    def trajectories(self, *, branch: BranchRef = None) -> Iterator[dict[str, Any]]:
        """Return the steps of branches: what the agent saw, what it did, what came of it, reward and label.

        A step is an AI message. Its reward and label come from the `data` of the checkpoints after it, its label else
        from their name; the score of an exploration is the reward of its branch's last step.

        Args:
            branch: One branch; None for all, each from the root of the session.

        Raises:
            NotFound: There is no such branch.

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
    atool_track = async_twin(tool_track)
    acheckpoints = async_twin(checkpoints)
    aget_checkpoint = async_twin(get_checkpoint)
    alog = async_twin(log)
    asearch = async_twin(search)
    atags = async_twin(tags)
    adiff = async_twin(diff)
    acompare = async_twin(compare)
    aplan_rollback = async_twin(plan_rollback)
    aplan_undo = async_twin(plan_undo)
    aplan_redo = async_twin(plan_redo)
    aplan_switch = async_twin(plan_switch)
    aplan_rewind = async_twin(plan_rewind)
    aoperations = async_twin(operations)
    astats = async_twin(stats)
    aexport = async_twin(export)


def session_id(context: Context, ref: SessionReader | SessionRef) -> int | None:
    """Return the id of the session that is meant; None if none was named.

    Raises:
        NotFound: There is no such session.
    """
    if ref is None:
        return None
    wanted = ref.id if isinstance(ref, SessionReader) else ref
    return context.read(lambda connection: context.lookup.session(connection, wanted)).id
