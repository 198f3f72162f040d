"""Declared effects of tools and their precedence, without a database."""

import functools
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt.tool_node import msg_content_output
from notebook_shells import Notebook

from agentgit import ToolInvocation, compensable, reversible
from agentgit.effects import Effect, effect
from agentgit.effects.declarations import Declaration, Hints, as_effects, hints_in, record_fields, stricter
from agentgit.effects.effects import (
    declared_on,
    import_function,
    takes_invocation,
)
from agentgit.effects.function_names import FunctionName, is_different, name_of, possible_change, printable_name
from agentgit.effects.invocation import identity, join_errors
from agentgit.effects.kinds import KINDS
from agentgit.effects.registry import Registry
from agentgit.effects.results import SERIALIZED_KEY, comparable
from agentgit.effects.served_sessions import Declarations
from agentgit.errors import InvalidInput, NotFound
from agentgit.next_steps import Next
from agentgit.store.threads.message_rewrite import content_of


def undo(args, result): ...


def other(args, result): ...


def look(invocation): ...


HERE = f"{__name__}:undo"


def invoked(name: str = "pay", **more) -> ToolInvocation:
    return ToolInvocation(id=1, internal_session_id=1, position=0, tool_name=name, **more)


# -- declarations


def test_equal_declarations_have_equal_hashes():
    one = compensable(undo, identity_args=["to", "amount"], verify=look, precheck=look, once=True)
    assert one == compensable(undo=undo, identity_args=("to", "amount"), verify=look, precheck=look, once=True)
    assert len({one, Effect("compensable", undo, ["to", "amount"], look, look, True)}) == 1
    assert reversible(undo, once=True) != reversible(undo)


def test_functions_are_recorded_by_their_names():
    """Also a lambda has a qualified name; a path is imported only when it is needed."""
    declared = reversible(HERE, verify=look, precheck=lambda invocation: None)
    local = f"{__name__}:test_functions_are_recorded_by_their_names.<locals>.<lambda>"
    assert declared.paths == {"undo": HERE, "verify": f"{__name__}:look", "precheck": local}
    assert import_function(HERE) is undo
    with pytest.raises(NotFound, match=r"no\.such:thing"):
        import_function("no.such:thing")


def test_source_is_hashed_only_for_functions_of_main(monkeypatch):
    notebook = Notebook(monkeypatch)
    notebook.run("class Desk:\n    def __call__(self, args, result): ...\n\ndef undo(args, result): ...\n")
    assert name_of(notebook.main.undo).source != name_of(notebook.main.Desk()).source is not None
    exec("def bare(args, result): ...", vars(notebook.main))  # noqa: S102  # as in a shell that keeps no source
    assert str(name_of(notebook.main.bare)) == "__main__:bare"
    assert name_of(undo).source is None


def test_a_function_is_named_by_what_it_calls():
    """A method by its class, a partial by its function, a callable object by its type."""
    functions = (textwrap.dedent, functools.partial(textwrap.dedent), [].append, functools.partial(Effect, "state"))
    names = ["textwrap:dedent", "textwrap:dedent", "builtins:list.append", "agentgit.effects.effects:Effect"]
    assert [str(name_of(function)).partition(" (values ")[0] for function in functions] == names


def test_the_name_of_a_function_that_was_made_tells_the_plain_values_that_it_holds():
    """A string, a number or a tuple of them, also in a function that it calls; not a list, which often changes."""

    def made(value, other=None):
        def inner():
            return value

        return lambda args, result, log=(): (inner(), other, log)

    def values(function):
        return str(name_of(function)).partition(" (values ")[2]

    told_apart = [made("eu"), made("us"), made(1), made(True), made(1.0), made(("eu", "us")), made(None, "eu")]
    assert len({values(function) for function in told_apart}) == len(told_apart)
    assert values(made("eu")) == values(made("eu"))
    assert values(made("eu", [1])) == values(made("eu", {"a": 2}))
    assert values(functools.partial(textwrap.dedent, "eu")) != values(functools.partial(textwrap.dedent, "us"))
    assert values(textwrap.dedent) == values(functools.partial(textwrap.dedent, [])) == ""


def test_a_function_of_another_script_is_another_one():
    """One whose source has changed in its script is the same; a plan mentions the change."""
    recorded = FunctionName.read("__main__:undo@9f86d081884c in shop.py")
    assert recorded == FunctionName("__main__:undo", "9f86d081884c", "shop.py")
    assert FunctionName.read(str(recorded)) == recorded
    mended, foreign = recorded._replace(source="2"), recorded._replace(source="2", file="bank.py")
    assert (is_different(recorded, mended), is_different(recorded, foreign)) == (False, True)
    assert possible_change(recorded, recorded) is None
    assert possible_change(recorded, mended) == "the source of __main__:undo has changed since the call"
    assert "cannot tell" in str(possible_change(FunctionName("__main__:undo"), mended))


