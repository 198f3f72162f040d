"""Two tools of one name: each call has the effect and the undo of the tool that ran, here and after a restart."""

import asyncio
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable

import backend
import namesakes
import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.graph import MessagesState
from langgraph.types import interrupt
from namesakes import (
    FORMS,
    KINDS,
    Desk,
    Ledger,
    asking,
    declared,
    go_back,
    graph_of,
    made_tool,
    pairs,
    session_name,
    shop_of,
    shown,
)
from scripted import node_graph

import agentgit
from agentgit import Fenced, InvalidInput, RollbackBlocked, effect, reversible


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def order_both(agent, *, is_async: bool = False) -> None:
    """Let the tool that the graph shows order a chair, and the other one order the same."""
    agent.checkpoint("start")
    for text in ("visible chair", "hidden chair"):
        if is_async:
            asyncio.run(agent.ainvoke({"messages": [("user", text)]}))
        else:
            agent.invoke({"messages": [("user", text)]})


def ordered(visible: str, hidden: str, form: str = "") -> list[str]:
    """Return the orders that the ledger has after both."""
    names = (
        ("visible visible chair", "hidden hidden chair") if form == "override" else ("visible chair", "hidden chair")
    )
    return [name for name, kind in zip(names, (visible, hidden), strict=True) if kind != "read_only"]


def blocking(visible: str, hidden: str) -> list[str]:
    return sorted(kind for kind in (visible, hidden) if kind == "irreversible")


@pytest.mark.each_value_once  # the test after a restart has each pair in each form
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("visible", "hidden"), pairs())
def test_each_call_is_undone_as_the_tool_that_ran_declares(repo, ledger, form, visible, hidden):
    agent = repo.wrap(graph_of(form, visible, hidden, ledger), "s")
    order_both(agent, is_async=form in ("subagent", "closure", "override", "factory") and hidden == "compensable")
    orders = [call.effect for call in agent.tool_track() if call.tool_name == "order"]
    assert (orders, ledger.standing()) == ([visible, hidden], ordered(visible, hidden, form))
    assert go_back(agent) == blocking(visible, hidden)
    if blocking(visible, hidden):
        agent.rollback("start", force=True)
    kept = [kind if kind == "irreversible" else "read_only" for kind in (visible, hidden)]
    assert ledger.standing() == ordered(*kept, form)


@pytest.mark.long
def test_each_call_is_undone_after_a_restart_as_its_tool_declares(repo, tmp_path):
    cases = [(form, *pair) for form in FORMS for pair in pairs()]
    for case in cases:
        agent = repo.wrap(graph_of(*case, Ledger(tmp_path / session_name(*case))), session_name(*case))
        order_both(agent)
    code = "import sys, namesakes; namesakes.go_back_everywhere(*sys.argv[1:])"
    command = [sys.executable, "-c", code, backend.address(repo), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)  # noqa: S603  # our own
    blocked = json.loads(done.stdout)
    for form, visible, hidden in cases:
        name = session_name(form, visible, hidden)
        assert blocked[name] == blocking(visible, hidden), name
        stands = ordered(visible, hidden, form) if blocked[name] else []
        assert Ledger(tmp_path / name).standing() == stands, name


SUPERVISOR = """
import sys
import agentgit
from agentgit import reversible
from agentgit.demo import ScriptedModel
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import MessagesState
from namesakes import Ledger, obeying

ledger = Ledger(sys.argv[2])


@tool
@reversible(lambda args, result: ledger.write("cancel", result))
def book_flight(item: str) -> str:
    "Book a flight."
    ledger.write("order", item)
    return item


flights = create_agent(obeying("book_flight"), [book_flight], name="flights")


@tool
def ask_flights(item: str) -> str:
    "Let the flight desk do something."
    return flights.invoke({"messages": [("user", item)]})["messages"][-1].text


supervisor = create_agent(obeying("ask_flights"), [ask_flights])
with agentgit.open(sys.argv[1]) as repo:
    travel = repo.wrap(supervisor, session="travel", effects={"ask_flights": "read_only"})
    travel.run(sys.argv[3]) if len(sys.argv) > 3 else travel.undo()
"""


