"""Only functions that this process declares are run, and never those that a row names."""

import asyncio
import functools
import importlib
import logging
import runpy
import sys
from contextlib import suppress

import backend
import command_line
import pytest
from fastapi.testclient import TestClient
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from mcp_clients import connected
from notebook_shells import Notebook, magic, restart
from scripted import call, node_graph, say, scripted, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete, effect, reversible
from agentgit.web import app

LEDGER: list[str] = []
"""The world of the scripts and notebooks: the items that were ordered and not cancelled."""

RAN: list[str] = []
"""The record of imported modules and of functions that ran."""


@pytest.fixture(autouse=True)
def _nothing_yet():
    LEDGER.clear()
    RAN.clear()


def ordering(undo, **more):
    """Return a new graph that orders a chair and a new declaration of its tool, as after a restart."""

    def order(item: str) -> dict:
        """Order something."""
        LEDGER.append(item)
        return {"item": item}

    graph = tool_node_graph(scripted(call("order", item="chair"), "ok"), [tool(order)])
    return graph, {"order": reversible(undo, **more)}


def reopened(repo, **how):
    return agentgit.open(backend.url(repo), **how)


def write_rows(repo, **values) -> None:
    """Change all recorded calls, as an attacker with write access to the database does."""
    backend.change(repo, "tool_invocation", **values)


# -- scripts and notebooks


def run_script(path, repo, body: str, then) -> object:
    """Run a script that defines the function `undo`, and return the answer of its `then(repo, graph, effects)`."""
    path.write_text(
        f"def undo(args, result):\n    {body}\n\ngraph, effects = ordering(undo)\nwith reopened(repo) as own:\n"
        "    answer = then(own, graph, effects)\n"
    )
    given = {"ordering": ordering, "reopened": reopened, "repo": repo, "then": then, "LEDGER": LEDGER, "RAN": RAN}
    return runpy.run_path(str(path), init_globals=given, run_name="__main__")["answer"]


def order_a_chair(repo, graph, effects) -> None:
    repo.wrap(graph, "s", effects=effects).run("a chair, please")


@pytest.mark.long
def test_an_undo_of_the_same_name_in_another_script_is_not_run(repo, tmp_path):
    mine, other = "LEDGER.remove(args['item'])", "RAN.append('the other undo')"
    run_script(tmp_path / "mine.py", repo, mine, order_a_chair)

    def unwrapped(own, graph, effects):
        with pytest.raises(RollbackBlocked, match=r"__main__:undo@\w+ in mine\.py is not declared here"):
            own.session("s").rollback("main#1")

    def wrapped(own, graph, effects):
        agent = own.wrap(graph, "s", effects=effects)
        with pytest.raises(RollbackBlocked, match=r"in mine\.py at the call, and __main__:undo@\w+ in other\.py is"):
            agent.rollback("main#1")

    for then in (unwrapped, wrapped):
        run_script(tmp_path / "other.py", repo, other, then)
    assert (LEDGER, RAN) == (["chair"], [])

    def again(own, graph, effects):
        with pytest.raises(RollbackBlocked, match="is not declared here"):
            own.session("s").rollback("main#1")
        return own.wrap(graph, "s", effects=effects).rollback("main#1").report

    report = run_script(tmp_path / "mine.py", repo, mine, again)
    assert ([item.reason for item in report.reversed], LEDGER) == (["its undo reverses it"], [])


def test_a_renamed_script_can_still_undo_its_calls(repo, tmp_path):
    """A renamed script can undo what it did, because its function has the same source."""
    body = "LEDGER.remove(args['item'])"
    run_script(tmp_path / "before.py", repo, body, order_a_chair)
    run_script(tmp_path / "after.py", repo, body, lambda own, g, e: own.wrap(g, "s", effects=e).rollback("main#1"))
    assert LEDGER == []


CELL = "def undo(args, result):\n    LEDGER.remove(args['item'])\n\ngraph, effects = ordering(undo)\n"


