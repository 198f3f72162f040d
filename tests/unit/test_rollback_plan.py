"""The plan of a rollback, computed from records alone."""

from datetime import UTC, datetime

from agentgit import ToolInvocation
from agentgit.effects.planning import Knowledge, make_plan


def call(id: int, effect: str, status: str = "done", **more) -> ToolInvocation:
    return ToolInvocation(
        id=id, internal_session_id=1, position=id, tool_name=f"tool{id}", effect=effect, status=status,
        started_at=datetime(2026, 1, 1, tzinfo=UTC), **more,
    )  # fmt: skip


def decide(*later: ToolInvocation, tools: str = "reverse", missing: str | None = None):
    return make_plan(
        checkpoint_id=1, target="main#1", position=0, later=later, tools=tools,
        knowledge=Knowledge(undo_obstacle=lambda _: missing),
    )  # fmt: skip


def test_a_workspace_call_is_a_step_only_if_its_files_stay():
    """A call that changes only files is kept with its files, for that reason, and not listed if they go."""
    calls = [call(1, "workspace", "done"), call(2, "workspace", "unknown"), call(3, "workspace", "failed")]
    assert decide(*calls).steps == []
    they_stay = Knowledge(undo_obstacle=lambda _: None, kept_files=lambda _: "they stay")
    plan = make_plan(checkpoint_id=1, target="main#1", position=0, later=calls, knowledge=they_stay)
    assert [(step.action, step.why) for step in plan.steps] == [
        ("keep", "they stay"),
        ("keep", "they stay"),
        ("keep", "it failed (None), so there is no result to reverse"),
    ]
    (running,) = decide(call(1, "workspace", "intended")).steps
    assert running.action == "block"


ACTIONS = {
    "reverse": ["reversible done", "compensable done", "reversible reverse_failed"],
    "keep": [
        "reversible failed", "irreversible failed", "idempotent done", "undeclared done", "undeclared unknown",
        "undeclared failed", "reversible paused",
    ],
    "block": [
        "reversible unknown", "reversible intended", "reversible reverse_unknown", "reversible reversing",
        "irreversible done", "irreversible unknown",
    ],
    None: [
        "read_only done", "read_only paused", "reversible reversed", "state intended", "state done", "state failed",
        "state unknown",
    ],
}  # fmt: skip


def test_effect_and_status_decide_the_action_of_a_step():
    """Each step has a reason; a call that left nothing in the world is no step."""
    for action, calls in ACTIONS.items():
        for recorded in calls:
            steps = decide(call(1, *recorded.split())).steps
            assert [step.action for step in steps] == ([action] if action else []), recorded
            assert all(step.why for step in steps), recorded


def test_a_missing_undo_function_blocks_the_plan_with_a_reason():
    plan = decide(call(1, "reversible"), missing="wrap the graph with effects=")
    assert not plan.is_admissible
    assert plan.blockers[0].why == "wrap the graph with effects="


def test_the_mode_reversible_keeps_what_needs_consent():
    """`reversible` keeps what a person would have to agree to; only a call that runs blocks."""
    plan = decide(
        call(4, "irreversible"),
        call(3, "compensable"),
        call(2, "reversible"),
        call(1, "undeclared"),
        tools="reversible",
    )
    assert [step.action for step in plan.steps] == ["keep", "keep", "reverse", "keep"]
    assert plan.is_admissible
    running = decide(call(1, "reversible", "intended"), tools="reversible")
    assert [step.action for step in running.steps] == ["block"]