def test_a_recorded_name_is_safe_to_print():
    """A row may have any text."""
    assert printable_name("shop:cancel") == "shop:cancel"
    assert printable_name("shop:" + chr(0)) == "'shop:\\x00'"
    assert len(printable_name("x" * 10_000)) < 300


def test_an_undo_function_may_take_the_invocation():
    """It is the third parameter, if that has this name or no default."""
    assert takes_invocation(lambda args, result, invocation: None)
    assert takes_invocation(lambda args, result, invocation=None: None)
    assert not takes_invocation(lambda args, result, dry_run=False: None)
    assert not takes_invocation(lambda *everything: None)  # usually a decorator around a function of two parameters
    assert not takes_invocation(undo)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: effect("reversible"), "needs an undo"),
        (lambda: import_function("no-colon"), "not an import path"),
        (lambda: import_function("a.b:<locals>.f"), "not an import path"),
        (lambda: import_function("agentgit:__version__"), "not a function"),
        (lambda: effect("harmless"), "not an effect"),
        (lambda: effect(undo), "reversible\\(undo\\)"),
        (lambda: Effect("idempotent", undo), "never undone"),
        (lambda: effect("irreversible", identity_args="to"), "list of names"),
        (lambda: effect("irreversible", identity_args=["to", "to"]), "only once"),
        (lambda: effect("irreversible", identity_args=["to", 3]), "each argument"),
        (lambda: effect("irreversible", identity_args={"to"}), "list of names"),
        (lambda: effect("read_only", verify=look), "leave out verify"),
        (lambda: effect("read_only", once=True), "leave out once"),
        (lambda: effect("read_only", identity_args=["to"]), "leave out identity_args"),
        (lambda: Effect("irreversible", precheck=look), "leave out precheck"),
        (lambda: effect("irreversible", once="yes"), "True or False"),
        (lambda: reversible("cancel"), "not an import path"),
        (lambda: reversible("shop:cancel order"), "not an import path"),
        (lambda: reversible(undo, verify="shop.was_ordered"), "not an import path"),
        (lambda: reversible(undo, precheck=3), "must be a function"),
        (lambda: reversible(42), "must be a function"),
        (lambda: reversible(lambda args: None), "args, result"),
        (lambda: reversible(lambda a, b, c, d: None), "args, result"),
        (lambda: reversible(undo, verify=lambda: True), "invocation"),
        (lambda: effect("read_only")("search"), "cannot carry"),
    ],
)
def test_a_meaningless_declaration_is_refused_at_once(make, says):
    with pytest.raises(InvalidInput, match=says):
        make()


def test_a_declared_effect_belongs_to_one_tool():
    """Not to another tool of the same function. The decorator stands above or below `@tool`, not on a bare method."""

    class Shop:
        def act(self, item: str) -> str:
            """Act."""
            return item

    act = Shop().act
    sends = effect("irreversible")(StructuredTool.from_function(act, name="send"))
    looks = effect("read_only")(StructuredTool.from_function(act, name="look"))
    assert (declared_on(sends), declared_on(looks)) == (effect("irreversible"), effect("read_only"))
    assert declared_on(StructuredTool.from_function(act, name="other")) is None
    assert declared_on(sends.model_copy()) == effect("irreversible")
    with pytest.raises(InvalidInput, match="cannot carry"):
        reversible(undo)(act)

    @tool
    @reversible(undo=undo, identity_args=["item"])
    def below(item: str) -> str:
        """Put."""
        return item

    assert declared_on(below) == reversible(undo, identity_args=["item"])


def test_an_identity_is_recorded_only_for_calls_that_need_one():
    args = {"to": "Ann"}
    has = [reversible(undo, once=True), compensable(undo), effect("irreversible"), effect("idempotent", once=True)]
    has_not = [reversible(undo), effect("idempotent"), effect("read_only")]
    assert all(record_fields(declared, "pay", args)["identity"] == identity("pay", args, None) for declared in has)
    assert all(record_fields(declared, "pay", args)["identity"] is None for declared in has_not)
    assert record_fields(None, "pay", args) == {"effect": "undeclared", "undo": None, "identity": None}