def test_a_restarted_notebook_can_undo_once_the_graph_is_wrapped(repo, monkeypatch):
    names = {"ordering": ordering, "LEDGER": LEDGER}
    first = Notebook(monkeypatch, **names)
    first.run(CELL)
    order_a_chair(repo, first.main.graph, first.main.effects)
    restarted = Notebook(monkeypatch, **names)
    with reopened(repo) as later:
        restarted.run(CELL)
        (step,) = later.session("s").plan_rollback("main#1").steps
        assert (step.action, "is not declared here; repo.wrap(graph)" in step.why) == ("block", True)
        agent = later.wrap(restarted.main.graph, "s", effects=restarted.main.effects)
        (step,) = agent.plan_rollback("main#1").steps
        assert (step.action, step.why) == ("reverse", "its undo reverses it")
        later.session("s").rollback("main#1")
    assert LEDGER == []


def test_a_changed_undo_function_of_a_notebook_is_reported(repo, monkeypatch):
    names = {"ordering": ordering, "LEDGER": LEDGER, "RAN": RAN}
    first = Notebook(monkeypatch, **names)
    first.run(CELL.replace("LEDGER", "WRONG"))
    order_a_chair(repo, first.main.graph, first.main.effects)
    with pytest.raises(RollbackIncomplete, match="WRONG"):
        repo.session("s").rollback("main#1")
    first.run(CELL)  # the cell is corrected and run again in the same kernel
    agent = repo.wrap(first.main.graph, "s", effects=first.main.effects)
    changed = "the source of __main__:undo has changed since the call"
    (step,) = agent.plan_rollback("main#1").steps
    assert step.why.endswith(changed)
    report = agent.rollback("main#1").report
    assert ([item.reason.endswith(changed) for item in report.reversed], LEDGER) == ([True], [])


def test_a_main_function_recorded_without_a_hash_is_reported(repo, monkeypatch):
    """A row with `__main__:undo` and no hash is reversed; the plan says that it cannot be compared."""
    notebook = Notebook(monkeypatch, ordering=ordering, LEDGER=LEDGER)
    notebook.run(CELL)
    order_a_chair(repo, notebook.main.graph, notebook.main.effects)
    write_rows(repo, undo="__main__:undo")
    (step,) = repo.session("s").plan_rollback("main#1").steps
    assert (step.action, "whether __main__:undo has changed" in step.why) == ("reverse", True)


# -- names


class Shop:
    """A class whose methods and instances serve as undo functions."""

    def cancel(self, args, result): ...

    @classmethod
    def void(cls, args, result): ...

    def __call__(self, args, result): ...


def cancel(args, result, log=None): ...


LAMBDA = lambda args, result: None  # noqa: E731  # the tests need a function without a name


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (cancel, "cancel"),
        (Shop().cancel, "Shop.cancel"),
        (Shop.void, "Shop.void"),
        (Shop(), "Shop"),
        (functools.partial(cancel, log=[]), "cancel"),
        (functools.partial(functools.partial(Shop().cancel)), "Shop.cancel"),
        (LAMBDA, "<lambda>"),
        (functools.wraps(cancel)(lambda *a: None), "cancel"),
    ],
)
def test_functions_are_recorded_under_stable_names(function, name):
    assert reversible(function).paths["undo"] == f"{__name__}:{name}"


def ordering_tool(ledger):
    """Make a decorated tool with the undo function of its ledger."""

    @tool
    @reversible(lambda args, result: ledger.remove(args["item"]))
    def order(item: str) -> str:
        """Order something."""
        ledger.append(item)
        return item

    return order


def by_task(order):
    """Return an entrypoint whose task calls the tool through a helper, and its input."""

    def help_out(item):
        return order.invoke({"item": item})

    @task
    def act(item: str) -> str:
        return help_out(item)

    @entrypoint()
    def agent(item: str) -> str:
        return act(item).result()

    return agent, "chair"


