"""Exports carry sessions, branches and checkpoints completely from one database to another."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from banking import Bank, says
from delta_graphs import all_seen, chat, delta, said, seen
from exports import call as plain
from exports import carried, everything, of, point, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from scripted import GRAPHS, World, agent_graph, calls, nested_graph, obedient, scripted, tool_node_graph
from scripted import call as ask

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, Unavailable
from agentgit.effects.effects import effect


@pytest.fixture
def other():
    with agentgit.open(":memory:") as repo:
        yield repo


def lived(repo, shop=None):
    """Create a session with a named checkpoint, a rollback and two branches, and return the second branch's agent."""
    shop = shop or World()
    agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
    agent.run("add chair; charge 5")
    before = agent.checkpoint("before", description="what comes is bad", data={"reward": 1, "of": [None, "\ud800"]})
    agent.run("send hello; look; note it")
    retry = agent.rollback(before, force=True)
    retry.run("add sofa")
    return retry


CUTS = ("whole", "branch", "point")


def carried_cut(repo, other, cut, branch, point, name=None):
    """Carry the session `s`, one of its branches or one of its checkpoints to another repository."""
    ref, how = {"whole": ("s", {}), "branch": ("s", {"branch": branch}), "point": (point, {})}[cut]
    return carried(repo, ref, other, name, **how)


def facts(checkpoint):
    """Return what an import keeps of a checkpoint, also where its branch has another name."""
    calls_made = [plain(call) for call in checkpoint.tool_invocations]
    return checkpoint.conversation_history, checkpoint.session_state, checkpoint.metadata["state_hash"], calls_made


def test_a_session_survives_a_round_trip_through_another_database(repo, other):
    lived(repo)
    there = carried(repo, "s", other)
    back = carried(other, "s", repo)
    assert (there.session.session_name, back.session.session_name) == ("s", "s-2")
    assert everything(repo, "s") == everything(other, "s") == everything(repo, "s-2")
    assert (there.of, there.place, there.branches, there.tool_calls) == ("session", None, 2, 6)
    ours, theirs = ((made.checkpoints, made.graph_checkpoints, made.values) for made in (there, back))
    assert ours == theirs


@pytest.mark.long
def test_an_export_of_an_import_has_the_same_records(repo, other):
    lived(repo)
    carried(repo, "s", other)
    one, two = (without_ids(written(of, "s")) for of in (repo, other))
    assert len(one) > 50
    assert one == two


def without_ids(data):
    """Return the records of an export with ids replaced by their order, and without the fields that always differ."""
    records = [json.loads(line) for line in data.splitlines()[:-1]]
    order = {record["id"]: f"id {n}" for n, record in enumerate(records) if isinstance(record.get("id"), int)}

    def plain(value):
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items() if name not in ("made_at", "made_on", "thread_id")}
        if isinstance(value, list):
            return [plain(one) for one in value]
        return order.get(value, value) if type(value) is int else value

    return plain(records)


def test_two_imports_of_one_file_create_two_sessions(repo, tmp_path):
    lived(repo)
    file = tmp_path / "s.jsonl"
    repo.session("s").export(file)
    one, two = repo.import_(file).session, repo.import_(str(file)).session
    assert (one.session_name, two.session_name) == ("s-2", "s-3")
    threads = [{branch.langgraph_session_id for branch in repo.session(s).branches()} for s in ("s", one, two)]
    assert len(set.union(*threads)) == 6
    shop = World()
    repo.wrap(tool_node_graph(obedient(), shop.tools()), "s-2", effects=shop.effects()).run("add lamp")
    assert everything(repo, "s-3") == everything(repo, "s") != everything(repo, "s-2")


