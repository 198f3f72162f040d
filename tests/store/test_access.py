"""Access control: each public verb works with exactly the role that it needs, and is refused without it."""

import asyncio
import inspect
import io
from functools import partial
from types import SimpleNamespace

import pytest
from langgraph.pregel import Pregel
from scripted import World, call, scripted, tool_node_graph

import agentgit
from agentgit import Repository, RollbackAgent, Session
from agentgit.auth.principal import EDITOR, OWNER, VIEWER
from agentgit.checkpoints.retention import Retention
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import SessionAccess
from agentgit.handles.log import Log
from agentgit.handles.retention import SessionRetention
from agentgit.handles.sharing import Sharing
from agentgit.repository.events import Events
from agentgit.repository.maintenance import Maintenance
from agentgit.repository.users import Keys, Users

S = "ada/s"
ADMIN = "admin"
OWN = "own"
"""The entry of verbs that need no role, since they concern only the user's own data or no stored data."""

SHORT = {VIEWER: "eve", EDITOR: "vic", OWNER: "ed", ADMIN: "olga"}
"""For each role, a user whose role is one lower; `ENOUGH` has a user with exactly that role."""
ENOUGH = {VIEWER: "vic", EDITOR: "ed", OWNER: "olga", ADMIN: "local"}


def at(handle, world):
    """Return an unchecked handle on ada's session, so that each verb must check the role itself."""
    return Session(handle.context, world.session_id)


KINDS = (Repository, Session, Sharing, SessionRetention, Events, Maintenance, Keys, Log, Users)

