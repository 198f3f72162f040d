"""What stored bytes name is built only if it is a known data type, with exactly the stored fields and no code of it."""

import base64
import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
from collections import deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import backend
import numpy
import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
from processes import PATHS
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field, field_validator
from pydantic_settings import BaseSettings
from saver_checkpoints import on, put, values

import agentgit
from agentgit import SQLModelSaver
from agentgit.agents.rerun.answers import RecordedError, recorded_error
from agentgit.agents.tools.recorded_results import UnreadableResult, as_recorded, rebuild_result
from agentgit.errors import Corrupt, InvalidInput, NotFound
from agentgit.saver.data_types import data_types_in
from agentgit.saver.serializer import StrictSerializer

os.environ["API_KEY"] = SECRET = "a-secret-of-the-server"  # noqa: S105  # made for this test

RAN: list[str] = []
"""What ran although only stored bytes asked for it."""


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()
    yield
    assert RAN == []


def ran(what):
    RAN.append(what)
    return os.environ["API_KEY"]


SINGLE, POSITIONAL, KEYWORDS, METHOD, MODEL_V1, MODEL = range(6)
"""The codes of LangGraph's extensions of msgpack."""


def names(kind):
    return kind.__module__, kind.__qualname__


def bytes_of(code, *content):
    """Return a value whose stored form is one extension with this content, as an attacker can write it."""
    return ormsgpack.Ext(code, ormsgpack.packb(content, option=ormsgpack.OPT_NON_STR_KEYS))


def read(saver, value):
    """Return a value that was stored, as a new saver on the same database reads it."""
    put(saver, "t", {"value": value})
    return values(SQLModelSaver(saver.database), on("t"))["value"]


# -- types that are not known


class Settings(BaseSettings):
    """A settings class: pydantic fills its fields from the environment."""

    api_key: str = ""
    region: str = "eu"


class Factory(BaseModel):
    name: str
    key: str = Field(default_factory=lambda: ran("factory"))


@dataclasses.dataclass
class Client:
    name: str
    key: str = dataclasses.field(default_factory=lambda: ran("factory"))


@dataclasses.dataclass
class Defaulted:
    name: str
    key: str = os.environ["API_KEY"]


class Region(enum.Enum):
    EU = "eu"

    @classmethod
    def _missing_(cls, value):
        ran("missing")
        return cls.EU


class Place(NamedTuple):
    name: str
    key: str = os.environ["API_KEY"]


@attrs.define
class Attrs:
    name: str
    key: str = attrs.field(factory=lambda: ran("factory"))


class Plain:
    def __init__(self, *args, **kwargs):
        ran("init")


class Loud(Exception):
    def __init__(self, *args):
        ran("init")


def function(*args, **kwargs):
    return ran("function")


STRANGERS = [Settings, Factory, Client, Defaulted, Region, Place, Attrs, Plain, Loud, function]


CODES = (SINGLE, POSITIONAL, KEYWORDS, METHOD, MODEL_V1, MODEL, 99)


def test_bytes_that_name_an_unknown_type_stay_data(saver):
    """Whatever way of building they ask for: by one argument, by position, by keyword, by a method, as a model."""
    for content in ({}, {"name": "x"}, ["x"], "eu"):
        rows = {(code, one): (*names(one), content, "model_validate_json") for code in CODES for one in STRANGERS}
        named = {f"{one.__name__} {code}": bytes_of(code, *row) for (code, one), row in rows.items()}
        assert read(saver, named) == dict.fromkeys(named, content)


FUNCTIONS = [
    "os system", "os getenv", "subprocess Popen", "builtins eval", "builtins open", "builtins getattr", "antigravity x",
    "importlib import_module", "pickle loads", "types SimpleNamespace", "collections OrderedDict", "agentgit open",
    "agentgit.saver.saver SQLModelSaver", "langgraph.types interrupt", "langchain_core.load.load loads", " ",
    "langgraph.types Send.__init__", "langgraph.types os.system", "builtins set.pop", f"{__name__} Cart.__init__",
    "sys modules", "__main__ __builtins__",
]  # fmt: skip