@pytest.mark.parametrize("piped", [False, True])
def test_export_and_import_report_their_progress(repo, tmp_path, monkeypatch, piped):
    monkeypatch.setattr("agentgit.store.transfer.lines.STEP", 100)
    repo.wrap(tool_node_graph(obedient(), World().tools()), "s").run("add chair")
    file = tmp_path / "s.jsonl"
    out, into = [], []
    repo.session("s").export(file, progress=lambda *told: out.append(told))
    repo.import_(BytesIO(file.read_bytes()) if piped else file, progress=lambda *told: into.append(told))
    size = file.stat().st_size
    assert out[-1] == (size, size)
    assert into[-1] == (2 * size, 2 * size)
    assert len(into) > len(out) > 2
    assert into == sorted(into)


def test_importing_under_a_taken_name_is_refused(repo):
    lived(repo)
    with pytest.raises(Conflict, match="another name"):
        carried(repo, "s", repo, "s")
    with pytest.raises(InvalidInput, match="needs a name of 1 to"):
        carried(repo, "s", repo, " ")
    assert carried(repo, "s", repo, "copy").session.session_name == "copy"


def test_an_exported_branch_becomes_a_session_with_its_path(repo, other):
    lived(repo)
    made = carried(repo, "s", other, branch="main-2")
    assert (made.of, made.place) == ("branch", "main-2")
    assert [branch.name for branch in other.session("s").branches()] == ["main", "main-2", "elsewhere"]
    theirs, ours = (one.session("s").checkpoints(branch="main-2") for one in (repo, other))
    assert [facts(one) for one in ours] == [facts(one) for one in theirs]
    data, same = (one.session("s").get_checkpoint("before").metadata["data"] for one in (repo, other))
    assert data == same
    assert [c.args for c in other.session("s").tool_track(branch="elsewhere")] == [{"text": "hello"}, {"text": "it"}]


def test_an_exported_checkpoint_becomes_a_session_up_to_it(repo, other):
    lived(repo)
    place = repo.session("s").get_checkpoint("main#2")
    made = carried(repo, place, other)
    assert (made.of, made.place) == ("checkpoint", "main#2")
    assert [point(one) for one in other.session("s").checkpoints(branch="main")] == [
        point(one) for one in repo.session("s").checkpoints(branch="main")[:2]
    ]
    shop = World()
    agent = other.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
    assert agent.history() == place.conversation_history
    agent.run("add lamp")
    assert shop.items == ["lamp"]
    assert len(list(agent.get_state_history())) > 5


def test_an_empty_session_is_exported_and_imported(repo, other):
    repo.session("s", create=True)
    made = carried(repo, "s", other)
    assert (made.branches, made.checkpoints, made.values) == (1, 0, 0)
    assert everything(repo, "s") == everything(other, "s")


def test_unusual_values_are_exported_and_imported(repo, other):
    plain = {"large": "x" * 700_000, "odd": f"\0 {chr(0xD800)} 🪑", "huge": 2**80}
    state = {"large": "x" * 700_000, "odd": "\0 🪑", "set": {1, 2}, "bytes": b"\xff\0" * 300_000}
    graph = GRAPHS["functional"](scripted("fine"), [])
    agent = repo.wrap(graph, "s", check_effects=False)
    agent.run(f"say {chr(0)}{chr(0xD800)}")
    agent.checkpoint("odd\0", data=plain)
    builder = StateGraph(dict)
    builder.add_node("keep", lambda _: state).add_edge(START, "keep")
    repo.wrap(builder.compile(), "t").invoke({})
    for name in ("s", "t"):
        carried(repo, name, other)
        assert everything(repo, name) == everything(other, name)
    assert other.wrap(builder.compile(), "t").get_state().values == state


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_graph_continues_after_an_import(repo, other, kind):
    shop = World()

    def wrapped(repository, name, branch=None):
        graph = GRAPHS[kind](obedient(), shop.tools())
        return repository.wrap(graph, name, effects=shop.effects(), check_effects=False, branch=branch)

    wrapped(repo, "s").run("add chair")
    fork = wrapped(repo, "s").fork()
    fork.run("add table")
    for cut in CUTS:
        carried_cut(repo, other, cut, fork.branch.name, repo.session("s").get_checkpoint("main#2"), cut)
        agent = wrapped(other, cut, fork.branch.name if cut == "branch" else "main")
        history = agent.history()
        agent.run("add lamp")
        assert agent.history()[: len(history)] == history
        assert agent.tool_track()[-1].args == {"item": "lamp"}
        assert agent.undo().history() == history