def test_equivalent_arguments_have_the_same_identity():
    """Argument order, 5 or 5.0, and arguments outside identity_args do not change the identity of a call."""
    one = identity("pay", {"to": {"name": "Ann", "at": 1}, "euros": 5, "reference": "a"}, ("to", "euros"))
    assert one == identity("pay", {"reference": "b", "euros": 5.0, "to": {"at": 1.0, "name": "Ann"}}, ("to", "euros"))
    assert one != identity("pay", {"to": {"name": "Ann", "at": 1}, "euros": 5.5}, ("to", "euros"))
    assert one != identity("send", {"to": {"name": "Ann", "at": 1}, "euros": 5}, ("to", "euros"))
    assert identity("pay", {"to": "Ann"}, ()) == identity("pay", {"to": "Bob"}, ())


# -- results and errors


def test_results_are_compared_without_call_ids():
    message = {"type": "tool", "content": "done", "tool_call_id": "call-7", SERIALIZED_KEY: "x7kF"}
    assert comparable(message) == {"type": "tool", "content": "done"}
    assert comparable({"tool_call_id": "call-7"}) == {"tool_call_id": "call-7"}  # a tool's own value


def test_a_value_becomes_the_content_of_a_message_as_in_langgraph():
    blocks = [{"type": "text", "text": "hi"}]
    for value in ("done", {"order": 7}, blocks, [{"type": "other"}]):
        assert content_of(value) == msg_content_output(value)


def test_an_error_and_that_of_its_verify_are_kept_apart():
    call = invoked(error_message=join_errors("TimeoutError: late", "KeyError: 'id'"))
    assert (call.own_error, call.verify_raised) == ("TimeoutError: late", "its verify raised KeyError: 'id'")
    assert (join_errors("TimeoutError: late", None), join_errors(None, None)) == ("TimeoutError: late", None)
    assert str(invoked(args={"to": "Ann"})) == "pay(to='Ann')"


# -- MCP


DECLARED = {kind: Effect(kind, undo) if kind.is_undoable else Effect(kind) for kind in KINDS} | {"undeclared": None}


@pytest.mark.parametrize(
    ("kind", "read_only", "destructive", "then"),
    [
        ("undeclared", True, None, "undeclared"),
        ("undeclared", True, True, "irreversible"),
        ("undeclared", False, None, "undeclared"),
        ("undeclared", None, True, "irreversible"),
        ("undeclared", None, False, "undeclared"),
        ("read_only", True, True, "read_only"),
        ("read_only", None, None, "read_only"),
        ("read_only", False, None, "undeclared"),
        ("read_only", False, False, "undeclared"),
        ("read_only", False, True, "irreversible"),
        ("read_only", None, True, "irreversible"),
        ("idempotent", True, None, "idempotent"),
        ("state", True, True, "state"),
        ("state", False, None, "undeclared"),
        ("state", None, True, "irreversible"),
        ("workspace", False, True, "workspace"),
        ("idempotent", False, None, "idempotent"),
        ("idempotent", None, True, "irreversible"),
        ("reversible", False, True, "reversible"),
        ("compensable", False, True, "compensable"),
        ("irreversible", True, False, "irreversible"),
    ],
)
def test_mcp_annotations_change_effects_as_documented(kind, read_only, destructive, then):
    """MCP annotations change a declared effect as documented in the table of docs/effects.md."""
    found = stricter(DECLARED[kind], Hints(read_only, destructive))
    assert (found.kind if found else "undeclared") == then


MINDED = ("read_only", "state", "workspace", "idempotent", "undeclared", "reversible", "compensable", "irreversible")
"""The effects, from the least strict to the strictest."""


def strictness(declared: Effect | None) -> int:
    return MINDED.index(declared.kind if declared else "undeclared")


NAMES = ["readOnlyHint", "destructiveHint", "read_only_hint", "destructive_hint", "annotations", "mcp", "tool", "title"]
METADATA = st.recursive(
    st.sampled_from([None, True, False, "true", 1, "x"]),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=12,
)


@given(metadata=METADATA, kind=st.sampled_from(list(DECLARED)))
def test_no_metadata_makes_an_effect_less_strict(metadata, kind):
    """Metadata of any shape from a server raises nothing, and applying it twice changes nothing."""
    once = stricter(DECLARED[kind], hints_in(metadata))
    assert strictness(once) >= strictness(DECLARED[kind])
    assert stricter(once, hints_in(metadata)) == once


