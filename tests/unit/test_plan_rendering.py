"""Plans and reports as text, as HTML and as JSON."""

import json

import pytest
from markup import HOSTILE, TABLE_TAGS, Page, call, golden

from agentgit import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.files import FileChange, FileChanges
from agentgit.effects.plan import BLOCK, GONE, KEEP, REDO, REVERSE, SWITCH, WORLD_ONLY, PlanStep
from agentgit.effects.report import ReportItem
from agentgit.errors import InvalidInput, RollbackBlocked, RollbackIncomplete, WorldDiverged
from agentgit.next_steps import Next, Reason
from agentgit.render import html
from agentgit.render.text import cells, wrap
from agentgit.render.view import STYLES, Medium
from agentgit.render.views.rollback import outcome

CHAIR = call(0, "create_order", "reversible", item="chair", quantity=2)
TABLE = call(1, "create_order", "reversible", item="table", quantity=1)
MONEY = call(2, "charge_card", "compensable", amount=80)
MAIL = call(3, "send_mail", "irreversible", to="you@example.org", text="Dear customer, " + "thank you. " * 20)
NOTE = call(4, "add_note", "undeclared", text="in a hurry")
LAMP = call(5, "create_order", "reversible", "reversed", item="lamp", quantity=1)
HEAVY = call(6, "lift", "reversible", "unknown", item="a safe")


def plan(*steps: tuple[str, ...], **more) -> RollbackPlan:
    made = [PlanStep(**dict(zip(("action", "invocation", "why", "otherwise"), step, strict=False))) for step in steps]
    known = {"checkpoint_id": 7, "target": "before the table (main#3)", "position": 1, "replayed": [CHAIR]}
    return RollbackPlan(**(known | more), steps=made)


UNKNOWN = Reason("it is unknown whether it happened: it was interrupted", Next("resolve", call=6))
FULL = plan(
    (BLOCK, HEAVY, UNKNOWN),
    (KEEP, NOTE, "nothing was declared about this tool; declare its effect and its undo function"),
    (BLOCK, MAIL, "it cannot be undone"),
    (REVERSE, MONEY, "its undo compensates for it"),
    (REVERSE, TABLE, "its undo reverses it"),
    (GONE, LAMP, "it was reversed later, and its tool does not run again"),
)
PARTIAL = RollbackReport(
    operation_id=240000000000001, status="partial", checkpoint_id=7, branch="main-2",
    reversed=[ReportItem(invocation=MONEY, reason="its undo compensates for it")],
    kept=[ReportItem(invocation=NOTE, reason="nothing was declared about this tool")],
    replayed=[ReportItem(invocation=CHAIR, reason="replayed from the record")],
    failed=[ReportItem(invocation=TABLE, reason="its undo raised RuntimeError: it does not move")],
    remaining=[ReportItem(invocation=MAIL, reason="not tried, because an earlier one failed")],
)  # fmt: skip


# -- text


@pytest.mark.parametrize(("name", "value"), [("plan", FULL), ("report", PARTIAL)])
def test_plans_and_reports_match_the_expected_text(name, value):
    assert str(value) == golden(f"{name}.txt")
    assert {span.style for line in Medium().lines(outcome(value)) for span in line} <= set(STYLES)


def test_reasons_are_never_cut():
    for width in (70, 100, 200):
        shown = Medium(width).lines(outcome(FULL))[1:-1]
        assert max(sum(cells(span.text) for span in line) for line in shown) <= width
        said = " ".join(line[-1].text for line in shown)
        for step in FULL.steps:
            assert step.why in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (plan(), "There is nothing to reverse."),
        (plan((REVERSE, TABLE, "")), "1 will be reversed; no blockers."),
        (
            plan((REVERSE, TABLE, ""), (REDO, LAMP, ""), kind=SWITCH),
            "1 will be reversed, 1 runs again; no blockers.",
        ),
        (plan((KEEP, NOTE, ""), (GONE, LAMP, ""), (GONE, LAMP, "")), "1 stays, 2 are gone; no blockers."),
        (plan((BLOCK, MAIL, "")), "Blocked by 1 call (send_mail). Nothing was changed. With force: 1 stays."),
        (
            plan((BLOCK, MAIL, ""), (BLOCK, LAMP, "", GONE)),
            "Blocked by 2 calls (send_mail, create_order). Nothing was changed. With force: 1 stays, 1 is gone.",
        ),
        (
            FULL,
            "Blocked by 2 calls (lift, send_mail). Nothing was changed. "
            "With force: 2 will be reversed, 3 stay, 1 is gone.",
        ),
        (PARTIAL, "1 reversed, 1 kept, 1 failed, 1 not tried. repo.resume(240000000000001) finishes it."),
    ],
)
def test_the_last_line_counts_the_planned_actions(value, said):
    assert value.summary == said
    assert str(value).endswith(said)


def test_plans_and_reports_name_their_kind_of_operation():
    assert (
        plan(kind=SWITCH, target="branch main").heading
        == "Switch to branch main: the world is brought to the state after its 1 tool call."
    )
    assert "the conversation is unchanged" in plan(kind=WORLD_ONLY).heading
    done = {"operation_id": 1, "status": "done", "checkpoint_id": 1, "branch": "main"}
    assert str(RollbackReport(**done, kind="switch")) == "Switch done: branch main.\nThe world is unchanged."
    assert RollbackReport(**done, kind="world_only").heading == "Rollback of the world done: branch main is unchanged."
    assert RollbackReport(**done, kind="fork").heading.startswith("Fork done: branch main")


