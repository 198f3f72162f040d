"""Declared effects of tools and their precedence, without a database."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit import ToolInvocation, compensable, reversible
from agentgit.effects import Effect, effect
from agentgit.effects.declarations import Hints, ToolEffects, as_effects, hints_in, record_fields, stricter
from agentgit.effects.effects import KINDS, UNDOABLE, declared_by_name
from agentgit.effects.invocation import identity
from agentgit.effects.registry import Registry
from agentgit.errors import InvalidInput, NotFound


def undo(args, result): ...


def other(args, result): ...


def look(invocation): ...


def named(name: str):
    """Create a function with this name."""

    def function(): ...

    function.__name__ = name
    return function


HERE = f"{__name__}:undo"


def invoked(name: str = "pay", **more) -> ToolInvocation:
    return ToolInvocation(id=1, internal_session_id=1, position=0, tool_name=name, **more)


# -- declarations


def test_equal_declarations_have_equal_hashes():
    """Two declarations with the same content are equal and have one hash, with lists or tuples of names."""
    one = compensable(undo, identity_args=["to", "amount"], verify=look, precheck=look, once=True)
    assert one == compensable(undo=undo, identity_args=("to", "amount"), verify=look, precheck=look, once=True)
    assert len({one, Effect("compensable", undo, ["to", "amount"], look, look, True)}) == 1
    assert reversible(undo, once=True) != reversible(undo)


def test_functions_are_recorded_by_their_names():
    """Verify and precheck, also a lambda, are recorded by their qualified names like an undo function."""
    declared = reversible(HERE, verify=look, precheck=lambda invocation: None)
    local = f"{__name__}:test_functions_are_recorded_by_their_names.<locals>.<lambda>"
    assert (declared.undo_path, declared.verify_path, declared.precheck_path) == (HERE, f"{__name__}:look", local)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: effect("reversible"), "needs an undo"),
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
    """An invalid or redundant declaration fails where it is written, and not in a rollback."""
    with pytest.raises(InvalidInput, match=says):
        make()


def test_the_reversible_decorator_without_an_undo_is_refused():
    """`@reversible` without parentheses is refused with a message about the parameters of an undo function."""
    with pytest.raises(InvalidInput, match="args, result"):

        @reversible
        def put(item: str) -> str:
            """Put."""
            return item


def test_effect_decorators_work_above_and_below_tool():
    """The order of the two decorators does not matter."""
    from langchain_core.tools import tool

    from agentgit.effects.effects import declared_on

    @reversible(undo=undo, identity_args=["item"])
    @tool
    def above(item: str) -> str:
        """Put."""
        return item

    @tool
    @reversible(undo=undo, identity_args=["item"])
    def below(item: str) -> str:
        """Put."""
        return item

    assert declared_on(above) == declared_on(below) == reversible(undo, identity_args=["item"])


def test_two_tools_of_one_function_have_separate_effects():
    """An effect declared for one tool does not apply to another tool made of the same function."""
    from langchain_core.tools import StructuredTool

    from agentgit.effects.effects import declared_on

    def act(item: str) -> str:
        """Act."""
        return item

    sends = effect("irreversible")(StructuredTool.from_function(act, name="send"))
    looks = effect("read_only")(StructuredTool.from_function(act, name="look"))
    assert (declared_on(sends), declared_on(looks)) == (effect("irreversible"), effect("read_only"))
    assert declared_on(StructuredTool.from_function(act, name="other")) is None
    assert declared_on(sends.model_copy()) == effect("irreversible")


def test_a_tool_made_of_a_method_carries_its_effect():
    """A tool made of a method carries the effect; a bare method, which takes no attributes, is refused."""
    from langchain_core.tools import StructuredTool

    from agentgit.effects.effects import declared_on

    class Shop:
        def order(self, item: str) -> str:
            """Order."""
            return item

    made = reversible(undo)(StructuredTool.from_function(Shop().order))
    assert declared_on(made) == declared_on(made.model_copy()) == reversible(undo)
    with pytest.raises(InvalidInput, match="cannot carry"):
        reversible(undo)(Shop().order)


def test_an_identity_is_recorded_only_for_calls_that_need_one():
    """The identity is recorded only for compensable and irreversible calls and for those declared `once`."""
    args = {"to": "Ann"}
    has = [reversible(undo, once=True), compensable(undo), effect("irreversible"), effect("idempotent", once=True)]
    has_not = [reversible(undo), effect("idempotent"), effect("read_only")]
    assert all(record_fields(declared, "pay", args)["identity"] == identity("pay", args, None) for declared in has)
    assert all(record_fields(declared, "pay", args)["identity"] is None for declared in has_not)
    assert record_fields(None, "pay", args) == {"effect": "undeclared", "undo": None}


def test_equivalent_arguments_have_the_same_identity():
    """Argument order, 5 or 5.0, and arguments outside identity_args do not change the identity of a call."""
    one = identity("pay", {"to": {"name": "Ann", "at": 1}, "euros": 5, "reference": "a"}, ("to", "euros"))
    assert one == identity("pay", {"reference": "b", "euros": 5.0, "to": {"at": 1.0, "name": "Ann"}}, ("to", "euros"))
    assert one != identity("pay", {"to": {"name": "Ann", "at": 1}, "euros": 5.5}, ("to", "euros"))
    assert one != identity("send", {"to": {"name": "Ann", "at": 1}, "euros": 5}, ("to", "euros"))
    assert identity("pay", {"to": "Ann"}, ()) == identity("pay", {"to": "Bob"}, ())


# -- MCP


SAYS = (None, True, False)
DECLARED = {kind: Effect(kind, undo) if kind in UNDOABLE else Effect(kind) for kind in KINDS} | {"undeclared": None}


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


@pytest.mark.parametrize("kind", DECLARED)
def test_annotations_never_make_an_effect_less_strict(kind):
    """No annotations make an effect less strict than declared, and applying them twice changes nothing."""
    for said in itertools.product(SAYS, SAYS):
        once = stricter(DECLARED[kind], Hints(*said))
        assert strictness(once) >= strictness(DECLARED[kind])
        assert stricter(once, Hints(*said)) == once


NAMES = ["readOnlyHint", "destructiveHint", "read_only_hint", "destructive_hint", "annotations", "mcp", "tool", "title"]
METADATA = st.recursive(
    st.sampled_from([None, True, False, "true", 1, "x"]),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=12,
)


@given(metadata=METADATA, kind=st.sampled_from(list(DECLARED)))
def test_no_metadata_makes_an_effect_less_strict(metadata, kind):
    """Metadata of any shape from a server makes no effect less strict and raises nothing."""
    assert strictness(stricter(DECLARED[kind], hints_in(metadata))) >= strictness(DECLARED[kind])


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
    """An idempotent tool that its server calls destructive keeps its verify and identity_args."""
    found = stricter(Effect("idempotent", identity_args=["id"], verify=look), Hints(destructive=True))
    assert found == Effect("irreversible", identity_args=["id"], verify=look)


# -- precedence


def test_the_effect_of_a_hidden_tool_is_its_decorator_or_the_default():
    """For a tool not exposed by the graph, its decorator overrides the repository's entry, which overrides `*`."""
    defaults = {"decorated": effect("irreversible"), "named": effect("read_only"), "*": reversible(undo)}
    found = ToolEffects({"seen": None}, defaults)
    said = {"decorated": effect("idempotent")}
    kinds = [found.get(name, None, said.get(name)) for name in ("seen", "decorated", "named", "unknown")]
    assert [kind and kind.kind for kind in kinds] == [None, "idempotent", "read_only", "reversible"]
    assert found.get("named", {"readOnlyHint": False}) is None
    assert found.kinds() == {"seen": "undeclared"}


