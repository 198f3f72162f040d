"""Import of threads from LangGraph's savers as threads of SQLModelSaver, which a graph continues."""

import backend
import pytest
from foreign_threads import any_origin, interrupt_import, on, origin, parts, postgres_origin, rule, said, same, shop
from langgraph.types import Command
from scripted import nested_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, SQLModelSaver
from agentgit.demo import ScriptedModel

__all__ = ["any_origin", "origin"]  # the fixtures


@pytest.fixture
def saver(repo):
    with SQLModelSaver(repo.context.store.database.url) as saver:
        yield saver


def statuses(report):
    return [(one.thread_id, one.status) for one in report.threads]


def require_same(saver, origin):
    theirs = sorted(origin.tuples("t"), key=lambda one: one.config["configurable"]["checkpoint_id"], reverse=True)
    assert [parts(one) for one in saver.list(on("t"))] == [parts(one) for one in theirs]


def test_a_thread_of_any_saver_arrives_completely_is_extended_and_continues_here(repo, saver, any_origin, world):
    """Each checkpoint keeps its id, parent, metadata, values and pending writes, and the order stays the same."""
    any_origin.talk(shop(world), "t", "order a chair", "hello", "ask for a lamp")
    any_origin.talk(shop(world), "u", "hello")
    report = repo.import_langgraph(any_origin.url, as_threads=True)
    assert statuses(report) == [("t", "imported"), ("u", "imported")]
    assert report.count("imported") == 2
    assert report.threads[0].session_name is None
    require_same(saver, any_origin)
    assert repo.sessions() == []
    any_origin.talk(shop(world), "t", Command(resume="yes"), "and a table")
    any_origin.talk(shop(world), "v", "ask for a sofa")
    report = repo.import_langgraph(any_origin.url, as_threads=True)
    assert statuses(report) == [("t", "extended"), ("u", "unchanged"), ("v", "imported")]
    require_same(saver, any_origin)
    graph = shop(world)(saver)
    assert graph.get_state(on("v")).interrupts[0].value == {"add": "sofa"}
    graph.invoke(Command(resume="yes"), on("v"))
    graph.invoke(said("and a desk"), on("v"))
    assert world.items == ["chair", "lamp", "table", "sofa", "desk"]
    assert len(graph.get_state(on("v")).values["messages"]) == 8


def test_all_lines_of_a_thread_with_time_travel_arrive(repo, saver, origin, world):
    origin.talk(shop(world), "t", "order a chair", "order a table")
    with origin.saver() as theirs:
        graph = shop(world)(theirs)
        early = list(graph.get_state_history(on("t")))[5].config
        graph.invoke(said("order a lamp"), early)
        expected = [(one.config, one.parent_config, one.values, one.next) for one in graph.get_state_history(on("t"))]
    repo.import_langgraph(origin.url, as_threads=True)
    history = shop(world)(saver).get_state_history(on("t"))
    assert [(one.config, one.parent_config, one.values, one.next) for one in history] == expected


def test_checkpoints_of_subgraphs_arrive(repo, saver, origin, world):
    def build(checkpointer):
        return nested_graph(ScriptedModel(rule=rule), world.tools(), checkpointer)

    origin.talk(build, "t", "ask for a lamp")
    repo.import_langgraph(origin.url, as_threads=True)
    assert same(saver.list(on("t")), origin.tuples("t"))
    assert len({one.config["configurable"]["checkpoint_ns"] for one in saver.list(on("t"))}) == 2
    build(saver).invoke(Command(resume="yes"), on("t"))
    assert world.items == ["lamp"]


def test_a_thread_that_has_continued_here_is_not_changed(repo, saver, origin, world):
    origin.talk(shop(world), "t", "order a chair")
    repo.import_langgraph(origin.url, as_threads=True)
    shop(world)(saver).invoke(said("order a table"), on("t"))
    before = [parts(one) for one in saver.list(on("t"))]
    assert statuses(repo.import_langgraph(origin.url, as_threads=True)) == [("t", "unchanged")]
    origin.talk(shop(world), "t", "order a lamp")
    with pytest.raises(Conflict, match="continued in both"):
        repo.import_langgraph(origin.url, as_threads=True)
    assert [parts(one) for one in saver.list(on("t"))] == before
    shop(world)(saver).invoke(said("hello"), on("u"))
    origin.talk(shop(world), "u", "hello")
    with pytest.raises(Conflict, match="other content"):
        repo.import_langgraph(origin.url, threads=["u"], as_threads=True)