VERBS = {
    "Repository.accept": (OWN, None),
    "Repository.as_user": (ADMIN, lambda r, w: r.as_user("ada")),
    "Repository.authenticate": (OWN, None),
    "Repository.close": (OWN, None),
    "Repository.context": (OWN, None),
    "Repository.events": (OWN, None),
    "Repository.graph": (OWN, None),
    "Repository.saver": (OWN, None),
    "Repository.import_": (OWN, None),
    "Repository.import_langgraph": (OWN, None),
    "Repository.keys": (OWN, None),
    "Repository.maintenance": (OWN, None),
    "Repository.operation": (VIEWER, lambda r, w: r.operation(w.operation)),
    "Repository.report": (VIEWER, lambda r, w: r.report(w.operation)),
    "Repository.rerun": (OWN, None),
    "Repository.reruns": (OWN, None),
    "Repository.resolve": (EDITOR, lambda r, w: nothing_to_decide(lambda: r.resolve(w.call, "happened"))),
    "Repository.resume": (EDITOR, lambda r, w: r.resume(w.operation)),
    "Repository.revoke_link": (OWNER, lambda r, w: r.revoke_link(w.link)),
    "Repository.session": (VIEWER, lambda r, w: r.session(S)),
    "Repository.session(create)": (VIEWER, lambda r, w: r.session("mine", create=True, template="ada/s@main#2")),
    "Repository.sessions": (OWN, None),
    "Repository.trust": (OWN, None),
    "Repository.user": (OWN, None),
    "Repository.users": (OWN, None),
    "Repository.wrap": (VIEWER, lambda r, w: w.wrap(r)),
    "Events.audit": (ADMIN, lambda r, w: r.events.audit()),
    "Events.end": (OWN, None),
    "Events.follow": (VIEWER, lambda r, w: next(r.events.follow(session=w.session_id))),
    "Events.list": (VIEWER, lambda r, w: list(r.events.list(session=w.session_id))),
    "Events.newest": (VIEWER, lambda r, w: r.events.newest(session=w.session_id)),
    "Events.on": (VIEWER, lambda r, w: r.events.on("*", id, session=w.session_id).close()),
    "Maintenance.encryption_keys": (ADMIN, lambda r, w: r.maintenance.encryption_keys()),
    "Maintenance.fsck": (ADMIN, lambda r, w: r.maintenance.fsck(1)),
    "Maintenance.gc": (ADMIN, lambda r, w: r.maintenance.gc(dry_run=True)),
    "Maintenance.rotate_keys": (ADMIN, lambda r, w: no_keys(r.maintenance.rotate_keys)),
    "Maintenance.stats": (OWN, None),
    "Session.annotate": (EDITOR, lambda r, w: at(r, w).annotate("main#1", name="renamed")),
    "Session.agent": (VIEWER, lambda r, w: at(r, w).agent("picked")),
    "Session.branch": (VIEWER, lambda r, w: at(r, w).branch()),
    "Session.branches": (VIEWER, lambda r, w: at(r, w).branches()),
    "Session.checkpoint": (EDITOR, lambda r, w: at(r, w).checkpoint("more", branch="main", files=False)),
    "Session.checkpoints": (VIEWER, lambda r, w: at(r, w).checkpoints()),
    "Session.cleanup_auto_checkpoints": (EDITOR, lambda r, w: at(r, w).cleanup_auto_checkpoints()),
    "Session.compare": (VIEWER, lambda r, w: at(r, w).compare("main", "merged")),
    "Session.compare_rerun": (VIEWER, lambda r, w: at(r, w).compare_rerun("again")),
    "Session.context": (OWN, None),
    "Session.delete_checkpoint": (EDITOR, lambda r, w: at(r, w).delete_checkpoint("spare")),
    "Session.diff": (VIEWER, lambda r, w: at(r, w).diff("main#1", "main#2")),
    "Session.export": (VIEWER, lambda r, w: at(r, w).export(io.BytesIO())),
    "Session.fork": (EDITOR, lambda r, w: at(r, w).fork(None, branch="main", files=False)),
    "Session.get_checkpoint": (VIEWER, lambda r, w: at(r, w).get_checkpoint("main#1")),
    "Session.info": (VIEWER, lambda r, w: at(r, w).info),
    "Session.log": (VIEWER, lambda r, w: list(at(r, w).log())),
    "Session.name": (VIEWER, lambda r, w: at(r, w).name),
    "Session.operations": (VIEWER, lambda r, w: at(r, w).operations()),
    "Session.plan_redo": (VIEWER, lambda r, w: nothing_to_redo(lambda: at(r, w).plan_redo(branch="main"))),
    "Session.plan_rewind": (VIEWER, lambda r, w: no_files(lambda: at(r, w).plan_rewind("main#1"))),
    "Session.plan_rollback": (VIEWER, lambda r, w: at(r, w).plan_rollback("main#2")),
    "Session.plan_switch": (VIEWER, lambda r, w: at(r, w).plan_switch("main")),
    "Session.plan_undo": (VIEWER, lambda r, w: at(r, w).plan_undo(1, branch="main")),
    "Session.rename": (OWNER, lambda r, w: at(r, w).rename("s")),
    "Session.rename_branch": (EDITOR, lambda r, w: at(r, w).rename_branch("main", "main")),
    "Session.recover": (EDITOR, lambda r, w: at(r, w).recover()),
    "Session.redo": (EDITOR, lambda r, w: nothing_to_redo(lambda: at(r, w).redo(branch="main"))),
    "Session.reference": (VIEWER, lambda r, w: at(r, w).reference),
    "Session.retention": (OWN, None),
    "Session.rewind_files": (EDITOR, lambda r, w: no_files(lambda: at(r, w).rewind_files("main#1"))),
    "Session.rollback": (EDITOR, lambda r, w: at(r, w).rollback("main#2", branch="main")),
    "Session.search": (VIEWER, lambda r, w: at(r, w).search("chair")),
    "Session.sharing": (OWN, None),
    "Session.stats": (VIEWER, lambda r, w: at(r, w).stats()),
    "Session.switch": (EDITOR, lambda r, w: at(r, w).switch("main")),
    "Session.tag": (EDITOR, lambda r, w: at(r, w).tag("main#1", "v2")),
    "Session.tags": (VIEWER, lambda r, w: at(r, w).tags()),
    "Session.tool_track": (VIEWER, lambda r, w: at(r, w).tool_track()),
    "Session.trajectories": (VIEWER, lambda r, w: list(at(r, w).trajectories())),
    "Session.folded_tree": (VIEWER, lambda r, w: at(r, w).folded_tree(limit=1)),
    "Session.tree": (VIEWER, lambda r, w: at(r, w).tree()),
    "Session.workspace": (EDITOR, lambda r, w: no_workspace(lambda: at(r, w).workspace())),
    "Session.undo": (EDITOR, lambda r, w: at(r, w).undo(1, branch="main")),
    "Session.untag": (EDITOR, lambda r, w: at(r, w).untag("v1")),
    "SessionRetention.apply": (OWNER, lambda r, w: at(r, w).retention.apply(Retention(max_checkpoints=50))),
    "SessionRetention.clear": (OWNER, lambda r, w: at(r, w).retention.clear()),
    "SessionRetention.get": (VIEWER, lambda r, w: at(r, w).retention.get()),
    "SessionRetention.set": (OWNER, lambda r, w: at(r, w).retention.set(Retention(max_checkpoints=50))),
    "Sharing.create_link": (OWNER, lambda r, w: at(r, w).sharing.create_link()),
    "Sharing.links": (OWNER, lambda r, w: at(r, w).sharing.links()),
    "Sharing.members": (VIEWER, lambda r, w: at(r, w).sharing.members()),
    "Sharing.revoke_link": (OWNER, lambda r, w: at(r, w).sharing.revoke_link(w.link)),
    "Sharing.share": (OWNER, lambda r, w: at(r, w).sharing.share("guest")),
    "Sharing.unshare": (OWNER, lambda r, w: at(r, w).sharing.unshare("guest")),
    "Log.apage": (VIEWER, lambda r, w: asyncio.run(at(r, w).log().apage(1))),
    "Log.between": (OWN, None),
    "Log.by_name": (OWN, None),
    "Log.get": (VIEWER, lambda r, w: at(r, w).log().get("main#1") or at(r, w).info),
    "Log.is_filtered": (OWN, None),
    "Log.latest": (VIEWER, lambda r, w: at(r, w).log().latest()),
    "Log.questions": (VIEWER, lambda r, w: at(r, w).log().questions),
    "Log.page": (VIEWER, lambda r, w: at(r, w).log().page(1)),
    "Log.since": (OWN, None),
    "Log.to_frame": (VIEWER, lambda r, w: at(r, w).log().to_frame()),
    "Users.add": (ADMIN, lambda r, w: r.users.add("new")),
    "Users.list": (ADMIN, lambda r, w: r.users.list()),
    "Users.delete": (ADMIN, lambda r, w: r.users.delete("spare", force=True)),
    "Users.disable": (ADMIN, lambda r, w: r.users.disable("guest")),
    "Users.enable": (ADMIN, lambda r, w: r.users.enable("guest")),
    "Users.find": (ADMIN, lambda r, w: r.users.find("ada")),
    "Users.create_link": (ADMIN, lambda r, w: r.users.create_link("guest")),
    "Users.sign_in": (OWN, None),
    "Keys.list": (ADMIN, lambda r, w: r.keys.list("ada")),
    "Keys.create": (ADMIN, lambda r, w: r.keys.create("a key", user="ada")),
    "Keys.revoke": (OWN, None),
    "Session.delete": (OWNER, lambda r, w: at(r, w).delete(force=True)),  # last, because it deletes the session
}
"""Each verb of a repository, its namespaces and a session, with its role and a call on ada's session."""

