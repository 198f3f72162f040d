"""What an import brings is history: whatever is done with it, nothing of it runs here.

Each verb meets each kind of imported call. The truth is a ledger outside, in which every tool and every function that
undoes or verifies writes.
"""

import asyncio
from contextlib import suppress
from functools import cache
from io import BytesIO
from uuid import UUID

import backend
import pytest
from chats import send_message
from exports import forged, of, written
from fastapi.testclient import TestClient
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.func import entrypoint
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from mcp_clients import connected
from scripted import call, calls, node_graph, say, tool_node_graph

import agentgit
from agentgit import AgentGitError, Conflict, Corrupt, NotDone, RollbackBlocked, compensable, reversible
from agentgit.demo import ScriptedModel
from agentgit.web import app


class Shop:
    """A shop with a ledger, which a person's message tells what to do, like `order sofa`."""

    def __init__(self):
        self.ledger, self.memory = [], InMemoryStore()
        self.graph = self.compiled()
        undo, verify = (lambda args, result: self._note("undo", args["item"])), (lambda call: self._verify(call))
        self.effects = dict.fromkeys(("order", "ask"), reversible(undo, verify=verify))
        self.effects |= dict.fromkeys(("pay", "doubt", "refuse", "die"), compensable(undo, verify=verify))
        self.effects |= {"mail": "irreversible", "look": "read_only", "ring": "idempotent", "desk": "read_only"}

    def close(self):
        """Forget all that happened."""
        self.ledger.clear()
        for item in self.memory.search(()):
            self.memory.delete(item.namespace, item.key)

    @property
    def acts(self):
        """All that happened here."""
        return [*self.ledger, *(item.key for item in self.memory.search(()))]

    def agent(self, repo, session="file", **options):
        return repo.wrap(self.graph, session, effects=self.effects, store=self.memory, **options)

    def _note(self, what, item):
        self.ledger.append(f"{what} {item}")
        return {"item": item}

    def _verify(self, call):
        self._note("verify", call.args["item"])

    def compiled(self, checkpointer=None):
        def acting(name):
            def act(item: str) -> dict:
                return self._note(name, item)

            return tool(name, description="Act.")(act)

        @tool
        def ask(item: str) -> dict:
            """Act if a person agrees."""
            return self._note("ask", item) if interrupt(item) == "yes" else {}

        @tool
        def doubt(item: str) -> dict:
            """Act, and raise."""
            self._note("doubt", item)
            raise RuntimeError("the line is dead")

        @tool
        def refuse(item: str) -> dict:
            """Do nothing."""
            raise NotDone("closed")

        @tool
        def die(item: str) -> None:
            """Act, and be stopped."""
            self._note("die", item)
            raise KeyboardInterrupt

        @tool
        def keep(item: str) -> str:
            """Remember."""
            get_store().put(("shop",), item, {"kept": True})
            return item

        @tool
        def desk(item: str) -> str:
            """Order through another tool."""
            return str(order.invoke({"item": item}))

        order, *others = map(acting, ("order", "pay", "mail", "look", "ring", "note"))
        tools = {one.name: one for one in (order, *others, ask, doubt, refuse, die, keep, desk)}

        def rule(messages):
            words = str(messages[-1].content).split() if messages and messages[-1].type == "human" else ()
            named = zip(words[::2], words[1::2], strict=False)
            return calls(*(call(name, item=item) for name, item in named)) if {*words} & {*tools} else AIMessage("fine")

        return tool_node_graph(ScriptedModel(rule=rule), list(tools.values()), checkpointer, handle_tool_errors=True)


SHOP = Shop()


# -- the kinds of calls that a file can bring


def rolled_back(agent):
    agent.run("order sofa")
    return agent.rollback("main#2")


def interrupted(agent, repo):
    with pytest.raises(KeyboardInterrupt):
        agent.run("die sofa")


def many(agent, repo):
    agent.run("order a pay a mail a look a ring a note a refuse a doubt a keep a desk b")
    agent.rerun(name="better")
    agent.fork(name="asking").invoke(say("ask sofa"))