def test_bytes_that_name_a_function_or_a_module_run_and_import_nothing(saver, tmp_path):
    bait = f"touch {tmp_path / 'hit'}"
    for content in (bait, [bait], {"command": bait}):
        named = {
            f"{function} {code}": bytes_of(code, *function.split(" "), content, "__call__")
            for function in FUNCTIONS
            for code in CODES
        }
        assert read(saver, named) == dict.fromkeys(named, content)
    assert not (tmp_path / "hit").exists()
    assert "antigravity" not in sys.modules


def test_a_method_that_bytes_name_is_not_called(saver):
    for kind in (datetime, Path, HumanMessage, SQLModelSaver):
        for method in ("now", "cwd", "home", "model_construct", "parse_raw", "from_conn_string", "__subclasses__"):
            assert read(saver, bytes_of(METHOD, *names(kind), "x", method)) in ("x", Path("x"))


# -- known types


@dataclasses.dataclass
class Cart:
    items: list[str]
    owner: "Owner | None" = None
    key: str = dataclasses.field(default_factory=lambda: ran("factory"))

    def __post_init__(self):
        ran("post_init")

    def __setstate__(self, state):
        ran("setstate")

    def __setattr__(self, name, value):
        ran("setattr")

    def __getattribute__(self, name):
        if name == "__dict__":
            ran("getattribute")
        return super().__getattribute__(name)

    def __new__(cls, *args, **kwargs):
        ran("new")
        return super().__new__(cls)

    def __reduce__(self):
        return ran("reduce")


class Owner(BaseModel):
    name: str
    tags: tuple[str, ...] = ()
    key: SecretStr = Field(default_factory=lambda: SecretStr(ran("factory")))
    _cache: dict[str, Any] = PrivateAttr(default_factory=lambda: {"key": ran("private factory")})

    @field_validator("name", mode="before")
    @classmethod
    def check(cls, value):
        return ran("validator")

    def model_post_init(self, context):
        ran("model_post_init")

    def __init__(self, **data):
        ran("init")
        super().__init__(**data)


class Strict(type):
    def __call__(cls, *args, **kwargs):
        ran("metaclass")
        return super().__call__(*args, **kwargs)


@dataclasses.dataclass(frozen=True, slots=True)
class Point(metaclass=Strict):
    x: int
    y: int = 7


class Size(enum.Enum):
    SMALL = 1
    PAIR = (1, 2)

    @classmethod
    def _missing_(cls, value):
        ran("missing")
        return cls.SMALL


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Odd(enum.Flag):
    READ = 1
    WRITE = 2

    @classmethod
    def _missing_(cls, value):
        ran("missing")
        return cls.READ


class Pair(NamedTuple):
    left: Any
    right: Any = SECRET


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Region2(BaseSettings):
    """A settings class in the schema of a graph."""

    api_key: str = ""


class Schema(TypedDict):
    cart: Cart
    point: list[Point] | None
    more: dict[str, Size | Rights | Odd | Pair | Open | Region2]


@pytest.fixture
def knowing(saver):
    return SQLModelSaver(saver.database, types=[Schema])


def test_a_known_type_is_built_from_its_stored_fields_without_any_code_of_it(knowing):
    owner = bytes_of(MODEL, *names(Owner), {"name": "Ann", "tags": [], "key": "k"}, {"set": ["name"], "private": {}})
    cart = read(knowing, {"x": bytes_of(KEYWORDS, *names(Cart), {"items": ["chair"], "owner": owner, "key": "k"})})["x"]
    assert type(cart) is Cart
    stored = object.__getattribute__(cart, "__dict__")
    assert stored["items"] == ["chair"]
    assert (type(stored["owner"]), stored["owner"].__dict__) == (Owner, {"name": "Ann", "tags": [], "key": "k"})
    assert stored["owner"].model_fields_set == {"name"}
    point = read(knowing, bytes_of(KEYWORDS, *names(Point), {"x": 1, "y": 2}))
    assert (type(point), point.x, point.y) == (Point, 1, 2)


