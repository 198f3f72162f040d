"""The plan of a rollback, computed from records alone."""

from datetime import UTC, datetime

import pytest

from agentgit import ToolInvocation, compensable, reversible
from agentgit.effects import Effect, effect
from agentgit.effects.effects import declared_on, import_function, takes_invocation
from agentgit.effects.plan import make_plan
from agentgit.errors import InvalidInput, NotFound


def call(id: int, effect: str, status: str = "done", **more) -> ToolInvocation:
    return ToolInvocation(
        id=id, internal_session_id=1, position=id, tool_name=f"tool{id}", effect=effect, status=status,
        started_at=datetime(2026, 1, 1, tzinfo=UTC), **more,
    )  # fmt: skip


def decide(*later: ToolInvocation, tools: str = "reverse", missing: str | None = None):
    return make_plan(
        checkpoint_id=1, target="main#1", position=0, later=later, undo_obstacle=lambda _: missing, tools=tools
    )


@pytest.mark.parametrize("status", ["intended", "done", "failed", "unknown"])
def test_a_state_call_is_no_step(status):
    """Whatever happened to a call that changes only the state, a plan does not list it."""
    assert decide(call(1, "state", status)).steps == []


def test_a_workspace_call_is_a_step_only_if_its_files_stay():
    """A call that changes only files is kept with its files, for that reason, and not listed if they go."""
    calls = [call(1, "workspace", "done"), call(2, "workspace", "unknown"), call(3, "workspace", "failed")]
    assert decide(*calls).steps == []
    options = {"checkpoint_id": 1, "target": "main#1", "position": 0, "undo_obstacle": lambda _: None}
    plan = make_plan(later=calls, kept_files=lambda _: "they stay", **options)
    assert [(step.action, step.why) for step in plan.steps] == [
        ("keep", "they stay"),
        ("keep", "they stay"),
        ("keep", "it failed (None), so there is no result to reverse"),
    ]
    (running,) = make_plan(later=[call(1, "workspace", "intended")], **options).steps
    assert running.action == "block"


@pytest.mark.parametrize(
    ("kind", "status", "action"),
    [
        ("reversible", "done", "reverse"),
        ("compensable", "done", "reverse"),
        ("reversible", "reverse_failed", "reverse"),
        ("reversible", "failed", "keep"),
        ("reversible", "unknown", "block"),
        ("reversible", "intended", "block"),
        ("reversible", "reverse_unknown", "block"),
        ("reversible", "reversing", "block"),
        ("irreversible", "done", "block"),
        ("irreversible", "unknown", "block"),
        ("irreversible", "failed", "keep"),
        ("idempotent", "done", "keep"),
        ("undeclared", "done", "keep"),
        ("undeclared", "unknown", "keep"),
        ("undeclared", "failed", "keep"),
    ],
)
def test_effect_and_status_decide_the_action_of_a_step(kind, status, action):
    """The action for a call follows from its effect and its status, and always has a reason."""
    (step,) = decide(call(1, kind, status)).steps
    assert step.action == action
    assert step.why


@pytest.mark.parametrize(
    ("kind", "status"), [("read_only", "done"), ("reversible", "reversed"), ("reversible", "paused")]
)
def test_a_call_that_left_nothing_in_the_world_is_no_step(kind, status):
    """A read, a reversed call and a paused call are no steps of a plan."""
    assert decide(call(1, kind, status)).steps == []


def test_steps_keep_the_order_of_the_world_log():
    """Effects are reversed newest first, in the order of the calls."""
    plan = decide(call(3, "reversible"), call(2, "undeclared"), call(1, "compensable"))
    assert [step.invocation.id for step in plan.steps] == [3, 2, 1]
    assert [step.invocation.id for step in plan.reversals] == [3, 1]
    assert plan.is_admissible


def test_a_missing_undo_function_blocks_the_plan_with_a_reason():
    """A reversible call without its undo function blocks the plan and is not silently kept."""
    plan = decide(call(1, "reversible"), missing="wrap the graph with effects=")
    assert not plan.is_admissible
    assert plan.blockers[0].why == "wrap the graph with effects="