@pytest.mark.long
def test_a_supervisor_is_undone_after_a_restart_as_soon_as_it_is_wrapped(repo, ledger, tmp_path):
    """The recipe of the docs: the tool of a subagent that a tool names as a global, without `trust`."""
    script = tmp_path / "travel.py"
    script.write_text(SUPERVISOR)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for words in (["Rome"], ["Oslo"], []):
        command = [sys.executable, str(script), backend.address(repo), str(ledger.path), *words]
        subprocess.run(command, check=True, env=environment)  # noqa: S603  # our own program
    assert ledger.standing() == ["Rome"]


@pytest.mark.parametrize("form", FORMS)
def test_a_live_rerun_does_not_act_through_the_name_of_a_tool_that_reads(repo, ledger, form):
    agent = repo.wrap(graph_of(form, "read_only", "irreversible", ledger), "s")
    order_both(agent)
    before = ledger.lines()
    agent.rerun(tools="live")
    assert ledger.lines() == before != []


def test_a_live_rerun_in_another_graph_does_not_run_a_tool_that_has_the_name_of_one_that_reads(repo, ledger):
    agent = repo.wrap(shown([namesakes.visible_tool("read_only", ledger)]), "s")
    agent.invoke({"messages": [("user", "visible chair")]})
    again = agent.rerun(shown([namesakes.hidden_tool("irreversible", ledger)]), tools="live")
    assert [call.answered_by for call in again.report.calls] == ["record"]
    assert ledger.lines() == []


def test_a_rerun_answers_each_call_from_the_record_of_its_tool(repo, ledger):
    """Two tools of one name get the same arguments, and another graph calls them in another order."""

    def graph(*tools):
        return shown([asking(lambda item: " and ".join(one.invoke({"item": item}) for one in tools))])

    tools = [made("irreversible", ledger) for made in (namesakes.visible_tool, namesakes.hidden_tool)]
    agent = repo.wrap(graph(*tools), "s")
    agent.invoke({"messages": [("user", "hidden chair")]})
    again = agent.rerun(graph(*reversed(tools)), tools={"ask": "live"})
    assert again.report.match_rate == 1
    assert again.messages()[2].content == "hidden chair and visible chair"


def test_a_rerun_asks_the_open_question_of_the_tool_that_asked_it(repo, ledger):
    """Another graph calls the other tool of its name first, with the same arguments: its call is a miss."""

    def asker(question: str) -> Callable[[str], str]:
        return lambda item: interrupt(f"{question} {item}?")

    def visible_order(item: str) -> str:
        """Order something."""
        return asker("shall I")(item)

    def hidden_order(item: str) -> str:
        """Order something elsewhere."""
        return asker("may I")(item)

    def graph(*functions):
        tools = [tool("order")(effect("irreversible")(one)) for one in functions]
        return shown([asking(lambda item: " and ".join(one.invoke({"item": item}) for one in tools))])

    agent = repo.wrap(graph(visible_order, hidden_order), "s")
    agent.invoke({"messages": [("user", "hidden chair")]})
    again = agent.rerun(graph(hidden_order, visible_order), tools={"ask": "live"})
    assert [call.answered_by for call in again.report.calls] == ["live", "told", "record"]
    assert again.report.unanswered == []
    assert again.get_state().interrupts[0].value == "shall I chair?"


def test_a_name_of_several_tools_of_another_graph_is_refused_in_a_rerun(repo, ledger):
    agent = repo.wrap(shown([made_tool("irreversible", "one", ledger)]), "s", effects={"order": "idempotent"})
    agent.invoke({"messages": [("user", "visible chair")]})
    other = namesakes.by_closure(*(made_tool("irreversible", name, ledger) for name in ("one", "two")))
    with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
        agent.rerun(other)
    own = repo.wrap(shown([namesakes.visible_tool("read_only", ledger)]), "t")
    own.invoke({"messages": [("user", "visible chair")]})
    with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
        own.rerun(other, tools={"order": "sold out"})
    again = own.rerun(other, tools=lambda call: f"{call.tool_name} of {call.enclosing or 'the graph'}")
    assert again.messages()[2].content == "order of the graph"


@pytest.mark.parametrize("form", ["subagent", "closure", "dict", "helper", "node", "override"])
def test_a_hidden_tool_can_be_redone(repo, ledger, form):
    agent = repo.wrap(graph_of(form, "reversible", "reversible", ledger), "s")
    order_both(agent)
    agent.rollback("start")
    assert ledger.standing() == []
    agent.session.switch("main", sync="world")
    assert sorted(ledger.standing()) == sorted(ordered("reversible", "reversible", form))


# -- keys of effects