KINDS = {
    **{f"done {name}": f"{name} sofa" for name in ("order", "pay", "mail", "look", "ring")},
    "undeclared": "note sofa",
    "failed": "refuse sofa",
    "unknown": "doubt sofa",
    "interrupted": interrupted,
    "paused": "ask sofa",
    "memory": "keep sofa",
    "nested": "desk sofa",
    "reversed": lambda agent, repo: rolled_back(agent),
    "redo": lambda agent, repo: rolled_back(agent).switch("main", sync="world"),
    "replay": lambda agent, repo: [agent.run("order sofa"), agent.rollback("main#3", name="again")],
    "explored": lambda agent, repo: agent.explore(["order sofa"], choices=1),
    "explored, waiting": lambda agent, repo: agent.explore(["ask sofa"], choices=1, name="e"),
    "simulated": lambda agent, repo: [agent.run("order sofa"), agent.rerun(name="better")],
    "simulated pay": lambda agent, repo: [agent.run("pay sofa"), agent.rerun(name="better")],
}
"""For each kind of call, the message or the function that makes a session with it."""


@cache
def file_of(kind):
    """Return the export of a session with a call of this kind, which was made in another shop."""
    SHOP.close()
    with agentgit.open(":memory:") as repo:
        agent, make = SHOP.agent(repo), KINDS.get(kind, many)
        agent.run("hello")
        agent.invoke(say(make)) if isinstance(make, str) else make(agent, repo)
        assert SHOP.acts or kind in ("failed", "paused", "explored, waiting")
        return written(repo, "file")


# -- the verbs


def every_branch(verb):
    """Try a verb on each branch of the imported session, from a new agent on each branch."""

    def run(repo):
        for here in repo.session("file").branches():
            for name in [branch.name for branch in repo.session("file").branches()]:
                with suppress(AgentGitError):
                    verb(SHOP.agent(repo, branch=here.name), name)

    return run


def goes_on(*inputs):
    """Try to make the graph go on with each input, at each branch, and at a fork and a rollback of it."""

    def run(repo):
        for branch in repo.session("file").branches():
            for value in inputs:
                for move in (lambda one: one, lambda one: one.fork(), lambda one: one.rollback("HEAD", force=True)):
                    with suppress(AgentGitError):
                        agent = move(SHOP.agent(repo, branch=branch.name))
                        agent.invoke(value)

    return run


def updates(as_node):
    def run(repo):
        agent = SHOP.agent(repo)
        agent.update_state(None, {"messages": [("user", "go on")]}, as_node=as_node)
        for value in (None, Command(resume="yes"), Command(goto="tools")):
            with suppress(AgentGitError):
                agent.invoke(value)

    return run


def template(**how):
    def run(repo):
        for point in repo.session("file").checkpoints():
            with suppress(AgentGitError):
                agent = SHOP.agent(repo, f"from {point.id}", template=point, **how)
                agent.invoke(Command(resume="yes"))

    return run


def resolve(outcome):
    def run(repo):
        for branch in repo.session("file").branches():
            for one in repo.session("file").tool_track(branch=branch):
                with suppress(AgentGitError):
                    repo.resolve(one, outcome)
            with suppress(AgentGitError):
                SHOP.agent(repo, branch=branch.name).rollback("main#1", force=True)

    return run


def resume(repo):
    SHOP.agent(repo)
    for operation in repo.session("file").operations():
        with suppress(AgentGitError):
            repo.resume(operation.id, force=True)


