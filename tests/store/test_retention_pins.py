"""Thinning, deleting and collecting keep all that merges, explorations, templates and exports need."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Annotated

import backend
import pytest
from exports import carried
from file_tools import Desk
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph
from scripted import obeying
from sqlalchemy import update

import agentgit
from agentgit import Workspace
from agentgit.checkpoints import Retention
from agentgit.store.maintenance import retention
from agentgit.store.sql.tables import CHECKPOINT

FEW = Retention(compress_after=1, keep_last=1, max_checkpoints=1)


class Shopping(MessagesState):
    """A conversation, and a list whose reducer concatenates."""

    cart: Annotated[list[str], operator.add]


def shopping():
    graph = StateGraph(Shopping).add_node("answer", lambda state: {"messages": [AIMessage("noted")]})
    return graph.set_entry_point("answer").compile()


def say(agent, *cart):
    agent.invoke({"messages": [("user", "hi")], "cart": list(cart)})


@pytest.fixture
def merged(repo):
    ours = repo.wrap(shopping(), "s")
    say(ours, "chair")
    theirs = ours.fork(name="theirs")
    say(theirs, "sofa")
    ours.merge("theirs", name="merge")
    for n in range(3):
        say(theirs, f"lamp {n}")
        say(ours)
    return ours


def test_a_merge_after_thinning_deleting_and_clearing_repeats_nothing(repo, merged):
    """What the next merge needs also goes along with an export."""
    session = repo.session("s")
    carried(repo, "s", repo, "copy")
    for needed, why in (("merge", "it is a merge"), ("theirs#3", "was merged from it")):
        with pytest.raises(agentgit.Conflict, match=why):
            session.delete_checkpoint(needed)
    thinned = session.retention.apply(FEW)
    why = {one.point.name or one.point.reference: one.why for one in thinned.kept}
    assert why["merge"] == "it is a merge, and the next merge continues from it"
    assert why["theirs#3"] == "main#3 was merged from it"
    session.retention.clear()
    assert session.cleanup_auto_checkpoints(branch="theirs", keep=0) == 0
    for agent in (merged, repo.wrap(shopping(), "copy")):
        agent.merge("theirs")
        assert agent.state["cart"] == ["chair", "sofa", "lamp 0", "lamp 1", "lamp 2"]


def test_a_cleanup_below_the_limit_deletes_nothing(repo):
    obeying(repo).run("hm")
    assert repo.session("s").cleanup_auto_checkpoints(keep=3) == 0
    assert len(repo.session("s").checkpoints()) == 2


def test_an_age_limit_reads_no_checkpoints_until_one_is_too_old(repo, monkeypatch):
    agent = obeying(repo)
    for _ in range(3):
        agent.run("hm")
    day = timedelta(days=1)
    repo.session("s").retention.set(Retention(compress_after=None, max_checkpoints=None, keep_last=1, max_age=day))
    looked, points = [], retention.points
    monkeypatch.setattr(retention, "points", lambda *given: looked.append(given) or points(*given))
    agent.run("hm")
    assert looked == []
    aged = update(CHECKPOINT).where(CHECKPOINT.c.number < 6).values(created_at=datetime.now(UTC) - 2 * day)
    backend.write(repo, lambda transaction: transaction.execute(aged))
    agent.run("hm")
    left = [point.metadata["reference"] for point in repo.session("s").checkpoints()]
    assert left == ["main#1", *(f"main#{n}" for n in range(6, 11))]
    agent.run("hm")
    assert len(looked) == 1


def test_an_exploration_is_unchanged_after_thinning(repo):
    agent = obeying(repo)
    agent.run("hm")
    explored = agent.explore(["hm"], 2)
    agent = agent.switch(explored.branches[0].name)
    for n in range(3):
        agent.run(f"add i{n}")
    before = agent.exploration().to_dict()
    thinned = repo.session("s").retention.apply(FEW)
    why = [one.why for one in thinned.kept]
    assert f"the exploration on branch {explored.branches[0].name} ends there" in why
    repo.maintenance.gc()
    assert agent.exploration().to_dict() == before


@pytest.mark.long
def test_a_session_continues_after_its_template_is_cleared(repo):
    agent = obeying(repo)
    agent.run("add i0")
    agent.checkpoint("ready")
    for _ in range(3):
        agent.run("hm")
    obeying(repo, session="copy", template="s@ready").run("hm")
    assert repo.session("s").retention.clear().gone
    repo.maintenance.gc()
    copy = obeying(repo, session="copy")
    copy.run("look")
    assert len(copy.history()) == 10
    assert repo.maintenance.fsck(level=3).is_sound


def test_a_thinned_out_session_can_be_exported(repo):
    agent = obeying(repo)
    for n in range(4):
        agent.run(f"add i{n}")
    fork = agent.fork("main#5", name="fork")
    fork = fork.switch("fork", sync="ignore")
    fork.run("add other")
    deep = fork.fork(name="deep")
    deep.run("hm")
    repo.session("s").retention.clear()
    repo.maintenance.gc()
    for branch in (None, "main", "fork", "deep"):
        made = carried(repo, "s", repo, branch=branch).session
        for one in repo.session(made).branches():
            if branch in (None, one.name):  # the others are cut where the path leaves them
                assert one.conversation_history == repo.session("s").branch(one.name).conversation_history
    assert repo.maintenance.fsck(level=3).is_sound


@pytest.mark.parametrize("branches", [1, 3])
def test_an_incomplete_rollback_is_resumed_after_a_collection(repo, tmp_path, branches):
    desk = Desk(tmp_path / "work")
    world = desk.world
    with Workspace(desk.root, tmp_path / "store") as workspace:
        agent = repo.wrap(desk.graph(), "s", effects=world.effects(), check_effects=False, workspace=workspace)
        for n in range(4):
            agent.run(f"write a {n}; add i{n}")
        for n in range(1, branches):
            agent.fork(f"main#{2 * n}")
        world.broken.add("i1")
        with pytest.raises(agentgit.RollbackIncomplete):
            agent.rollback("main#2")
        repo.session("s").retention.apply(FEW)
        repo.session("s").retention.set(FEW)
        repo.maintenance.gc()
        world.broken.clear()
        (stopped,) = [one for one in repo.session("s").operations() if one.status != "done"]
        assert repo.resume(stopped).status == "done"
        assert world.items == ["i0"]
        assert desk.files == {"a": "0"}
        assert repo.maintenance.fsck(level=3).is_sound