TEXT = {"messages": [("user", "hello")]}

AGENT = {
    "at": (VIEWER, ("merged",)),
    "batch": (EDITOR, ([TEXT],)),
    "branch": (VIEWER, None),
    "bulk_update_state": (EDITOR, (None, [])),
    "checkpoint": (EDITOR, ("a point",)),
    "checkpoint_tools": (OWN, ()),
    "checkpoints": (VIEWER, ()),
    "cherry_pick": (EDITOR, ("main#2",)),
    "branch_id": (OWN, None),
    "diff": (VIEWER, ("main#1",)),
    "edit": (EDITOR, ("message", "hello")),
    "effects": (OWN, None),
    "exploration": (VIEWER, ()),
    "explore": (EDITOR, (1, ["hello"])),
    "rerun": (EDITOR, ()),
    "fork": (EDITOR, ()),
    "get_checkpoint": (VIEWER, ("main#1",)),
    "get_graph": (OWN, ()),
    "get_state": (VIEWER, ()),
    "get_state_history": (VIEWER, ()),
    "head": (VIEWER, None),
    "history": (VIEWER, ()),
    "invoke": (EDITOR, (TEXT,)),
    "merge": (EDITOR, ("merged",)),
    "messages": (VIEWER, ()),
    "plan_redo": (VIEWER, ()),
    "plan_rollback": (VIEWER, ("main#2",)),
    "plan_switch": (VIEWER, ("main",)),
    "plan_undo": (VIEWER, ()),
    "promote": (EDITOR, ("merged",)),
    "redo": (EDITOR, ()),
    "report": (VIEWER, None),
    "rewind_files": (EDITOR, ("main#1",)),
    "rollback": (EDITOR, ("main#2",)),
    "run": (EDITOR, ("hello",)),
    "state": (VIEWER, None),
    "stream": (EDITOR, (TEXT,)),
    "astream_events": (EDITOR, (TEXT,)),
    "switch": (EDITOR, ("main",)),
    "tool_track": (VIEWER, ()),
    "tree": (VIEWER, ()),
    "undo": (EDITOR, ()),
    "update_state": (EDITOR, (None, {})),
}
"""Each verb of an agent, with its role and its arguments (None for a property). Async twins need the same."""