def test_a_key_names_one_tool_or_is_refused(repo, ledger):
    graph = graph_of("subagent", "read_only", "read_only", ledger)
    with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
        repo.wrap(graph, "s", effects={"order": "irreversible"})
    agent = repo.wrap(graph, "s", effects={"ask.order": "irreversible"})
    order_both(agent)
    assert [(c.tool_name, c.effect) for c in agent.tool_track()] == [
        ("order", "read_only"), ("ask", "state"), ("order", "irreversible"),
    ]  # fmt: skip
    assert agent.effects == {"ask": "state", "ask.order": "irreversible", "order": "read_only"}


def test_a_name_that_the_repository_declares_is_that_of_one_tool(database):
    def order(item: str) -> str:
        """Order."""
        return item

    def desk_order(item: str) -> str:
        """Order at the desk."""
        return item

    shown_tool, hidden = tool("order")(order), tool("order")(desk_order)
    graph = namesakes.by_closure(shown_tool, hidden)
    with agentgit.open(database.url, effects={"order": reversible(lambda args, result: None)}) as repo:
        with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
            repo.wrap(graph, "s")
        agent = repo.wrap(graph, "s", effects={"ask.order": "irreversible"})
        assert agent.effects == {"ask": "state", "ask.order": "irreversible", "order": "reversible"}
        made_late = shown([shown_tool, asking(lambda item: tool("order")(desk_order).invoke({"item": item}))])
        with pytest.raises(InvalidInput, match=r"two tools are called that: .*order and .*desk_order"):
            repo.wrap(made_late, "t").invoke({"messages": [("user", "hidden chair")]})


def test_the_name_of_two_tools_of_a_factory_is_refused(repo, ledger):
    """An effect without an undo function fits one tool only, too."""
    one, two = (made_tool("irreversible", name, ledger) for name in ("one", "two"))
    graph = namesakes.by_closure(one, two)
    with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
        repo.wrap(graph, "s", effects={"order": "read_only"})
    agent = repo.wrap(graph, "s", effects={"ask.order": "irreversible", "order": "read_only"})
    assert agent.effects == {"ask": "state", "ask.order": "irreversible", "order": "read_only"}


def test_the_function_of_a_tool_is_a_key(repo, ledger):
    shown_tool, hidden = namesakes.visible_tool("read_only", ledger), namesakes.hidden_tool("read_only", ledger)
    graph = namesakes.by_closure(shown_tool, hidden)
    agent = repo.wrap(graph, "s", effects={hidden.func: "irreversible", "ask": "state"})
    order_both(agent)
    assert [c.effect for c in agent.tool_track()] == ["read_only", "state", "irreversible"]
    with pytest.raises(InvalidInput, match="twice"):
        repo.wrap(
            graph, "t", effects={shown_tool.func: "irreversible", "ask.order": "idempotent", "order": "idempotent"}
        )


def test_tools_of_one_function_are_known_by_their_names(repo):
    def order(item: str) -> str:
        """Order something."""
        return item

    graph = shown([tool("order")(order), tool("look")(order)])
    agent = repo.wrap(graph, "s", effects={"look": "read_only", "order": reversible(lambda args, result: None)})
    assert agent.effects == {"look": "read_only", "order": "reversible"}


def test_two_wrappers_of_one_function_are_two_tools(repo, ledger):
    """Each has its own effect and is undone by its own function; the name of both is refused as a key."""

    def order(item: str) -> str:
        """Order something."""
        return item

    def wrapper(who: str) -> BaseTool:
        @tool("order")
        @functools.wraps(order)
        def wrapped(item: str) -> str:
            ledger.write("order", who, item)
            return order(item)

        return wrapped

    first, second = wrapper("first"), wrapper("second")
    graph = namesakes.by_closure(first, second)
    with pytest.raises(InvalidInput, match=r"several tools called order: ask\.order, order"):
        repo.wrap(graph, "s", effects={"order": declared("reversible", "first", ledger)})
    with pytest.raises(InvalidInput, match=r"no tool .*order; it has ask, order"):
        repo.wrap(graph, "s", effects={order: declared("reversible", "first", ledger)})
    effects = {one.func: declared("reversible", who, ledger) for one, who in ((first, "first"), (second, "second"))}
    agent = repo.wrap(graph, "s", effects=effects)
    order_both(agent)
    assert ledger.standing() == ["first chair", "second chair"]
    agent.rollback("start")
    assert ledger.standing() == []


