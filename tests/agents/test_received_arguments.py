"""The arguments that a tool got: what is recorded, what an undo gets, and what makes two calls equal.

None of it depends on whether the graph shows the tool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool, Tool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from pydantic import (
    BaseModel,
    Field,
    RootModel,
    SecretBytes,
    SecretStr,
    create_model,
    field_validator,
)
from pydantic.v1 import BaseModel as OldModel
from pydantic.v1 import Field as OldField
from scripted import call, calls, node_graph, say

from agentgit import AgentGitError, Fenced, RollbackBlocked, compensable, effect, reversible


class Item(BaseModel):
    """A nested argument."""

    sku: str
    count: int = 1
    reference: str = Field(default_factory=lambda: uuid4().hex)


class Order(BaseModel):
    """The arguments of a tool with every kind of field."""

    item: Item
    price: Decimal = Decimal("9.90")
    on: date = date(2026, 1, 2)
    notes: list[str] = []
    trace: str = Field(default_factory=lambda: uuid4().hex)
    quick: bool = Field(default=False, alias="isQuick")


made: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def _empty():
    made.clear()


def order_tool() -> BaseTool:
    def order(item: Item, price: Decimal, on: date, notes: list[str], trace: str, quick: bool) -> int:
        made.append({"sku": item.sku, "count": item.count, "price": price, "on": on, "trace": trace, "quick": quick})
        return len(made)

    return StructuredTool.from_function(order, name="order", description="Order.", args_schema=Order)


def graph_of(tools: list[BaseTool], *given: dict[str, Any], hidden: bool, name: str = "order") -> Any:
    """Build a graph that calls a tool once in each turn, in a ToolNode or where the graph does not show it."""
    left, holder = list(given), {name: tools[0]}
    if not hidden:
        graph = StateGraph(MessagesState).add_node("tools", ToolNode(tools)).add_edge("ask", "tools")
        graph.add_node("ask", lambda state: {"messages": [calls(call(name, f"c{len(left)}", **left.pop(0)))]})
        return graph.add_edge(START, "ask").compile()
    return node_graph(lambda state: {"messages": [("ai", str(holder[name].invoke(left.pop(0))))]})


VARIANTS: dict[str, dict[str, Any]] = {
    "the same": {"item": {"sku": "a1"}, "price": "5"},
    "a default written out": {"item": {"sku": "a1", "count": 1}, "price": "5", "on": "2026-01-02"},
    "numbers as text": {"item": {"sku": "a1", "count": "1"}, "price": 5.0},
    "an unknown argument": {"item": {"sku": "a1"}, "price": "5", "why": "because"},
    "an unknown nested key": {"item": {"sku": "a1", "colour": "red"}, "price": "5.00"},
    "a date as a time": {"item": {"sku": "a1"}, "price": "5", "on": "2026-01-02T00:00:00"},
    "an alias": {"item": {"sku": "a1"}, "price": "5", "isQuick": "no"},
    "an empty list": {"item": {"sku": "a1"}, "price": "5", "notes": []},
}


@pytest.mark.each_value_once
@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
@pytest.mark.parametrize("fence", ["fence", "once"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_call_spelled_otherwise_is_not_made_again(repo, hidden, fence, variant):
    how = compensable(lambda args, result: None, once=True) if fence == "once" else effect("irreversible")
    graph = graph_of([order_tool()], VARIANTS["the same"], VARIANTS[variant], hidden=hidden)
    agent = repo.wrap(graph, "s", effects={"order": how}, check_effects=False)
    start = agent.checkpoint("start")
    agent.invoke(say())
    if fence == "fence":
        agent = agent.rollback(start, force=True)
    agent.invoke(say())
    assert len(made) == 1


@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
def test_another_call_is_made(repo, hidden):
    other = {"item": {"sku": "a1"}, "price": "5", "isQuick": True}
    graph = graph_of([order_tool()], VARIANTS["the same"], other, hidden=hidden)
    agent = repo.wrap(graph, "s", effects={"order": effect("irreversible")}, check_effects=False)
    start = agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback(start, force=True).invoke(say())
    assert [one["quick"] for one in made] == [False, True]


@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
def test_an_undo_gets_what_the_tool_got(repo, hidden):
    """Validated, with defaults and generated values, as JSON types, under the names of the tool's parameters."""
    got: list[dict[str, Any]] = []
    graph = graph_of([order_tool()], {"item": {"sku": "a1", "count": "2", "x": 1}, "price": "5.50"}, hidden=hidden)
    effects = {"order": reversible(lambda args, result: got.append(args))}
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    start = agent.checkpoint("start")
    agent.invoke(say())
    assert agent.tool_track()[0].args["trace"] == made[0]["trace"]
    agent.rollback(start)
    [args] = got
    assert args["item"].pop("reference")
    assert args == {
        "item": {"sku": "a1", "count": 2},
        "price": "5.5",
        "on": "2026-01-02",
        "notes": [],
        "trace": made[0]["trace"],
        "quick": False,
    }