VERBS = {
    "rollback": every_branch(lambda agent, to: agent.rollback(to, force=True)),
    "rollback to the begin": every_branch(lambda agent, to: agent.rollback("main#1", force=True)),
    "rollback, redo": every_branch(lambda agent, to: agent.rollback(to, replay="redo", force=True)),
    "rollback, execute": every_branch(lambda agent, to: agent.rollback(to, replay="execute")),
    "rollback, execute, force": every_branch(lambda agent, to: agent.rollback(to, replay="execute", force=True)),
    "undo": every_branch(lambda agent, to: agent.undo(force=True)),
    "redo": every_branch(lambda agent, to: agent.redo(force=True)),
    "undo, redo": every_branch(lambda agent, to: agent.undo(force=True).redo(force=True)),
    **{
        f"switch {sync} {force}": every_branch(lambda agent, to, s=sync, f=force: agent.switch(to, sync=s, force=f))
        for sync, force in (("world", False), ("world", True), ("note", True), ("ignore", True))
    },
    "promote": every_branch(lambda agent, to: agent.promote(to, force=True)),
    "merge": every_branch(lambda agent, to: (agent.merge(to, resolve="theirs"), agent.invoke(Command(goto="tools")))),
    "cherry-pick": every_branch(lambda agent, to: (agent.cherry_pick(to), agent.invoke(Command(goto="tools")))),
    "rerun, promote": every_branch(lambda agent, to: agent.promote(agent.rerun().branch, force=True)),
    "rerun, switch": every_branch(
        lambda agent, to: agent.switch(agent.rerun(on_miss=lambda call: "yes").branch, sync="world", force=True)
    ),
    "explore": every_branch(lambda agent, to: agent.explore(["ask sofa"], choices=1, name="e")),
    "edit": every_branch(lambda agent, to: agent.edit(agent.history()[0]["id"], "hi")),
    "answer": goes_on(Command(resume="yes")),
    "retry": goes_on(None),
    "goto": goes_on(Command(goto="tools")),
    "update": goes_on(Command(update={"messages": [("user", "hi")]})),
    "new message": goes_on({"messages": [("user", "hi")]}),
    **{f"update_state as {node}": updates(node) for node in ("model", "tools", "__input__", "__start__")},
    "template": template(),
    "template, execute": template(replay="execute"),
    "template, execute, force": template(replay="execute", force=True),
    "resolve happened": resolve("happened"),
    "resolve did_not_happen": resolve("did_not_happen"),
    "resume": resume,
}


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_of_a_file_with_many_kinds_of_calls_acts(repo, verb):
    test_nothing_that_a_file_brings_acts(repo, verb, "many")


@pytest.mark.each_value_once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_that_a_file_brings_acts(repo, verb, kind):
    repo.import_(BytesIO(file_of(kind)))
    SHOP.close()
    VERBS[verb](repo)
    assert SHOP.acts == []


# -- through other doors


def brought(repo, kind, **how):
    """Import a session with a call of this kind, and return an agent on it."""
    repo.import_(BytesIO(file_of(kind)))
    SHOP.close()
    return SHOP.agent(repo, **how)


def test_a_program_cannot_run_it_over_http(repo):
    repo.users.add("ada")
    repo = repo.as_user("ada")
    agent = brought(repo, "simulated")
    key = repo.keys.create("a program", scopes=("admin",)).secret
    with TestClient(app(repo), headers={"authorization": f"Bearer {key}"}) as client:
        at = f"https://git.example/api/v1/sessions/{agent.session.id}"
        plan = client.get(f"{at}/plan-switch?branch=better").json()
        assert [step["action"] for step in plan["steps"]] == ["keep", "block"]
        for force in (False, True):
            answer = client.post(f"{at}/switch", json={"branch": "better", "sync": "world", "force": force})
            assert (answer.status_code, "imported" in answer.text) == (409, True)
    assert SHOP.acts == []


async def test_a_model_cannot_run_it_over_mcp(repo):
    brought(repo, "simulated")
    for may_force in (False, True):
        async with connected(repo, repo.session("file"), may_force=may_force) as client:
            plan = await client.call_tool("plan_switch", {"branch": "better", "force": may_force})
            assert "identity" not in plan.structuredContent
            asked = {"branch": "better", "sync": "world", "plan": "x", "force": may_force}
            refused = (await client.call_tool("switch", asked)).structuredContent["error"]
            assert refused == "PlanChanged"
    assert SHOP.acts == []


@pytest.mark.parametrize("value", [None, Command(resume="yes"), Command(goto="tools")])
async def test_a_served_graph_does_not_run_it(repo, value):
    brought(repo, "paused")
    served = repo.graph(SHOP.graph, effects=SHOP.effects, store=SHOP.memory)
    config = {"configurable": {"thread_id": "file"}}
    for served_run in (lambda: list(served.stream(value, config)), lambda: asyncio.run(served.ainvoke(value, config))):
        with pytest.raises(Conflict, match="imported"):
            await asyncio.to_thread(served_run)
    assert served.get_state(config).next == ("tools",)
    assert SHOP.acts == []


async def test_in_a_chat_a_message_to_an_imported_question_is_no_answer(repo):
    agent = brought(repo, "paused")
    pieces = [one async for one in send_message(agent, "yes")]
    assert [one.text for one in pieces] == ["fine"]
    assert SHOP.acts == []


# -- what goes on


def test_after_a_new_message_the_session_is_ones_own(repo):
    """The turns that begin with a message here act, ask, are answered and rolled back like any other."""
    agent = brought(repo, "paused")
    agent.invoke(say("ask lamp"))
    agent.invoke(Command(resume="yes"))
    agent.run("order table")
    assert SHOP.acts == ["ask lamp", "order table"]
    agent.rollback("main#2")
    assert SHOP.acts[2:] == ["undo table", "undo lamp"]