# -- calls made elsewhere


def test_a_rollback_does_not_reverse_imported_calls(repo, other):
    shop = World()
    lived(repo, shop)
    carried(repo, "s", other)
    here = World()
    agent = other.wrap(tool_node_graph(obedient(), here.tools()), "s", effects=here.effects())
    agent.run("add lamp")
    plan = agent.plan_rollback("main#1")
    assert (plan.steps[0].action, plan.steps[0].invocation.args) == ("reverse", {"item": "lamp"})
    assert {step.action for step in plan.steps[1:]} == {"keep"}
    assert {step.why for step in plan.steps[1:]} == {"it was imported: it happened in another world"}
    back = agent.rollback("main#1")
    assert [item.invocation.args["item"] for item in back.report.reversed] == ["lamp"]
    assert (here.items, shop.undone) == ([], [])
    assert len(back.report.kept) == len(plan.steps) - 1


def test_an_import_does_not_make_the_world_diverge(repo, other):
    lived(repo)
    carried(repo, "s", other)
    here = World()
    graph = tool_node_graph(obedient(), here.tools())
    other.wrap(graph, "s", effects=here.effects(), branch="main").run("look")
    assert other.session("s").plan_switch("main-2").redos == []
    other.session("s").switch("main", sync="world")
    other.wrap(graph, "s", effects=here.effects(), branch="main-2").run("look")
    assert [name for name, _ in here.log] == ["look", "look"]


def test_an_imported_unknown_call_is_not_verified(repo, other):
    """An imported unknown call stays unknown: `verify` would check another world, and is not called."""

    def boom(item: str) -> str:
        raise KeyboardInterrupt

    def graph():
        return tool_node_graph(scripted(ask("boom", "call-1", item="x"), "fine"), [tool(boom, description="Break.")])

    asked = []
    effects = {"boom": effect("irreversible", verify=lambda call: bool(asked.append(call)))}
    with pytest.raises(KeyboardInterrupt):
        repo.wrap(graph(), "s", effects={"boom": effect("irreversible")}).run("go")
    carried(repo, "s", other)
    agent = other.wrap(graph(), "s", effects=effects)
    agent.plan_rollback("main#1")
    assert [c.status for c in agent.tool_track()] == ["unknown"]
    with pytest.raises(Conflict, match="imported"):
        agent.invoke(None)
    assert asked == []
    other.resolve(agent.tool_track()[0], "happened", result="broken")
    assert [(c.status, c.is_imported) for c in agent.tool_track()] == [("done", True)]
    assert [step.action for step in agent.plan_rollback("main#1").steps] == ["keep"]


IRREVERSIBLE = {
    "use": ({"ticket": "A"}, {"ticket": "A"}),
    "pay": ({"to": "Ann", "amount": 5, "reference": "1"}, {"to": "Ann", "amount": 5, "reference": "2"}),
}
"""Tools, each with the arguments of a call, and with those of a call that means the same."""


@pytest.mark.parametrize("name", IRREVERSIBLE)
def test_a_ticket_is_not_used_and_a_payment_not_made_twice_after_an_import(repo, other, name):
    first, again = IRREVERSIBLE[name]

    def wrapped(repository, session, arguments):
        bank = Bank()
        graph = tool_node_graph(says(ask(name, **arguments), "done"), bank.tools())
        return bank, repository.wrap(graph, session, effects=bank.effects())

    _, agent = wrapped(repo, "s", first)
    agent.run("go")
    repo.session("s").rollback("main#1", force=True)
    for cut in CUTS:
        carried_cut(repo, other, cut, "main-2", repo.session("s").get_checkpoint("main#1"), cut)
        carried(other, cut, repo, cut)  # nor after an export of the import
        for repository in (other, repo):
            bank, agent = wrapped(repository, cut, again)
            assert agent.run("go") == "done"
            assert agent.tool_track()[-1].kind == "replay"
            assert (bank.used, bank.ledger) == ([], [])