@pytest.mark.parametrize("place", ["wrap", "open"])
def test_a_tool_that_only_its_wrapper_holds_has_not_the_effect_of_the_wrapper(database, ledger, place):
    """The name means the wrapper, whose undo takes back what the wrapped tool did, too."""

    @tool("order")
    def inner(item: str) -> str:
        """Order something."""
        ledger.write("order", "inner", item)
        return item

    @tool("order")
    @functools.wraps(inner.func)
    def outer(item: str) -> str:
        return inner.invoke({"item": item})

    effects = {"order": declared("reversible", "inner", ledger)}
    with agentgit.open(database.url, effects=effects if place == "open" else None) as repo:
        agent = repo.wrap(shown([outer]), "s", effects=effects if place == "wrap" else None)
        assert agent.effects == {"order": "reversible", "order.order": "undeclared"}
        order_visible(agent)
        assert ledger.standing() == ["inner chair"]
        agent.rollback("start")
    assert ledger.standing() == []


# -- tools that cannot be told apart


def two_of_a_factory(ledger, *names):
    """Return a graph with a tool that calls one of several tools of one name from a dict, by the item."""
    desks = {name: made_tool("reversible", name, ledger) for name in names}
    return shown([asking(lambda item: desks[item].invoke({"item": item}))])


def order_of(agent, *names) -> None:
    agent.checkpoint("start")
    for name in names:
        agent.invoke({"messages": [("user", f"hidden {name}")]})


def test_tools_of_a_factory_in_one_place_are_undone_by_the_process_that_ran_them(repo, ledger):
    agent = repo.wrap(two_of_a_factory(ledger, "one", "two"), "s")
    order_of(agent, "one", "two")
    assert ledger.standing() == ["one one", "two two"]
    agent.rollback("start")
    assert ledger.standing() == []


@pytest.mark.parametrize("left", [("one", "two"), ("two",)])
def test_tools_of_a_factory_in_one_place_are_not_guessed_after_a_restart(repo, ledger, left):
    """Neither if both are declared, nor if only the other one is declared any more."""
    order_of(repo.wrap(two_of_a_factory(ledger, "one", "two"), "s"), "one")
    with agentgit.open(backend.url(repo)) as later:
        agent = later.wrap(two_of_a_factory(ledger, *left), "s")
        with pytest.raises(RollbackBlocked, match="cannot be reversed here"):
            agent.rollback("start")
    assert ledger.standing() == ["one one"]


def test_a_tool_that_cannot_be_told_apart_from_a_shown_one_does_not_run(repo, ledger):
    """It is made while the graph runs, by the factory of the tool that the graph shows, with an undo of its own."""
    shown_tool = made_tool("reversible", "visible", ledger)
    graph = shown([shown_tool, asking(lambda item: made_tool("reversible", "late", ledger).invoke({"item": item}))])
    agent = repo.wrap(graph, "s")
    agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    with pytest.raises(InvalidInput, match="could not be told apart"):
        agent.invoke({"messages": [("user", "hidden chair")]})
    assert ledger.standing() == ["visible chair"]
    agent.rollback("start", force=True)
    assert ledger.standing() == []


def test_a_tool_made_at_each_call_is_undone_with_its_own_closure(repo, ledger):
    numbers = iter(["first", "second"])
    graph = shown([asking(lambda item: made_tool("reversible", next(numbers), ledger).invoke({"item": item}))])
    agent = repo.wrap(graph, "s")
    order_of(agent, "chair", "chair")
    assert ledger.standing() == ["first chair", "second chair"]
    agent.rollback("start")
    assert ledger.standing() == []


def test_a_renamed_function_of_a_tool_is_refused_with_both_names(repo, ledger):
    order_of(repo.wrap(namesakes.by_closure(*two_kinds(ledger)), "s"), "chair")
    with agentgit.open(backend.url(repo)) as later:
        agent = later.wrap(two_of_a_factory(ledger, "chair"), "s")
        with pytest.raises(RollbackBlocked, match=r"its tool was namesakes:hidden_tool.*namesakes:tool_of"):
            agent.rollback("start")
    assert ledger.standing() == ["hidden chair"]


def two_kinds(ledger):
    return namesakes.visible_tool("reversible", ledger), namesakes.hidden_tool("reversible", ledger)


# -- one factory, one session, one shop after the other

SHOP_FORMS = ("decorator", "effects", "class")


def wrap_shop(repo, form, shop, ledger, kind="reversible", **options):
    graph, effects = shop_of(form, shop, kind, ledger, **options)
    return repo.wrap(graph, "s", effects=effects)