def test_plans_do_not_repeat_the_claim_of_a_file(repo):
    agent = brought(repo, "done pay")
    for plan in (agent.plan_rollback("main#1"), agent.plan_rollback("HEAD", replay="execute")):
        (step,) = [one for one in plan.steps if one.action in ("keep", "block")]
        assert "compensable, imported" in plan._repr_html_()
        assert "it was imported" in step.why


def test_the_calls_of_ones_own_template_still_run(repo):
    SHOP.close()
    agent = SHOP.agent(repo, "own")
    agent.run("order sofa")
    SHOP.agent(repo, "second", template="own", replay="execute")
    assert SHOP.acts == ["order sofa", "order sofa"]


def test_a_template_of_an_imported_session_says_why_its_calls_do_not_run(repo):
    brought(repo, "done order")
    with pytest.raises(RollbackBlocked, match="what a file brings never runs"):
        SHOP.agent(repo, "second", template="file", replay="execute")
    assert [one.session_name for one in repo.sessions()] == ["file"]


def test_checkpoints_as_plain_json_do_not_act_either(repo):
    message = {"role": "assistant", "content": "", "tool_calls": [dict(call("order", "c1", item="sofa"))]}
    repo.import_([agentgit.Checkpoint(conversation_history=[message])], session="file")
    SHOP.close()
    for value in (None, Command(goto="tools"), Command(resume="yes")):
        with pytest.raises(Conflict, match="imported"):
            SHOP.agent(repo).invoke(value)
    updates("model")(repo)
    assert SHOP.acts == []
    SHOP.agent(repo).run("order lamp")
    assert SHOP.acts == ["order lamp"]


# -- files that were made to act


def test_a_file_cannot_make_a_new_message_go_on_with_what_waits(repo):
    """LangGraph goes on with what waits if the run of a checkpoint is the one that begins, also if both are None."""

    def change(records):
        for state in of(records, "state"):
            state["meta"]["run_id"] = None

    with pytest.raises(Corrupt, match="run_id cannot come from a file"):
        repo.import_(forged(file_of("paused"), change))
    repo.import_(forged(file_of("paused"), lambda _: None))
    SHOP.close()
    agent = SHOP.agent(repo)
    agent.run("hello again")
    assert (agent.history()[-1]["content"], agent.get_state().next) == ("fine", ())


def test_a_subagent_with_memory_does_not_go_on_with_what_waits_in_a_file(repo):
    """An answer to a question of one's own makes LangGraph go on in each subgraph, also with the call of the file."""
    subagent = SHOP.compiled(checkpointer=True)

    def supervise(state):
        answer = interrupt("may I?") if "lamp" in str(state["messages"][-1].content) else "yes"
        return {"messages": subagent.invoke({"messages": [("user", f"ask {answer}")]})["messages"][-1:]}

    graph = node_graph(supervise)
    with agentgit.open(":memory:") as origin:
        origin.wrap(graph, "file").invoke(say("sofa"))
        data = written(origin, "file")
    repo.import_(BytesIO(data))
    agent = repo.wrap(graph, "file")
    agent.invoke(say("lamp"))
    SHOP.close()
    for answer in ("yes", "yes"):
        with pytest.raises(Conflict, match="subgraph 'act' stands at an imported checkpoint"):
            agent.invoke(Command(resume=answer))
    assert SHOP.acts == []
    agent.invoke(say("table"))  # it asks in the subagent, which begins anew
    agent.invoke(Command(resume="yes"))
    assert SHOP.acts == ["ask yes"]


def test_a_file_cannot_bring_the_answer_to_a_later_question(repo):
    @entrypoint()
    def graph(word):
        return interrupt("sure?")

    with agentgit.open(":memory:") as origin:
        agent = origin.wrap(graph, "file")
        agent.invoke("go")
        saver = backend.saver(origin)
        head = saver.get_tuple({"configurable": {"thread_id": agent.branch.langgraph_session_id}})
        saver.put_writes(head.config, [("__resume__", "yes")], str(UUID(int=0)))
        data = written(origin, "file")
    repo.import_(BytesIO(data))
    agent = repo.wrap(graph, "file")
    assert [one.value for one in agent.invoke("go")["__interrupt__"]] == ["sure?"]
    assert agent.invoke(Command(resume="no")) == "no"
