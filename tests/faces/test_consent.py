"""Consent binds: what a person confirmed is carried out, or nothing, on every face."""

import io

import pytest
from banking import says
from chats import chatting
from command_line import every_command, run
from fastapi.testclient import TestClient
from file_tools import Desk
from langchain_core.tools import tool
from langgraph.types import Command
from mcp_clients import connected
from scripted import call, obedient, tool_node_graph
from served import THREAD, said
from served import run as served_run
from shelves import shelf_in
from web_visitors import Visitor

import agentgit
from agentgit import (
    Conflict,
    InvalidInput,
    NotFound,
    PlanChanged,
    RollbackBlocked,
    RollbackIncomplete,
    WorldDiverged,
)
from agentgit.notebook import browse
from agentgit.web import app


@pytest.fixture
def repo(database):
    """Open a repository as a user who can sign in."""
    with agentgit.open(database.url) as operator:
        operator.users.add("ada", is_admin=True)
        yield operator.as_user("ada")


@pytest.fixture
def another(repo, world, tmp_path):
    """Return a function that wraps another agent on the current branch of the session."""
    graph = tool_node_graph(obedient(), world.tools())
    return lambda: repo.wrap(graph, "s", effects=world.effects(), workspace=tmp_path / "files")


@pytest.fixture
def agent(another, world):
    """Order a chair and a table, go back to the chair, and order a lamp."""
    first = another()
    first.run("add chair")
    first.checkpoint("one")
    first.run("add table")
    agent = first.rollback("one")
    agent.run("add lamp")
    assert world.items == ["chair", "lamp"]
    return agent


def message(agent, text, branch="main-2"):
    history = agent.session.branch(branch).conversation_history
    return next(message["id"] for message in history if message["content"] == text)