def order_at_both(repo, form, ledger, shops, **options):
    for shop, item in zip(shops, ("chair", "sofa"), strict=True):
        agent = wrap_shop(repo, form, shop, ledger, **options)
        if agent.head is None:
            agent.checkpoint("start")
        agent.invoke({"messages": [("user", f"visible {item}")]})
    return agent


@pytest.mark.parametrize("form", SHOP_FORMS)
@pytest.mark.parametrize("later", [(), ("eu", "us"), ("us", "eu")])
def test_each_shop_of_a_factory_cancels_its_own_orders(repo, ledger, form, later):
    """In the process that ordered, and in another one that has wrapped the session for both shops again."""
    agent = order_at_both(repo, form, ledger, ("eu", "us"))
    with agentgit.open(backend.url(repo)) as again:
        for shop in later:
            agent = wrap_shop(again, form, shop, ledger)
        agent.rollback("start")
    assert ledger.lines()[2:] == ["cancel us sofa", "cancel eu chair"]


@pytest.mark.parametrize("form", SHOP_FORMS)
def test_a_shop_does_not_cancel_what_another_one_of_the_factory_ordered(repo, ledger, form):
    """After a restart, only one shop is left."""
    order_at_both(repo, form, ledger, ("eu", "us"))
    with agentgit.open(backend.url(repo)) as later:
        agent = wrap_shop(later, form, "us", ledger)
        with pytest.raises(
            RollbackBlocked, match=r"chair'\): cannot be reversed here: its .* was .* declared here instead"
        ):
            agent.rollback("start")
        agent.rollback("start", force=True)
    assert ledger.lines()[2:] == ["cancel us sofa"]


@pytest.mark.parametrize("form", SHOP_FORMS)
def test_the_calls_of_a_template_are_made_again_at_the_shop_of_the_new_session(repo, ledger, form):
    """Later only that shop cancels them, after a restart, too."""
    order_at_both(repo, form, ledger, ("eu", "eu")).checkpoint("end")
    with agentgit.open(backend.url(repo)) as later:
        graph, effects = shop_of(form, "test", "reversible", ledger)
        tested = later.wrap(graph, "tested", effects=effects, template="s@end", replay="execute")
        assert (len(tested.tool_track()), ledger.lines()[2:]) == (2, ["order test chair", "order test sofa"])
    with agentgit.open(backend.url(repo)) as later:
        graph, effects = shop_of(form, "us", "reversible", ledger)
        with pytest.raises(RollbackBlocked, match="declared here instead"):
            later.wrap(graph, "tested", effects=effects).rollback("main#1")
    with agentgit.open(backend.url(repo)) as later:
        graph, effects = shop_of(form, "test", "reversible", ledger)
        later.wrap(graph, "tested", effects=effects).rollback("main#1")
    assert ledger.lines()[4:] == ["cancel test sofa", "cancel test chair"]


def test_the_calls_of_a_template_are_not_made_by_one_of_two_tools_of_a_factory(repo, ledger):
    shops = [made_tool("reversible", shop, ledger) for shop in ("eu", "us")]
    graph = node_graph(lambda state: {"messages": [("ai", shops[0].invoke({"item": "chair"}))]})
    repo.wrap(graph, "s", check_effects=False).invoke({"messages": [("user", "order")]})
    shops[:] = [made_tool("reversible", shop, ledger) for shop in ("one", "two")]
    with pytest.raises(RollbackBlocked, match="rename one of them"):
        repo.wrap(graph, "t", template="s@main", replay="execute")
    assert ledger.lines() == ["order eu chair"]


CANCELLED: list[str] = []


def cancel_anywhere(args, result):
    CANCELLED.append(args["item"])


@pytest.mark.parametrize("role", ["undo", "verify"])
def test_tools_that_hold_different_values_share_a_function_of_a_module(repo, ledger, role):
    """A key was replaced before a restart: the undo does not depend on it; the tool does, so it is not run again."""

    def wrapped(here, key):
        effect_of_key = reversible(cancel_anywhere, verify=knows if role == "verify" else None)
        return here.wrap(shown([namesakes.tool_of_key(key, ledger)]), "s", effects={"order": effect_of_key})

    CANCELLED.clear()
    agent = wrapped(repo, "key 1")
    agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    with agentgit.open(backend.url(repo)) as later:
        back = wrapped(later, "key 2").rollback("start")
        assert CANCELLED == ["chair"]
        with pytest.raises(RollbackBlocked, match="declared here instead"):
            back.redo()


