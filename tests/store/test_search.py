"""Search finds messages, calls and named checkpoints by their words, on both databases."""

import signal
import textwrap
from collections import defaultdict
from typing import Annotated

import backend
import processes
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from scripted import World, call, calls, scripted, tool_node_graph
from sqlalchemy import func, select, text

import agentgit
from agentgit import Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.store.maintenance.gc import collect
from agentgit.store.objects.blobs import Blobs, leaf
from agentgit.store.records.checkpoints import Label
from agentgit.store.search.index import CHECKPOINTS_PER_TRANSACTION
from agentgit.store.sql.tables import BRANCH, SEARCH_TEXT
from agentgit.store.threads import lifecycle


def chat(repo, *replies, session="s"):
    return repo.wrap(tool_node_graph(scripted(*(replies or [f"answer {n}" for n in range(50)])), []), session)


def places(hits):
    return [(hit.kind, hit.reference) for hit in hits]


def texts(repo):
    with backend.reading(repo) as transaction:
        return transaction.execute(select(func.count()).select_from(SEARCH_TEXT)).scalar()


def forget(repo):
    """Empty the search index, as if nothing were indexed yet."""

    def clear(transaction):
        transaction.execute(text("UPDATE internal_session SET searched = 0"))
        transaction.execute(text("DELETE FROM search_text"))
        if transaction.dialect.name == "sqlite":
            transaction.execute(text("INSERT INTO search_words(search_words) VALUES ('delete-all')"))

    backend.write(repo, clear)


def live(repo):
    """Run a turn with a call, name a checkpoint, roll back to it later, and return the agent of the new branch."""
    world = World()
    replies = (
        call("add", "c1", item="a Windsor chair"),
        "The chair is ordered.",
        "It is there, too.",
        "And here.",
        "Fine.",
    )
    first = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    first.run("order a chair")
    first.checkpoint("before payment", description="all is in the cart")
    first.run("and a table")
    second = first.rollback("before payment")
    second.run("rather a sofa")
    return second


@pytest.fixture
def agent(repo):
    return live(repo)


def test_search_finds_messages_calls_and_names_with_their_checkpoint(repo, agent):
    assert places(repo.session().search("sofa")) == [("message", "main-2#3")]
    found = {(hit.kind, hit.role): hit for hit in repo.session().search("chair")}
    assert set(found) == {("message", r) for r in ("user", "assistant", "tool")} | {("call", None)}
    assert {hit.reference for hit in found.values()} == {"main#2"}
    assert found["call", None].name == "add"
    assert found["call", None].id == agent.tool_track()[0].id
    assert "Windsor" in found["call", None].snippet
    assert found["message", "tool"].name == "add"
    (named,) = repo.session().search("payment cart")
    assert (named.kind, named.reference, named.name) == ("checkpoint", "main#3", "before payment")
    assert repo.session().get_checkpoint(named.checkpoint_id).checkpoint_name == "before payment"
    (mark,) = repo.session().search("ordered").items[0].marks
    assert "The chair is ordered."[slice(*mark)] == "ordered"


def test_search_covers_the_active_path_or_all_branches(repo, agent):
    assert not repo.session().search("table").items
    assert {hit.reference for hit in repo.session().search("table", all_branches=True)} == {"main#5"}
    assert {hit.reference for hit in repo.session().search("table", branch="main")} == {"main#5"}
    assert not repo.session().search("sofa", branch="main").items
    assert (
        agent.session.search("sofa", branch=agent.branch_id).items
        == repo.session("s").search("sofa", branch="main-2").items
    )
    assert not agent.session.search("table", branch=agent.branch_id).items
    assert agent.session.search("table", all_branches=True).items


def test_a_message_at_the_branch_point_is_found_from_the_branch(repo):
    agent = repo.wrap(tool_node_graph(scripted("a needle", "b"), []), "s", auto_checkpoint="off")
    agent.run("one")
    point = agent.checkpoint("here")
    retry = agent.rollback(point)
    assert places(retry.session.search("needle", branch=retry.branch_id)) == [("message", "main#1")]
    assert places(retry.session.search("here", branch=retry.branch_id)) == [("checkpoint", "main#1")]