@pytest.mark.parametrize("wrong", [["add"], "add", {"add": 3}, {3: "read_only"}, {"": "read_only"}, {"add": None}])
def test_a_wrong_effects_mapping_is_refused(wrong):
    """Anything but a mapping of tool names to effects raises InvalidInput."""
    with pytest.raises(InvalidInput):
        as_effects(wrong)


# -- the registry


def test_a_recorded_name_finds_only_declared_functions():
    """A recorded name finds its function only among those declared for that tool of the session."""
    registry = Registry()
    call = invoked(undo=HERE, verify=f"{__name__}:look")
    assert "is not declared here" in registry.undo_obstacle(1, call)
    registry.declare(1, [("pay", reversible(undo, verify=look))])
    assert (registry.undo(1, call), registry.verify(1, call), registry.precheck(1, call)) == (undo, look, None)
    registry.declare(1, [("pay", reversible(other, precheck=look))])
    assert registry.undo(1, call) is undo
    assert registry.undo(1, invoked(undo=f"{__name__}:other")) is other
    assert registry.verify(1, call) is look  # a later declaration keeps what it leaves out
    assert registry.precheck(1, call) is look
    assert "is not declared here" in registry.undo_obstacle(2, call)


def test_a_function_other_than_the_recorded_one_is_refused():
    """Where the recorded and the declared name differ, no function is used, and the reason has both names."""
    registry = Registry({"pay_by_name": reversible(other), "*": reversible(undo, verify=look)})
    assert registry.undo(1, invoked("pay_by_name")) is other  # the record names no other function
    why = registry.undo_obstacle(1, invoked("pay_by_name", undo="shop:cancel"))
    assert "shop:cancel" in why
    assert f"{__name__}:other" in why
    assert registry.undo(1, invoked("pay_by_name", undo=HERE)) is undo
    assert (registry.undo(1, invoked("unheard_of")), registry.verify(1, invoked("unheard_of"))) == (undo, look)