# -- interrupts, explorations and subgraphs


def asking(shop):
    """Return a graph that adds a chair and asks a person about a lamp in one message."""
    both = calls(ask("add", "call-1", item="chair"), ask("add_if_approved", "call-2", item="lamp"))
    return tool_node_graph(scripted(both, "there"), shop.tools())


@pytest.mark.parametrize("cut", CUTS)
def test_a_pending_interrupt_waits_after_the_import_and_is_never_answered(repo, other, cut):
    shop = World()
    agent = repo.wrap(asking(shop), "s", effects=shop.effects())
    agent.invoke({"messages": [("user", "chair and lamp")]})
    assert (shop.items, agent.get_state().next) == (["chair"], ("tools",))
    carried_cut(repo, other, cut, "main", agent.checkpoint("waiting"))
    here = World()
    there = other.wrap(asking(here), "s", effects=here.effects())
    assert [c.status for c in there.tool_track()] == ["done", "paused"]
    assert there.get_state().next == ("tools",)
    with pytest.raises(Conflict, match="Send a new message"):
        there.invoke(Command(resume="yes"))
    assert here.items == []
    there.run("never mind")
    assert (there.get_state().next, here.items) == ((), [])


@pytest.mark.parametrize("cut", CUTS)
def test_an_exploration_is_imported_whole_but_one_of_its_branches_without_it(repo, other, cut):
    shop = World()
    agent = repo.wrap(agent_graph(obedient(), shop.tools()), "s", effects={"look": "read_only", **shop.effects()})
    leaf = agent.explore(["look", "hi"], choices=2, score=lambda leaf: 0.5).branches[-1].name
    carried_cut(repo, other, cut, leaf, repo.session("s").checkpoints(branch=leaf)[-1])
    if cut == "whole":
        there = other.wrap(agent_graph(obedient(), shop.tools()), "s", effects=shop.effects()).exploration()
        assert [(b.name, b.status, b.answer, b.score) for b in there.branches] == [
            (b.name, b.status, b.answer, b.score) for b in agent.exploration().branches
        ]
    else:  # the branch from which it was explored is missing
        there = other.session("s").branch()
        assert there.conversation_history == repo.session("s").branch(leaf).conversation_history
        assert "exploration" not in there.metadata


@pytest.mark.parametrize("cut", CUTS)
def test_delta_channel_values_are_exported_and_imported(repo, other, cut):
    agent = repo.wrap(chat(delta(3), full=4), "s")
    for n in range(4):
        agent.invoke(said(f"hi {n}", f"m{n}"))
    fork = agent.fork(agent.checkpoints()[4])
    fork.invoke(said("other", "o1"))
    again = fork.fork()
    again.invoke(said("more", "o2"))
    carried_cut(repo, other, cut, again.branch.name, again.head)
    there = other.wrap(chat(delta(3), full=4), "s", branch=again.branch.name)
    assert all_seen(there) == all_seen(again)
    for one in (again, there):
        one.invoke(said("and on", "o3"))
    assert seen(there.head) == seen(again.head)
    back = [one.rollback(one.checkpoints()[4]) for one in (again, there)]
    assert back[0].get_state().values == back[1].get_state().values


@pytest.mark.parametrize("own_thread", [False, True])
def test_a_subgraph_interrupt_waits_after_the_import_and_is_never_answered(repo, other, own_thread):
    shop = World()

    def graph():
        model = scripted(ask("add", "c1", item="chair"), "there", ask("add_if_approved", "c2", item="lamp"), "so")
        return nested_graph(model, shop.tools(), own_thread=own_thread)

    agent = repo.wrap(graph(), "s", effects=shop.effects())
    agent.run("a chair")
    fork = agent.fork().fork()
    fork.invoke({"messages": [("user", "and a lamp?")]})
    waiting = fork.checkpoint("waiting")
    for cut in CUTS:
        carried_cut(repo, other, cut, fork.branch.name, waiting, cut)
        shop.items.clear()
        there = other.wrap(graph(), cut, branch=fork.branch.name, effects=shop.effects())
        assert there.get_state().next == fork.get_state().next
        with pytest.raises(Conflict, match="Send a new message"):
            there.invoke(Command(resume="yes"))
        assert shop.items == []