def test_a_text_matches_only_if_it_has_every_query_word(repo, agent):
    """A text matches if it has all query words whole, in any order and case; joined words must be adjacent."""
    for wanted, count in [
        ("CHAIR Ordered", 1),
        ("ordered chair", 1),
        ("cha", 0),
        ("chairs", 0),
        ("is_ordered", 1),
        ("ordered-is", 0),
        ("chair sofa", 0),
        ("Windsor", 2),
    ]:
        assert len(repo.session().search(wanted)) == count, wanted


HOSTILE = [
    '"chair',
    "''",
    "chair*",
    "NOT chair",
    "NEAR(chair sofa, 2)",
    "words:chair",
    "^chair",
    "a & b | !c",
    "a <-> b",
    ")))",
    "\\'",
    "%",
    "; DROP TABLE blob",
    "chair\0",
    "\ud800",
    "\udfff chair",
    "§s1",
    "\u202e",
    "x" * 1000,
    "' ' " * 250,
]


def test_hostile_queries_are_searched_literally(repo, agent):
    """Quotes, operators, NUL and surrogates raise no error, and a query with words finds a text that has it."""
    for hostile in HOSTILE:
        before = len(repo.session().search(hostile, all_branches=True))
        agent.checkpoint("named", description=f"{hostile} end-of-it")
        after = repo.session().search(hostile, all_branches=True)
        has_words = any(c.isalnum() for c in hostile)
        assert len(after) == before + has_words, hostile
        assert [hit.kind for hit in after.items[:1]] == ["checkpoint"] * has_words


def test_scripts_without_spaces_and_emoji_are_found_by_any_part(repo):
    """CJK text and emoji are found by any part; other scripts are found by their words, ignoring accents."""
    agent = chat(repo, "請求書を送りました 👍🎉", "Żółć Ελλάδα हिन्दी")
    agent.run("こんにちは")
    agent.run("weiter")
    for wanted in ("請求書", "求書", "送り", "👍", "🎉", "にち", "żółć", "ZOŁC", "ελλαδα", "हिन्दी"):
        assert len(repo.session().search(wanted)) == 1, wanted
    for wanted in ("書請", "👎", "求送"):
        assert not repo.session().search(wanted).items, wanted


def test_pages_list_each_hit_once_and_names_before_messages(repo):
    """Names and descriptions rank before messages, newest first, across all pages, while new hits are added."""
    agent = chat(repo)
    agent.run("a needle")
    agent.checkpoint("needle 1")
    agent.run("more needle")
    agent.checkpoint("thing", description="a needle in it")
    agent.run("last needle")
    best = ["thing - a needle in it", "needle 1", "last needle", "more needle", "a needle"]
    assert [hit.snippet for hit in repo.session().search("needle")] == best
    for limit in (1, 2, 3):
        seen, after = [], None
        while True:
            page = repo.session().search("needle", limit=limit, after=after, all_branches=limit == 2)
            seen += [hit.snippet for hit in page]
            after = page.next
            if after is None:
                break
            agent.checkpoint("a new needle")
            agent.run("a new needle")
        assert [hit for hit in seen if hit != "a new needle"] == best


def test_search_covers_a_parent_branch_only_up_to_the_branch_point(repo):
    agent = chat(repo)
    for n in range(4):
        agent.run(f"needle {n}")
        agent.checkpoint(f"point {n} needle")
    retry = agent.rollback("point 1 needle")
    retry.run("needle again")
    again = retry.rollback("main#3")
    expected = {retry: ["point 1 needle", "point 0 needle", "needle again", "needle 1", "needle 0"]}
    for branch, best in {**expected, again: ["point 0 needle", "needle 0"]}.items():
        assert [hit.snippet for hit in branch.session.search("needle", branch=branch.branch_id)] == best
        pages, after = [], None
        for _ in best:
            page = branch.session.search("needle", limit=1, after=after, branch=branch.branch_id)
            pages, after = [*pages, *(hit.snippet for hit in page)], page.next
        assert (pages, after) == (best, None)
    forget(repo)
    assert [hit.snippet for hit in retry.session.search("needle", branch=retry.branch_id)] == expected[retry]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has no generic plans
