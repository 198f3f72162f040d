"""Statistics of sessions, branches and users, with token use and storage."""

import json
import operator
from typing import Annotated

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from scripted import GRAPHS, World, obedient, tool_node_graph

import agentgit
from agentgit import InvalidInput, NotFound
from agentgit.demo import ScriptedModel
from agentgit.sessions.stats import UsedTokens


def said(text="ok", into=10, out=5, model="m", **more):
    """Return an answer with its token usage."""
    used = {"input_tokens": into, "output_tokens": out, "total_tokens": into + out}
    return AIMessage(text, usage_metadata=used, response_metadata={"model_name": model}, **more)


def wrap(repo, session="s", model=None, kind="tool_node", **how):
    """Wrap a graph whose model reports ten input tokens for each message and five output tokens."""
    world = World()
    model = model or ScriptedModel(rule=lambda messages: said(into=10 * len(messages)))
    return repo.wrap(GRAPHS[kind](model, world.tools()), session, effects=world.effects(), **how)


# -- figures


def test_session_stats_count_checkpoints_calls_and_rollbacks(repo):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for n in range(3):
        agent.run(f"add i{n}")
        agent.checkpoint("cart")
    agent.checkpoint("paid")
    retry = agent.rollback("main#3")
    retry.run("add x")
    agent.fork("main#2")
    found = repo.session("s").stats()
    total, points = found.total, [p for b in repo.session("s").branches() for p in _own(repo, b)]
    assert (total.checkpoints, total.automatic, total.named) == (14, 10, 4)
    assert (found.names, found.unique_names) == ({"cart": 3, "paid": 1}, 2)
    assert total.first == min(p.created_at for p in points)
    assert total.last == max(p.created_at for p in points)
    assert total.duration_seconds == (total.last - total.first).total_seconds()
    assert total.calls == {"done": 2, "reversed": 2}
    assert (total.rollbacks, total.operations) == (1, {"fork": 1, "rollback": 1})
    assert (total.reversals, total.reversal_success) == (2, 1.0)
    assert [(one.name, one.figures.checkpoints, one.figures.rollbacks) for one in found.branches] == [
        ("main", 10, 1), ("main-2", 3, 0), ("main-3", 1, 0),
    ]  # fmt: skip
    assert repo.session("s").stats(branch="main-2").total.calls == {"done": 1}
    assert repo.session("s").stats(branch="main-2").subject == "branch main-2 of session s"


def _own(repo, branch):
    return [p for p in repo.session("s").checkpoints(branch=branch.name) if p.internal_session_id == branch.id]


@pytest.mark.long
def test_a_failed_reversal_lowers_the_reversal_success(repo):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for item in ("a", "b", "c"):
        agent.run(f"add {item}")
    world.broken.add("a")
    with pytest.raises(agentgit.RollbackIncomplete):
        agent.rollback("main#1")
    assert repo.session("s").stats().total.reversal_success == pytest.approx(2 / 3)


def test_user_stats_cover_all_sessions_of_that_user_only(repo):
    wrap(repo, "a").run("hi")
    wrap(repo, "b").run("hi")
    with agentgit.open(backend.url(repo), user="other") as other:
        wrap(other, "c").run("hi")
        assert other.maintenance.stats().sessions == 1
        with pytest.raises(NotFound):
            other.session("a").stats()
    found = repo.maintenance.stats()
    assert (found.sessions, found.total.checkpoints, found.total.tokens["m"].messages) == (2, 4, 2)
    repo.session("empty", create=True)
    empty = repo.session("empty").stats()
    assert empty.total.to_dict()["checkpoints"] == 0
    assert (empty.total.duration_seconds, empty.total.reversal_success, empty.total.tokens) == (0.0, None, {})
    assert empty.to_dict()["branch_count"] == 1


# -- tokens


