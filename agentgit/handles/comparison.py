"""The verbs that compare checkpoints and carry what is in them from one branch to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR, FORKER, VIEWER, Role
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff, diff
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.effects import ToolInvocation
from agentgit.effects.plan import EXECUTE
from agentgit.errors import InvalidInput, NotFound, RollbackBlocked, WorkspaceChanged
from agentgit.handles.session import BranchRef, SessionRef, Verbs
from agentgit.rollback import Request
from agentgit.sessions import ExternalSession
from agentgit.sessions.operation import DONE
from agentgit.store.queries import templates
from agentgit.store.queries.comparison import Compared, Comparing
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import Found

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

FRESH = "template"
"""The request that makes the calls of a template in the world of a session that began as it."""

What = CheckpointRef | ToolInvocation | Sequence[str]
"""Anything that can be picked: a checkpoint's new messages, a tool call with its result, or messages by their ids."""


class Across(Verbs):
    """Methods of a repository that take two checkpoints or two branches.

    Args:
        given: As `Verbs` takes it.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.wrapped: dict[int, Callable[[int], RollbackAgent]] = {}
        """Functions that return an agent on a branch of a session, by the session's id, for graphs wrapped here."""

    # -- compare

    def diff(self, a: CheckpointRef, b: CheckpointRef, session: SessionRef = None, *, other: SessionRef = None) -> Diff:
        """Compare two checkpoints: state, messages, tool calls, tokens, and files where both have them.

        What both share is not loaded, so it costs the same in a long conversation as in a short one.

        Args:
            a: The one to start from, as `checkpoint` takes it.
            b: The one to compare it with.
            session: The session in which names are looked up; None is the one that moved last.
            other: The session in which the name of `b` is looked up; None is the same session.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `checkpoint`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="one", effects=EFFECTS).run("order two chairs")
            >>> answer = repo.wrap(build("shop.db"), session="two", effects=EFFECTS).run("order a sofa")
            >>> print(repo.diff("HEAD", "HEAD", "one", other="two").common_messages)
            0
        """

        def look(connection: Connection) -> tuple[Checkpoint, Checkpoint, Compared]:
            one, here = self._find(connection, a, session)
            two, there = self._find(connection, b, session if other is None else other)
            points = self._named((one, here), (two, there))
            return points[0], points[1], Comparing(self.store).fold(connection, one, two)

        return self._diff(*self._read(look))

    def compare(self, a: CheckpointRef, b: CheckpointRef, session: SessionRef = None) -> Comparison:
        """Put two branches side by side: what each did since they parted, and how they differ now.

        Args:
            a: The first: a branch, or any place as `checkpoint` takes it.
            b: The second.
            session: The session in which names are looked up; None is the one that moved last.

        Raises:
            NotFound, Ambiguous: As `checkpoint`.
            InvalidInput: They are of two sessions, and so never parted.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> retry = agent.fork(name="retry")
            >>> print(repo.compare("main", "retry"))
            main#2 and retry#1 part at main#2 (4 messages and 1 tool call in common)
            main#2: unchanged
            retry#1: unchanged
        """
        comparing = Comparing(self.store)

        def look(connection: Connection) -> tuple[Checkpoint, list[tuple[Checkpoint, Checkpoint, Compared]]]:
            one, two = (self._find(connection, place, session)[0] for place in (a, b))
            fork = comparing.meeting(connection, one, two)
            if fork is None:
                raise InvalidInput(
                    "These are of two sessions, which never parted. repo.diff(a, b, other=...) is for them."
                )
            pairs = ((fork, one), (fork, two), (one, two))
            shown = self.views.checkpoint
            return shown(fork), [(shown(x), shown(y), comparing.fold(connection, x, y)) for x, y in pairs]

        fork, (left, right, between) = self._read(look)
        facts = fork.metadata
        return Comparison(
            fork=facts["reference"],
            messages=facts["message_count"],
            calls=facts["tool_track_position"],
            left=self._diff(*left),
            right=self._diff(*right),
            between=self._diff(*between),
        )

    # -- carry

    def plan_merge(
        self, source: CheckpointRef, into: BranchRef = None, session: SessionRef = None, *, resolve: Resolve = None
    ) -> MergePlan:
        """Return what `merge` would bring, and what stands against it, without doing anything.

        Args:
            source: As `RollbackAgent.merge` takes it.
            into: As `merge` takes it.
            session: The session; None is the one that moved last.
            resolve: As `RollbackAgent.plan_merge` takes it.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `merge`.
        """
        return self._agent(session, into).plan_merge(source, resolve=resolve)

    def merge(
        self,
        source: CheckpointRef,
        into: BranchRef = None,
        session: SessionRef = None,
        *,
        resolve: Resolve = None,
        name: str | None = None,
    ) -> Checkpoint:
        """Bring what a branch did into another one, as `RollbackAgent.merge`, with the graph that was wrapped here.

        Args:
            source: As `RollbackAgent.merge` takes it.
            into: The branch that it comes to; None is the current one.
            session: The session; None is the one that moved last.
            resolve: The resolution of values that both changed: `ours`, `theirs`, or as `RollbackAgent.merge` takes it.
            name: The name of the checkpoint that is made; None for none.

        Raises:
            MergeConflict, Conflict, NotFound, Ambiguous: As `RollbackAgent.merge`.
            InvalidInput: As `RollbackAgent.merge`; or no graph was wrapped here for this session.
        """
        return self._agent(session, into, EDITOR).merge(source, resolve=resolve, name=name)

    def plan_cherry_pick(self, what: What, onto: BranchRef = None, session: SessionRef = None) -> MergePlan:
        """Return what `cherry_pick` would bring, without doing anything.

        Args:
            what: As `RollbackAgent.cherry_pick` takes it.
            onto: As `cherry_pick` takes it.
            session: The session; None is the one that moved last.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `cherry_pick`.
        """
        return self._agent(session, onto).plan_cherry_pick(what)

    def cherry_pick(
        self, what: What, onto: BranchRef = None, session: SessionRef = None, *, name: str | None = None
    ) -> Checkpoint:
        """Bring chosen messages to a branch, as `RollbackAgent.cherry_pick`, with the graph that was wrapped here.

        Args:
            what: As `RollbackAgent.cherry_pick` takes it.
            onto: The branch that they come to; None is the current one.
            session: The session; None is the one that moved last.
            name: The name of the checkpoint that is made; None for none.

        Raises:
            NotFound, Ambiguous, Conflict: As `RollbackAgent.cherry_pick`.
            InvalidInput: As `RollbackAgent.merge`; or no graph was wrapped here for this session.
        """
        return self._agent(session, onto, EDITOR).cherry_pick(what, name=name)

    def _agent(self, session: SessionRef, branch: BranchRef, needs: Role = VIEWER) -> RollbackAgent:
        """Return an agent on a branch, with the graph that was last wrapped here for the session.

        Raises:
            InvalidInput: None was.
        """

        def find(connection: Connection) -> tuple[ExternalSession, int]:
            found = self.lookup.session(connection, session, needs)
            return found, self.lookup.branch(connection, found, branch).id

        found, branch_id = self._read(find)
        on = self.wrapped.get(found.id)
        if on is None:
            raise InvalidInput(
                f"Merging and picking need the graph of session {found.reference}: its reducers write what comes. "
                f"First call repo.wrap(graph, {found.reference!r})."
            )
        return on(branch_id)

    # -- templates

    def _template(self, connection: Connection, ref: CheckpointRef) -> tuple[Found, str]:
        """Find the checkpoint that a session is to begin as, and how a person calls it.

        Text names a session, or a place in it: `support-42`, `support-42@main#3`.
        """
        if not isinstance(ref, str):
            row, session = self._find(connection, ref, None, needs=FORKER)
        else:
            try:
                row, session = self._find(connection, "HEAD", ref, needs=FORKER)
            except NotFound:  # only now, because the name of a session may have an @ of its own
                name, _, place = ref.rpartition("@")
                if not (name and place):
                    raise
                row, session = self._find(connection, place, name, needs=FORKER)
        return row, f"{session.reference}@{row.branch_name}#{row.number}"

    def _bring_template_files(self, template: CheckpointRef, session: ExternalSession) -> None:
        """Bring the files of a template into the workspace of a session that has not gone on yet.

        Raises:
            WorkspaceChanged: There are other files; none was touched.
        """

        def look(connection: Connection) -> int | None:
            row, _ = self._template(connection, template)
            wanted = row.workspace_snapshot_id is not None and templates.is_fresh(self.store, connection, session.id)
            return row.id if wanted else None

        if (point := self._read(look)) is None:
            return
        try:
            self.rewind_files(point, session)
        except WorkspaceChanged as error:
            raise WorkspaceChanged(
                "The directory has files of its own; none was touched, and those of the template did not come. Give an "
                f"empty directory; or call repo.rewind_files({point}, {session.session_name!r}, force=True), which "
                "keeps what is there in a snapshot."
            ) from error
        self._change(lambda c: templates.with_files(self.store, c, session.id))

    def _run_template(self, template: CheckpointRef, session: ExternalSession, *, force: bool) -> None:
        """Make the calls of a template in the world of a session that began as it; once, however often it is asked for.

        Raises:
            RollbackBlocked: Something that happened in the session meanwhile stands in the way.
            RollbackIncomplete: A tool raised; `resume` goes on from there, and so does asking again.
            Conflict: The session began without its calls.
        """

        def look(connection: Connection) -> tuple[Found | None, Found | None]:
            begun = self.store.operations.requested(connection, session.id, FRESH)
            if begun is not None:
                return begun, None
            point, _ = self._template(connection, template)
            return None, templates.expect_to_run(self.store, connection, session.id, point)

        begun, first = self._read(look)
        if begun is not None and begun.status != DONE:
            self.resume(begun.id, force=force)
        if first is not None:
            self._engine().run(self._fresh_request(first, force=force))

    def _expect_runnable(self, connection: Connection, session_id: int) -> None:
        """Check that the calls of a template can be made in a session that is being made.

        Raises:
            RollbackBlocked: A call must not or cannot be made there.
        """
        (branch,) = self.store.sessions.branches(connection, session_id)
        first = self.store.checkpoints.by_id(connection, branch.head_id)
        plan = self._engine().planner.of(connection, self._fresh_request(first, force=False))
        if not plan.is_admissible:
            why = "; ".join(f"{step.invocation}: {step.why}" for step in plan.blockers)
            raise RollbackBlocked(
                f"Nothing was done, and no session was made. {why}. force=True answers these from the record.", plan
            )

    def _fresh_request(self, first: Found, *, force: bool) -> Request:
        return Request(
            user_id=self.user.id,
            source_id=first.internal_session_id,
            target=first,
            label="the template",
            replay=EXECUTE,
            on_drift="continue",
            force=force,
            request_id=FRESH,
        )

    # -- both

    def _diff(self, one: Checkpoint, two: Checkpoint, folded: Compared) -> Diff:
        """Compare what two checkpoints do not share, and their files."""
        rests = (
            Checkpoint(
                id=point.id,
                metadata={**point.metadata, "pending": rest.pending},
                session_state=rest.state,
                conversation_history=rest.messages,
                tool_invocations=rest.calls,
            )
            for point, rest in ((one, folded.a), (two, folded.b))
        )
        found = diff(*rests)
        return replace(
            found,
            common_messages=found.common_messages + folded.messages,
            common_calls=found.common_calls + folded.calls,
            **self._engine().files.diff(one, two),
        )

    def _named(self, *found: tuple[Found, ExternalSession]) -> list[Checkpoint]:
        """Make checkpoints; if they are of several sessions, their references name them."""
        points = [self.views.checkpoint(row) for row, _ in found]
        if len({session.id for _, session in found}) > 1:
            for point, (_, session) in zip(points, found, strict=True):
                point.metadata["reference"] = f"{session.reference}@{point.metadata['reference']}"
        return points

    def _find(
        self,
        connection: Connection,
        ref: CheckpointRef,
        session: SessionRef,
        branch: BranchRef = None,
        needs: Role = VIEWER,
    ) -> tuple[Found, ExternalSession]:
        """Find the row of a checkpoint and its session; see `checkpoint`."""
        owner = None
        if session is None and isinstance(ref, (int, Checkpoint)):
            owner = self.lookup.owner_of(connection, ref if isinstance(ref, int) else ref.id or 0)
        found = self.lookup.session(connection, owner or session, needs)
        on = self.lookup.branch(connection, found, branch)
        return self.lookup.checkpoint(connection, found, on, ref), found