def test_the_undo_of_another_tool_with_the_same_name_is_not_used():
    """A decorator elsewhere in the process provides no undo for a call that was made without it."""
    reversible(other)(named("pay_elsewhere"))
    registry = Registry()
    assert "wrap the graph" in registry.undo_obstacle(1, invoked("pay_elsewhere"))
    assert registry.verify(1, invoked("pay_elsewhere")) is None


def test_disagreeing_decorators_leave_a_tool_name_undeclared():
    """A tool known by its name alone is undeclared when decorators of two tools with that name disagree."""

    def one():
        def twice_decorated(x): ...

        return twice_decorated

    def another():
        def twice_decorated(x): ...

        return twice_decorated

    effect("idempotent")(one())
    effect("idempotent")(another())
    assert declared_by_name("twice_decorated").kind == "idempotent"
    effect("irreversible")(one())
    assert declared_by_name("twice_decorated") is None
    effect("irreversible")(another())  # as when a cell of a notebook runs again
    assert declared_by_name("twice_decorated").kind == "irreversible"


def test_the_reason_for_a_missing_function_names_the_next_step():
    """Without an undo function, an importable path or a tool, the reason says what to do next."""
    registry = Registry()
    assert "wrap the graph" in registry.undo_obstacle(1, invoked("nobody"))
    assert "no.such:thing is not declared here" in registry.undo_obstacle(1, invoked("nobody", undo="no.such:thing"))
    registry.declare(1, [("nobody", reversible("no.such:thing"))])
    assert "cannot be imported" in registry.undo_obstacle(1, invoked("nobody", undo="no.such:thing"))
    with pytest.raises(NotFound, match="ToolNode"):
        registry.runner(1, invoked())
    registry.declare(1, [], {"pay": "only its graph can call it"})
    with pytest.raises(NotFound, match="only its graph"):
        registry.runner(1, invoked())
    registry.declare(1, [], {"pay": lambda args, _: args["amount"]})
    assert registry.runner(1, invoked())({"amount": 5}, "thread") == 5


def test_an_undo_module_that_raises_on_import_is_reported(tmp_path, monkeypatch):
    """An exception in the import of a declared module is the reason why its undo is missing."""
    (tmp_path / "broken_shop.py").write_text("raise RuntimeError('no key')")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry({"pay": reversible("broken_shop:cancel")})
    assert "no key" in registry.undo_obstacle(1, invoked(undo="broken_shop:cancel"))