def test_a_hint_that_blocked_calls_share_is_shown_once():
    """Two calls whose undo functions are missing name the module to trust once, in the plan and in its error."""
    reasons = [Reason(f"{name} is not declared here", Next("declare")) for name in "ab"]
    blocked = plan((BLOCK, TABLE, reasons[0]), (BLOCK, MAIL, reasons[1]))
    error = RollbackBlocked(f"{blocked.blocking_reasons}.", *blocked.next, plan=blocked)
    for shown in (Medium(400).text(outcome(blocked)), html.page(outcome(blocked)), str(error)):
        assert shown.count(Next("declare").worded("python")) == 1
        assert "a is not declared here" in shown
        assert "b is not declared here" in shown


def test_a_plan_shows_the_first_twenty_of_many_files():
    changes = [FileChange(path=f"{n}.txt", action="write", why="") for n in range(25)]
    shown = plan(files=FileChanges(workspace="w", snapshot="s", changes=changes))
    for text in (str(shown), Page(shown._repr_html_()).text):
        assert "19.txt" in text
        assert "20.txt" not in text
        assert "… and 5 more" in text


STOPPED = Reason("Operation 7 may have stopped while it restored files.", Next("resume", operation=7))


def test_what_prevents_a_restore_names_the_next_step_in_the_words_of_each_face():
    files = FileChanges(workspace="w", snapshot="s", problem=STOPPED)
    done = {"operation_id": 1, "status": "done", "checkpoint_id": 1, "branch": "main"}
    for shown in (plan(files=files), RollbackReport(**done, files=files)):
        again = type(shown).from_dict(json.loads(json.dumps(shown.to_dict())))
        for value in (shown, again):
            said = Medium(400, face="cli").text(outcome(value))
            assert said.count(" resume 7 finishes it") == said.count("agentgit ") == 1
            assert "repo.resume" not in Medium(400, face="mcp").text(outcome(value))
            assert "repo.resume(7) finishes it" in str(value)
        assert again == shown


def test_a_plan_has_the_same_identity_if_it_is_forced():
    conflict = FileChange(path="a", action="conflict", why="")
    files = [
        FileChanges(workspace="w", snapshot="s"),
        FileChanges(workspace="w", snapshot="s", changes=[conflict]),
        FileChanges(workspace="w", snapshot="s", problem=STOPPED),
    ]
    plans = [plan((BLOCK, MAIL, "it cannot be undone", KEEP), files=one) for one in files]
    assert [one.forced().identity for one in plans] == [one.identity for one in plans]
    assert len({one.identity for one in plans}) == len(plans)


def test_a_call_with_long_arguments_has_a_short_text():
    long = call(1, "write", "undeclared", text="x" * 10**6, lines=["y" * 1000] * 1000)
    assert len(str(long)) < 400
    assert str(long).startswith("write(text='xxxx")
    assert len(long.args["text"]) == 10**6


def test_wrapping_breaks_between_words_and_counts_cells():
    """Text wraps between words, a word that is too long is split, and a wide character counts as two cells."""
    assert wrap("", 5) == [""]
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("日本語 abcdefghij", 5) == ["日本", "語", "abcde", "fghij"]
    assert all(cells(line) <= 9 for line in wrap(HOSTILE, 9))


# -- HTML


def test_a_plan_in_a_notebook_is_a_table():
    """The table has every step with its reason and only tags that an untrusted notebook keeps."""
    assert FULL._repr_html_() == golden("plan.html")
    page = Page(FULL._repr_html_())
    assert page.open == []
    assert set(page.tags) <= TABLE_TAGS
    assert page.attributes == {"style"}
    for step in FULL.steps:
        assert step.why in page.text
    assert "thank you. " * 20 in page.text  # the folded details hold the full argument


def test_values_have_text_and_html_for_notebooks():
    for value in (FULL, PARTIAL):
        assert value._repr_mimebundle_() == {"text/plain": str(value), "text/html": value._repr_html_()}


def test_rollback_errors_show_their_plan_or_report_as_html():
    for error in (
        RollbackBlocked("<no>", plan=FULL),
        WorldDiverged("<no>", plan=FULL),
        RollbackIncomplete("<no>", operation=1, report=PARTIAL),
    ):
        page = Page(error._repr_html_())
        assert page.text.startswith(f"{type(error).__name__}: <no>")
        assert "table" in page.tags


# -- JSON


@pytest.mark.parametrize("value", [FULL, PARTIAL, plan(), plan(kind=SWITCH)], ids=["plan", "report", "empty", "switch"])
def test_plans_and_reports_round_trip_through_json(value):
    again = type(value).from_dict(json.loads(json.dumps(value.to_dict())))
    assert again == value
    assert str(again) == str(value)
    if isinstance(value, RollbackPlan):
        assert value.to_dict()["is_admissible"] is value.is_admissible is (value != FULL)


@pytest.mark.parametrize("data", [{}, [], "plan", {"steps": 1}, {**FULL.to_dict(), "steps": [{"action": "keep"}]}])
def test_data_that_is_no_plan_report_or_invocation_is_refused(data):
    with pytest.raises(InvalidInput, match="Not a plan"):
        RollbackPlan.from_dict(data)
    with pytest.raises(InvalidInput, match="Not a report"):
        RollbackReport.from_dict(data)
    for wrong in ({"started_at": "yesterday"}, {"colour": "red"}, {"id": 1}):
        with pytest.raises(InvalidInput, match="Not a tool invocation"):
            ToolInvocation.from_dict(wrong)
