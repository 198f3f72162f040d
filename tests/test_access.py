"""Who may do what (D5): every public verb, tried by a stranger, by who is one role short, and by who may."""

import asyncio
import inspect
import io
from functools import partial
from types import SimpleNamespace

import pytest
from langchain_core.runnables import Runnable
from scripted import World, call, scripted, tool_node_graph

import agentgit
from agentgit.agents.agent import RollbackAgent
from agentgit.auth.roles import EDITOR, FORKER, OWNER, VIEWER
from agentgit.checkpoints.retention import Retention
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.log import Log
from agentgit.repository import Repository
from agentgit.repository.events import Webhooks
from agentgit.repository.users import Keys, Users

S = "ada/s"
ADMIN = "admin"
OWN = "own"
"""What concerns only what is one's own, or nothing that is stored."""

SHORT = {VIEWER: "eve", FORKER: "vic", EDITOR: "fay", OWNER: "ed", ADMIN: "olga"}
"""Who is one role short of each, and who has it."""
ENOUGH = {VIEWER: "vic", FORKER: "fay", EDITOR: "ed", OWNER: "olga", ADMIN: "local"}

VERBS = {
    "accept": (OWN, None),
    "add_checkpoint": (EDITOR, lambda r, w: r.add_checkpoint("more", S, branch="main", files=False)),
    "as_user": (ADMIN, lambda r, w: r.as_user("ada")),
    "audit": (ADMIN, lambda r, w: r.audit()),
    "audit_tips": (ADMIN, lambda r, w: r.audit_tips()),
    "audit_verify": (ADMIN, lambda r, w: r.audit_verify()),
    "authenticate": (OWN, None),
    "branch": (VIEWER, lambda r, w: r.branch(S)),
    "branches": (VIEWER, lambda r, w: r.branches(S)),
    "checkpoint": (VIEWER, lambda r, w: r.checkpoint("main#1", S)),
    "checkpoints": (VIEWER, lambda r, w: r.checkpoints(S)),
    "cherry_pick": (EDITOR, lambda r, w: r.cherry_pick("main#2", "picked", S)),
    "cleanup_auto_checkpoints": (EDITOR, lambda r, w: r.cleanup_auto_checkpoints(S)),
    "close": (OWN, None),
    "compare": (VIEWER, lambda r, w: r.compare("main", "merged", S)),
    "count_log": (VIEWER, lambda r, w: len(r.log(S))),
    "delete_checkpoint": (EDITOR, lambda r, w: r.delete_checkpoint("spare", S)),
    "diff": (VIEWER, lambda r, w: r.diff("main#1", "main#2", S)),
    "ensure_session": (FORKER, lambda r, w: r.ensure_session("mine", "ada/s@main#2")),
    "events": (VIEWER, lambda r, w: list(r.events(S))),
    "expect_name": (OWN, None),
    "export": (VIEWER, lambda r, w: r.export(S, io.BytesIO())),
    "fork": (EDITOR, lambda r, w: r.fork(None, S, branch="main", files=False)),
    "fsck": (ADMIN, lambda r, w: r.fsck(1)),
    "gc": (ADMIN, lambda r, w: r.gc(dry_run=True)),
    "import_": (OWN, None),
    "import_langgraph": (OWN, None),
    "keys": (OWN, None),
    "last_event_id": (OWN, None),
    "last_events": (VIEWER, lambda r, w: r.last_events(S)),
    "links": (OWNER, lambda r, w: r.links(S)),
    "log": (VIEWER, lambda r, w: list(r.log(S))),
    "login": (OWN, None),
    "members": (VIEWER, lambda r, w: r.members(S)),
    "merge": (EDITOR, lambda r, w: r.merge("main", "merged", S)),
    "on": (VIEWER, lambda r, w: r.on("*", id, S).close()),
    "operation": (VIEWER, lambda r, w: r.operation(w.operation)),
    "operations": (VIEWER, lambda r, w: r.operations(S)),
    "page_of_log": (VIEWER, lambda r, w: r.log(S).page(1)),
    "plan_cherry_pick": (VIEWER, lambda r, w: r.plan_cherry_pick("main#2", "picked", S)),
    "plan_merge": (VIEWER, lambda r, w: r.plan_merge("main", "merged", S)),
    "plan_redo": (VIEWER, lambda r, w: nothing_to_redo(lambda: r.plan_redo(S, branch="main"))),
    "plan_rewind": (VIEWER, lambda r, w: no_files(lambda: r.plan_rewind("main#1", S))),
    "plan_rollback": (VIEWER, lambda r, w: r.plan_rollback("main#2", S)),
    "plan_switch": (VIEWER, lambda r, w: r.plan_switch("main", S)),
    "plan_undo": (VIEWER, lambda r, w: r.plan_undo(1, S, branch="main")),
    "recover": (EDITOR, lambda r, w: r.recover(S)),
    "redo": (EDITOR, lambda r, w: nothing_to_redo(lambda: r.redo(S, branch="main"))),
    "report": (VIEWER, lambda r, w: r.report(w.operation)),
    "resolve": (EDITOR, lambda r, w: nothing_to_decide(lambda: r.resolve(w.call, "happened"))),
    "resume": (EDITOR, lambda r, w: r.resume(w.operation)),
    "retention": (VIEWER, lambda r, w: r.retention(S)),
    "revoke_link": (OWNER, lambda r, w: r.revoke_link(w.link)),
    "rewind_files": (EDITOR, lambda r, w: no_files(lambda: r.rewind_files("main#1", S))),
    "rollback": (EDITOR, lambda r, w: r.rollback("main#2", S, branch="main")),
    "search": (VIEWER, lambda r, w: r.search("chair", S)),
    "session": (VIEWER, lambda r, w: r.session(S)),
    "sessions": (OWN, None),
    "set_retention": (OWNER, lambda r, w: r.set_retention(Retention(max_checkpoints=50), S)),
    "share": (OWNER, lambda r, w: r.share(S, "guest")),
    "share_link": (OWNER, lambda r, w: r.share_link(S)),
    "stats": (VIEWER, lambda r, w: r.stats(S)),
    "switch": (EDITOR, lambda r, w: r.switch("main", S)),
    "tag": (EDITOR, lambda r, w: r.tag("main#1", "v2", S)),
    "tags": (VIEWER, lambda r, w: r.tags(S)),
    "thin": (OWNER, lambda r, w: r.thin(S, Retention(max_checkpoints=50))),
    "tool_track": (VIEWER, lambda r, w: r.tool_track(S)),
    "trajectories": (VIEWER, lambda r, w: list(r.trajectories(S))),
    "tree": (VIEWER, lambda r, w: r.tree(S)),
    "trust": (OWN, None),
    "undo": (EDITOR, lambda r, w: r.undo(1, S, branch="main")),
    "unshare": (OWNER, lambda r, w: r.unshare(S, "guest")),
    "untag": (EDITOR, lambda r, w: r.untag("v1", S)),
    "user": (OWN, None),
    "users": (OWN, None),
    "webhooks": (OWN, None),
    "wrap": (VIEWER, lambda r, w: w.wrap(r)),
    "encryption_keys": (ADMIN, lambda r, w: r.encryption_keys()),
    "rotate_keys": (ADMIN, lambda r, w: no_keys(r.rotate_keys)),
    "clear": (OWNER, lambda r, w: r.clear(S)),
    "Log.apage": (VIEWER, lambda r, w: asyncio.run(r.log(S).apage(1))),
    "Log.between": (OWN, None),
    "Log.by_name": (OWN, None),
    "Log.get": (VIEWER, lambda r, w: r.log(S).get("main#1") or r.session(S)),
    "Log.is_filtered": (OWN, None),
    "Log.latest": (VIEWER, lambda r, w: r.log(S).latest()),
    "Log.page": (VIEWER, lambda r, w: r.log(S).page(1)),
    "Log.since": (OWN, None),
    "Users.add": (ADMIN, lambda r, w: r.users.add("new")),
    "Users.all": (ADMIN, lambda r, w: r.users.all()),
    "Users.delete": (ADMIN, lambda r, w: r.users.delete("spare")),
    "Users.disable": (ADMIN, lambda r, w: r.users.disable("guest")),
    "Users.enable": (ADMIN, lambda r, w: r.users.enable("guest")),
    "Users.find": (ADMIN, lambda r, w: r.users.find("ada")),
    "Users.revoke_tokens": (ADMIN, lambda r, w: r.users.revoke_tokens("guest")),
    "Users.set_password": (ADMIN, lambda r, w: r.users.set_password("guest", None)),
    "Keys.all": (ADMIN, lambda r, w: r.keys.all("ada")),
    "Keys.create": (ADMIN, lambda r, w: r.keys.create("a key", user="ada")),
    "Keys.device": (OWN, None),
    "Keys.revoke": (OWN, None),
    "Webhooks.add": (VIEWER, lambda r, w: r.webhooks.add("https://example.com", "*", None, S)),
    "Webhooks.deliver": (ADMIN, lambda r, w: r.webhooks.deliver()),
    "Webhooks.list": (OWN, None),
    "Webhooks.remove": (OWN, None),
    "Webhooks.retry": (OWN, None),
    "delete_session": (OWNER, lambda r, w: r.delete_session(S)),  # last: nothing is left of it
}
"""Each verb of a repository: the role that it takes, and how it is asked for something of ada's."""