@dataclass
class Line:
    """A nested argument that is no model of pydantic."""

    sku: str
    reference: str = field(default_factory=lambda: uuid4().hex)


class Colour(str, Enum):  # noqa: UP042  # str() of it is 'Colour.RED'
    """A choice."""

    RED = "red"


class OldLine(OldModel):
    """A nested argument of pydantic 1."""

    sku: str
    count: int = 1


class OldOrder(OldModel):
    """Arguments of pydantic 1."""

    line: OldLine
    trace: str = OldField(default_factory=lambda: uuid4().hex)


class Aliased(BaseModel):
    """An argument with another name for the caller, and a factory."""

    amount: int = Field(default_factory=lambda: 5, validation_alias="euros")


def pay_tool(kind: str) -> BaseTool:
    """Make a tool that pays, whose argument has a certain type."""

    def pay(value: Any) -> str:
        made.append({"value": value})
        return "paid"

    if kind == "one argument":
        return Tool(name="pay", description="Pay.", func=pay)
    schemas: dict[str, Any] = {"pydantic 1": OldOrder, "alias": Aliased}
    if kind in schemas:
        return StructuredTool(
            name="pay", description="Pay.", func=lambda **given: pay(given), args_schema=schemas[kind]
        )
    types: dict[str, Any] = {
        "set": set[int],
        "dataclass": Line,
        "numbered": dict[int, Item],
        "text": str,
        "decimal": Decimal,
        "decimals": set[Decimal],
        "prices": dict[Decimal, str],
        "time": datetime,
    }
    pay.__annotations__["value"] = types[kind]
    return StructuredTool.from_function(pay, description="Pay.")


@pytest.mark.parametrize(
    ("kind", "first", "second", "times"),
    [
        ("set", {"value": [0, 8]}, {"value": [8, 0]}, 1),
        ("dataclass", {"value": {"sku": "a1"}}, {"value": {"sku": "a1"}}, 1),
        ("numbered", {"value": {"1": {"sku": "a1"}}}, {"value": {1: {"sku": "a1"}}}, 1),
        ("pydantic 1", {"line": {"sku": "a1"}}, {"line": {"sku": "a1", "count": "1"}}, 1),
        ("one argument", {"__arg1": "Ann"}, {"to": "Ann"}, 1),
        ("one argument", "Ann", {"__arg1": "Ann"}, 1),
        ("text", "Ann", {"value": "Ann"}, 1),
        ("alias", {"euros": 1}, {"euros": 2}, 2),
        ("decimals", {"value": ["5", "7"]}, {"value": ["7", "5.00"]}, 1),
        ("prices", {"value": {"5": "a"}}, {"value": {"5.00": "a"}}, 1),
        ("time", {"value": "2027-01-01T12:00:00Z"}, {"value": "2027-01-01T13:00:00+01:00"}, 1),
        ("time", {"value": "2027-01-01T12:00:00Z"}, {"value": "2027-01-01T12:00:00+01:00"}, 2),
        ("decimal", {"value": f"{10**30}.01"}, {"value": f"{10**30}.02"}, 2),
    ],
)
def test_calls_with_equal_arguments_of_any_type_are_one_call_and_others_are_made(repo, kind, first, second, times):
    graph = graph_of([pay_tool(kind)], first, second, hidden=True, name="pay")
    agent = repo.wrap(graph, "s", effects={"pay": "irreversible"}, check_effects=False)
    start = agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback(start, force=True).invoke(say())
    assert len(made) == times


def test_arguments_are_plain_values_in_the_record(repo):
    @tool("pay")
    def paint(colour: Colour, lines: dict[int, Line]) -> str:
        """Paint it."""
        return "painted"

    given = {"colour": "red", "lines": {"1": {"sku": "a1", "reference": "x"}}}
    agent = repo.wrap(graph_of([paint], given, hidden=True, name="pay"), "s", check_effects=False)
    agent.invoke(say())
    assert agent.tool_track()[0].args == {"colour": "red", "lines": {"1": {"sku": "a1", "reference": "x"}}}