def test_a_call_running_during_an_export_is_imported_as_unknown(repo, other):
    files = []

    @tool
    def peep() -> str:
        """Export the session from inside of a tool."""
        files.append(written(repo, "s"))
        return "seen"

    graph = tool_node_graph(scripted(ask("peep"), "fine"), [peep])
    repo.wrap(graph, "s", effects={"peep": effect("irreversible")}).run("go")
    other.import_(BytesIO(files[0]))
    assert [c.status for c in other.session("s").tool_track()] == ["unknown"]
    assert [branch.status for branch in other.session("s").branches()] == ["open"]
    assert other.session("s").plan_rollback("main#1").is_admissible


# -- what cannot be exported


def test_a_session_with_an_incomplete_rollback_is_not_exported(repo):
    shop = World()
    agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
    agent.run("add chair")
    shop.broken = {"chair"}
    with pytest.raises(agentgit.RollbackIncomplete):
        agent.rollback("main#1")
    with pytest.raises(Conflict, match="can be resumed"):
        written(repo, "s")
    assert written(repo, "s", branch="main")


def test_exporting_or_importing_something_missing_raises_an_error(repo, tmp_path):
    with pytest.raises(NotFound):
        repo.session("nobody").export(tmp_path / "x")
    lived(repo)
    with pytest.raises(NotFound):
        repo.session("s").export(tmp_path / "x", branch="nobody")
    with pytest.raises(Unavailable, match="cannot be written"):
        repo.session("s").export(tmp_path / "no" / "x")
    with pytest.raises(NotFound, match="cannot be read"):
        repo.import_(tmp_path / "x")
    with pytest.raises(NotFound):
        repo.session(checkpoint=agentgit.Checkpoint(id=7)).export(tmp_path / "x")
    assert list(tmp_path.glob("x*")) == []


def test_an_export_does_not_replace_a_database(repo, tmp_path):
    lived(repo)
    with agentgit.open(tmp_path / "other.db") as other:
        other.session("kept", create=True)
        with pytest.raises(InvalidInput, match="is a database"):
            repo.session("s").export(tmp_path / "other.db")
    with pytest.raises(InvalidInput, match="is a database"):
        repo.session("s").export(tmp_path / "other.db")
    with agentgit.open(tmp_path / "other.db") as other:
        assert [session.session_name for session in other.sessions()] == ["kept"]
    for _ in range(2):
        repo.session("s").export(tmp_path / "x")


def test_an_export_replaces_only_files(repo, tmp_path):
    """A pipe or a device stays what it is, and a link leads to the file."""
    session, pipe, link = repo.session("s", create=True), tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("file")
    for target in (pipe, tmp_path):
        with pytest.raises(InvalidInput, match="no file that can be replaced"):
            session.export(target)
    assert pipe.is_fifo()
    session.export(link)
    assert link.is_symlink()
    assert (tmp_path / "file").stat().st_size > 0


def test_an_import_reads_a_named_pipe(repo, other, tmp_path):
    """`agentgit import <(gunzip -c s.jsonl.gz)` works: an import can read a named pipe."""
    lived(repo)
    data = written(repo, "s")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        written_there = pool.submit((tmp_path / "pipe").write_bytes, data)
        other.import_(tmp_path / "pipe")
        assert written_there.result(30) == len(data)
    assert everything(other, "s") == everything(repo, "s")