TEXT = {"messages": [("user", "hello")]}

AGENT = {
    "at": (VIEWER, ("merged",)),
    "batch": (EDITOR, ([TEXT],)),
    "branch": (VIEWER, None),
    "branches": (VIEWER, ()),
    "bulk_update_state": (EDITOR, (None, [])),
    "checkpoint": (EDITOR, ("a point",)),
    "checkpoint_tools": (OWN, ()),
    "checkpoints": (VIEWER, ()),
    "cherry_pick": (EDITOR, ("main#2",)),
    "compare": (VIEWER, ("main#1",)),
    "effects": (OWN, None),
    "events": (VIEWER, ()),
    "exploration": (VIEWER, ()),
    "explore": (EDITOR, (1, ["hello"])),
    "fork": (EDITOR, ()),
    "get_graph": (OWN, ()),
    "get_state": (VIEWER, ()),
    "get_state_history": (VIEWER, ()),
    "head": (VIEWER, None),
    "history": (VIEWER, ()),
    "invoke": (EDITOR, (TEXT,)),
    "log": (VIEWER, ()),
    "merge": (EDITOR, ("merged",)),
    "messages": (VIEWER, ()),
    "on": (VIEWER, ("*", id)),
    "plan_cherry_pick": (VIEWER, ("main#2",)),
    "plan_merge": (VIEWER, ("merged",)),
    "plan_redo": (VIEWER, ()),
    "plan_rollback": (VIEWER, ("main#2",)),
    "plan_switch": (VIEWER, ("main",)),
    "plan_undo": (VIEWER, ()),
    "promote": (EDITOR, ("merged",)),
    "redo": (EDITOR, ()),
    "release_files": (OWN, ()),
    "report": (VIEWER, None),
    "rewind_files": (EDITOR, ("main#1",)),
    "rollback": (EDITOR, ("main#2",)),
    "run": (EDITOR, ("hello",)),
    "search": (VIEWER, ("chair",)),
    "session": (VIEWER, None),
    "state": (VIEWER, None),
    "stream": (EDITOR, (TEXT,)),
    "astream_events": (EDITOR, (TEXT,)),
    "switch": (EDITOR, ("main",)),
    "tag": (EDITOR, ("main#1", "v3")),
    "tool_track": (VIEWER, ()),
    "tree": (VIEWER, ()),
    "undo": (EDITOR, ()),
    "update_state": (EDITOR, (None, {})),
}
"""Each verb of an agent: the role that it takes, and its arguments; None for what is no method. Twins are as they."""