def refused(kind, match, ask):
    """Assert that a call fails for a reason other than the role, as it does for a user who has the role."""
    with pytest.raises(kind, match=match):
        ask()


no_files = partial(refused, NotFound, "has no files")
no_workspace = partial(refused, NotFound, "has no workspace")
nothing_to_redo = partial(refused, NotFound, "nothing to redo")
nothing_to_decide = partial(refused, InvalidInput, "nothing to resolve")
no_keys = partial(refused, InvalidInput, "no keys")


def public(kind, base=object):
    return {n for n in dir(kind) if not n.startswith("_") and getattr(base, n, None) is not getattr(kind, n)}


@pytest.fixture
def world(database):
    """Create ada's session with three branches, share it with a user of each role, and yield the handles of all."""
    things, repo = World(), agentgit.open(database.url)
    model = scripted(call("add", item="chair"), *["done"] * 40)

    def wrap(handle, name=S):
        return handle.wrap(tool_node_graph(model, things.tools()), name, effects=things.effects())

    users = {name: repo.users.add(name) for name in ("ada", "vic", "ed", "olga", "eve", "guest", "spare")}
    handles = {name: repo.as_user(user) for name, user in users.items()} | {"local": repo}
    ada = handles["ada"]
    agent = wrap(ada, "s")
    agent.run("a chair")
    agent.checkpoint("spare")
    agent.run("and more")
    agent.fork("main#1", name="picked")
    agent.fork("main#1", name="merged")
    agent.rerun(name="again")
    ada.session("s").tag("main#2", "v1")
    for name, role in (("vic", VIEWER), ("ed", EDITOR), ("olga", OWNER), ("guest", VIEWER)):
        ada.session("s").sharing.share(name, role)
    with repo:
        yield SimpleNamespace(
            repo=repo, ada=ada, handles=handles, agent=agent, wrap=wrap, operation=ada.session("s").operations()[0].id,
            call=agent.tool_track()[0].id, session_id=agent.session.id, link=ada.session("s").sharing.create_link().id,
        )  # fmt: skip


def test_every_verb_declares_the_role_it_needs():
    known = {f"{kind.__name__}.{name}" for kind in KINDS for name in public(kind)}
    known -= {f"{kind}.a{name}" for kind, name in (one.split(".") for one in known)} - {"Log.apage"}
    fields = {"Sharing.context", "Sharing.session_id", "SessionRetention.context", "SessionRetention.session_id"}
    assert set(VERBS) - {"Repository.session(create)"} == known - fields - {
        f"{kind}.{name}" for kind in ("Sharing", "SessionRetention") for name in public(SessionAccess)
    }
    twins = {f"a{name}" for name in AGENT}
    # These run turns as `batch` and `stream` do, or read nothing of the session.
    others = {"batch_as_completed", "abatch_as_completed", "stream_events", "copy", "rollback_error"}
    runs = {"get_graph", "invoke", "update_state"}  # LangGraph's own, which call those of the agent
    assert public(RollbackAgent, Pregel) - twins - others == set(AGENT) - runs