@pytest.mark.parametrize("kind", GRAPHS)
def test_tokens_are_counted_for_every_kind_of_graph(repo, kind):
    agent = wrap(repo, kind=kind)
    for _ in range(3):
        agent.run("hi")
    expected = UsedTokens(3, 10 + 30 + 50, 15)
    assert repo.session("s").stats().total.tokens == {"m": expected}
    retry = agent.rollback("main#3")
    assert repo.session("s").stats(branch="main-2").total.tokens == {}
    retry.run("again")
    assert repo.session("s").stats(branch="main-2").total.tokens == {"m": UsedTokens(1, 30, 5)}
    found = repo.session("s").stats(prices={"m": (1, 10)})
    assert found.total.tokens == {"m": UsedTokens(4, 120, 20)}
    assert found.cost == pytest.approx((120 + 200) / 1e6)
    assert found.to_dict()["branches"][0]["cost"] == pytest.approx((90 + 150) / 1e6)
    assert repo.session("s").stats(prices={"other": (1, 1)}).cost is None
    assert repo.session("s").stats(prices={"*": (0, 0)}).cost == 0
    assert repo.session("s").stats().cost is None


def test_deleted_or_edited_messages_are_not_counted_twice(repo):
    agent = wrap(repo)
    agent.run("one")
    agent.run("two")
    known = repo.session("s").stats().total.tokens
    messages = agent.messages()
    last = messages[-1]
    changed = AIMessage("edited", id=last.id, usage_metadata=last.usage_metadata, response_metadata={"model_name": "m"})
    agent.update_state(None, {"messages": [changed]})
    assert repo.session("s").stats().total.tokens == known
    agent.update_state(None, {"messages": [RemoveMessage(id=m.id) for m in messages[:2]]})
    assert repo.session("s").stats().total.tokens == known
    agent.update_state(None, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("summary")]})
    assert repo.session("s").stats().total.tokens == known
    agent.run("three")
    assert repo.session("s").stats().total.tokens["m"] == UsedTokens(3, known["m"].input + 20, 15)


def test_the_tokens_of_an_erased_session_stay_in_the_sum_of_its_owner(repo):
    """An erasure keeps one sum, so that the tokens and the cost of a user are exact after it."""
    agent = wrap(repo, "a")
    agent.run("one")
    agent.fork().run("two")
    wrap(repo, "b").run("hi")
    before = repo.maintenance.stats(prices={"m": (1, 10)})
    assert before.total.tokens == {"m": UsedTokens(3, 10 + 30 + 10, 15)}
    repo.session("a").delete()
    after = repo.maintenance.stats(prices={"m": (1, 10)})
    assert (after.total.tokens, after.cost, after.sessions) == (before.total.tokens, before.cost, 1)
    assert after.erased == {"m": UsedTokens(2, 40, 10)}
    with agentgit.open(backend.url(repo), user="other") as other:
        assert other.maintenance.stats().total.tokens == {}


def test_tokens_are_counted_per_model(repo):
    names = iter(["a", "b", None, "a"])

    def rule(_):
        name = next(names)
        return said(model=name) if name else AIMessage("x", usage_metadata=said().usage_metadata)

    agent = wrap(repo, model=ScriptedModel(rule=rule))
    for _ in range(4):
        agent.run("hi")
    assert {model: tokens.messages for model, tokens in repo.session("s").stats().total.tokens.items()} == {
        "a": 2, "b": 1, "unknown": 1,
    }  # fmt: skip


def test_graphs_without_a_model_are_counted_by_the_messages_that_they_return(repo):
    class Numbers(MessagesState):
        n: Annotated[int, operator.add]

    @entrypoint()
    def double(n: int) -> int:
        return 2 * n

    def returning(state, value):
        return StateGraph(state).add_node("own", lambda state: value).add_edge(START, "own").compile()

    repo.wrap(returning(MessagesState, {"messages": [said(into=7)]}), "direct").run("hi")
    repo.wrap(returning(Numbers, {"n": 1}), "numbers").invoke({"n": 1})
    repo.wrap(double, "functional").invoke(3)
    tokens = [repo.session(name).stats().total.tokens for name in ("direct", "numbers", "functional")]
    assert tokens == [{"m": UsedTokens(1, 7, 5)}, {}, {}]


@pytest.mark.parametrize("into", [{}, *({"input_tokens": wrong} for wrong in (-5, 2**70, "9", True, None))], ids=str)
def test_bad_input_an_invalid_token_count_counts_as_zero(repo, into):
    message = said(model="\0\ud800" * 300)
    object.__setattr__(message, "usage_metadata", {"output_tokens": 5, **into})
    graph = StateGraph(MessagesState).add_node("act", lambda _: {"messages": [message]}).add_edge(START, "act")
    agent = repo.wrap(graph.compile(), "s")
    agent.run("hi")
    ((model, tokens),) = repo.session("s").stats().total.tokens.items()
    assert tokens == UsedTokens(1, 0, 5)
    assert len(model) <= 200
    assert [one["role"] for one in agent.history()] == ["user", "assistant"]