def test_a_tool_called_with_text_has_its_defaults_in_the_record(repo):
    agent = repo.wrap(graph_of([Plain()], "a", hidden=True, name="plain"), "s", check_effects=False)
    agent.invoke(say())
    assert agent.tool_track()[0].args == {"to": "a", "times": 2}


class Doubling(BaseModel):
    """Arguments that become others when they are validated again."""

    item: str
    is_quick: bool = Field(default=False, alias="isQuick")
    count: int = 1

    @field_validator("count")
    @classmethod
    def double(cls, count: int) -> int:
        """Count pairs."""
        return 2 * count


def redone(repo: Any, **given: Any) -> Any:
    """Make a call, reverse it, and go back to the branch that has made it."""

    def order(item: str, is_quick: bool, count: int) -> str:
        made.append({"item": item, "is_quick": is_quick, "count": count})
        return "ordered"

    used = StructuredTool.from_function(order, name="order", description="Order.", args_schema=Doubling)
    agent = repo.wrap(
        graph_of([used], given, hidden=False), "s", effects={"order": reversible(lambda args, result: None)}
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback(start)
    return agent.session.switch("main", sync="world")


def test_a_call_is_made_again_with_the_arguments_that_the_tool_got(repo):
    redone(repo, item="a1", isQuick=True, count=0)
    assert made == [{"item": "a1", "is_quick": True, "count": 0}] * 2


def test_a_call_is_not_made_again_if_the_tool_would_get_other_arguments(repo):
    with pytest.raises(AgentGitError, match=r"it would get .*'count': 12.*, and not the recorded .*'count': 6"):
        redone(repo, item="a1", count=3)
    assert len(made) == 1


class Renamed(BaseModel):
    """A nested argument that is written otherwise than it is called."""

    quantity: int = Field(alias="qty")


class Numbers(RootModel[list[int]]):
    """A model that is a list."""


class Cents(BaseModel):
    """An amount that is given in euros and kept in cents."""

    amount: int

    @field_validator("amount")
    @classmethod
    def convert(cls, amount: int) -> int:
        """Convert euros to cents."""
        return 100 * amount


class Text(BaseModel):
    """A number that is given as text."""

    number: float

    @field_validator("number", mode="before")
    @classmethod
    def read(cls, number: str) -> float:
        """Read the text."""
        return float(number.strip())


class Encoded(BaseModel):
    """Bytes, which the record has in another form than the caller."""

    text: bytes


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Renamed, {"qty": 3}),
        (Numbers, [1, 2]),
        (Cents, {"amount": 5}),
        (Text, {"number": " 5 "}),
        (Encoded, {"text": "abc"}),
    ],
)
@pytest.mark.parametrize("verb", ["execute", "redo", "template"])
def test_a_plan_blocks_a_call_whose_arguments_would_be_others_when_validated_again(repo, verb, kind, given):
    """Nothing is reversed for a call that could not be made again afterwards."""
    paid: list[Any] = []

    def acted(what: Any) -> str:
        paid.append("paid")
        return "paid"

    schema = create_model("Pay", what=(kind, ...))
    pay = StructuredTool.from_function(acted, name="pay", description="Pay.", args_schema=schema)
    effects = {"pay": compensable(lambda args, result: paid.append("refunded"))}
    graph = graph_of([pay], {"what": given}, hidden=False, name="pay")
    agent = repo.wrap(graph, "s", effects=effects)
    start = agent.checkpoint("start")
    agent.invoke(say())
    why = r"its recorded arguments are not valid a second time|it would get .*, and not the recorded"
    if verb == "redo":
        agent = agent.rollback(start)
        assert not agent.plan_redo().is_admissible
        with pytest.raises(RollbackBlocked, match=why):
            agent.redo()
        assert paid == ["paid", "refunded"]
        return
    if verb == "template":
        agent.checkpoint("end")
        with pytest.raises(RollbackBlocked, match=why):
            repo.wrap(graph, "t", effects=effects, template="s@end", replay="execute")
    else:
        assert not agent.plan_rollback(agent.head, replay="execute").is_admissible
        with pytest.raises(RollbackBlocked, match=why):
            agent.rollback(agent.head, replay="execute")
        (item,) = agent.rollback(agent.head, replay="execute", force=True).report.answered
        assert item.invocation.tool_name == "pay"
    assert paid == ["paid"]


class Plain(BaseTool):
    """A tool without a schema of its own, whose parameters have defaults."""

    name: str = "plain"
    description: str = "Do it."

    def _run(self, to: str, times: int = 2, config: RunnableConfig | None = None) -> str:
        return to * times


