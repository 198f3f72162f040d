"""In random sessions, the reported state always matches a model of the world.

A state machine runs turns, rollbacks, switches, forks, redos, failing tools, failing undo functions, deaths before any
write to the database, restarts, resumes, and a person who resolves calls. The model calls a tool itself, or through a
tool that calls others: in order, at once, in threads, hidden from the graph, or by agents, one of which has memory.
What waits in a turn is written with an intent, with an outcome, at the end, or before a tool that reads. After every
step it checks the journal against the shop, and each plan, report, conversation and `WorldDiverged` against its model
of the branch.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import backend
import points
import postgres_databases
import pytest
import soaks
from faults import before, setting
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from indirect_calls import AGENTS, HELPERS, helpers, memory_request, orders_of, written
from scripted import quick_tool
from shop import AFTER, BEFORE, DECLARED, DESK, REFUSED, SOLD, Shop, wish

import agentgit
from agentgit import Conflict, Fenced, PlanChanged, RollbackBlocked, RollbackIncomplete, ToolInvocation, WorldDiverged

BROKEN_OFF = {"unknown", "intended", "reversing", "reverse_unknown"}
"""Statuses of calls whose effect is recorded as unknown; such calls must still be in the journal."""

RAISED = {"reverse_failed"}
"""The status of a call whose undo raised, perhaps after it acted; only `verify` can find out."""


ACTIONS = ("reverse", "redo", "keep", "block", "gone")

ONE_BY_ONE: dict[str, Any] = {"config": {"max_concurrency": 1}}
"""Options that make a turn run its calls one after another, so that a session can be repeated exactly."""

DELEGATE, REMEMBER = "delegate", "remember"
"""The helpers that are agents; the second one has memory, so it is asked alone."""

DELEGATING = {"in_order": "read_only", "gathered": "read_only", DELEGATE: "read_only"}
"""The helpers with a declared effect; the others have none."""

LOOK, PEEK = "look", "peek"
"""The read-only tools; `peek` reads the database, so that what waits in the turn is written first."""

T = TypeVar("T")

Order = tuple[str, str | None, str | None]
"""A tool, how its call fails, and how its undo fails."""

Wanted = tuple[str | None, list[Order]]
"""The helper that makes the calls, or None, and the calls."""


class Died(BaseException):
    """The simulated death of the process, which writes nothing after it."""

    made = 0
    """The number of writes before the death."""


class Mortal:
    """A hook before every write to the database, which can simulate the death of the process before one of them."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.made = 0
        self._stand = ExitStack()
        self._stand.enter_context(before(points.EVERY_WRITE, self.before_write))
        # The background writes at a time that cannot be repeated.
        self._stand.enter_context(setting(points.FLUSH_IN_BACKGROUND, lambda unit: None))

    def before_write(self) -> None:
        """Count a write, or raise `Died`."""
        if self.left is not None:
            if self.left <= 0:
                raise Died
            self.left -= 1
        self.made += 1

    def go(self) -> None:
        self._stand.close()


@dataclass
class Line:
    """The model of one branch.

    Args:
        path: The items that were ordered on its path.
        then: The declared items in the world when the branch last checked it.
        points: Its checkpoints, each with the path to it.
        kept: The items that its rollbacks have kept, and that it accepts.
        loose: The items of turns that died and can be resumed.
        died: The items ordered by turns that died before the branch checked the world again.
        unseen: The parent's `died` and `unseen` items that are not on its path, which may make it diverge.
        messages: The ids of the messages of its newest head.
        is_fenced: Whether a rollback made it or a branch that it comes from, so that what was kept is not made again.
        memory: What the agent with memory has been asked on its path; None if a turn failed, and it is not known.
    """

    path: list[str] = field(default_factory=list)
    then: set[str] = field(default_factory=set)
    points: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    is_fenced: bool = False
    memory: list[str] | None = field(default_factory=list)