@pytest.mark.long
def test_an_export_grows_linearly_with_the_conversation(repo):
    """A list stores only what it adds: twice as many turns write about twice as many items, also with forks."""
    agent = repo.wrap(tool_node_graph(obedient(), World().tools()), "s")
    listed = []
    for _ in range(2):
        for n in range(40):
            agent.run(f"add item{n}")
        agent.fork()
        lines = [json.loads(line) for line in written(repo, "s").splitlines()]
        listed.append(sum(len(line["data"]["items"]) for line in of(lines, "list")))
    assert listed[1] < 2.5 * listed[0]


def test_an_import_belongs_to_the_importing_user(repo, database):
    lived(repo)
    place = repo.session("s").get_checkpoint("main#1")
    with agentgit.open(database.url, user="ann") as ann:
        for ref in ("s", place, repo.session("s").branch("main")):
            with pytest.raises(NotFound):
                written(ann, ref)
        made = carried(repo, "s", ann)
        assert (made.session.user_id, made.session.session_name) == (ann.user.id, "s")
        assert {point.user_id for point in ann.session("s").checkpoints()} == {ann.user.id}
        assert everything(ann, "s") == everything(repo, "s")


# -- random sessions


orders = st.sampled_from(["add a", "add b; charge 3", "send x", "look", "note n", "hi"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), orders),
        st.tuples(st.just("back"), st.integers(0, 5)),
        st.tuples(st.just("fork"), st.integers(0, 5)),
        st.tuples(st.just("switch"), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=7,
)


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps)
def test_random_sessions_survive_export_and_import(life, sqlite_template, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("life")
    shutil.copy(sqlite_template, folder / "a.db")
    with agentgit.open(folder / "a.db") as repo, agentgit.open(":memory:") as other:
        shop = World()
        agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
        agent.run("hi")
        for what, how in life:
            points = agent.checkpoints()
            branches = repo.session("s").branches()
            if what == "run":
                agent.run(how)
            elif what == "back":
                agent = agent.rollback(points[how % len(points)], force=True)
            elif what == "fork":
                agent = agent.fork(points[how % len(points)])
            else:
                agent = agent.switch(branches[how % len(branches)].name, sync="ignore")
        carried(repo, "s", other)
        assert everything(other, "s") == everything(repo, "s")
        for n, branch in enumerate(repo.session("s").branches()):
            carried(repo, branch, other, f"branch {n}")
            theirs, ours = repo.session("s").branch(branch.name), other.session(f"branch {n}").branch(branch.name)
            assert ours.conversation_history == theirs.conversation_history
            tracks = [one.session(s).tool_track(branch=branch.name) for one, s in ((repo, "s"), (other, f"branch {n}"))]
            assert [plain(c.to_dict()) for c in tracks[0]] == [plain(c.to_dict()) for c in tracks[1]]
        for n, place in enumerate(repo.session("s").checkpoints()[:: max(1, len(life) // 2)]):
            carried(repo, place, other, f"point {n}")
            ours = other.session(f"point {n}").checkpoints(branch=place.metadata["branch"])[-1]
            assert facts(ours) == facts(place)
            assert {step.action for step in other.session(f"point {n}").plan_rollback(ours).steps} <= {"keep", "gone"}
        assert other.maintenance.gc(dry_run=True, steps=False).values == 0


@pytest.mark.parametrize("how", [{}, {"branch": "main"}], ids=["session", "branch"])
def test_tags_are_exported_and_imported(repo, other, how):
    lived(repo)
    repo.session("s").tag("main#2", "elsewhere", description="the first")  # also the name of a generated branch
    repo.session("s").tag("main#2", "v1")
    carried(repo, "s", other, **how)
    ours, theirs = (
        [(tag.name, tag.reference, tag.description) for tag in one.session("s").tags()] for one in (repo, other)
    )
    assert ours == theirs
    history, same = (one.session("s").get_checkpoint("v1").conversation_history for one in (repo, other))
    assert history == same
    with pytest.raises(Conflict, match="the tag"):
        other.session("s").delete_checkpoint("v1")