def test_an_interrupted_import_shows_nothing_and_is_finished_with_what_came_meanwhile(repo, saver, origin, world):
    """A question that was staged without its answer is complete when the import is finished after the answer."""
    origin.talk(shop(world), "t", *["order a chair"] * 4, "ask for a lamp")
    for at in (16, None):
        interrupt_import(repo, origin, at=at, as_threads=True)
        assert list(saver.list(on("t"))) == list(saver.list(None)) == []
    origin.talk(shop(world), "t", Command(resume="yes"), "and a table")
    repo.import_langgraph(origin.url, as_threads=True)
    require_same(saver, origin)
    assert backend.threads(repo) == {"t"}
    assert saver.gc(imports=True).values == 0


def test_an_answer_that_was_given_anew_arrives(repo, saver, origin, world):
    origin.talk(shop(world), "t", "ask for a lamp")
    with origin.saver() as theirs:
        asked = shop(world)(theirs).get_state(on("t")).config
    origin.talk(shop(world), "t", Command(resume="yes"))
    repo.import_langgraph(origin.url, as_threads=True)
    with origin.saver() as theirs:
        shop(world)(theirs).invoke(Command(resume="no"), asked)
    repo.import_langgraph(origin.url, as_threads=True)
    require_same(saver, origin)


def test_a_pruned_thread_keeps_its_newest_checkpoint(repo, saver, origin, world):
    """What a thread lost here is not added after what it has, from which a run would continue."""
    origin.talk(shop(world), "t", "order a chair", "order a table")
    repo.import_langgraph(origin.url, as_threads=True)
    saver.prune(["t"])
    (newest,) = saver.list(on("t"))
    with pytest.raises(Conflict, match="lacks a part"):
        repo.import_langgraph(origin.url, as_threads=True)
    assert list(saver.list(on("t"))) == [newest]


def test_a_run_of_the_thread_during_the_import_makes_it_fail(repo, saver, origin, world):
    origin.talk(shop(world), "t", *["order a chair"] * 5)

    def run_here(now):
        if now.done == 16:
            shop(world)(saver).invoke(said("hello"), on("t"))

    with pytest.raises(Conflict, match="while it was imported"):
        repo.import_langgraph(origin.url, progress=run_here, as_threads=True)
    assert [m.content for m in shop(world)(saver).get_state(on("t")).values["messages"]] == ["hello", "Hello."]
    assert backend.threads(repo) == {"t"}


def test_what_cannot_be_imported_as_threads_is_refused(repo, origin, world):
    origin.talk(shop(world), "agentgit-1", "hello")
    with pytest.raises(InvalidInput, match="reserved"):
        repo.import_langgraph(origin.url, as_threads=True)
    with pytest.raises(NotFound):
        repo.import_langgraph(origin.url, threads=["none"], as_threads=True)
    with pytest.raises(InvalidInput, match="prefix"):
        repo.import_langgraph(origin.url, as_threads=True, session_prefix="x")
    origin.talk(shop(world), "t", "hello")
    report = repo.import_langgraph(origin.url, as_threads=True, on_error="continue")
    assert statuses(report) == [("agentgit-1", "failed"), ("t", "imported")]
    assert backend.threads(repo) == {"t"}


def test_setup_tells_of_threads_that_the_saver_does_not_read(postgres_url, world):
    with postgres_origin(postgres_url) as origin:
        origin.talk(shop(world), "t", "order a chair")
        origin.talk(shop(world), "u", "hello")
        with SQLModelSaver.from_conn_string(origin.url) as saver:
            with pytest.warns(UserWarning, match="2 threads of LangGraph's savers"):
                saver.setup()
            with agentgit.open(origin.url) as repo:
                repo.import_langgraph(origin.url, as_threads=True)
            saver.setup()  # a warning would be an error
            assert shop(world)(saver).get_state(on("u")).values["messages"][1].content == "Hello."
