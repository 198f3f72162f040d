"""Tags are names for checkpoints, which are accepted as places and prevent deletion."""

from concurrent.futures import ThreadPoolExecutor

import backend
import pytest
from scripted import scripted, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound


@pytest.fixture
def agent(repo):
    agent = repo.wrap(tool_node_graph(scripted(*(f"answer {n}" for n in range(20))), []), "s")
    agent.run("one")
    agent.run("two")
    return agent


def test_a_tag_names_its_checkpoint_wherever_a_place_is_accepted(repo, agent):
    made = agent.session.tag("main#2", "v1", description="the first one", branch=agent.branch_id)
    assert (made.name, made.reference, made.description) == ("v1", "main#2", "the first one")
    assert repo.session("s").get_checkpoint("v1").metadata["tags"] == ["v1"]
    assert "tags" not in repo.session("s").get_checkpoint("main#1").metadata
    retry = agent.rollback("v1")
    assert [m["content"] for m in retry.history()] == ["one", "answer 0"]
    assert repo.session("s").diff("v1", "HEAD") is not None
    assert agent.fork("v1").head.metadata["kind"] == "branch"
    assert [p.metadata["reference"] for p in retry.session.log(tag="v1", branch=retry.branch_id)] == ["main#2"]
    assert len(retry.session.log(tag="v1", branch=retry.branch_id)) == 1
    assert [p.metadata.get("tags") for p in agent.session.log(until=made.created_at, branch=agent.branch_id)][2] == [
        "v1"
    ]


def test_tags_are_listed_newest_first_and_can_be_deleted(repo, agent):
    repo.session().tag("main#2", "b")
    repo.session().tag("main#2", "a")
    repo.session().tag("HEAD", "c")
    assert [tag.name for tag in repo.session("s").tags()] == ["c", "a", "b"]
    assert repo.session().get_checkpoint("a").metadata["tags"] == ["a", "b"]
    assert repo.session().untag("a").reference == "main#2"
    with pytest.raises(NotFound):
        repo.session().get_checkpoint("a")
    with pytest.raises(NotFound, match="no tag"):
        repo.session().untag("a")
    assert repo.session().get_checkpoint("main#2").metadata["tags"] == ["b"]
    assert repo.session("s").tags()[0].to_dict()["reference"] == "main#4"


def test_a_tag_protects_its_checkpoint_from_deletion(repo, agent):
    repo.session().tag("main#2", "keep")
    with pytest.raises(Conflict, match="tag"):
        repo.session().delete_checkpoint("keep")
    assert repo.session("s").cleanup_auto_checkpoints(keep=0) == 2
    assert [p.metadata["reference"] for p in repo.session("s").log()] == ["main#4", "main#2"]
    repo.session().untag("keep")
    assert repo.session("s").cleanup_auto_checkpoints(keep=0) == 1


def test_a_tag_precedes_a_name_and_cannot_equal_a_branch(repo, agent):
    agent.checkpoint("x")
    repo.session().tag("main#1", "x")
    assert repo.session().get_checkpoint("x").metadata["reference"] == "main#1"
    with pytest.raises(Conflict, match="branch"):
        repo.session().tag("HEAD", "main")
    with pytest.raises(Conflict, match="tag"):
        agent.fork(name="x")
    repo.session().tag("HEAD", "main-2")
    assert agent.fork().branch.name == "main-3"


def test_a_tag_is_unique_in_its_session(repo, agent):
    first = repo.session().tag("main#1", "v1")
    assert repo.session().tag("main#1", "v1") == first
    with pytest.raises(Conflict, match="main#1 already has the tag"):
        repo.session().tag("main#2", "v1")
    other = repo.wrap(tool_node_graph(scripted("a"), []), "other")
    other.run("hi")
    assert other.session.tag("HEAD", "v1", branch=other.branch_id).reference == "main#2"
    assert repo.session("s").tag(repo.session("s").get_checkpoint("main#1"), "v2").reference == "main#1"
    assert [tag.name for tag in repo.session("s").tags()] == ["v2", "v1"]
    assert [tag.name for tag in repo.session("other").tags()] == ["v1"]


def test_invalid_tag_names_are_refused(repo, agent):
    """Bad input: a tag name that is invalid or could be read as another place is refused by `tag` and `untag`."""
    for name in ("", " ", "7", "HEAD", "a#1", "a~1", "a@b", "a\nb", "\0", "x" * 201, None, 7):
        for ask in (lambda name=name: repo.session().tag("HEAD", name), lambda name=name: repo.session().untag(name)):
            with pytest.raises(InvalidInput):
                ask()
    assert repo.session("s").tags() == []


def test_any_other_text_is_a_valid_tag(repo, agent):
    for name in ("'; DROP TABLE tag; --", "\ud800", "日本 👍", "\\u0000", "x" * 200, "%", "[31m"):
        repo.session().tag("main#1", name, description=name)
        assert repo.session().get_checkpoint(name).metadata["tags"] == [name]
        assert repo.session("s").tags()[0].description == name
        assert repo.session().untag(name).name == name


def test_a_refused_tag_changes_nothing(repo, agent):
    with pytest.raises(NotFound):
        repo.session().tag("nowhere", "v1")
    with pytest.raises(InvalidInput, match="description"):
        repo.session().tag("HEAD", "v1", description=7)
    with pytest.raises(NotFound):
        repo.session("nowhere").tags()
    with agentgit.open(backend.url(repo), user="bob") as his, pytest.raises(NotFound):
        his.session().tag(agent.head, "v1")
    assert repo.session("s").tags() == []
    repo.session().tag("HEAD", "version one")
    with pytest.raises(NotFound) as caught:
        repo.session().get_checkpoint("version on")
    assert "version one" in caught.value.near


def test_one_checkpoint_wins_a_contested_tag(repo, agent):
    def give(place):
        try:
            return repo.session("s").tag(place, "v1").reference
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(give, ["main#1", "main#2"] * 4))
    (winner,) = repo.session("s").tags()
    assert given == [place if place == winner.reference else None for place in ["main#1", "main#2"] * 4]