OTHER = [
    (Cart, KEYWORDS, {"items": []}), (Cart, KEYWORDS, {}), (Cart, SINGLE, "x"), (Cart, POSITIONAL, ["x"]),
    (Cart, KEYWORDS, {"items": [], "owner": None, "key": "k", "more": 1}), (Pair, POSITIONAL, [1]),
    (Cart, KEYWORDS, {"items": [], "owner": None, "__class__": 1}), (Owner, MODEL, {"name": "Ann"}),
    (Owner, MODEL, {"name": "Ann", "tags": [], "key": "k", "more": 1}), (Owner, KEYWORDS, {"name": "Ann"}),
    (Region2, MODEL, {}), (Region2, KEYWORDS, {}), (Region2, MODEL_V1, {"_env_file": "/etc/passwd"}),
    (Open, MODEL, {"other": 1}), (Point, KEYWORDS, {"x": 1}), (Point, KEYWORDS, {"x": 1, "y": 2, "z": 3}),
    (Pair, KEYWORDS, {"left": 1}), (Pair, KEYWORDS, {"right": 1, "left": 2}), (Size, SINGLE, 3), (Size, SINGLE, True),
    (Size, SINGLE, [1]), (Rights, SINGLE, 99), (Rights, SINGLE, "READ"), (Odd, SINGLE, 3),
]  # fmt: skip
"""Rows with other fields or values than their type."""


def test_a_row_with_other_fields_or_values_than_its_type_stays_data(knowing):
    """Nothing that is missing is filled in: neither by a default or a factory nor from the environment."""
    for details in ((), ("model_validate_json",), ({"set": [], "private": {}},)):
        rows = [bytes_of(code, *names(kind), content, *details) for kind, code, content in OTHER]
        assert read(knowing, rows) == [content for _, _, content in OTHER]


DETAILS = [
    {"set": ["other"], "private": {}}, {"set": 7, "private": {}}, {"set": [["name"]], "private": None}, {},
    {"set": [], "private": {"_other": 1}}, {"set": [], "private": 7}, {"set": [], "private": {7: 7}},
    "model_construct", 7, [],
]  # fmt: skip


def test_a_model_with_impossible_details_stays_data(knowing):
    content = {"name": "Ann", "tags": [], "key": "k"}
    rows = [bytes_of(MODEL, *names(Owner), content, details) for details in DETAILS]
    assert read(knowing, rows) == [content] * len(DETAILS)