def knows(invocation):
    return True


@pytest.mark.parametrize("form", SHOP_FORMS)
def test_shops_that_only_objects_tell_apart_are_not_guessed_after_a_restart(repo, ledger, form):
    order_at_both(repo, form, ledger, (Desk("eu"), Desk("us")))
    with agentgit.open(backend.url(repo)) as later:
        wrap_shop(later, form, Desk("eu"), ledger)
        agent = wrap_shop(later, form, Desk("us"), ledger)
        with pytest.raises(RollbackBlocked, match="cannot be reversed here: several tools called order"):
            agent.rollback("start")
    assert len(ledger.lines()) == 2


def test_shops_are_not_guessed_when_it_is_forgotten_which_one_ordered(repo, ledger):
    """A process remembers the tool objects of its last thousand calls."""
    agent = order_at_both(repo, "decorator", ledger, (Desk("eu"), Desk("us")))

    @tool
    @effect("state")
    def look(item: str) -> str:
        """Look at something."""
        return item

    def look_often(state: MessagesState):
        look.batch([{"item": "chair"}] * 1010, {"max_concurrency": 1})
        return {"messages": [("ai", "done")]}

    repo.wrap(node_graph(look_often), "other").invoke({"messages": [("user", "look")]})
    with pytest.raises(RollbackBlocked, match="cannot be reversed here: several tools called order"):
        agent.rollback("start")
    assert len(ledger.lines()) == 2


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("form", SHOP_FORMS)
def test_redo_does_not_order_at_another_shop(repo, ledger, form, is_plain):
    shops = ("eu", "us") if is_plain else (Desk("eu"), Desk("us"))
    order_at_both(repo, form, ledger, shops).rollback("start")
    with agentgit.open(backend.url(repo)) as later:
        if not is_plain:
            wrap_shop(later, form, Desk("eu"), ledger)
        wrap_shop(later, form, shops[1], ledger).redo(force=True)
    assert ledger.lines()[4:] == (["order us sofa"] if is_plain else [])


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("form", SHOP_FORMS)
@pytest.mark.parametrize("how", ["fence", "once"])
def test_a_shop_is_not_answered_with_the_order_of_another_one(repo, ledger, form, how, is_plain):
    def shop(name):
        return wrap_shop(repo, form, name if is_plain else Desk(name), ledger, kind="compensable", once=how == "once")

    agent = shop("eu")
    agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    if how == "fence":
        agent.rollback("start", tools="keep")
    with pytest.raises(Fenced, match=r"was made by .* is the same tool, so this call was not made"):
        shop("us").invoke({"messages": [("user", "visible chair")]})
    assert ledger.lines() == ["order eu chair"]


@pytest.mark.parametrize("form", SHOP_FORMS)
def test_a_tool_that_a_factory_makes_again_is_the_same_tool(repo, ledger, form):
    """It holds the same values and objects: as when a graph is built for each request."""
    order_at_both(repo, form, ledger, ("eu", "eu"), kind="compensable", once=True)
    agent = wrap_shop(repo, form, "eu", ledger, kind="compensable", once=True)
    agent.invoke({"messages": [("user", "visible chair")]})
    assert ledger.lines() == ["order eu chair", "order eu sofa"]
    with agentgit.open(backend.url(repo)) as later:
        wrap_shop(later, form, "eu", ledger)
        wrap_shop(later, form, "eu", ledger).rollback("start")
    assert ledger.standing() == []


def test_a_tool_that_counts_its_calls_is_the_same_tool_when_it_is_wrapped_again(repo, ledger):
    count = 0

    @tool
    @effect("irreversible", once=True)
    def order(item: str) -> str:
        """Order something."""
        nonlocal count
        count += 1
        ledger.write("order", "once", item)
        return item

    for _ in range(2):
        repo.wrap(shown([order]), "s").invoke({"messages": [("user", "visible chair")]})
    assert ledger.lines() == ["order once chair"]


def test_redo_does_not_run_another_function_of_the_same_tool(repo, ledger):
    """Somebody has replaced `tool.func` since."""
    made = made_tool("reversible", "before", ledger)
    agent = order_visible(repo.wrap(shown([made]), "s"))
    back = agent.rollback("start")
    made.func = lambda item: ledger.write("order", "after", item)
    with pytest.raises(RollbackBlocked, match=r"ran .*tool_of.* then, and runs .*<lambda>.* now"):
        back.redo()
    assert ledger.standing() == []