some = st.integers(0, 10**6)
tools = st.sampled_from(["order", "order", "order", "pay", "pay", "mail", "note", LOOK, PEEK])
durabilities = st.sampled_from(["async", "async", "sync", "exit"])
faults = st.sampled_from([None, None, None, BEFORE, AFTER, REFUSED])
stuck = st.sampled_from([None, None, None, None, BEFORE, AFTER])
orders = st.tuples(tools, faults, stuck)
helped = st.sampled_from([*HELPERS, DELEGATE, REMEMBER])
inner_order = st.tuples(tools, st.sampled_from([*[None] * 10, BEFORE, AFTER, REFUSED]), stuck)
inner_orders = st.lists(inner_order, min_size=1, max_size=3)
wanted_calls = st.one_of(
    st.tuples(st.none(), st.lists(orders, min_size=1, max_size=2)),
    st.tuples(helped, inner_orders),
)
batches = st.lists(st.lists(wanted_calls, min_size=1, max_size=2), min_size=1, max_size=2)
at_desk = st.one_of(st.just([]), st.just([]), st.lists(st.tuples(tools, st.none(), stuck), min_size=1, max_size=2))
deaths = st.sampled_from([*[None] * 30, *range(14)])


POSSIBLE: dict[str, Callable[[Any], Any]] = {}
CHOICES: dict[str, st.SearchStrategy[dict[str, Any]]] = {}