def refused(kind, match, ask):
    """Ask for what those who may are refused for another reason."""
    with pytest.raises(kind, match=match):
        ask()


no_files = partial(refused, NotFound, "There are no files")
nothing_to_redo = partial(refused, NotFound, "nothing to redo")
nothing_to_decide = partial(refused, InvalidInput, "nothing to decide")
no_keys = partial(refused, InvalidInput, "no keys")


def passed(ask):
    """Run a check that expects a failure of those who may; give the failure of those who may not."""
    try:
        ask()
    except AssertionError as error:  # another failure than the one that those who may get
        raise error.__context__ or error from None


def public(kind, base=object):
    return {n for n in dir(kind) if not n.startswith("_") and getattr(base, n, None) is not getattr(kind, n)}


@pytest.fixture
def world(database):
    """A session of ada's with two branches more, shared with vic, fay, ed and olga; and handles of all."""
    things, repo = World(), agentgit.open(database.url)
    model = scripted(call("add", item="chair"), *["done"] * 40)

    def wrap(handle, name=S):
        return handle.wrap(tool_node_graph(model, things.tools()), name, effects=things.effects())

    users = {name: repo.users.add(name) for name in ("ada", "vic", "fay", "ed", "olga", "eve", "guest", "spare")}
    handles = {name: repo.as_user(user) for name, user in users.items()} | {"local": repo}
    ada = handles["ada"]
    agent = wrap(ada, "s")
    agent.run("a chair")
    agent.checkpoint("spare")
    agent.run("and more")
    agent.fork("main#1", name="picked")
    agent.fork("main#1", name="merged")
    ada.tag("main#2", "v1", "s")
    for name, role in (("vic", VIEWER), ("fay", FORKER), ("ed", EDITOR), ("olga", OWNER), ("guest", VIEWER)):
        ada.share("s", name, role)
    with repo:
        yield SimpleNamespace(
            repo=repo, ada=ada, handles=handles, agent=agent, wrap=wrap, operation=ada.operations("s")[0].id,
            call=agent.tool_track()[0].id, link=ada.share_link("s").id,
        )  # fmt: skip