def test_postgresql_never_uses_a_generic_plan_for_a_search(repo, agent):
    """PostgreSQL plans each search for its words; a generic plan would read every text."""
    for n in range(12):
        repo.session().search(f"sofa {n}", all_branches=True)
    with backend.reading(repo) as transaction:
        prepared = "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '%search_text%@@%'"
        assert transaction.execute(text(prepared)).scalars().all() == [0]
        assert transaction.execute(text("SHOW plan_cache_mode")).scalar() == "auto"


def test_forks_add_only_new_texts_to_the_search_index(repo):
    agent = chat(repo)
    for n in range(5):
        agent.run(f"say {n}")
    repo.session().search("say")
    before = texts(repo)
    forks = [agent.fork(f"main#{n}") for n in range(2, 8)]
    repo.session().search("say")
    assert texts(repo) == before
    forks[0].run("new")
    repo.session().search("say", branch=forks[0].branch)
    assert texts(repo) == before + 2
    assert len(repo.session().search("say", branch=forks[-1].branch)) == 3


def test_the_first_search_indexes_texts_of_an_earlier_release(repo, agent):
    def hits(wanted):
        return sorted(str(hit.to_dict()) for hit in repo.session().search(wanted, all_branches=True))

    expected, count = {wanted: hits(wanted) for wanted in ("a", "chair")}, texts(repo)
    forget(repo)
    assert ({wanted: hits(wanted) for wanted in expected}, texts(repo)) == (expected, count)


@pytest.mark.long
def test_a_long_history_is_indexed_completely_in_batches(repo):
    agent = chat(repo)
    agent.run("a needle")
    for n in range(CHECKPOINTS_PER_TRANSACTION + 20):
        agent.checkpoint(f"point {n}")
    forget(repo)
    told = []
    found = repo.session().search("point", limit=1000, progress=lambda done, total: told.append((done, total)))
    assert len(found) == CHECKPOINTS_PER_TRANSACTION + 20
    total = CHECKPOINTS_PER_TRANSACTION + 22
    assert told == [(CHECKPOINTS_PER_TRANSACTION, total), (total, total)]
    assert len(repo.session().search("needle")) == 1


def test_deleted_texts_are_not_found(repo):
    """A deleted checkpoint's name is not found, and a message is found until its last checkpoint is deleted."""
    agent = chat(repo, "one", "two", "three")
    agent.run("a needle")
    agent.checkpoint("alpha")
    message = agent.messages()[0]
    agent.run("more")
    assert places(repo.session().search("needle")) == [("message", "main#2")]
    repo.session().delete_checkpoint("alpha")
    assert not repo.session().search("alpha").items
    repo.session().delete_checkpoint("main#2")
    assert places(repo.session().search("needle")) == [("message", "main#4")]
    agent.update_state(None, {"messages": [RemoveMessage(message.id)]})
    agent.run("again")
    assert places(repo.session().search("needle")) == [("message", "main#4")]
    for place in ("main#4", "main#5"):
        repo.session().delete_checkpoint(place)
    assert not repo.session().search("needle").items
    backend.write(repo, lambda c: lifecycle.prune(c, agent.branch.langgraph_session_id))
    backend.write(repo, lambda c: collect(c, repo.context.store.graphs.blobs.of(repo.session().id)))
    assert not repo.session().search("needle").items
    assert len(repo.session().search("again")) == 1


def test_no_text_is_indexed_twice_after_its_checkpoint_is_deleted(repo):
    agent = chat(repo)
    agent.run("a needle")
    agent.checkpoint("x")
    agent.run("more")
    agent.undo()
    repo.session().search("needle")
    with backend.reading(repo) as transaction:
        known = transaction.execute(select(BRANCH.c.searched).where(BRANCH.c.id == agent.branch_id)).scalar()

    def add_without_indexing(transaction):
        store, label = repo.context.store, Label(kind="after", user_id=repo.user.id)
        head = store.head_state(transaction, store.sessions.branch(transaction, agent.branch_id))
        store.checkpoints.add(transaction, agent.branch_id, head.checkpoint_state, label)

    backend.write(repo, add_without_indexing)
    repo.session().delete_checkpoint(f"main#{known}")
    assert len(repo.session().search("needle", all_branches=True)) == 1