def test_an_attribute_that_would_hide_a_property_or_a_slot_stays_data(knowing):
    for name in ("__dict__", "__class__", "__weakref__", 7):
        row = bytes_of(KEYWORDS, *names(Cart), {"items": [], "owner": None, "key": "k"}, {"private": {name: 1}})
        assert read(knowing, row) == {"items": [], "owner": None, "key": "k"}


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_what_was_stored_comes_back_equal(saver):
    """Of every kind, and with what only the instance has: unset fields, private attributes, combined flags."""
    everything = {
        "point": Point(1, 2), "size": Size.PAIR, "rights": Rights.READ | Rights.WRITE, "pair": Pair((1, 2), {3}),
        "open": Open(name="x", more=(1,)), "deque": deque([Point(1, 2)]), "frozen": frozenset({Point(1, 2)}),
        "decimal": Decimal("1.10"), "uuid": UUID(int=7), "path": Path("a/b"), "ip": ip_address("127.0.0.1"),
        "date": date(2026, 1, 2), "delta": timedelta(days=1), "zone": timezone(timedelta(hours=1)),
        "datetime": NOON, "time": time(1, 2, tzinfo=UTC), "zoneinfo": ZoneInfo("Europe/Rome"),
        "secret": SecretStr("hush"), "message": [HumanMessage("a"), AIMessageChunk("b")],
        "chat": ChatMessage("x", role="critic"), "remove": RemoveMessage(id="m"),
        "document": Document("text", metadata={"a": (1,)}), "interrupt": Interrupt(Point(1, 2), id="i"),
        "tool": ToolMessage("x", tool_call_id="c", artifact={"rows": [Point(1, 2)]}),
        "command": Command(goto=[Send("n", Point(1, 2))], update={"messages": [AIMessage("x", id="m")]}),
        "send": Send("n", {"a": (1, (2, [3]))}, timeout=5), "overwrite": Overwrite([Point(1, 2)]),
        "item": Item(value={"p": Point(1, 2)}, key="k", namespace=("a", "b"), created_at=NOON, updated_at=NOON),
        "policy": TimeoutPolicy(run_timeout=1),
    }  # fmt: skip
    RAN.clear()  # their constructors, called here
    found = read(saver, everything)
    for name, value in everything.items():
        assert (name, type(found[name]), found[name]) == (name, type(value), value)
    assert type(found["tool"].artifact["rows"][0]) is Point
    assert found["open"].model_fields_set == everything["open"].model_fields_set
    array = read(saver, {"array": numpy.array([[1, 2], [3, 4]]), "pattern": re.compile("a+")})
    assert (array["array"] == [[1, 2], [3, 4]]).all()
    assert array["pattern"].pattern == "a+"


# -- where the known types come from


def test_types_are_known_through_every_kind_of_hint():
    """One hint that cannot be resolved does not hide the others."""
    kinds = [dataclasses.make_dataclass(f"K{n}", []) for n in range(9)]
    bound, alias = TypeVar("bound", bound=kinds[0]), NewType("alias", kinds[1])

    class Inner(NamedTuple):
        a: kinds[2]
        b: "Missing"  # noqa: F821

    def node(state: list[kinds[3]], other: "Missing" = None) -> "Point": ...  # noqa: F821

    class Hints(TypedDict):
        a: dict[str, tuple[bound, ...]]
        b: "Missing"  # noqa: F821
        c: Annotated[alias | None, node]
        d: Inner

    assert {*data_types_in(Hints, type[kinds[4]], "Missing", 7)} == {*kinds[:5], Inner, Point}


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    value: T


@dataclasses.dataclass
class Crate(Generic[T]):
    value: T
    total: int = 0

    def __post_init__(self):
        self.total, self.memo = 1, {"double": (self.total, 2)}


class Outer:
    class Inner(BaseModel):
        boxes: dict[str, Box[int]]


def test_generic_nested_and_inherited_types_come_back(saver):
    inner = Outer.Inner(boxes={"a": Box[int](value=1)})
    crate = Crate[Outer.Inner](inner)
    found = read(saver, {"inner": inner, "crate": crate})
    assert found["inner"] == inner
    assert type(found["inner"].boxes["a"]) is Box[int]
    assert (type(found["crate"]), found["crate"], found["crate"].memo) == (Crate, crate, {"double": (0, 2)})


class Computed(BaseModel):
    name: str
    hidden: str = Field(default="", exclude=True)

    @computed_field
    @property
    def key(self) -> str:
        return ran("computed field")


def test_excluded_and_computed_fields_are_not_stored(saver):
    put(saver, "t", {"value": Computed(name="x", hidden=SECRET)})
    found = values(saver, on("t"))["value"]
    assert (type(found), found.__dict__) == (Computed, {"name": "x"})
    assert SECRET.encode() not in saver.serde.dumps_typed(Computed(name="x", hidden=SECRET))[1]


@dataclasses.dataclass
class Replaced:
    old: int