def test_d5_every_verb_has_its_role():
    """D5: who adds a verb must say here who may; a verb without a role is a hole."""
    known = public(Repository) | {
        f"{kind.__name__}.{name}" for kind in (Keys, Log, Users, Webhooks) for name in public(kind)
    }
    assert set(VERBS) == known
    twins = {f"a{name}" for name in AGENT}
    assert (
        public(RollbackAgent, Runnable) - twins - {"batch_as_completed", "abatch_as_completed"}  # as `batch`
        == set(AGENT) - {"abatch"} | {"apromote"} - twins | {"abatch"} - twins
    )


def outcome(ask):
    """The class of what a call raises, and its text; None if it works."""
    try:
        passed(ask)
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return type(error).__name__, str(error)
    return None


def test_d5_a_stranger_finds_nothing(world):
    """D5: to who has no role every verb says what it says of a session that is not there, and names nothing of it."""
    eve, wrong = world.handles["eve"], {}
    for name, (needs, ask) in VERBS.items():
        if needs in (VIEWER, FORKER, EDITOR, OWNER):
            found = outcome(lambda ask=ask: ask(eve, world))
            if found is None or found[0] != "NotFound" or "chair" in found[1] or "Did you mean" in found[1]:
                wrong[name] = found
    assert wrong == {}
    there, nowhere = (outcome(lambda name=name: eve.session(name)) for name in ("ada/s", "ada/x"))
    assert there[1].replace("ada/s", "ada/x") == nowhere[1]
    assert eve.sessions() == []


def test_d5_who_is_one_role_short_is_refused_and_told_of(world):
    """D5: who sees a session and may not do that is refused; nothing changes, and the owner's trail has it."""
    before = world.ada.tree("s"), world.ada.tags("s"), world.ada.members("s"), world.ada.retention("s")
    wrong = {}
    for name, (needs, ask) in VERBS.items():
        if needs in (FORKER, EDITOR, OWNER, ADMIN):
            short = world.handles[SHORT[needs]]
            denied = count(world, needs)
            found = outcome(lambda ask=ask, short=short: ask(short, world))
            if found is None or found[0] != "NotAllowed" or count(world, needs) != denied + 1:
                wrong[name] = found
    assert wrong == {}
    assert (world.ada.tree("s"), world.ada.tags("s"), world.ada.members("s"), world.ada.retention("s")) == before


def count(world, needs):
    who = world.handles["olga"] if needs == ADMIN else world.ada
    return len(who.last_events(kinds="access.denied", limit=1000))


def test_d5_the_role_is_enough(world):
    """D5: each verb works for who has just the role that it takes."""
    world.wrap(world.handles["ed"])
    world.wrap(world.handles["vic"])
    wrong = {}
    for name, (needs, ask) in VERBS.items():
        if needs != OWN and (found := outcome(lambda ask=ask, needs=needs: ask(world.handles[ENOUGH[needs]], world))):
            wrong[name] = found
    assert wrong == {}


def test_d5_an_agent_of_a_shared_session_asks_at_each_verb(world):
    """D5: a viewer's agent can look and do nothing; when the right is taken away, it finds nothing at once."""
    agent, wrong = world.wrap(world.handles["vic"]), {}
    for revoked in (False, True):
        if revoked:
            world.ada.unshare("s", "vic")
        for name, (needs, args) in AGENT.items():
            twins = [f"a{name}"] if hasattr(agent, f"a{name}") and args is not None else []
            for verb in [name, *twins] if needs != OWN else ():
                want = "NotFound" if revoked else "NotAllowed" if needs == EDITOR else None
                found = outcome(lambda verb=verb, args=args: use(agent, verb, args))
                if refusal(found) != want:
                    wrong[verb, revoked] = found
    assert wrong == {}


def refusal(found):
    """What of a failure is a refusal: there may also be nothing to redo."""
    if found is None or (found[0] == "NotFound" and "There is no session" not in found[1]):
        return None
    return found[0]


def use(agent, name, args):
    """Use a verb to its end: what it gives is gone through."""
    made = getattr(agent, name)
    made = made if args is None else made(*args)

    async def through():
        if inspect.isasyncgen(made):
            return [one async for one in made]
        return await made

    if inspect.isawaitable(made) or inspect.isasyncgen(made):
        return asyncio.run(through())
    return list(made) if inspect.isgenerator(made) or isinstance(made, Log) else made