def outcome(ask):
    """Return the class name and text of the exception that a call raises, or None.

    If `refused` expected another exception, the one that was raised counts.
    """
    try:
        ask()
    except Exception as error:  # noqa: BLE001  # the test looks at it
        found = (isinstance(error, AssertionError) and error.__context__) or error
        return type(found).__name__, str(found)
    return None


@pytest.mark.long
def test_a_user_without_a_role_cannot_find_the_session(world):
    """Every verb raises the NotFound of a missing session for a user without a role, and reveals nothing."""
    eve, wrong = world.handles["eve"], {}
    for name, (needs, ask) in VERBS.items():
        if needs in (VIEWER, EDITOR, OWNER):
            found = outcome(lambda ask=ask: ask(eve, world))
            if found is None or found[0] != "NotFound" or "chair" in found[1] or "Did you mean" in found[1]:
                wrong[name] = found
    assert wrong == {}
    there, nowhere = (outcome(lambda name=name: eve.session(name)) for name in ("ada/s", "ada/x"))
    assert there[1].replace("ada/s", "ada/x") == nowhere[1]
    assert eve.sessions() == []


def test_a_user_one_role_short_is_refused_and_recorded(world):
    """A verb above the user's role is refused, changes nothing, and is recorded in the owner's trail."""

    def stored():
        session = world.ada.session("s")
        return session.tree(), session.tags(), session.sharing.members(), session.retention.get()

    def denials(needs):
        who = world.handles["olga"] if needs == ADMIN else world.ada
        return len(who.events.newest(kinds="access.denied", limit=1000))

    before = stored()
    wrong = {}
    for name, (needs, ask) in VERBS.items():
        if needs in (EDITOR, OWNER, ADMIN):
            short = world.handles[SHORT[needs]]
            denied = denials(needs)
            found = outcome(lambda ask=ask, short=short: ask(short, world))
            if found is None or found[0] != "NotAllowed" or denials(needs) != denied + 1:
                wrong[name] = found
    assert wrong == {}
    assert stored() == before


def test_each_verb_works_with_exactly_the_role_it_needs(world):
    world.wrap(world.handles["ed"])
    world.wrap(world.handles["vic"])
    wrong = {}
    for name, (needs, ask) in VERBS.items():
        if needs != OWN and (found := outcome(lambda ask=ask, needs=needs: ask(world.handles[ENOUGH[needs]], world))):
            wrong[name] = found
    assert wrong == {}


@pytest.mark.long
def test_an_agent_checks_the_role_at_each_verb(world):
    """A viewer's agent can only read; after the share is revoked, it finds nothing."""
    agent, wrong = world.wrap(world.handles["vic"]), {}
    for revoked in (False, True):
        if revoked:
            world.ada.session("s").sharing.unshare("vic")
        for name, (needs, args) in AGENT.items():
            twins = [f"a{name}"] if hasattr(agent, f"a{name}") and args is not None else []
            for verb in [name, *twins] if needs != OWN else ():
                want = "NotFound" if revoked else "NotAllowed" if needs == EDITOR else None
                found = outcome(lambda verb=verb, args=args: use(agent, verb, args))
                if refusal(found) != want:
                    wrong[verb, revoked] = found
    assert wrong == {}


def refusal(found):
    """Return the class name of a refusal; None for success and for a NotFound of anything but the session."""
    if found is None or (found[0] == "NotFound" and "There is no session" not in found[1]):
        return None
    return found[0]


def use(agent, name, args):
    """Call a verb or read a property, and consume what it returns."""
    made = getattr(agent, name)
    made = made if args is None else made(*args)

    async def through():
        if inspect.isasyncgen(made):
            return [one async for one in made]
        return await made

    if inspect.isawaitable(made) or inspect.isasyncgen(made):
        made = asyncio.run(through())
    return list(made) if inspect.isgenerator(made) or isinstance(made, Log) else made