VERBS = {
    "rollback": (lambda at: at.plan_rollback("one"), lambda at, plan: at.rollback("one", plan=plan)),
    "undo": (lambda at: at.plan_undo(), lambda at, plan: at.undo(plan=plan)),
    "redo": (lambda at: at.plan_redo(), lambda at, plan: at.redo(plan=plan)),
    "switch": (lambda at: at.plan_switch("main"), lambda at, plan: at.switch("main", plan=plan)),
    "promote": (lambda at: at.plan_switch("main"), lambda at, plan: at.promote("main", plan=plan)),
    "edit": (
        lambda at: at.plan_rollback(f"message:{message(at, 'add lamp')}"),
        lambda at, plan: at.edit(message(at, "add lamp"), "hi", plan=plan),
    ),
    "rewind_files": (
        lambda at: getattr(at, "session", at).plan_rewind("one"),
        lambda at, plan: at.rewind_files("one", plan=plan),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("of", ["agent", "session"])
def test_a_verb_carries_out_the_confirmed_plan_or_nothing(agent, another, world, of, verb):
    at = agent if of == "agent" else agent.session
    if not hasattr(at, verb):
        return
    make_plan, carry_out = VERBS[verb]
    plan = make_plan(at)
    assert plan.identity == make_plan(at).identity == type(plan).from_dict(plan.to_dict()).identity
    another().run("add vase")
    branches = [branch.name for branch in agent.session.branches()]
    with pytest.raises(PlanChanged) as refused:
        carry_out(at, plan)
    assert world.items == ["chair", "lamp", "vase"]
    assert [branch.name for branch in agent.session.branches()] == branches
    assert refused.value.plan == make_plan(at)
    carry_out(at, refused.value.plan.identity)
    assert ("vase" in world.items) is (verb == "rewind_files")
    with pytest.raises((Conflict, NotFound)):
        carry_out(at, refused.value.plan)  # a plan is carried out once


@pytest.mark.parametrize("verb", ["rollback", "undo", "switch"])
def test_a_refused_plan_shows_its_files_too_and_can_be_confirmed(repo, tmp_path, verb):
    desk = Desk(tmp_path / "desk")
    effects = desk.world.effects(add="irreversible")
    agent = repo.wrap(desk.graph(), "s", effects=effects, check_effects=False, workspace=desk.root)
    agent.checkpoint("one")
    agent = agent.fork(name="aside") if verb == "switch" else agent
    agent.run("write note.txt draft then add chair")
    make_plan, carry_out = VERBS[verb]
    with pytest.raises(RollbackBlocked) as refused:
        carry_out(agent, None) if verb != "switch" else agent.switch("main", sync="world")
    assert refused.value.plan == make_plan(agent)
    assert refused.value.plan.files.summary == make_plan(agent).files.summary == "Files: 1 file to be deleted."
    forced = getattr(agent, verb)
    report = forced(*{"rollback": ["one"], "switch": ["main"]}.get(verb, []), force=True, plan=refused.value.plan)
    assert (desk.files, desk.world.items) == ({}, ["chair"]), report


def test_an_undo_takes_back_nothing_that_others_did(agent, another, world):
    another().run("add vase")
    with pytest.raises(Conflict, match="has moved since this agent last saw it"):
        agent.undo()
    other = agent.session.agent("main")
    with pytest.raises(WorldDiverged, match="other branches did: add"):
        other.undo()
    assert world.items == ["chair", "lamp", "vase"]
    with pytest.raises(InvalidInput, match="nothing is changed with 'note'"):
        other.switch("main", "note", plan=other.plan_switch("main"))
    another().undo()
    assert world.items == ["chair", "lamp"]


@pytest.fixture
def half(agent, another, world):
    """Return a confirmed rollback that stopped half way; since then, somebody else has added a vase."""
    plan = agent.plan_rollback("one")
    world.broken.add("lamp")
    with pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("one", plan=plan, request_id="half")
    world.broken.clear()
    another().run("add vase")
    return stopped.value.operation


def reversals(plan):
    return [step.invocation.args["item"] for step in plan.reversals]


@pytest.mark.parametrize("force", [False, True])
def test_a_resume_does_what_was_confirmed_or_nothing(repo, another, world, half, force):
    with pytest.raises(PlanChanged, match=rf"repo.resume\({half}, plan=error.plan\)") as refused:
        repo.resume(half, force=force)
    assert reversals(refused.value.plan) == ["vase", "lamp"]
    assert "Rollback of session s, branch main-2, to main#3:" in str(refused.value.plan)
    assert (world.items, repo.operation(half).status) == (["chair", "lamp", "vase"], "partial")
    another().run("add rug")
    with pytest.raises(PlanChanged) as again:
        repo.resume(half, force=force, plan=refused.value.plan)
    assert reversals(again.value.plan) == ["rug", "vase", "lamp"]
    assert world.items == ["chair", "lamp", "vase", "rug"]
    report = repo.resume(half, force=force, plan=again.value.plan.identity)
    assert (report.status, world.items) == ("done", ["chair"])
    assert repo.resume(half, plan=again.value.plan) == report


async def test_what_was_confirmed_once_is_resumed_without_a_question(repo, half, world):
    with pytest.raises(PlanChanged) as refused:
        await repo.aresume(half)
    world.broken.add("lamp")
    with pytest.raises(RollbackIncomplete):
        await repo.aresume(half, plan=refused.value.plan)
    world.broken.clear()
    assert (await repo.aresume(half)).status == "done"
    assert world.items == ["chair"]


def test_a_rollback_that_is_asked_for_again_does_not_do_more(agent, half, world):
    again = {"branch": "main-2", "request_id": "half"}
    with pytest.raises(PlanChanged) as refused:
        agent.session.rollback("one", **again)
    assert world.items == ["chair", "lamp", "vase"]
    assert agent.session.rollback("one", **again, plan=refused.value.plan).operation_id == half
    assert world.items == ["chair"]


def test_a_resume_needs_no_plan_if_nothing_is_added(repo, agent, another, half, world):
    another().undo(force=True)
    assert world.items == ["chair", "lamp"]
    assert repo.resume(half).status == "done"
    assert world.items == ["chair"]


class Person(io.StringIO):
    """Somebody who says yes to each question; before the first answer, something happens."""

    def __init__(self, happens, *, at_terminal):
        super().__init__()
        self.happens, self.isatty, self.asked = happens, lambda: at_terminal, 0

    def readline(self, *_):
        self.asked += 1
        if self.asked == 1:
            self.happens()
        return "y\n"


COMMANDS = {
    "rollback": ["rollback", "main-2#1"],
    "undo": ["undo"],
    "redo": ["redo"],
    "switch": ["switch", "main", "--sync", "world"],
}
ASK_ONLY = {
    "checkpoint delete", "delete", "users delete", "workspace delete", "workspace restore", "workspace undo",
    "rewind-files",
}  # fmt: skip
"""The commands that ask before they delete or restore something; none reverses a call."""


def asking(group, above=""):
    """Yield the commands that can be told not to ask."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from asking(one, f"{name} ")
        elif any("--yes" in option.opts for option in one.params):
            yield above + name


def test_every_command_that_asks_is_known():
    assert {*asking(every_command())} == {*COMMANDS, *ASK_ONLY, "chat", "resume"}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_carries_out_the_plan_that_it_has_shown(tmp_path, monkeypatch, words):
    """At a terminal it shows the new plan and asks again; in a pipe it fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTGIT_TRUST", "shelf")
    with shelf_in(tmp_path) as shelf:

        def turn(*items):
            replies = [reply for item in items for reply in (call("put", item=item), "ok")]
            with agentgit.open("agentgit.db") as repo:
                agent = repo.wrap(tool_node_graph(says(*replies), [shelf.put]), "s")
                for item in items:
                    agent.run(item)

        turn("cup", "jug")
        run("undo", "--yes")
        turn("pot")
        refused = run(*words, stdin=Person(lambda: turn("pan"), at_terminal=False))
        assert (refused.code, shelf.items()) == (PlanChanged.exit_code, ["cup", "pot", "pan"])
        assert refused.out.count("put(item='pan')") == 1
        person = Person(lambda: turn("lid"), at_terminal=True)
        done = run(*words, stdin=person)
        assert (done.code, person.asked, "the confirmed plan is not" in done.err) == (0, 2, True)
        assert "lid" not in shelf.items()


@pytest.mark.parametrize("answer", ["", "n\n", "y\n", "--yes"])
def test_the_command_that_resumes_asks_before_it_does_more(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTGIT_TRUST", "shelf")
    with shelf_in(tmp_path) as shelf, agentgit.open("agentgit.db") as repo:
        replies = [reply for item in ("cup", "jug", "pan") for reply in (call("put", item=item), "ok")]
        agent = repo.wrap(tool_node_graph(says(*replies), [shelf.put]), "s")
        agent.run("a cup")
        agent.run("a jug")
        shelf.FILE.write_text('["cup"]')
        assert run("rollback", "main#2", "--yes").code == RollbackIncomplete.exit_code
        shelf.FILE.write_text('["cup", "jug"]')
        agent.run("a pan")
        (operation,) = [one.id for one in repo.session("s").operations()]
        words = ["--yes"] if answer == "--yes" else []
        done = run("resume", operation, *words, stdin=answer)
        does = answer in ("y\n", "--yes")
        assert (done.code == 0, shelf.items()) == (does, ["cup"] if does else ["cup", "jug", "pan"])
        assert ("Resume in" in done.out + done.err, "reverse  put(item='pan')" in done.out) == (not words, not words)


def test_a_chat_that_resumes_asks_before_it_does_more(repo, agent, half, world, monkeypatch):
    person = Person(lambda: None, at_terminal=True)
    monkeypatch.setattr("sys.stdin", person)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with chatting(repo, agent) as chat:
        chat.handle_line(f"/resume {half}")
    assert (person.asked, world.items) == (1, ["chair"])


def test_a_chat_carries_out_the_plan_that_it_has_shown(repo, agent, another, world, monkeypatch):
    person = Person(lambda: another().run("add vase"), at_terminal=True)
    monkeypatch.setattr("sys.stdin", person)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with chatting(repo, agent) as chat:
        chat.handle_line("/undo")
    assert (person.asked, world.items) == (2, ["chair", "lamp"])


def test_the_http_api_carries_out_the_plan_that_is_named(repo, agent, another, world):
    key = repo.keys.create("a program", scopes=("admin",)).secret
    client = TestClient(app(repo), headers={"authorization": f"Bearer {key}"})
    at = f"/api/v1/sessions/{agent.session.id}"
    for planned, path, body in (
        ("plan-rollback?to=one&tools=keep&conversation=false", "rewind-files", {"restore_point": "one"}),
        ("plan-rollback?to=one", "rollback", {"to": "one"}),
        ("plan-switch?branch=main", "switch", {"branch": "main"}),
    ):
        plan = client.get(f"{at}/{planned}").json()["identity"]
        another().run("add vase")
        before = list(world.items)
        refused = client.post(f"{at}/{path}", json={**body, "plan": plan})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:agentgit:error:PlanChanged")
        assert world.items == before
        done = client.post(f"{at}/{path}", json={**body, "plan": refused.json()["plan"]["identity"]})
        assert done.status_code < 300, done.text
    assert world.items == ["chair", "table"]


def test_the_http_api_resumes_what_is_named(repo, half, world):
    key = repo.keys.create("a program", scopes=("admin",)).secret
    client = TestClient(app(repo), headers={"authorization": f"Bearer {key}"})
    refused = client.post(f"/api/v1/operations/{half}/resume", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:agentgit:error:PlanChanged")
    assert world.items == ["chair", "lamp", "vase"]
    plan = refused.json()["plan"]["identity"]
    done = client.post(f"/api/v1/operations/{half}/resume", json={"plan": plan})
    assert (done.status_code, world.items) == (200, ["chair"])


async def test_the_mcp_server_resumes_what_is_named(repo, half, world):
    async with connected(repo) as client:
        refused = await client.call_tool("resume", {"operation": half})
        assert refused.structuredContent["error"] == "PlanChanged"
        assert f"`resume` with operation {half} and plan=IDENTITY" in refused.content[0].text
        assert world.items == ["chair", "lamp", "vase"]
        plan = refused.structuredContent["plan"]["identity"]
        done = await client.call_tool("resume", {"operation": half, "plan": plan})
        assert (done.isError, world.items) == (False, ["chair"])


def test_a_page_resumes_what_it_has_shown(repo, another, half, world):
    visitor, at = Visitor(repo), f"/operations/{half}"
    page = visitor.post(visitor.get(at), f"{at}/resume", 409)
    assert "vase" in page.text
    another().run("add rug")
    page = visitor.post(page, f"{at}/resume", 409)
    assert ("rug" in page.text, world.items) == (True, ["chair", "lamp", "vase", "rug"])
    page = visitor.post(page, f"{at}/resume")
    assert ("Rollback done" in page.text, world.items) == (True, ["chair"])


def test_a_page_carries_out_the_plan_that_it_has_shown(repo, agent, another, world):
    visitor, at = Visitor(repo), f"/sessions/{agent.session.id}"
    edited = message(agent, "add table", "main")
    for shown, action, fields in (
        (f"{at}/rollback?to=one", f"{at}/rollback", {}),
        (f"{at}/switch?branch=main", f"{at}/switch", {"sync": "world"}),
        (f"{at}/edit?branch=main&message={edited}", f"{at}/edit", {"text": "hi"}),
    ):
        page = visitor.get(shown)
        another().run("add vase")
        before = list(world.items)
        assert "vase" in visitor.post(page, action, 409, **fields).text
        assert world.items == before
        visitor.post(visitor.get(shown), action, **fields)
        assert "vase" not in world.items


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # ipywidgets asks for its kernel when a widget is made
def test_a_click_carries_out_the_plan_that_is_shown(agent, another, world):
    widget = browse(agent).widget

    def click(action, ref):
        widget._handle_custom_msg({"action": action, "value": str(ref)}, [])

    main = agent.get_checkpoint("main").id
    click("sync", main)
    assert world.items == ["chair", "lamp"]
    click("switch", main)
    another().run("add vase")
    click("sync", main)
    assert world.items == ["chair", "lamp", "vase"]
    assert "vase" in widget.state["panel"]
    click("sync", main)
    assert world.items == ["chair", "table"]


def test_a_served_graph_restores_the_files_that_it_asked_about(repo, world, tmp_path):
    files = tmp_path / "served"

    @tool
    def note(text: str) -> None:
        """Write a note."""
        (files / "note").write_text(text)

    tools = [note, *(one for one in world.tools() if one.name != "note")]
    served = repo.graph(tool_node_graph(obedient(), tools), effects=world.effects(note="workspace"), workspace=files)
    old, _ = served_run(served, "note one", "note two; charge 5")
    for answer, noted in ((False, "two"), (True, "one")):
        asked = served.invoke(said("add cup"), old)["__interrupt__"][0].value
        assert "1 file to be restored" in asked["message"]
        served.invoke(Command(resume=answer), THREAD)
        assert (files / "note").read_text() == noted
    assert (world.charges, world.items) == ([], ["cup"])