def test_force_keeps_the_blockers_and_reverses_the_rest():
    """A forced plan reverses the same calls, keeps the blockers and says so."""
    plan = decide(call(2, "irreversible"), call(1, "reversible")).forced()
    assert plan.is_admissible
    assert plan.kept[0].why.startswith("forced: ")
    assert len(plan.reversals) == 1


def test_the_modes_keep_and_require_clean_reverse_nothing():
    """`keep` keeps every call, and `require_clean` refuses the rollback."""
    kept = decide(call(2, "irreversible"), call(1, "reversible"), tools="keep")
    assert [s.action for s in kept.steps] == ["keep", "keep"]
    clean = decide(call(1, "reversible"), tools="require_clean")
    assert not clean.is_admissible


def test_the_mode_reversible_keeps_what_needs_consent():
    """`reversible` reverses only reversible effects, keeps the others, and never waits for a person."""
    plan = decide(
        call(4, "irreversible"),
        call(3, "compensable"),
        call(2, "reversible"),
        call(1, "undeclared"),
        tools="reversible",
    )
    assert [step.action for step in plan.steps] == ["keep", "keep", "reverse", "keep"]
    assert plan.is_admissible


def test_a_plan_reads_as_text_and_as_data():
    """A person and a program can both read a plan."""
    plan = decide(call(1, "reversible", args={"n": 2}))
    assert str(plan) == (
        "Rollback to main#1: a new branch that begins with 0 tool calls.\n"
        "  reverse  tool1(n=2)  reversible  its undo reverses it\n"
        "1 will be reversed; no blockers."
    )  # fmt: skip
    assert plan.to_dict()["steps"][0]["invocation"]["args"] == {"n": 2}
    assert "nothing to reverse" in str(decide())


def undo_in_module(args, result): ...


def test_an_effect_records_the_qualified_name_of_its_undo():
    """An effect has the qualified name of its undo, also of a local function."""

    def local(args, result): ...

    assert reversible(undo_in_module).undo_path == f"{__name__}:undo_in_module"
    assert reversible(local).undo_path == f"{__name__}:{local.__qualname__}"
    assert reversible("pkg.mod:f").undo_path == "pkg.mod:f"
    assert import_function(f"{__name__}:undo_in_module") is undo_in_module


@pytest.mark.parametrize(
    "make",
    [
        lambda: Effect("harmless"),
        lambda: Effect("reversible"),
        lambda: Effect("read_only", undo_in_module),
        lambda: import_function("no-colon"),
        lambda: import_function("a.b:<locals>.f"),
        lambda: import_function("agentgit:__version__"),
    ],
)
def test_a_meaningless_effect_declaration_is_refused(make):
    """Bad input: a wrong declaration fails where it is written."""
    with pytest.raises(InvalidInput):
        make()


def test_a_missing_undo_module_raises_not_found():
    """Bad input: the error for a path that does not exist names the path."""
    with pytest.raises(NotFound, match=r"no\.such:thing"):
        import_function("no.such:thing")


def test_effects_can_be_declared_with_decorators():
    """A decorator declares the effect of a function or of a LangChain tool."""
    from langchain_core.tools import tool

    @effect("irreversible")
    @tool
    def send(to: str) -> str:
        """Send."""
        return to

    @tool
    @compensable(undo_in_module)
    def pay(amount: int) -> int:
        """Pay."""
        return amount

    assert declared_on(send).kind == "irreversible"
    assert declared_on(pay).undo is undo_in_module
    assert declared_on(undo_in_module) is None


def test_an_undo_function_may_take_the_invocation():
    """An undo function with a third parameter for the invocation is recognized."""
    assert takes_invocation(lambda args, result, invocation: None)
    assert takes_invocation(lambda args, result, invocation=None: None)
    assert not takes_invocation(lambda args, result, dry_run=False: None)
    assert not takes_invocation(lambda *everything: None)  # usually a decorator around a function of two parameters
    assert not takes_invocation(undo_in_module)