def test_annotations_are_found_in_every_known_place():
    """Annotations are found where langchain-mcp-adapters, langchain.mcp and others put them; the strictest wins."""

    class Said:
        readOnlyHint = False  # noqa: N815  # so MCP calls it
        destructiveHint = None  # noqa: N815  # as above

    said = {"readOnlyHint": False}
    places = [said, {"annotations": said}, {"mcp": {"tool": {"annotations": {"read_only_hint": False}}}}]
    assert [hints_in(place) for place in [*places, {"annotations": Said()}]] == [Hints(read_only=False)] * 4
    both = {"readOnlyHint": True, "destructiveHint": False, "annotations": said | {"destructiveHint": True}}
    assert hints_in(both) == Hints(read_only=False, destructive=True)


def test_a_stricter_effect_keeps_verify_and_identity_args():
    found = stricter(Effect("idempotent", identity_args=["id"], verify=look), Hints(destructive=True))
    assert found == Effect("irreversible", identity_args=["id"], verify=look)


@pytest.mark.parametrize("wrong", [["add"], "add", {"add": 3}, {3: "read_only"}, {"": "read_only"}, {"add": None}])
def test_a_wrong_effects_mapping_is_refused(wrong):
    with pytest.raises(InvalidInput):
        as_effects(wrong)


# -- the registry


def test_a_recorded_name_finds_only_declared_functions():
    registry = Registry()
    call = invoked(undo=HERE, verify=f"{__name__}:look")
    assert "is not declared here" in registry.undo_obstacle(1, call)
    registry.declare(1, Declarations.of([Declaration("pay", reversible(undo, verify=look))]))
    assert (registry.undo(1, call), registry.verify(1, call), registry.precheck(1, call)) == (undo, look, None)
    registry.declare(1, Declarations.of([Declaration("pay", reversible(other, precheck=look))]))
    assert registry.undo(1, call) is undo
    assert registry.undo(1, invoked(undo=f"{__name__}:other")) is other
    assert registry.verify(1, call) is look  # a later declaration keeps what it leaves out
    assert registry.precheck(1, call) is look
    assert "is not declared here" in registry.undo_obstacle(2, call)


def test_the_reason_for_a_missing_function_names_the_next_step():
    registry = Registry()
    assert registry.undo_obstacle(1, invoked("nobody")).next == (Next("declare"),)
    assert "no.such:thing is not declared here" in registry.undo_obstacle(1, invoked("nobody", undo="no.such:thing"))
    registry.declare(1, Declarations.of([Declaration("nobody", reversible("no.such:thing"))]))
    assert "cannot be imported" in registry.undo_obstacle(1, invoked("nobody", undo="no.such:thing"))
    with pytest.raises(NotFound, match="the tool pay is unknown"):
        registry.runner(1, invoked())
    registry.declare(1, Declarations.of([Runnable("pay", runs="only its graph can call it")]))
    with pytest.raises(NotFound, match="only its graph"):
        registry.runner(1, invoked())
    registry.declare(1, Declarations.of([Runnable("pay", runs=lambda args, _: args["amount"])]))
    assert registry.runner(1, invoked())({"amount": 5}, "thread") == 5


@dataclass(frozen=True, eq=False)
class Runnable(Declaration):
    """A declaration of a tool that a function calls again."""

    runs: Any = None

    @property
    def runner(self):
        return self.runs

    @property
    def tool_identity(self):
        return id(self.runs)


def closing_over(world: list[str]):
    """Return a tool's undo function, with the name that each of them has."""

    def undo_in_world(args, result):
        world.append("undone")

    return undo_in_world


def test_equal_declarations_are_told_apart_by_the_call_or_not_at_all():
    """A call of this process is undone by the declaration that ran; one of another process by exactly one that fits."""
    one, two = (Declaration("pay", reversible(closing_over([])), "shop:pay", place) for place in ("desk", "bank"))
    call = invoked(undo=one.effect.paths["undo"], tool_path="shop:pay", enclosing="desk")
    registry = Registry()
    registry.declare(1, Declarations.of([one, two]))
    assert registry.undo(1, call) is one.effect.undo
    assert registry.undo(1, replace(call, enclosing="bank")) is two.effect.undo
    assert "does not say which one" in registry.undo_obstacle(1, replace(call, enclosing="counter"))
    assert "its tool was shop:send at the call" in registry.undo_obstacle(1, replace(call, tool_path="shop:send"))
    registry.declare(2, Declarations.of([one, replace(two, enclosing="desk")]))
    assert "does not say which one" in registry.undo_obstacle(2, call)
    registry.remember(call.id, two)
    assert registry.undo(1, call) is registry.undo(2, call) is two.effect.undo
    assert registry.undo(2, invoked(undo=call.undo, replay_of=call.id)) is two.effect.undo