def by_node(order):
    """Return a graph whose node calls the tool in a comprehension, and its input."""

    def act(state):
        return {"messages": [("ai", str([order.invoke({"item": item}) for item in ["chair"]]))]}

    return node_graph(act), say("a chair")


def by_subgraph(order):
    """Return a graph whose subgraph has a node that calls the tool, and its input."""
    inner, given = by_node(order)
    return node_graph(inner), given


def by_method(order):
    """Return a graph whose node is a method of an object that has the tool, and its input."""

    class Desk:
        def __init__(self):
            self.order = order

        def act(self, state):
            self.order.invoke({"item": "chair"})

    return node_graph(Desk().act), say("a chair")


@pytest.mark.parametrize("shape", [by_node, by_task, by_subgraph, by_method])
def test_a_tool_called_by_a_node_can_be_undone_after_a_restart(repo, shape):
    """Wrapping the graph again is enough, even if only a function of a node refers to the tool."""
    graph, given = shape(ordering_tool(LEDGER))
    agent = repo.wrap(graph, "s")
    agent.invoke(given)
    assert agent.tool_track()[0].undo.endswith("ordering_tool.<locals>.<lambda>")
    assert LEDGER == ["chair"]
    with reopened(repo) as later:
        later.wrap(shape(ordering_tool(LEDGER))[0], "s").rollback("main#1")
    assert LEDGER == []


def test_a_tool_called_by_a_node_has_the_effect_and_the_undo_of_its_decorator(repo):
    """Not those of another shop that the same function makes, nor of a tool of the same name elsewhere."""

    @tool
    @effect("read_only")
    def order(item: str) -> str:
        """Order something, in another shop."""
        return item

    mine: list[str] = []
    theirs: list[str] = []
    first = repo.wrap(by_node(ordering_tool(mine))[0], "mine")
    second = repo.wrap(by_node(ordering_tool(theirs))[0], "theirs")
    first.run("a chair")
    second.run("a chair")
    assert [one.effect for one in first.tool_track()] == ["reversible"]
    first.rollback("main#1")
    assert (mine, theirs) == ([], ["chair"])
    second.rollback("main#1")
    assert (mine, theirs) == ([], [])
    assert order.name == "order"


# -- rows that an attacker has written

EVIL = """
import sys, pathlib
sys.modules["test_trusted_functions"].RAN.append("imported")

def undo(*args):
    sys.modules["test_trusted_functions"].RAN.append("called")

class deep:
    undo = undo
"""

HOSTILE = [
    "subprocess:call", "os:system", "os:path.join", "builtins:exec", "evil:undo", "evil:deep.undo", "evil.sub:undo",
    "evil", "evil:", ":undo", "__main__:undo", "__main__:undo@0 in x.py", "agentgit.demo:cancel_order",
    "test_trusted_functions:cancel ",
    "test_trusted_functions:c\u0430ncel", "test_trusted_functions:cancel\x00", "test_trusted_functions.cancel",
    "TEST_TRUSTED_FUNCTIONS:cancel", "\x1b[2J", "",
    "x" * 100_000, "test_trusted_functions:cancel@evil:undo", "\ud800:\udfff",
]  # fmt: skip


@pytest.fixture
def evil(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "test_trusted_functions", sys.modules[__name__])
    yield
    sys.modules.pop("evil", None)


@pytest.fixture
def attacked(repo, evil):
    """Order a chair in session `s`, and open the database as another process does, without declarations."""
    order_a_chair(repo, *ordering(cancel))
    with reopened(repo) as later:
        yield later