@pytest.mark.parametrize(
    "prices", [{"m": 5}, {"m": (1,)}, {"m": (1, -1)}, {"m": (1, float("nan"))}, {"m": ("1", "2")}], ids=str
)
def test_bad_input_an_invalid_price_is_refused(repo, prices):
    repo.session("s", create=True)
    with pytest.raises(InvalidInput, match=r"1\.25"):
        repo.session("s").stats(prices=prices)


# -- storage


def test_stats_separate_own_from_shared_storage(repo):
    agent = wrap(repo)
    for n in range(10):
        agent.run(f"{n} " * 300)
    alone = repo.session("s").stats(storage=True).storage
    assert alone.shared == 0
    assert alone.own > 0
    agent.fork(name="fork").run("and more " * 200)
    branch = repo.session("s").stats(branch="fork", storage=True).storage
    assert branch.shared > branch.own / 4
    assert repo.session("s").stats(branch="main", storage=True).storage.shared == branch.shared
    assert repo.session("s").stats().storage is None
    assert repo.session("s").stats(storage=True).to_dict()["storage"]["own"] > alone.own


def test_call_arguments_results_and_checkpoint_data_count_as_storage(repo):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("hm")
    before = repo.session("s").stats(storage=True).storage.own
    agent.checkpoint("big", data="x" * 10_000)
    assert repo.session("s").stats(storage=True).storage.own - before == 10_002 + len("[]")  # no pending writes
    agent.run("add " + "ü" * 10_000)
    (call,) = agent.tool_track()
    recorded = json.dumps(call.args, ensure_ascii=False, separators=(",", ":")).encode()
    assert repo.session("s").stats(storage=True).storage.own - before > 10_002 + 2 * len(recorded)


# -- answers that are counted once


def test_answers_are_counted_once_on_the_branch_where_a_model_gave_them(repo):
    """Forks of forks, merges and cherry-picks bring answers, and count none of them again."""
    agent = wrap(repo)
    agent.run("one")
    theirs = agent.fork(name="theirs")
    theirs.run("two")
    theirs.fork(name="deeper").run("deep")
    theirs.run("three")
    agent.merge("theirs")
    third = agent.fork("main#1", name="third")
    third.cherry_pick("theirs#3")
    agent.run("four")
    found = repo.session("s").stats()
    assert {one.name: one.figures.tokens["m"].input for one in found.branches if one.figures.tokens} == {
        "main": 10 + 70, "theirs": 30 + 50, "deeper": 50,
    }  # fmt: skip
    assert found.total.tokens["m"].messages == 5


def test_a_session_from_a_template_starts_with_no_tokens(repo):
    agent = wrap(repo, "a")
    agent.run("one")
    copy = wrap(repo, "b", template="a")
    assert repo.session("b").stats().total.tokens == {}
    copy.run("two")
    assert repo.session("b").stats().total.tokens == {"m": UsedTokens(1, 30, 5)}
    copy.fork(name="fork").run("three")
    assert repo.maintenance.stats().total.tokens == {"m": UsedTokens(3, 10 + 30 + 50, 15)}


def test_cached_input_has_a_separate_price(repo):
    used = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010,
            "input_token_details": {"cache_read": 600, "cache_creation": 300, "audio": 5}}  # fmt: skip
    message = AIMessage("ok", usage_metadata=used, response_metadata={"model_name": "m"})
    agent = wrap(repo, model=ScriptedModel(rule=lambda _: message.model_copy(update={"id": None})))
    agent.run("one")
    agent.run("two")
    found = repo.session("s").stats()
    assert found.total.tokens == {"m": UsedTokens(2, 2000, 20, 1200, 600)}
    assert "2000 in (1200 from a cache, 600 into a cache), 20 out" in found._repr_mimebundle_()["text/plain"]
    for price, cost in (((1, 2), 2040), ((1, 2, 0.5), 1440), ((1, 2, 0.5, 3), 200 + 600 + 1800 + 40)):
        assert repo.session("s").stats(prices={"m": price}).cost == pytest.approx(cost / 1e6)
    with pytest.raises(InvalidInput, match="from a cache"):
        repo.session("s").stats(prices={"m": (1, 2, 3, 4, 5)})