# -- the fence


@pytest.mark.parametrize("form", FORMS)
def test_the_fence_answers_only_calls_of_the_same_tool(repo, ledger, form):
    """A kept call is not made again; the same call of another tool of this name is another one."""
    agent = repo.wrap(graph_of(form, "compensable", "compensable", ledger), "s")
    agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    kept = agent.rollback("start", tools="keep")
    if form == "override":
        kept.invoke({"messages": [("user", "visible chair")]})
        assert ledger.standing() == ["visible visible chair"]
        return
    kept.invoke({"messages": [("user", "visible chair")]})
    kept.invoke({"messages": [("user", "hidden chair")]})
    assert ledger.standing() == ["visible chair", "hidden chair"]


def test_a_call_that_another_function_made_is_neither_answered_nor_made_again(repo, ledger):
    def agent_with(made):
        return repo.wrap(shown([made]), "s")

    agent = agent_with(namesakes.visible_tool("compensable", ledger))
    agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    agent.rollback("start", tools="keep")
    with pytest.raises(Fenced, match=r"visible_tool.*not known whether .*tool_of.* is the same tool"):
        agent_with(made_tool("compensable", "moved", ledger)).invoke({"messages": [("user", "visible chair")]})
    assert ledger.standing() == ["visible chair"]


# -- a task that runs again


def ordering(repo, tools, effects=None):
    """Wrap a graph whose node lets tools order a chair; it fails after the first order of its first run."""
    broken = [True]

    def act(state: MessagesState):
        made = []
        for one in tools():
            made.append(one.invoke({"item": "chair"}))
            if broken:
                broken.clear()
                raise ValueError("broken off")
        return {"messages": [("ai", ", ".join(made))]}

    agent = repo.wrap(node_graph(act), "s", effects=effects, check_effects=False)
    with pytest.raises(ValueError, match="broken off"):
        agent.invoke({"messages": [("user", "order")]})
    return agent


@pytest.mark.parametrize("kind", ["reversible", "compensable", "irreversible"])
@pytest.mark.parametrize("are_swapped", [False, True])
def test_equal_calls_of_two_tools_in_a_node_that_runs_again_keep_their_places(repo, ledger, kind, are_swapped):
    tools = [namesakes.visible_tool(kind, ledger), namesakes.hidden_tool(kind, ledger)]
    agent = ordering(repo, lambda: tools)
    if are_swapped:
        tools.reverse()
    answer = agent.invoke(None)["messages"][-1].content
    assert answer == ("hidden chair, visible chair" if are_swapped else "visible chair, hidden chair")
    assert ledger.standing() == ["visible chair", "hidden chair"]


@pytest.mark.parametrize("are_shown", [False, True])
def test_equal_calls_of_two_tools_of_a_factory_in_a_node_are_not_guessed(repo, ledger, are_shown):
    tools = [made_tool("compensable", name, ledger) for name in ("one", "two")]
    hidden = [*map(Hidden, tools)]
    agent = ordering(repo, lambda: tools if are_shown else [one.tool() for one in hidden])
    tools.reverse()
    hidden.reverse()
    with pytest.raises(Fenced, match=r"tool_of.*not known whether .*tool_of.* is the same tool"):
        agent.invoke(None)
    assert ledger.standing() == ["one chair"]


class Hidden:
    """A tool that agentgit does not find in what the functions of a graph refer to."""

    __slots__ = ("tool",)

    def __init__(self, made):
        self.tool = functools.partial(next, itertools.repeat(made))


def test_an_equal_call_of_another_function_of_a_node_that_runs_again_is_refused(repo, ledger):
    """The tool was replaced after the turn broke off."""
    tools = [namesakes.visible_tool("compensable", ledger)]
    ordering(repo, lambda: tools)
    tools[:] = [made_tool("compensable", "moved", ledger)]
    graph = node_graph(lambda state: {"messages": [("ai", tools[0].invoke({"item": "chair"}))]})
    with agentgit.open(backend.url(repo)) as later:
        agent = later.wrap(graph, "s", check_effects=False)
        with pytest.raises(Fenced, match="is the same tool"):
            agent.invoke(None)
    assert ledger.standing() == ["visible chair"]


# -- other forms