def test_a_name_whose_type_was_replaced_builds_the_new_type_or_nothing(saver, monkeypatch):
    """As in a notebook: the cell that defines the class has run again."""
    put(saver, "t", {"value": Replaced(1)})
    again = dataclasses.make_dataclass("Replaced", [("old", int)], namespace={"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "Replaced", again)
    assert type(values(saver, on("t"))["value"]) is again
    wider = dataclasses.make_dataclass("Replaced", [("old", int), ("new", int, 7)])
    for other in (wider, lambda **fields: ran("call"), Plain, None):
        monkeypatch.setattr(sys.modules[__name__], "Replaced", other)
        assert values(saver, on("t"))["value"] == {"old": 1}


def test_a_local_type_and_a_runnable_stay_data(saver):
    @dataclasses.dataclass
    class Local:
        name: str

    assert read(saver, {"local": Local("x")}) == {"local": {"name": "x"}}
    knowing = SQLModelSaver(saver.database, types=[PromptTemplate])
    template = {"template": "x", "input_variables": []}
    assert read(knowing, bytes_of(MODEL, *names(PromptTemplate), template)) == template


@pytest.mark.parametrize(
    "value",
    [Attrs("x", "k"), Loud, Cart, [object()], {"f": function}],
    ids=["attrs", "enum", "class", "object", "function"],
)
def test_a_value_that_is_no_data_is_refused(saver, value):
    with pytest.raises(InvalidInput, match="cannot be stored"):
        put(saver, "t", {"value": [value]})


@pytest.mark.parametrize("depth", [100, 20_000])
def test_deep_nesting_is_read_or_refused_with_an_error(saver, depth):
    deep = ormsgpack.packb(1)
    for _ in range(depth):
        deep = b"\xc9" + len(deep).to_bytes(4, "big") + b"\x00" + deep
    put(saver, "t", {"value": ormsgpack.Ext(SINGLE, deep)})
    if depth == 100:
        assert values(saver, on("t"))["value"] == 1
    else:
        with pytest.raises(Corrupt, match="cannot be read"):
            values(saver, on("t"))


def test_damaged_content_is_data_or_an_error(saver):
    for code in CODES:
        for content in (b"", b"\xc1", b"\x93\x01"):
            put(saver, "t", {"value": ormsgpack.Ext(code, content)})
            with pytest.raises(Corrupt, match="cannot be read"):
                values(saver, on("t"))
        data = [b"\x91\xa1x", b"\x93\x01\x02\x03", b"\x92\xa1a\xa1b"]
        assert read(saver, [ormsgpack.Ext(code, one) for one in data]) == [*map(ormsgpack.unpackb, data)]


# -- sessions and processes


class State(TypedDict, total=False):
    cart: dict[str, "list[Declared]"]
    more: Any


SOURCES = [
    "Declared", "Returned", "Taken", "Referred", "Inner", "Tasked", "Tooled", "Listed", "Allowed", "Stored", "Trusted"
]  # fmt: skip
Declared, Returned, Taken, Referred, Inner, Tasked, Tooled, Listed, Allowed, Stored, Trusted = (
    dataclasses.make_dataclass(name, ["x"], namespace={"__module__": __name__}) for name in SOURCES
)


def graph_of(node, schema=dict):
    return StateGraph(schema).add_node("node", node).add_edge(START, "node").compile()


def returns(state) -> Returned | None: ...


def takes(state: "dict[str, Taken]", more: "Missing" = None): ...  # noqa: F821


def refers(state):
    return {"more": Referred(1)}


@task
def tasked() -> list[Tasked]:
    return [Tasked(1)]


@entrypoint()
def calls(state):
    return tasked().result()


@tool
def tooled(x: int) -> list[Tooled]:
    """Return something."""
    return [Tooled(x)]


def inner(state: Inner): ...


def each_source(repo, saver):
    """Make one type after the other known, by each way to do that."""
    yield "Declared", repo.wrap(graph_of(lambda state: {}, State), "s")
    yield "Returned", repo.wrap(graph_of(returns), "s")
    yield "Taken", repo.wrap(graph_of(takes), "s")
    yield "Referred", repo.wrap(graph_of(refers), "s")
    yield "Inner", repo.wrap(graph_of(graph_of(inner)), "s")
    yield "Tasked", repo.wrap(calls, "s")
    yield "Tooled", repo.wrap(graph_of(ToolNode([tooled])), "s")
    yield "Listed", SQLModelSaver(saver.database, types=[dict[str, Listed]])
    yield "Allowed", saver.with_allowlist([names(Allowed)])
    yield "Stored", saver.serde.dumps_typed(Stored(1))
    yield "Trusted", repo.trust(f"{__name__}:Trusted")


def report(url, thread):
    """Print, after each step, which types a saver rebuilds."""
    with agentgit.open(url) as repo, SQLModelSaver.from_conn_string(url, sessions=True) as saver:
        for step, _ in chain([("", None)], each_source(repo, saver)):
            found = values(SQLModelSaver(saver.database, sessions=True), on(thread))["more"]
            print(step, *[name for name in SOURCES if type(found[name]) is globals()[name]])  # noqa: T201


def test_a_new_process_knows_the_types_that_its_graphs_and_its_operator_name(repo):
    agent = repo.wrap(graph_of(lambda state: {"more": {name: globals()[name](1) for name in SOURCES}}, State), "s")
    agent.invoke({})
    (thread,) = [branch.langgraph_session_id for branch in repo.session("s").branches()]
    script = f"import test_rebuilt_types as own; own.report({backend.address(repo)!r}, {thread!r})"
    done = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*PATHS, str(Path(__file__).parent)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [line.split() for line in done.stdout.splitlines()] == [
        [], *([name, *SOURCES[: n + 1]] for n, name in enumerate(SOURCES))
    ], done.stderr  # fmt: skip


def test_a_module_without_types_or_tools_and_a_class_that_is_no_data_are_no_trust(repo):
    with pytest.raises(NotFound, match="no tools or data types"):
        repo.trust("colorsys")


# -- results and errors of recorded calls


@dataclasses.dataclass
class Receipt:
    total: int


RESULTS = [
    Command(update={"messages": [ToolMessage("ok", tool_call_id="c", artifact=Receipt(7))]}, goto=Send("n", (1, 2))),
    [Command(goto="n"), ToolMessage("ok", tool_call_id="c")],
    {"agentgit_packed": base64.b64encode(StrictSerializer().dumps_typed(Command(goto="pay"))[1]).decode()},
    {"agentgit_packed": None},
    {"agentgit_packed": 7},
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: repr(result)[:30])
def test_a_recorded_result_comes_back_as_what_the_tool_returned(result):
    """A dict that a tool got from elsewhere is no object, whatever its keys are."""
    recorded = json.loads(json.dumps(as_recorded(result)))
    assert rebuild_result(recorded, "c") == result


def test_a_recorded_result_that_names_anything_else_is_not_rebuilt():
    named = [bytes_of(code, *names(one), {"name": "x"}, "now") for one in STRANGERS for code in CODES[:-1]]
    packed = [base64.b64encode(one).decode() for one in (b"\xc1", *map(ormsgpack.packb, named))]
    for one in (None, 7, "", "?", "AAA", *packed):
        with pytest.raises(UnreadableResult):
            rebuild_result({"agentgit_packed": one}, "c")


@pytest.mark.parametrize(
    "text",
    ["KeyError: " + "-" * 100_000 + "1", "KeyError: " + "1+" * 20_000 + "1", "SystemExit: 1", "exit: 1"],
    ids=["signs", "sums", "exit", "function"],
)
def test_a_recorded_error_is_an_error_whatever_its_text_is(text):
    assert type(recorded_error(text)) is RecordedError
