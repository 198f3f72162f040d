"""Import of threads from LangGraph's savers as threads of SQLModelSaver, which a graph continues."""

import backend
import pytest
from foreign_threads import ORIGINS, on, open_origin, postgres_origin, rule, said, shop, sqlite_origin
from langgraph.types import Command
from scripted import nested_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, SQLModelSaver
from agentgit.demo import ScriptedModel


@pytest.fixture
def origin(tmp_path):
    """Create a SQLite source database of SqliteSaver."""
    return sqlite_origin(tmp_path)


@pytest.fixture(params=ORIGINS)
def any_origin(request, tmp_path):
    """Yield a source database of one of LangGraph's savers."""
    with open_origin(request.param, tmp_path, lambda: request.getfixturevalue("postgres_url")) as made:
        yield made


@pytest.fixture
def saver(repo):
    """Open the repository's database with a saver of its own."""
    with SQLModelSaver(repo.context.store.database.url) as saver:
        yield saver


def statuses(report):
    """Return the status of each thread."""
    return [(one.thread_id, one.status) for one in report.threads]


def parts(found):
    """Return the parts of a checkpoint that must be equal in the source and here."""
    configs = [one["configurable"] if one else None for one in (found.config, found.parent_config)]
    writes = sorted((task, channel, repr(value)) for task, channel, value in found.pending_writes)
    checkpoint = {k: v for k, v in found.checkpoint.items() if k not in ("pending_sends", "updated_channels")}
    return configs, checkpoint, found.metadata, writes


def newest_first(tuples):
    """Return the parts of checkpoints, newest first."""
    return [parts(one) for one in sorted(tuples, key=lambda one: one.config["configurable"]["checkpoint_id"])][::-1]


def test_a_thread_of_any_saver_arrives_completely(repo, saver, any_origin, world):
    """Each checkpoint keeps its id, parent, metadata, values and pending writes, and the order stays the same."""
    any_origin.talk(shop(world), "t", "order a chair", "hello", "and a table")
    report = repo.import_langgraph(any_origin.url, as_threads=True)
    assert statuses(report) == [("t", "imported")]
    assert report.threads[0].session_name is None
    assert [parts(one) for one in saver.list(on("t"))] == newest_first(any_origin.tuples("t"))
    assert repo.sessions() == []
    assert repo.import_langgraph(any_origin.url, as_threads=True).count("unchanged") == 1


def test_a_graph_continues_where_the_other_saver_stopped(repo, saver, any_origin, world):
    """A waiting question can be answered here, and a run after that continues the thread."""
    any_origin.talk(shop(world), "t", "order a chair", "ask for a lamp")
    repo.import_langgraph(any_origin.url, as_threads=True)
    graph = shop(world)(saver)
    assert graph.get_state(on("t")).interrupts[0].value == {"add": "lamp"}
    graph.invoke(Command(resume="yes"), on("t"))
    graph.invoke(said("and a table"), on("t"))
    assert world.items == ["chair", "lamp", "table"]
    assert len(graph.get_state(on("t")).values["messages"]) == 12


def test_all_lines_of_a_thread_with_time_travel_arrive(repo, saver, origin, world):
    """The history that time travel left behind is imported too, as the same history."""
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
    """A thread that waits in a subgraph can be answered here."""

    def build(checkpointer):
        return nested_graph(ScriptedModel(rule=rule), world.tools(), checkpointer)

    origin.talk(build, "t", "ask for a lamp")
    repo.import_langgraph(origin.url, as_threads=True)
    key = lambda one: str(one[0])  # noqa: E731  # two uses, one line each
    assert sorted(map(parts, saver.list(on("t"))), key=key) == sorted(map(parts, origin.tuples("t")), key=key)
    assert len({one.config["configurable"]["checkpoint_ns"] for one in saver.list(on("t"))}) == 2
    build(saver).invoke(Command(resume="yes"), on("t"))
    assert world.items == ["lamp"]


def test_a_repeated_import_adds_what_is_new(repo, saver, any_origin, world):
    """A thread that has grown in the source is extended, and an answer given there arrives."""
    any_origin.talk(shop(world), "t", "order a chair", "ask for a lamp")
    any_origin.talk(shop(world), "u", "hello")
    repo.import_langgraph(any_origin.url, as_threads=True)
    any_origin.talk(shop(world), "t", Command(resume="yes"), "and a table")
    assert statuses(repo.import_langgraph(any_origin.url, as_threads=True)) == [("t", "extended"), ("u", "unchanged")]
    assert [parts(one) for one in saver.list(on("t"))] == newest_first(any_origin.tuples("t"))


def test_a_thread_that_has_continued_here_is_not_changed(repo, saver, origin, world):
    """A thread with turns of its own stays as it is, and raises a conflict if its source has turns, too."""
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


def test_an_interrupted_import_shows_nothing_and_can_be_finished(repo, saver, origin, world):
    """Nothing of a thread is visible before it is complete, and what was read is not read again."""
    origin.talk(shop(world), "t", *["order a chair"] * 5)

    def stop(now):
        if now.done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.import_langgraph(origin.url, progress=stop, as_threads=True)
    assert list(saver.list(on("t"))) == list(saver.list(None)) == []
    steps = []
    repo.import_langgraph(origin.url, progress=steps.append, as_threads=True)
    assert steps[-1].total == 25 - 16 + 1  # the newest is read again for new pending writes
    assert [parts(one) for one in saver.list(on("t"))] == newest_first(origin.tuples("t"))
    assert backend.threads(repo) == {"t"}
    assert saver.gc(imports=True).values == 0


def test_writes_that_came_after_an_interrupted_import_arrive(repo, saver, origin, world):
    """A question that was staged without its answer is complete when the import is finished after the answer."""
    origin.talk(shop(world), "t", "order a chair", "ask for a lamp")

    def stop(now):
        if now.done == now.total > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.import_langgraph(origin.url, progress=stop, as_threads=True)
    origin.talk(shop(world), "t", Command(resume="yes"), "and a table")
    repo.import_langgraph(origin.url, as_threads=True)
    assert [parts(one) for one in saver.list(on("t"))] == newest_first(origin.tuples("t"))


def test_an_answer_that_was_given_anew_arrives(repo, saver, origin, world):
    """Time travel to a question replaces its answer, here as in the source."""
    origin.talk(shop(world), "t", "ask for a lamp")
    with origin.saver() as theirs:
        asked = shop(world)(theirs).get_state(on("t")).config
    origin.talk(shop(world), "t", Command(resume="yes"))
    repo.import_langgraph(origin.url, as_threads=True)
    with origin.saver() as theirs:
        shop(world)(theirs).invoke(Command(resume="no"), asked)
    repo.import_langgraph(origin.url, as_threads=True)
    assert [parts(one) for one in saver.list(on("t"))] == newest_first(origin.tuples("t"))


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
    """A thread that begins here while it is imported keeps its content, and nothing of the source is added."""
    origin.talk(shop(world), "t", *["order a chair"] * 5)

    def run_here(now):
        if now.done == 16:
            shop(world)(saver).invoke(said("hello"), on("t"))

    with pytest.raises(Conflict, match="while it was imported"):
        repo.import_langgraph(origin.url, progress=run_here, as_threads=True)
    assert [m.content for m in shop(world)(saver).get_state(on("t")).values["messages"]] == ["hello", "Hello."]
    assert backend.threads(repo) == {"t"}


def test_what_cannot_be_imported_as_threads_is_refused(repo, origin, world):
    """Ids of sessions, unknown threads and a prefix for sessions raise an error that says so."""
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
    """Setup warns if LangGraph's tables beside it have threads, until these are imported."""
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