def test_one_tool_object_in_two_graphs_has_the_effect_of_its_place(repo, ledger):
    shared = made_tool("reversible", "shared", ledger)
    inner, outer = shown([shared]), shown([shared])
    first = repo.wrap(inner, "one", effects={"order": "read_only"})
    second = repo.wrap(outer, "two", effects={"order": "irreversible"})
    for agent in (first, second, first):
        agent.invoke({"messages": [("user", "visible chair")]})
    assert [c.effect for c in first.tool_track()] == ["read_only"] * 2
    assert [c.effect for c in second.tool_track()] == ["irreversible"]


def test_a_tool_that_is_replaced_between_call_and_undo_is_undone_by_the_one_that_ran(repo, ledger):
    order_visible(agent := repo.wrap(shown([made_tool("reversible", "before", ledger)]), "s"))
    agent = repo.wrap(shown([made_tool("reversible", "after", ledger)]), "s")
    order_visible(agent)
    assert ledger.standing() == ["before chair", "after chair"]
    agent.rollback("start")
    assert ledger.standing() == []


def order_visible(agent):
    if agent.head is None:
        agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    return agent


def test_a_tool_that_calls_itself_is_undone_at_each_depth(repo, ledger):
    def cancel(args, result):
        ledger.write("cancel", "deep", str(args["depth"]))

    @tool
    @reversible(cancel)
    def dig(depth: int) -> str:
        """Dig, and dig deeper."""
        ledger.write("order", "deep", str(depth))
        return dig.invoke({"depth": depth - 1}) if depth else "bottom"

    agent = repo.wrap(shown([asking(lambda item: dig.invoke({"depth": 20}))]), "s")
    order_of(agent, "chair")
    assert len(ledger.standing()) == 21
    with agentgit.open(backend.url(repo)) as later:
        later.wrap(shown([asking(lambda item: dig.invoke({"depth": 20}))]), "s").rollback("start")
    assert ledger.standing() == []


def test_a_tool_without_a_name_does_not_run(repo, ledger):
    nameless = made_tool("reversible", "nobody", ledger)
    nameless.name = ""
    agent = repo.wrap(shown([asking(lambda item: nameless.invoke({"item": item}))]), "s")
    with pytest.raises(InvalidInput, match="without a name"):
        agent.invoke({"messages": [("user", "hidden chair")]})
    assert ledger.lines() == []


def test_a_hidden_call_that_happens_once_is_compared_by_its_normal_arguments(repo, ledger):
    """The arguments of a tool that the graph does not show are normalized, too."""

    @tool
    @effect("irreversible", once=True)
    def pay(euros: int, to: str = "Ann") -> str:
        """Pay."""
        ledger.write("order", "paid", str(euros))
        return "paid"

    amounts = iter([{"euros": 5}, {"euros": "5", "to": "Ann"}])
    desks = {"pay": pay}
    agent = repo.wrap(shown([asking(lambda item: desks["pay"].invoke(next(amounts)))]), "s")
    order_of(agent, "one", "two")
    assert ledger.standing() == ["paid 5"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_names_the_function_and_the_place_of_a_tool(repo, ledger, kind):
    agent = repo.wrap(graph_of("subagent", kind, kind, ledger), "s")
    order_both(agent)
    orders = [call for call in agent.tool_track() if call.tool_name == "order"]
    assert [(call.enclosing, call.tool_path.partition(" (")[0]) for call in orders] == [
        (None, "namesakes:visible_tool.<locals>.visible_order"),
        ("ask", "namesakes:hidden_tool.<locals>.hidden_order"),
    ]


@pytest.mark.parametrize("changes", [False, True])
def test_a_tool_whose_fields_have_changed_since_does_not_run_again(repo, ledger, changes):
    """It would order elsewhere."""
    order = namesakes.Order(shop="here", ledger=ledger)
    agent = repo.wrap(shown([order]), "s", effects={"order": reversible(lambda args, result: None)})
    start = agent.checkpoint("start")
    agent.invoke({"messages": [("user", "visible chair")]})
    agent = agent.rollback(start)
    before = list(ledger.lines())
    if not changes:
        agent.redo()
        assert len(ledger.lines()) == len(before) + 1
        return
    order.shop = "there"
    assert not agent.plan_redo().is_admissible
    with pytest.raises(RollbackBlocked, match="the fields of the tool order have other values now than then"):
        agent.redo()
    assert ledger.lines() == before
    order.shop = "here"
    agent.redo()
    assert len(ledger.lines()) == len(before) + 1