@tool
def injected(
    to: str,
    state: Annotated[dict[str, Any], InjectedState],
    call_id: Annotated[str, InjectedToolCallId],
    config: RunnableConfig,
    secret: Annotated[str, InjectedToolArg] = "",
) -> str:
    """Get more than the model writes."""
    return to + str(len(state["messages"]))


by_json_schema = StructuredTool.from_function(
    lambda to, times=2: to * times,
    name="by_json_schema",
    description="Do it.",
    args_schema={"type": "object", "properties": {"to": {"type": "string"}, "times": {"default": 2}}},
)


@tool
def at(moment: datetime, tags: set[str]) -> str:
    """Do it at some time."""
    return moment.isoformat()


@pytest.mark.parametrize(
    ("used", "given", "recorded"),
    [
        (Plain(), {"to": "a"}, {"to": "a", "times": 2}),
        (injected, {"to": "a"}, {"to": "a"}),
        (by_json_schema, {"to": "a"}, {"to": "a", "times": 2}),
        (at, {"moment": "2026-01-02T03:04:05Z", "tags": ["b"]}, {"moment": "2026-01-02T03:04:05Z", "tags": ["b"]}),
    ],
    ids=["no schema", "injected", "JSON schema", "types"],
)
def test_the_record_has_what_the_tool_got_and_nothing_injected(repo, used, given, recorded):
    agent = repo.wrap(graph_of([used], given, hidden=False, name=used.name), "s")
    agent.invoke(say())
    assert agent.tool_track()[0].args == recorded


def test_a_call_whose_arguments_are_not_valid_is_recorded_as_failed_with_what_was_given(repo):
    agent = repo.wrap(graph_of([order_tool()], {"item": "none"}, hidden=False), "s", effects={"order": "irreversible"})
    agent.invoke(say())
    [failed] = agent.tool_track()
    assert (failed.status, failed.args) == ("failed", {"item": "none"})
    assert made == []