def attempts(repo):
    """Return the verbs that look for functions of the calls on branch `main` of session `s`."""
    session, how = repo.session("s"), {"branch": "main"}
    return [
        lambda: session.plan_rollback("main#1", **how),
        lambda: session.rollback("main#1", **how),
        lambda: session.rollback("main#1", conversation=False, **how),
        lambda: session.undo(1, **how),
        lambda: session.rollback("main#2", replay="redo", **how),
        lambda: session.rollback("main#2", replay="execute", **how),
        lambda: session.plan_switch("main"),
        lambda: session.switch("main", sync="world"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("status", ["done", "unknown", "reversed", "reverse_failed", "reverse_unknown"])
def test_no_function_named_by_a_row_is_imported_or_called(attacked, status):
    known = set(sys.modules)
    for name in HOSTILE:
        write_rows(attacked, undo=name, verify=name, precheck=name, status=status, error_message=None)
        for attempt in attempts(attacked):
            with suppress(RollbackBlocked, Conflict):
                attempt()
    gained = {one for one in set(sys.modules) - known if not one.startswith("agentgit.")}
    assert (RAN, LEDGER, gained) == ([], ["chair"], set())
    assert attacked.session("s").tool_track(branch="main")[0].status == status


def test_a_row_that_differs_from_the_declared_function_is_refused(attacked):
    graph, effects = ordering(cancel, verify=looked, precheck=looked)
    agent = attacked.wrap(graph, "s", effects=effects)
    for name in [one for one in HOSTILE if not one.startswith("test_trusted_functions:cancel@")]:
        write_rows(attacked, undo=name, verify=name, precheck=name, status="done")
        (step,) = agent.plan_rollback("main#1").steps
        assert (name, step.action) == (name, "block")
        assert f"{__name__}:cancel is declared here" in step.why
        assert (step.why.isprintable(), len(step.why) < 600) == (True, True)
        with pytest.raises(RollbackBlocked):
            agent.rollback("main#1")
        write_rows(attacked, status="unknown")
        (step,) = agent.plan_rollback("main#1").steps
        assert f"{__name__}:looked is declared here" in step.why
    assert RAN == []


def looked(invocation):
    RAN.append("looked")


def test_resume_uses_only_functions_declared_in_its_process(repo, evil):
    graph, effects = ordering(LAMBDA)
    agent = repo.wrap(graph, "s", effects={"order": reversible(refusing)})
    agent.run("a chair")
    with pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("main#1")
    write_rows(repo, undo="evil:undo")
    with reopened(repo) as later:
        with pytest.raises(RollbackIncomplete, match="evil:undo is not declared here"):
            later.resume(stopped.value.operation)
        later.wrap(graph, "s", effects=effects)
        with pytest.raises(RollbackIncomplete, match=rf"{__name__}:<lambda> is declared here"):
            later.resume(stopped.value.operation)
    assert (RAN, "evil" in sys.modules) == ([], False)


def refusing(args, result):
    raise RuntimeError("not today")


@pytest.mark.long
def test_no_face_imports_what_a_row_names(attacked):
    """Plans and rollbacks by the command line, for a viewer over HTTP and by MCP only name the function."""
    write_rows(attacked, undo="evil:undo", verify="evil:undo", precheck="evil:undo")
    where = backend.address(attacked)
    for line in (["plan", "main#1"], ["rollback", "main#1", "--yes"], ["undo", "--yes"]):
        code, out = command(*line, "--db", where)
        assert code in (0, RollbackBlocked.exit_code)
        assert "evil:undo is not declared here; --trust MODULE declares it here" in out
    code, out = command("rollback", "main#1", "--yes", "--trust", "agentgit.demo", "--db", where)
    assert code == RollbackBlocked.exit_code
    ada = attacked.as_user(attacked.users.add("ada"))
    attacked.session("s").sharing.share(ada.user, role="viewer")
    key = ada.keys.create("a program", scopes=("read",)).secret
    asking = TestClient(app(attacked), base_url="https://git.example", headers={"authorization": f"Bearer {key}"})
    plan = asking.get(f"/api/v1/sessions/{attacked.session('s').id}/plan-rollback", params={"to": "main#1"})
    assert plan.status_code == 200, plan.text
    assert "evil:undo is not declared here" in plan.json()["steps"][0]["why"]
    planned, done = asyncio.run(asked_by_mcp(attacked))
    assert "evil:undo is not declared" in " ".join(planned.content[0].text.split())
    assert (done.isError, RAN, "evil" in sys.modules) == (True, [], False)


async def asked_by_mcp(repo):
    """Return the answers of the MCP server to a plan and to a rollback."""
    to = {"checkpoint": "main#1", "session": "s"}
    async with connected(repo, may_force=True) as client:
        return (
            await client.call_tool("plan_rollback", to),
            await client.call_tool("rollback_to_checkpoint", to | {"plan": "x"}),
        )


def command(*line: str) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        done = command_line.run(*line)
    return done.code, done.out + done.err


def test_a_tool_of_the_same_name_with_another_undo_is_not_used(attacked):
    """Neither from a module that was imported and is not trusted, nor from a graph that is wrapped."""

    @tool
    @reversible(namesake)
    def order(item: str) -> str:
        """Order something, in another shop."""
        RAN.append(item)
        return item

    write_rows(attacked, undo=f"{__name__}:namesake")
    assert "is not declared here" in attacked.session("s").plan_rollback("main#1").steps[0].why
    write_rows(attacked, status="reversed", undo=None)
    (step,) = attacked.session("s").plan_switch("main").steps
    assert (step.action, "the tool order is unknown" in step.why) == ("block", True)
    assert order.name == "order"
    graph, effects = ordering(namesake)
    attacked.wrap(graph, "s", effects=effects)
    write_rows(attacked, undo=f"{__name__}:cancel")
    (step,) = attacked.session("s").plan_switch("main").steps
    assert (step.action, f"{__name__}:namesake is declared here" in step.why) == ("block", True)
    assert (RAN, LEDGER) == ([], ["chair"])


def namesake(args, result):
    RAN.append("namesake")


# -- trusted modules

TRUSTED = """
import agentgit
from agentgit import reversible

test = __import__("sys").modules["test_trusted_functions"]
test.RAN.append(f"imported {__name__}")
cancel = test.cancelling
EFFECTS = {"order": reversible(cancel), "look": "read_only"}
"""


def cancelling(args, result):
    LEDGER.remove(args["item"])


@pytest.fixture
def shop(repo, tmp_path, monkeypatch):
    """Create the module `shop_of_trust`, which declares the undo of the order in session `s`."""
    (tmp_path / "shop_of_trust.py").write_text(TRUSTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "test_trusted_functions", sys.modules[__name__])
    order_a_chair(repo, *ordering(cancelling))
    yield tmp_path
    sys.modules.pop("shop_of_trust", None)


DECLARED_BY_PATH = {"order": reversible("shop_of_trust:cancel", verify="no_such_shop:look")}


@pytest.mark.parametrize("how", [{"trust": ["shop_of_trust"]}, {"effects": DECLARED_BY_PATH}], ids=["trust", "effects"])
def test_a_trusted_or_declared_module_is_imported_once_at_open(repo, shop, how):
    with reopened(repo, **how) as later:
        assert RAN == ["imported shop_of_trust"]
        known = set(sys.modules)
        assert later.session("s").plan_rollback("main#1").is_admissible
        later.session("s").rollback("main#1")
        assert {one for one in set(sys.modules) - known if not one.startswith("agentgit.")} == set()
    assert (LEDGER, RAN) == ([], ["imported shop_of_trust"])


def test_the_environment_variable_lists_trusted_modules(repo, shop, monkeypatch):
    """`$AGENTGIT_TRUST` lists modules separated by commas; the argument of `open` overrides it."""
    monkeypatch.setenv("AGENTGIT_TRUST", " shop_of_trust, agentgit.demo,")
    with reopened(repo, trust=[]) as later:
        assert later.session("s").plan_rollback("main#1").blockers
    assert RAN == []
    with reopened(repo) as later:
        later.session("s").rollback("main#1")
    assert LEDGER == []


@pytest.mark.long
def test_commands_that_undo_nothing_import_no_trusted_module(repo, shop, monkeypatch):
    where = backend.address(repo)
    monkeypatch.setenv("AGENTGIT_TRUST", "shop_of_trust")
    assert command("log", "--db", where)[0] == 0
    assert RAN == []
    assert (
        command("rollback", "main#1", "--yes", "--trust", "agentgit.demo", "--db", where)[0]
        == RollbackBlocked.exit_code
    )
    assert RAN == []
    assert command("rollback", "main#1", "--yes", "--db", where)[0] == 0
    assert (LEDGER, RAN) == ([], ["imported shop_of_trust"])


# IPython's history leaves a thread and an open file to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("shop")
def test_a_notebook_can_trust_a_module(repo, ipython):
    with reopened(repo) as later:
        restart(ipython, repo=later)
        assert "is not declared here" in str(magic(ipython, "plan main#1"))
        assert magic(ipython, "rollback main#1 --yes --trust shop_of_trust").status == "done"
    assert LEDGER == []


@pytest.mark.parametrize(
    ("trust", "error", "says"),
    [
        ("shop_of_trust", InvalidInput, "a list of modules"),
        ([3], InvalidInput, "a list of modules"),
        (["shop of trust"], InvalidInput, "not a module path"),
        ([""], InvalidInput, "not a module path"),
        (["shop_of_trust:"], InvalidInput, "not a module path"),
        (["../shop_of_trust"], InvalidInput, "not a module path"),
        (["no_such_shop"], NotFound, "no_such_shop cannot be imported"),
        (["shop_of_trust:nothing"], NotFound, "has no 'nothing'"),
        (["string"], NotFound, "has no tools or data types, and declares no effects"),
        (["raising_shop"], NotFound, "RuntimeError: no key"),
        (["leaving_shop"], NotFound, "SystemExit"),
    ],
)
def test_a_module_that_cannot_be_trusted_is_refused_at_open(repo, shop, trust, error, says):
    (shop / "raising_shop.py").write_text("raise RuntimeError('no key')")
    (shop / "leaving_shop.py").write_text("raise SystemExit(3)")
    with pytest.raises(error, match=says):
        reopened(repo, trust=trust)


def test_a_trusted_module_may_open_the_database_itself(repo, shop, monkeypatch):
    """A program trusted by its environment is not run a second time, and its declarations apply."""
    monkeypatch.setenv("AGENTGIT_TRUST", "shop_of_trust")
    text = TRUSTED.replace("cancel = test", "repo = test.reopened(test.REPO)\ncancel = test")
    (shop / "shop_of_trust.py").write_text(text)
    monkeypatch.setitem(globals(), "REPO", repo)
    opened = [importlib.import_module("shop_of_trust").repo]
    assert RAN == ["imported shop_of_trust"]
    opened.append(runpy.run_path(str(shop / "shop_of_trust.py"), run_name="other")["repo"])
    for own in opened:
        assert own.session("s").plan_rollback("main#1").is_admissible
        own.close()


def test_a_script_that_trusts_itself_is_not_imported_again(repo, shop, monkeypatch):
    body = "import sys\nmain = sys.modules['__main__']\nwith test.reopened(test.REPO) as own:\n"
    body += "    plan = own.session('s').plan_rollback('main#1')\n"
    (shop / "shop_of_trust.py").write_text(TRUSTED + body)
    monkeypatch.setitem(globals(), "REPO", repo)
    monkeypatch.setenv("AGENTGIT_TRUST", "shop_of_trust")
    found = runpy.run_path(str(shop / "shop_of_trust.py"), run_name="__main__")
    assert (found["plan"].is_admissible, RAN) == (True, ["imported __main__"])


def test_two_trusted_modules_may_declare_the_same_tool_name(repo, shop):
    """The recorded undo selects one of two tools with the same name, and a redo by another function is blocked."""
    ordering = "@tool\n@reversible(cancel)\ndef order(item: str) -> str:\n    'Order.'\n    {}\n    return item\n"
    (shop / "other_shop.py").write_text(
        "from langchain_core.tools import tool\nfrom agentgit import reversible\n"
        "def cancel(args, result): raise RuntimeError('the other shop')\n"
        + ordering.format("raise RuntimeError('the other shop')")
    )
    own = "from langchain_core.tools import tool\n" + ordering.format("test.LEDGER.append(item)")
    (shop / "shop_of_trust.py").write_text(TRUSTED + own)
    with reopened(repo, trust=["shop_of_trust", "other_shop"]) as later:
        later.session("s").rollback("main#1")
        assert LEDGER == []
        (step,) = later.session("s").plan_switch("main").steps
        assert (step.action, "its tool was test_trusted_functions:ordering" in step.why) == ("block", True)
    sys.modules.pop("other_shop")


# -- user functions that raise


def blind(invocation):
    raise KeyError("id")


def test_an_error_of_verify_is_shown_in_plan_track_and_log(repo, caplog):
    class Killed(BaseException):
        pass

    def order(item: str) -> str:
        """Order something, and die."""
        raise Killed

    graph = tool_node_graph(scripted(call("order", item="chair"), "ok"), [tool(order)])
    agent = repo.wrap(graph, "s", effects={"order": effect("irreversible", verify=blind)})
    with pytest.raises(Killed):
        agent.run("a chair")
    with caplog.at_level(logging.WARNING, "agentgit"):
        (step,) = agent.plan_rollback("main#1").steps
    assert (step.action, "its verify raised KeyError: 'id'" in step.why) == ("block", True)
    (record,) = (one for one in caplog.records if "verify" in one.getMessage())
    assert ("'order'" in record.getMessage(), record.exc_info[0]) == (True, KeyError)
    assert agent.tool_track()[0].error_message == "its verify raised KeyError: 'id'"
    assert agent.plan_rollback("main#1").steps == [step]  # the error is not repeated with each plan
    again = repo.wrap(graph, "s", effects={"order": effect("irreversible", verify=unsure)})
    write_rows(repo, verify=f"{__name__}:unsure")
    assert "raised" not in again.plan_rollback("main#1").steps[0].why
    assert again.tool_track()[0].error_message is None
    write_rows(repo, verify=f"{__name__}:blind")
    assert again.plan_rollback("main#1").steps == [step]
    resolved = repo.resolve(again.tool_track()[0], "did_not_happen")
    assert resolved.error_message == "resolved: it did not happen"


def unsure(invocation):
    return None


def test_an_error_of_verify_after_a_failed_undo_is_reported(repo, caplog):
    agent = repo.wrap(ordering(LAMBDA)[0], "s", effects={"order": reversible(refusing, verify=blind)})
    agent.run("a chair")
    said = "RuntimeError: not today; its verify raised KeyError: 'id'"
    with pytest.raises(RollbackIncomplete, match=said) as stopped:
        agent.rollback("main#1")
    assert stopped.value.report.failed[0].reason.endswith(said)
    assert [one.exc_info[0] for one in caplog.records if "verify" in one.getMessage()][:1] == [KeyError]


def closed(invocation):
    raise NotFound("the shop is closed")


@pytest.mark.parametrize(("precheck", "said"), [(blind, "KeyError: 'id'"), (closed, "NotFound: the shop is closed")])
def test_an_error_of_a_precheck_is_in_plan_and_log(repo, caplog, precheck, said):
    agent = repo.wrap(ordering(LAMBDA)[0], "s", effects={"order": reversible(LAMBDA, precheck=precheck)})
    agent.run("a chair")
    assert f"its precheck raised {said}" in agent.plan_rollback("main#1").steps[0].why
    assert any("precheck" in one.getMessage() and one.exc_info for one in caplog.records)


def test_an_undeclared_verify_is_named_in_the_plan(repo):
    order_a_chair(repo, *ordering(cancel, verify=unsure))
    write_rows(repo, status="unknown")
    with reopened(repo) as later:
        (step,) = later.session("s").plan_rollback("main#1").steps
    assert f"its verify {__name__}:unsure is not declared here" in step.why