def step(is_possible: Callable[[Any], Any], **choices: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a step of a session, which gets the choices as arguments."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        POSSIBLE[function.__name__], CHOICES[function.__name__] = is_possible, st.fixed_dictionaries(choices)
        return function

    return register


@functools.cache
def template() -> Path:
    """Create a database with its tables, as a template for copies."""
    path = Path(tempfile.mkdtemp()) / "agentgit.db"
    agentgit.open(path).close()
    return path


class Notes:
    """What tools share with a machine, which they do not hold: `wrap` searches what they hold."""

    repo: Any
    recalled: list[str] | None = None
    """What the agent with memory has said last in this turn to have been asked."""

    def recall(self, asked: list[str]) -> None:
        """Note what the agent with memory says to have been asked."""
        self.recalled = asked

    def peek(self, item: str) -> str:
        """Read the names of the branches."""
        return " ".join(branch.name for branch in self.repo.session("s").branches())


def look(item: str) -> str:
    """Look at nothing."""
    return item


class TrueWorld(RuleBasedStateMachine):
    """Random runs of one session, with its database in a file and a shop as its world.

    A person resolves unclear calls here; see `VerifiedWorld` for tools with `verify`.
    """

    verify = False
    has_plain_items = True
    """Whether an item has one order at most."""
    vague: ClassVar = BROKEN_OFF | RAISED
    url: ClassVar[Any] = None
    """The PostgreSQL database; None for a new SQLite file."""
    steps: ClassVar = 0
    """The number of steps so far."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stack, self.place = ExitStack(), self.folder / "agentgit.db"
        if self.url is None:
            shutil.copy(template(), self.place)
        else:
            self.place = self.stack.enter_context(postgres_databases.new_schema(self.url))
        self.shop = Shop(self.folder / "shop.db")
        self.lines = {"main": Line()}
        self.tool_of: dict[str, str] = {}
        self.doubted: set[str] = set()
        self.resolved: set[str] = set()
        """The items of which a person said that an unclear call had happened; a later call may have had them, too."""
        self.settled: set[int] = set()
        self.aloof: dict[int, set[str]] = {}
        """The switches that leave the world unchanged, each with the declared items in it at that time."""
        self.memory_at: dict[int, list[str] | None] = {}
        """The `memory` of each checkpoint."""
        self.notes = Notes()
        self.told: list[str] = []
        """The steps so far."""
        self.mortal = Mortal()
        self.start()

    @initialize(kind=st.sampled_from([*AGENTS]))
    def begin(self, kind: str) -> None:
        """Create a session of one of the kinds of graphs."""
        tools = {one.name: one for one in [*self.shop.tools(), *map(quick_tool, (look, self.notes.peek))]}
        hidden = {one.name: one for one in self.shop.hidden_tools()}
        self.has_desk = kind.endswith(DESK)
        self.graph = AGENTS[kind](tools, helpers(tools, hidden, self.notes.recall))
        self.agent("main")

    def start(self) -> None:
        """Open the repository, as a new process does."""
        self.mortal.left = None
        self.repo = self.notes.repo = agentgit.open(self.place)

    def teardown(self) -> None:
        assert self.repo.maintenance.fsck(3).findings == ()
        self.repo.close()
        self.mortal.go()
        self.stack.close()
        shutil.rmtree(self.folder)

    def attempt(self, death: int | None, work: Callable[[], Any]) -> Any:
        """Do work in which the process may die, and return its result or the error that it raised."""
        self.mortal.left, self.mortal.made = death, 0
        self.before = self.shop.standing
        try:
            return work()
        except Died as died:
            died.made = self.mortal.made
            self.repo.close()
            self.start()
            return died
        except (RollbackBlocked, RollbackIncomplete, WorldDiverged, Conflict) as said:
            return said
        finally:
            self.mortal.left = None

    def agent(self, name: str) -> Any:
        """Wrap the graph again, as a new process does."""
        effects = {**self.shop.effects(verify=self.verify), **self.shop.hidden_effects("secretly", verify=self.verify)}
        effects |= {**DELEGATING, LOOK: "read_only", PEEK: "read_only"}
        return self.repo.wrap(self.graph, "s", effects=effects, branch=name)

    # -- the world and the records

    @property
    def now(self) -> set[str]:
        """The declared items in the world."""
        return self.declared(self.shop.standing)

    def declared(self, items: Iterable[str]) -> set[str]:
        """Return the items whose tool is declared, which excludes notes."""
        return {item for item in items if self.tool_of[item] in DECLARED}

    def changed(self, line: Line, standing: Iterable[str]) -> set[str]:
        """Return the items that others have added or removed since a branch last checked the world."""
        now, path = self.declared(standing), set(line.path)
        return (now - line.then - path) | ((path & line.then) - now)

    def journal(self) -> list[ToolInvocation]:
        """Return every recorded call of the tools of the shop, whoever made it."""
        return [call for call in backend.journal(self.repo) if call.tool_name in SOLD]

    def unclear(self) -> set[str]:
        """Return the items with a call of unknown effect."""
        return {call.args["item"] for call in self.journal() if self.is_vague(call)}

    def is_vague(self, call: ToolInvocation) -> bool:
        """Return whether the effect of a call is unknown; a declared call that failed did nothing."""
        is_open = call.status == "failed" and call.tool_name not in DECLARED and not self.verify
        return is_open or call.status in self.vague

    def usable(self) -> list[str]:
        """Return the branches whose rollback is not half done."""
        return [branch.name for branch in self.repo.session("s").branches() if branch.status in ("open", "running")]

    def points(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return the checkpoints of all branches, each with the path to it."""
        return [point for line in self.lines.values() for point in line.points]

    def loose(self) -> list[str]:
        """Return the branches with a turn that died and can be resumed."""
        return [name for name in self.usable() if self.lines[name].loose]

    def stopped(self) -> list[Any]:
        """Return the operations that are not done."""
        return [operation for operation in self.repo.session("s").operations() if operation.status != "done"]

    # -- the steps of a session

    @rule(which=some, choices=st.deferred(lambda: st.fixed_dictionaries(CHOICES)))
    def make_step(self, which: int, choices: dict[str, dict[str, Any]]) -> None:
        """Make a step that is possible now.

        One rule with the choices of all: calls that run at once end in a free order, so two lives with the same choices
        need not come to the same state, and Hypothesis must find the same rules in both.
        """
        type(self).steps += 1
        name = pick([name for name in POSSIBLE if hasattr(self, name) and POSSIBLE[name](self)], which)
        self.told.append(f"{name}: {choices[name]}")
        try:
            getattr(self, name)(**choices[name])
        except AssertionError as failure:  # the life may go on differently when Hypothesis repeats it
            failure.add_note("\n".join(self.told))
            raise

    @step(lambda self: self.usable(), which=some, wanted=batches, desk=at_desk, durability=durabilities, death=deaths)
    def run(
        self, which: int, wanted: list[list[Wanted]], desk: list[Order], durability: str, death: int | None
    ) -> None:
        """Run a turn, which finds the world of its branch or raises `WorldDiverged` and runs nothing."""
        script = [[call for one in batch for call in self.calls(*one, is_alone=len(batch) == 1)] for batch in wanted]
        if self.has_desk and desk:
            script.insert(0, self.calls(DESK, desk))
        self.turn(pick(self.usable(), which), script, durability, death)

    @step(
        lambda self: self.usable(), which=some, way=helped, wanted=inner_orders, durability=durabilities, death=deaths
    )
    def run_helper(self, which: int, way: str, wanted: list[Order], durability: str, death: int | None) -> None:
        """Run a turn in which one helper makes all calls."""
        self.turn(pick(self.usable(), which), [self.calls(way, wanted, is_alone=True)], durability, death)

    def turn(self, name: str, script: list[list[tuple[str, str]]], durability: str, death: int | None) -> None:
        """Run a turn of new calls, and check its outcome."""
        agent = self.agent(name)
        came = self.attempt(death, lambda: agent.invoke(wish(*script), durability=durability, **ONE_BY_ONE))
        orders = [order for batch in script for call in batch for order in orders_of(*call)]
        asked = [memory_request(item) for batch in script for way, item in batch if way == REMEMBER]
        self.turned(name, came, {item for _, item in orders}, asked)

    @step(
        lambda self: self.repeatable(),
        which=some,
        way=st.sampled_from([None, "in_order", "at_once", "gathered", DELEGATE]),
    )
    def run_again(self, which: int, way: str | None) -> None:
        """Order what a rollback has kept again, which the fence answers."""
        name, item = pick(self.repeatable(), which)
        order = self.tool_of[item], item
        call, agent = order if way is None else (way, written([order])), self.agent(name)
        self.turned(name, self.attempt(None, lambda: agent.invoke(wish([call]), **ONE_BY_ONE)), {item})
        assert len(self.shop.orders(item)) == 1, f"a rollback has kept {item}, and it was made again"

    def repeatable(self) -> list[tuple[str, str]]:
        """List branches with the items that their rollback has kept, and that the fence answers."""
        visible = self.shop.visible - self.doubted
        return [
            (name, item)
            for name in self.usable()
            for item in sorted((self.lines[name].kept & visible) - set(self.lines[name].path))
            if self.lines[name].is_fenced and self.has_plain_items and self.tool_of[item] in ("pay", "mail")
        ]

    @step(lambda self: self.loose(), which=some, durability=durabilities, death=deaths)
    def go_on(self, which: int, durability: str, death: int | None) -> None:
        """Resume a turn that died, which repeats no done call and no call of unknown outcome."""
        name = pick(self.loose(), which)
        line, agent = self.lines[name].loose, self.agent(name)
        if agent.get_state().values:  # else the turn died before anything was saved
            came = self.attempt(death, lambda: agent.invoke(None, durability=durability, **ONE_BY_ONE))
            self.turned(name, came, set(line))

    def turned(self, name: str, came: Any, wanted: set[str], asked: Sequence[str] = ()) -> None:
        """Check the outcome of a turn, and update the model of its branch.

        Args:
            name: The branch.
            came: The result of the turn, or the error that it raised.
            wanted: The items that the turn was to order.
            asked: What the turn was to ask the agent with memory.
        """
        line, before, path = self.lines[name], self.before, set(self.lines[name].path)
        changed = self.changed(line, before)
        if isinstance(came, Conflict):
            assert line.loose
            assert self.unclear() & line.loose, f"it is known what to do, and it says: {came}"
            assert not self.verify
            begun = isinstance(came, Fenced)  # other calls of the batch may have run beside the refused one
            came = Died()
            came.made = int(begun)
        if isinstance(came, WorldDiverged):
            told = self.declared(before) & line.unseen
            assert changed or self.doubted or told, f"nobody has touched the world of {name}, and it says: {came}"
            assert self.shop.standing == before, "nothing was run"
            self.compare(came.plan.steps, path, line.kept)
            return
        if isinstance(came, Died) and not came.made:
            return
        sure = changed - self.doubted - line.kept
        assert not sure, f"{name} ran on, though others had changed {sure}"
        made = [item for item in sorted(wanted) if item in self.shop.standing and item not in path]
        line.path += made
        line.kept -= set(made)  # the kept effect belongs to another call
        line.then = self.now
        line.died = line.died | set(made) if isinstance(came, Died) else set()
        line.unseen -= self.now
        line.loose = line.loose | wanted if isinstance(came, Died) else set()
        self.remembered(line, asked, is_over=not line.loose)
        if not line.loose:
            self.reached(name)

    def remembered(self, line: Line, asked: Sequence[str], *, is_over: bool) -> None:
        """Check that the agent with memory remembers what it was asked on its branch, and nothing else."""
        recalled, self.notes.recalled = self.notes.recalled, None
        if not is_over or (asked and recalled is None):
            line.memory = None
        elif recalled is not None:
            assert line.memory is None or recalled == [*line.memory, *asked], "it remembers what was on other branches"
            line.memory = recalled

    def reached(self, name: str) -> None:
        """Note the head that a turn has published, which has the whole conversation of the head before it."""
        line, head = self.lines[name], self.agent(name).head
        self.memory_at[head.id] = line.memory
        messages = [message["id"] for message in head.conversation_history]
        assert messages[: len(line.messages)] == line.messages, f"{name} has lost messages of its head"
        line.points.append((head.id, tuple(line.path)))
        line.messages = messages

    def calls(self, way: str | None, wanted: Sequence[Order], *, is_alone: bool = False) -> list[tuple[str, str]]:
        """Return the calls that order new items: of the tools themselves, or one of a helper that calls them."""
        orders = [(tool, self.ordered(tool, *faults)) for tool, *faults in wanted]
        if way is None:
            return orders
        return [(DELEGATE if way == REMEMBER and not is_alone else way, written(orders))]

    def ordered(self, tool: str, fault: str | None, stuck: str | None) -> str:
        """Return the name of a new item, and register its failures with the shop."""
        item = f"{tool}{len(self.tool_of)}"
        self.tool_of[item] = tool
        if fault is not None:
            self.shop.faults[item] = fault
        if stuck is not None:
            self.shop.stuck[item] = stuck
        return item

    @step(
        lambda self: self.points() and self.usable(),
        which=some, to=some, force=st.booleans(), death=deaths,
        tools=st.sampled_from(["reverse", "reverse", "keep", "require_clean"]),
        conversation=st.sampled_from([True, True, False]), replay=st.sampled_from(["record", "record", "redo"]),
        on_error=st.sampled_from(["stop", "continue"]), on_drift=st.sampled_from(["continue", "stop"]),
    )  # fmt: skip
    def roll_back(self, which: int, to: int, death: int | None, **how: Any) -> None:
        """Roll back, and check the plan, the world and the report."""
        if not how["conversation"] and how["tools"] == "keep":
            how["tools"] = "reverse"
        name, (checkpoint, path) = pick(self.usable(), which), pick(self.points(), to)
        agent = self.agent(name)
        force, *on = (how.pop(word) for word in ("force", "on_error", "on_drift"))
        before, kept = self.shop.standing, self.lines[name].kept
        plan = agent.plan_rollback(checkpoint, **how)
        assert self.shop.standing == before, "a plan does nothing"
        self.compare(plan.steps, set(path), kept)
        came = self.attempt(
            death, lambda: agent.rollback(checkpoint, force=force, on_error=on[0], on_drift=on[1], **how)
        )
        if isinstance(came, RollbackBlocked):
            assert not force
            assert not plan.is_admissible
            assert self.shop.standing == before, "nothing was done"
        self.settle(came)

    @step(
        lambda self: self.tool_of and self.usable(),
        which=some,
        other=some,
        sync=st.sampled_from(["world", "world", "note", "ignore"]),
        force=st.booleans(),
        death=deaths,
    )
    def switch(self, which: int, other: int, sync: str, force: bool, death: int | None) -> None:
        """Switch to a branch, and check that the world changes only with sync='world'."""
        agent, to = self.agent(pick(self.usable(), which)), pick(self.usable(), other)
        self.compare(agent.plan_switch(to).steps, set(self.lines[to].path), self.lines[to].kept)
        before, known = self.shop.standing, {operation.id for operation in self.repo.session("s").operations()}
        came = self.attempt(death, lambda: agent.switch(to, sync, force=force))
        if sync != "world" or isinstance(came, RollbackBlocked):
            assert self.shop.standing == before
        if sync != "world":
            self.aloof |= {one.id: self.now for one in self.repo.session("s").operations() if one.id not in known}
        self.settle(came)

    @step(lambda self: self.redoable(), which=some, death=deaths)
    def redo(self, which: int, death: int | None) -> None:
        """Revert a rollback, which restores the world of the branch that it left."""
        agent = self.agent(pick(self.redoable(), which))
        self.settle(self.attempt(death, agent.redo))

    def redoable(self) -> list[str]:
        """Return the branches that a rollback made, if the branches that it left can be used, too."""
        branches = {branch.id: branch.name for branch in self.repo.session("s").branches()}
        made = {operation.internal_session_id: operation for operation in self.repo.session("s").operations()}
        ways = [
            (branches[new], branches[operation.source_session_id])
            for new, operation in made.items()
            if operation.kind == "rollback" and operation.source_session_id != new
        ]
        usable = self.usable()
        return [new for new, left in ways if {new, left} <= set(usable)]

    @step(lambda self: self.tool_of and self.usable(), which=some, to=some, death=deaths)
    def fork(self, which: int, to: int, death: int | None) -> None:
        """Fork a branch, and check that the world does not change."""
        name, before = pick(self.usable(), which), self.shop.standing
        left, agent, checkpoint, path = self.lines[name], self.agent(name), None, tuple(self.lines[name].path)
        points = [(line, point) for line in self.lines.values() for point in line.points]
        if left.loose or to % 2:
            if not points:
                return
            left, (checkpoint, path) = pick(points, to)
        came = self.attempt(death, lambda: agent.fork(checkpoint))
        assert self.shop.standing == before
        if not isinstance(came, Died):
            then = left.then if self.changed(left, before) - left.kept else self.now
            unseen = (left.died | left.unseen) - set(path)
            memory = left.memory if checkpoint is None else self.memory_at[checkpoint]
            self.lines[came.branch.name] = Line(
                list(path), set(then), kept=set(left.kept), unseen=unseen, is_fenced=left.is_fenced, memory=memory
            )

    @step(lambda self: self.stopped(), which=some, force=st.booleans(), death=deaths)
    def resume(self, which: int, force: bool, death: int | None) -> None:
        """Resume an operation that is not done, confirm what it does more by now, and check its report."""
        operation, before = pick(self.stopped(), which), self.shop.standing

        def resumed() -> Any:
            try:
                return self.repo.resume(operation, force=force)
            except PlanChanged as changed:
                assert self.shop.standing == before
                return self.repo.resume(operation, force=force, plan=changed.plan)

        self.settle(self.attempt(death, resumed))

    @step(lambda self: self.tool_of)
    def mend(self) -> None:
        """Repair the shop and resolve every unclear call, as a person does."""
        self.shop.stuck.clear()
        self.shop.faults.clear()
        for one in self.journal():
            if one.kind == "replay":
                continue  # it stands or falls with the call that was made
            if one.status == "unknown":
                has_happened = self.unclaimed(one.args["item"]) > 0
                self.repo.resolve(one, "happened" if has_happened else "did_not_happen")
                self.resolved |= {one.args["item"]} if has_happened else set()
            elif one.status in ("reverse_unknown", "reverse_failed"):
                self.repo.resolve(one, "did_not_happen" if self.there(one) else "happened")

    # -- invariants and checks

    @invariant()
    def the_journal_is_true(self) -> None:
        """Check that each effect has a true status and that nothing in the world is missing from the journal."""
        assert not self.shop.asked("wrong undo"), "the undo function of a namesake was called"
        calls = self.journal()
        self.doubted |= self.unclear()
        for one in calls:
            if one.kind == "replay":  # answered from the record; the row of the original call has the status
                continue
            if one.status == "done" or (self.verify and one.status == "reverse_failed"):
                assert self.there(one), f"{one} is said to be done"
            if one.status == "reversed" and one.result is not None:
                assert not self.there(one), f"{one} is said to be reversed"
        for item in self.shop.standing:
            vague = [c for c in calls if c.args["item"] == item and self.may_have(c)]
            assert self.unclaimed(item) <= len(vague), f"nobody knows of {item}"

    def may_have(self, call: ToolInvocation) -> bool:
        """Return whether an order that is no call's result may belong to this call."""
        is_nothing = call.status == "failed" and call.tool_name in DECLARED
        return self.is_vague(call) or (call.result is None and not is_nothing)

    def there(self, call: ToolInvocation) -> bool:
        """Return whether the order of a call is in the world, or any unclaimed one if the call has no result."""
        if call.result is None:
            return self.unclaimed(call.args["item"]) > 0
        return call.result["order"] in self.shop.orders(call.args["item"])

    def unclaimed(self, item: str) -> int:
        """Count the orders of an item in the world that are no call's result."""
        known = {call.result["order"] for call in self.journal() if call.args["item"] == item and call.result}
        return len(set(self.shop.orders(item)) - known)

    def compare(self, steps: list[Any], path: set[str], kept: set[str]) -> None:
        """Check that a plan contains all differences between the world and a path, and nothing else."""
        vague, declared = self.unclear(), self.now
        said = {action: items_of(step for step in steps if step.action == action) for action in ACTIONS}
        more = said["reverse"] | said["keep"] | said["block"]
        less = said["gone"] | said["redo"] | said["block"]
        assert set(self.shop.standing) - path - vague <= more, "something stands that the plan does not tell of"
        assert self.declared(path) - declared - vague <= less, "something is gone that the plan does not tell of"
        assert said["reverse"] - vague <= declared - path, "it would reverse what is not there, or should stay"
        assert (said["gone"] | said["redo"]) - vague <= path - declared, "it would do again what is there"
        assert said["reverse"] - vague <= declared - kept, "it would reverse what a rollback has kept"

    def settle(self, came: Any) -> None:
        """Update the model after operations, and check their reports against the world.

        Args:
            came: The result of the last operation, or the error that it raised.
        """
        if isinstance(came, RollbackIncomplete):
            self.agrees(came.report)
        names = {branch.id: branch.name for branch in self.repo.session("s").branches()}
        points = {point: path for line in self.lines.values() for point, path in line.points}
        for operation in reversed(self.repo.session("s").operations()):
            if operation.kind == "fork" or operation.id in self.settled:
                continue
            name, left = names[operation.internal_session_id], names[operation.source_session_id]
            if name not in self.lines:
                path, memory = list(points[operation.checkpoint_id]), self.memory_at[operation.checkpoint_id]
                self.lines[name] = Line(path, kept=set(self.lines[left].kept), is_fenced=True, memory=memory)
            if operation.status == "done":
                self.settled.add(operation.id)
                there = points[operation.checkpoint_id] if operation.kind == "rollback" else self.lines[name].path
                self.finished(self.lines[name], self.repo.resume(operation), set(there), self.aloof.get(operation.id))

    def finished(self, line: Line, report: Any, path: set[str], aloof: set[str] | None) -> None:
        """Check the report of a done operation, and the world against `path` unless `aloof` is given."""
        self.agrees(report)
        stands = [step for step in report.kept if step.invocation.status != "failed"]  # which kept nothing
        vague, kept, gone = self.unclear(), items_of(stands), items_of(report.gone)
        line.then = self.now if aloof is None else aloof
        line.kept |= kept
        if aloof is None:
            assert self.now - path - vague <= kept, "something stands that nobody was told of"
            assert self.declared(path) - self.now - vague <= gone, "something is gone that nobody was told of"

    def agrees(self, report: Any) -> None:
        """Check each line of a report against the world."""
        lost = Counter(call.args["item"] for call in self.journal() if call.result is None)
        vague = self.unclear() | {item for item, calls in lost.items() if calls > 1}
        for group, there in {"reversed": False, "gone": False, "redone": True, "kept": True}.items():
            for item in getattr(report, group):
                call = item.invocation
                if call.args["item"] in vague or call.status == "failed" or call.tool_name not in SOLD:
                    continue
                # A redone effect is reported under the original call, whose own order is gone.
                stands = self.there(call) if group == "reversed" else bool(self.shop.orders(call.args["item"]))
                assert stands == there, f"{call} is said to be {group}"


def items_of(steps: Iterable[Any]) -> set[str]:
    """Return the items of the steps of a plan or a report that are about the shop."""
    return {step.invocation.args["item"] for step in steps if step.invocation.tool_name in SOLD}


def pick(many: Sequence[T], which: int) -> T:
    return many[which % len(many)]


class VerifiedWorld(TrueWorld):
    """The same runs with tools that have `verify`, which also settles calls that raised."""

    verify = True
    vague = BROKEN_OFF


class ExecutedWorld(TrueWorld):
    """Runs with replay='execute', where an item may have several orders, so each call is checked by its own order.

    The other classes check the items of plans; this one checks reports, and the world after each operation.
    """

    has_plain_items = False

    @step(
        lambda self: self.points() and self.usable(),
        which=some, to=some, force=st.booleans(), death=deaths, tools=st.sampled_from(["reverse", "require_clean"]),
        on_error=st.sampled_from(["stop", "continue"]), on_drift=st.sampled_from(["continue", "continue", "stop"]),
    )  # fmt: skip
    def execute(self, which: int, to: int, death: int | None, **how: Any) -> None:
        """Roll back with replay='execute', and check that calls that must not run twice block it."""
        agent, (checkpoint, path) = self.agent(pick(self.usable(), which)), pick(self.points(), to)
        before = self.shop.standing
        plan = agent.plan_rollback(checkpoint, replay="execute", tools=how["tools"])
        said = items_of(step for step in plan.steps if step.action == "block")
        once = {item for item in path if self.tool_of[item] in ("mail", "note")}
        assert once - self.unclear() <= said, "it would do again what must not run a second time"
        came = self.attempt(death, lambda: agent.rollback(checkpoint, replay="execute", **how))
        if isinstance(came, RollbackBlocked):
            assert not how["force"]
            assert not plan.is_admissible
            assert self.shop.standing == before, "nothing was done"
        self.settle(came)

    def compare(self, steps: list[Any], path: set[str], kept: set[str]) -> None:
        """Skip the check of plans, which the other classes make."""

    def turned(self, name: str, came: Any, wanted: set[str], asked: Sequence[str] = ()) -> None:
        """Update the model of a branch after a turn."""
        if isinstance(came, WorldDiverged):
            assert self.shop.standing == self.before, "nothing was run"
            return
        line, is_over = self.lines[name], not isinstance(came, (Died, Conflict))
        line.path += [item for item in sorted(wanted) if item in self.shop.standing and item not in line.path]
        line.loose = set() if is_over else line.loose | wanted
        self.remembered(line, asked, is_over=is_over)
        if is_over:
            self.reached(name)

    def finished(self, line: Line, report: Any, path: set[str], aloof: set[str] | None) -> None:
        """Check also that nothing stands twice."""
        super().finished(line, report, path, aloof)
        if aloof is None:
            twice = {item for item, orders in self.shop.standing.items() if orders > 1}
            kept = items_of(report.kept)
            sure = twice - self.unclear() - self.resolved
            assert sure <= kept, "something stands twice, and nobody was told of it"

    def agrees(self, report: Any) -> None:
        """Check each line of a report against the world."""
        vague = self.unclear() | {call.args["item"] for call in self.journal() if call.result is None}
        for group, there in {"reversed": False, "gone": False, "kept": True, "answered": True, "redone": True}.items():
            for item in getattr(report, group):
                call = item.invocation
                if call.tool_name in SOLD and call.args["item"] not in vague:
                    stands = self.there(call) if not there else bool(self.shop.orders(call.args["item"]))
                    assert stands == there, f"{call} is said to be {group}"


LONG = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
BRIEF = settings(LONG, max_examples=2)  # with six machines about 300 steps

KINDS = [TrueWorld, VerifiedWorld, ExecutedWorld]


@pytest.fixture(params=["sqlite", "postgresql"])
def machine(request, lives):
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return type(lives.__name__, (lives,), {"url": url, "steps": 0})


@pytest.mark.long
@pytest.mark.parametrize("lives", KINDS)
def test_journal_plans_and_reports_are_true_in_random_sessions(machine) -> None:
    """The failure names a seed with which it comes again; see `pytest_report_header`."""
    run_state_machine_as_test(seed(soaks.SEED)(machine), settings=BRIEF)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("lives", KINDS)
def test_journal_plans_and_reports_are_true_in_many_random_sessions(machine, capsys) -> None:
    """The same in this kind's share of the steps that `make soak` is told, with one seed after another."""
    for number in itertools.count(soaks.SEED):
        run_state_machine_as_test(seed(number)(machine), settings=LONG)
        with capsys.disabled():
            print(f"{machine.__name__}: {machine.steps} steps, seeds {soaks.SEED} to {number}")  # noqa: T201  # a run for hours shows how far it is
        if machine.steps >= soaks.STEPS / (2 * len(KINDS)):
            break