def test_a_call_that_was_never_made_is_not_recorded_as_done(repo):
    """LangChain makes a plain text of the error if the tool wants that and its caller is code."""
    pay = pay_tool("decimal")
    pay.handle_validation_error = "not valid"
    agent = repo.wrap(
        graph_of([pay], {"value": "much"}, hidden=True, name="pay"),
        "s",
        effects={"pay": "irreversible"},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    assert agent.tool_track()[0].status == "failed"
    agent.rollback(start)


def test_a_rerun_matches_calls_of_a_tool_that_has_got_an_argument_since(repo):
    @tool
    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    agent = repo.wrap(graph_of([search], {"query": "chair"}, hidden=False, name="search"), "s")
    agent.invoke(say())

    @tool("search")
    def newer(query: str, limit: int = 5) -> str:
        """Search."""
        raise AssertionError

    rerun = agent.rerun(graph_of([newer], {"query": "chair"}, hidden=False, name="search"))
    assert [one.is_matched for one in rerun.report.calls] == [True]


# -- arguments that the record does not show


class Token:
    """An object that has no JSON form, and the same repr as any other."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return "<token>"


class Card(BaseModel):
    """A card with a secret number."""

    number: SecretBytes


def charging(kind: str, charged: list[Any]) -> BaseTool:
    """Return a tool that charges a card: a secret, a secret in a list of models, or an object."""
    if kind == "object":

        def charge(card: Any, euros: int) -> str:
            """Charge a card."""
            charged.append(card.number)
            return f"receipt {card.number}"

    elif kind == "secret":

        def charge(card: SecretStr, euros: int) -> str:
            """Charge a card."""
            charged.append(card.get_secret_value())
            return f"receipt {card.get_secret_value()}"

    else:

        def charge(card: list[Card], euros: int) -> str:
            """Charge a card."""
            charged.append(card[0].number.get_secret_value().decode())
            return f"receipt {charged[-1]}"

    return tool("charge")(charge)


def card_of(kind: str, number: str) -> Any:
    return {"secret": number, "nested": [{"number": number}], "object": Token(int(number))}[kind]


@pytest.mark.parametrize("kind", ["secret", "nested"])
@pytest.mark.parametrize("fence", ["fence", "once"])
@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
def test_two_secrets_are_two_calls_and_the_same_one_is_one(repo, kind, fence, hidden):
    charged: list[str] = []
    cards = [{"card": card_of(kind, number), "euros": 5} for number in ("1111", "2222", "1111")]
    graph = graph_of([charging(kind, charged)], *cards, hidden=hidden, name="charge")
    effects = {"charge": compensable(lambda args, result: None, once=fence == "once")}
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    start = agent.checkpoint("start")
    for _ in cards:
        agent.invoke(say())
        agent = agent if fence == "once" else agent.rollback(start, tools="keep")
    assert charged == ["1111", "2222"]
    stored = [str(one.args) for one in agent.tool_track()]
    assert not [args for args in stored if "1111" in args or "2222" in args]


@pytest.mark.parametrize("effect_of", ["compensable", "irreversible", "reversible"])
def test_a_node_that_runs_again_with_another_secret_is_not_answered_with_the_first(repo, effect_of):
    charged: list[str] = []
    charge, numbers = charging("secret", charged), ["1111", "1111", "2222"]

    def act(state: MessagesState) -> dict[str, Any]:
        receipt = charge.invoke({"card": numbers.pop(0), "euros": 5})
        if len(numbers) > 0:
            raise ValueError("broken off")
        return {"messages": [("ai", receipt)]}

    undo = {"compensable": compensable, "reversible": reversible}.get(effect_of)
    declared = effect("irreversible") if undo is None else undo(lambda args, result: None)
    agent = repo.wrap(node_graph(act), "s", effects={"charge": declared}, check_effects=False)
    with pytest.raises(ValueError, match="broken off"):
        agent.invoke(say())
    with pytest.raises(ValueError, match="broken off"):
        agent.invoke(None)
    assert charged == ["1111"]
    if effect_of == "irreversible":
        with pytest.raises(Fenced, match="this may be a new call"):
            agent.invoke(None)
    else:
        assert agent.invoke(None)["messages"][-1].content == "receipt 2222"
        assert charged == ["1111", "2222"]


def test_a_rerun_does_not_answer_with_the_call_of_another_secret(repo):
    charged: list[str] = []
    cards = [{"card": number, "euros": 5} for number in ("1111", "1111", "2222")]
    graph = graph_of([charging("secret", charged)], *cards, hidden=True, name="charge")
    effects = {"charge": compensable(lambda args, result: None)}
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    agent.invoke(say())
    assert [len(agent.rerun().report.matched) for _ in range(2)] == [1, 0]
    assert charged == ["1111"]


def test_a_call_with_a_secret_is_neither_undone_nor_redone(repo):
    undone: list[Any] = []
    graph = graph_of(
        [charging("nested", [])], {"card": card_of("nested", "1111"), "euros": 5}, hidden=False, name="charge"
    )
    agent = repo.wrap(graph, "s", effects={"charge": reversible(lambda args, result: undone.append(args))})
    start = agent.checkpoint("start")
    agent.invoke(say())
    with pytest.raises(
        RollbackBlocked, match="cannot be reversed here: its argument card is a secret, which is not stored"
    ):
        agent.rollback(start)
    assert undone == []


@pytest.mark.parametrize("how", ["fence", "once", "again"])
def test_a_call_with_an_object_without_a_json_form_is_not_compared(repo, how):
    """A person lists the arguments that count."""
    charged: list[int] = []
    charge, numbers, broken = charging("object", charged), ["1", "2"], [how == "again"]

    def act(state: MessagesState) -> dict[str, Any]:
        receipt = charge.invoke({"card": card_of("object", numbers.pop(0)), "euros": 5})
        if broken.pop():
            broken.append(False)
            raise ValueError("broken off")
        broken.append(False)
        return {"messages": [("ai", receipt)]}

    declared = compensable(lambda args, result: None, once=how == "once")
    agent = repo.wrap(node_graph(act), "s", effects={"charge": declared}, check_effects=False)
    start = agent.checkpoint("start")
    if how == "once":
        with pytest.raises(Fenced, match=r"its argument card is an object .* identity_args"):
            agent.invoke(say())
        agent = repo.wrap(
            node_graph(act),
            "s",
            effects={"charge": compensable(lambda args, result: None, once=True, identity_args=["euros"])},
            check_effects=False,
        )
        assert agent.invoke(say())["messages"][-1].content == "receipt 2"
        return
    if how == "fence":
        agent.invoke(say())
        with pytest.raises(Fenced, match=r"its argument card is an object .* identity_args"):
            agent.rollback(start, tools="keep").invoke(say())
    else:
        with pytest.raises(ValueError, match="broken off"):
            agent.invoke(say())
        with pytest.raises(Fenced, match="identity_args"):
            agent.invoke(None)
    assert charged == [1]