def test_an_inherited_text_is_indexed_once_after_the_last_indexed_checkpoint_is_deleted(repo):
    agent = chat(repo)
    agent.run("a needle")
    fork = agent.fork(name="fork")
    fork.run("one")
    fork.run("two")
    repo.session().search("needle", all_branches=True)
    fork.run("three")
    with backend.reading(repo) as transaction:
        known = transaction.execute(select(BRANCH.c.searched).where(BRANCH.c.id == fork.branch_id)).scalar()
    repo.session().delete_checkpoint(f"fork#{known}")
    fork.run("four")
    assert len(repo.session().search("needle", all_branches=True)) == 1
    assert len(repo.session().search("three", branch="fork")) == 1


def test_a_damaged_message_hides_no_other_text(repo):
    agent = chat(repo)
    agent.run("a needle")
    damaged = text("UPDATE blob SET data = :junk WHERE type = 'message'")
    backend.write(repo, lambda c: c.execute(damaged, {"junk": b"\0"}))
    with agentgit.open(backend.url(repo)) as fresh:
        session = fresh.session("s")
        assert not session.search("needle").items
        agent.checkpoint("needle by name")
        assert [hit.snippet for hit in session.search("needle")] == ["needle by name"]


def test_search_finds_only_texts_of_the_same_user(database):
    with agentgit.open(database.url, user="ann") as hers, agentgit.open(database.url, user="bob") as his:
        chat(hers).run("her needle")
        chat(his).run("his needle")
        assert [h.snippet for h in hers.session().search("needle", all_branches=True)] == ["her needle"]
        assert [h.snippet for h in his.session("s").search("needle")] == ["his needle"]
        with pytest.raises(NotFound):
            his.session(hers.session("s").id).search("needle")
        scope = f"§s{hers.session('s').id}"
        assert not his.session().search(scope, all_branches=True).items


def test_messages_of_all_shapes_are_found_beside_a_second_list_of_messages(repo):
    class Two(MessagesState):
        notes: Annotated[list[AnyMessage], add_messages]

    builder = StateGraph(Two)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("ok")], "notes": [AIMessage("a needle in notes")]})
    agent = repo.wrap(builder.add_edge(START, "answer").compile(), "s")
    blocks = [{"type": "text", "text": "needle in blocks"}, {"type": "image_url", "image_url": "x"}]
    odd = [HumanMessage(blocks, name="é"), AIMessage("", id="empty"), HumanMessage("bad \ud800\0 needle")]
    agent.invoke({"messages": odd})
    assert {hit.snippet for hit in repo.session().search("needle")} >= {"needle in blocks", "bad \ud800\0 needle"}
    assert [message.content for message in agent.get_state().values["notes"]] == ["a needle in notes"]


def test_failed_and_parallel_calls_are_found(repo, world):
    """A call that raised is found by its arguments and by its error."""

    @tool
    def order(item: str) -> str:
        """Order something."""
        raise ValueError(f"the shop has no {item}")

    both = calls(call("order", "c1", item="oak"), call("add", "c2", item="elm"))
    graph = tool_node_graph(scripted(both, "sorry"), [order, *world.tools()], handle_tool_errors=True)
    repo.wrap(graph, "s", effects={"order": "irreversible"} | world.effects()).run("go")
    for words, name in (("oak", "order"), ("the shop has", "order"), ("elm", "add")):
        assert [hit.name for hit in repo.session().search(words) if hit.kind == "call"] == [name], words


def test_a_huge_message_is_found_by_its_first_words(repo):
    chat(repo).run("needle " + " ".join(f"word{n}" for n in range(400_000)) + " haystack")
    (hit,) = repo.session().search("needle word7")
    assert len(hit.snippet) < 200
    assert not repo.session().search("haystack").items


def test_a_damaged_text_is_corrupt_if_it_is_found_and_left_out_if_it_is_not_indexed(repo, agent):
    """Other sessions are searched whole."""
    repo.session().search("sofa")
    spoil = text("UPDATE blob SET data = :junk WHERE type = 'message'")
    backend.write(repo, lambda c: c.execute(spoil, {"junk": b"\0"}))
    with agentgit.open(backend.url(repo)) as fresh, pytest.raises(Corrupt):
        fresh.session().search("sofa")
    chat(repo, session="other").run("a needle")
    forget(repo)
    with agentgit.open(backend.url(repo)) as fresh:
        assert not fresh.session("s").search("sofa").items
        found = fresh.session("other").search("needle")
        assert ([hit.snippet for hit in found], found.complete) == (["a needle"], True)


