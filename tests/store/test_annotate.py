"""Checkpoints are renamed and annotated after they were made, and found by it."""

import pytest
from scripted import World, obedient, tool_node_graph

from agentgit import Conflict, InvalidInput, NotFound
from agentgit.checkpoints import Retention


@pytest.fixture
def agent(repo):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.checkpoint("tset", description="first try", data={"n": 1})
    return agent


def found(session, words):
    return [hit.reference for hit in session.search(words) if hit.kind == "checkpoint"]


def test_a_renamed_checkpoint_is_found_only_by_its_new_name(repo, agent):
    session = agent.session
    before = session.get_checkpoint("tset")
    assert found(session, "tset") == ["main#3"]
    renamed = session.annotate("tset", name="before payment")
    assert (renamed.id, renamed.checkpoint_name) == (before.id, "before payment")
    assert renamed.metadata["description"] == "first try"
    assert session.get_checkpoint("before payment") == renamed
    with pytest.raises(NotFound):
        session.get_checkpoint("tset")
    assert (found(session, "tset"), found(session, "payment first")) == ([], ["main#3"])
    assert [len(session.log(name=name)) for name in ("tset", "before payment")] == [0, 1]
    assert "before payment" in str(session.tree())
    assert renamed.conversation_history == before.conversation_history
    assert repo.maintenance.fsck(3).is_sound


def test_each_field_changes_alone_and_none_removes_it(repo, agent):
    """What is not passed stays, and None removes a name, a description or data."""
    session = agent.session
    assert session.annotate("main#3", data=[1, {"a": None}]).metadata["data"] == [1, {"a": None}]
    changed = session.annotate("main#3", description="second", data=None)
    assert (changed.checkpoint_name, changed.metadata["description"]) == ("tset", "second")
    assert changed.metadata["data"] is None
    cleared = session.annotate("main#3", name=None, description=None)
    assert (cleared.checkpoint_name, cleared.metadata["description"], cleared.is_auto) == (None, None, False)
    event = repo.events.newest(kinds="checkpoint.annotated")[-1]
    assert event.detail["changed"] == ["description", "name"]
    assert (event.detail["before"], event.detail.get("name")) == ("tset", None)


def test_an_automatic_checkpoint_with_a_name_is_kept(repo, agent):
    session = agent.session
    named = session.annotate("main#1", name="the start of it")
    assert named.is_auto
    assert found(session, "start of it") == ["main#1"]
    for text in ("add table", "hm", "hm"):
        agent.run(text)
    assert session.cleanup_auto_checkpoints(keep=0) > 0
    session.retention.apply(Retention(compress_after=1, keep_last=1))
    assert session.get_checkpoint("the start of it").id == named.id


def test_a_checkpoint_of_a_running_or_later_turn_can_be_annotated(agent):
    """A change before the search index has reached a checkpoint is indexed once."""
    session = agent.session
    session.annotate("main#3", name="one")
    agent.checkpoint("two")
    session.annotate("two", name="three")
    assert (found(session, "one"), found(session, "two"), found(session, "three")) == (["main#3"], [], ["main#4"])


@pytest.mark.parametrize(
    "changes", [{}, {"name": ""}, {"name": " "}, {"name": "x" * 201}, {"name": 7}, {"description": b"x"}]
)
def test_bad_names_and_descriptions_change_nothing(agent, changes):
    before = agent.session.get_checkpoint("main#3").to_dict()
    with pytest.raises(InvalidInput):
        agent.session.annotate("main#3", **changes)
    assert agent.session.get_checkpoint("main#3").to_dict() == before


def test_a_merge_keeps_its_record(agent):
    """The data of a merge, which the next merge needs, cannot be replaced; its name can."""
    other = agent.fork(name="other")
    other.run("hm")
    merged = agent.merge("other")
    with pytest.raises(Conflict, match="merge"):
        agent.session.annotate(merged, data={})
    assert agent.session.annotate(merged, name="both").metadata["data"] == merged.metadata["data"]


def test_a_log_can_be_limited_to_checkpoints_with_tool_calls(repo):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for text in ("hm", "add chair", "hm"):
        agent.run(text)
    session = agent.session
    assert [one.metadata["reference"] for one in session.log(with_calls=True)] == ["main#6", "main#5", "main#4"]
    assert [one.metadata["reference"] for one in session.log(with_calls=False)] == ["main#3", "main#2", "main#1"]
    assert len(session.log(with_calls=None)) == 6
    assert all(one.has_tool_invocations() for one in agent.session.log(with_calls=True, branch=agent.branch_id))
    assert len(session.log(with_calls=True, auto=False)) == 0
    with pytest.raises(InvalidInput, match="with_calls"):
        session.log(with_calls="yes")


def test_a_checkpoint_has_the_metadata_that_a_person_gave(repo):
    """Entries of agentgit are not replaced; new data leaves the metadata as they are."""
    session = repo.session("s", create=True)
    given = {"reward": 1.5, "kind": "mine"}
    made = session.checkpoint("one", data=[1], metadata=given)
    assert (made.metadata["reward"], made.metadata["kind"], made.metadata["data"]) == (1.5, "named", [1])
    changed = session.annotate("one", data={"more": True})
    assert (changed.metadata["reward"], changed.metadata["data"]) == (1.5, {"more": True})
    assert session.checkpoint("two", data="x").metadata.get("reward") is None
    with pytest.raises(InvalidInput, match="metadata must be a dict"):
        session.checkpoint("three", metadata=["reward"])