def test_invalid_searches_are_refused(repo, agent):
    for wrong in ("", " ", None, 7, "x" * 1001):
        with pytest.raises(InvalidInput):
            repo.session().search(wrong)
    for wrong in (0, 1001, "2", True):
        with pytest.raises(InvalidInput):
            repo.session().search("x", limit=wrong)
    for wrong in ("x", "-1", "1-2", "", 7, "9" * 30):
        with pytest.raises(InvalidInput):
            repo.session().search("x", after=wrong)
    with pytest.raises(NotFound):
        repo.session("nowhere").search("x")
    with pytest.raises(NotFound):
        repo.session("s").search("x", branch="nowhere")


def test_a_search_without_write_access_finds_only_indexed_texts(tmp_path, monkeypatch):
    """A search says that it misses what could not be indexed."""

    def refuse(*_args, **_kwargs):
        raise Unavailable("read only")

    with agentgit.open(tmp_path / "x.db") as repo:
        agent = chat(repo)

        def search_read_only():
            with monkeypatch.context() as patch:
                patch.setattr(backend.database(repo), "write", refuse)
                found = repo.session().search("needle")
            return [hit.snippet for hit in found], found.complete, "incomplete results" in str(found)

        agent.run("known needle")
        agent.checkpoint("needle by name")
        assert search_read_only() == ([], False, True)
        known = ["needle by name", "known needle"]
        assert [hit.snippet for hit in repo.session().search("needle")] == known
        assert search_read_only() == (known, True, False)
        agent.run("unknown needle")
        assert search_read_only() == (known, False, True)
        whole = repo.session().search("needle")
        assert (len(whole), whole.complete) == (3, True)


def test_concurrent_searches_index_each_text_once(tmp_path):
    path = tmp_path / "x.db"
    with agentgit.open(path) as repo:
        agent = chat(repo)
        for n in range(30):
            agent.run(f"needle {n}")
        forget(repo)
        code = textwrap.dedent("""
            import sys, agentgit
            with agentgit.open(sys.argv[1]) as repo:
                for _ in range(5):
                    found = len(repo.session().search("needle", limit=1000))
            print(found)
        """)
        several = [processes.Started(code, path) for _ in range(3)]
        agent.run("needle 30")
        counts = [int(one.wait().stdout) for one in several]
        assert all(30 <= count <= 31 for count in counts)
        assert len(repo.session().search("needle", limit=1000)) == 31


KILLED = """
import sys
import agentgit, faults
from points import Point
with agentgit.open(sys.argv[1]) as repo, faults.after(Point("store.search.index", "SearchIndex._add"), faults.die):
    repo.session().search("needle")
"""


def test_indexing_that_is_killed_leaves_nothing_and_is_repeated(repo):
    chat(repo).run("a needle")
    forget(repo)
    done = processes.run(KILLED, backend.address(repo))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert texts(repo) == 0
    assert len(repo.session().search("needle")) == 1


def test_text_from_an_encrypting_serializer_is_not_indexed(tmp_path):
    with agentgit.open(tmp_path / "x.db") as repo:
        sealed = leaf("serde", b"msgpack\0secretword")
        assert sealed.type == "serde"
        agent = chat(repo)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Blobs, "get_many", lambda *_: defaultdict(lambda: sealed))
            agent.run("hello")
        assert texts(repo) == 0


def test_hits_are_escaped_in_text_and_html(repo, agent):
    agent.checkpoint("needle", description="<script>\x1b[31m")
    found = repo.session().search("needle")
    assert str(found).endswith("needle - <script>\\x1b[31m")
    assert "&lt;script&gt;" in found._repr_html_()
    assert "<script>" not in found._repr_html_()


def test_merged_messages_rank_by_the_time_of_the_merge(repo):
    """Merged messages rank by the merge: above the branch's earlier messages and below its later ones."""
    agent = chat(repo)
    agent.run("needle one")
    theirs = agent.fork(name="theirs")
    theirs.run("needle two")
    agent.run("needle three")
    agent.merge("theirs")
    agent.run("needle four")
    assert [hit.snippet for hit in agent.session.search("needle", branch=agent.branch_id)] == [
        f"needle {n}" for n in ("four", "two", "three", "one")
    ]
