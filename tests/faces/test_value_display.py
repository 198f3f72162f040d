"""The values as HTML in notebooks and as text in terminals."""

import pytest
from markup import TABLE_TAGS, Page
from scripted import obedient, tool_node_graph

from agentgit import Checkpoint, Corrupt, InternalSession, Repository

SAFE = TABLE_TAGS | {"pre", "img"}


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; note hurry")
    agent.checkpoint("before")
    agent.session.tag("HEAD", "good", branch=agent.branch_id)
    agent.run("send hello")
    return agent


SHOWN = [
    (lambda agent: agent, ["session  s", "branch   main", "head     main#5", "3 tool calls"]),
    (lambda agent: agent.session, ["s", "1 branch"]),
    (lambda agent: agent.branch, ["* main", "5 checkpoints", "9 messages", "send(text='hello')"]),
    (lambda agent: agent.head, ["main#5", "9 messages", "3 tool calls", "send(text='hello')"]),
    (lambda agent: agent.tree(), ["s: 1 branch, 5 checkpoints", "(tag: good) before"]),
    (lambda agent: agent.session.branches(), ["* main"]),
    (lambda agent: agent.checkpoints(), ["main#3", "before (tag: good)"]),
    (lambda agent: agent.tool_track(), ["add(item='chair')", "reversible", "done", "'number': 1"]),
    (lambda agent: agent.tool_track()[0], ["add(item='chair')", "reversible"]),
    (lambda agent: agent.history(), ["user", "add chair; note hurry", "→ send(text='hello')"]),
    (lambda agent: agent.session.log(branch=agent.branch_id), ["main#5", "before (tag: good)"]),
    (lambda agent: agent.session.search("hello", branch=agent.branch_id), ["main#5", "hello"]),
    (lambda agent: agent.session.tags(), ["good", "main#3"]),
    (lambda agent: agent.session.stats(), ["checkpoints", "calls"]),
    (lambda agent: Repository(agent.session.context).sessions(), ["s", "1 branch"]),
    (lambda agent: agent.plan_rollback("good", tools="keep"), ["send(text='hello')"]),
    (lambda agent: agent.session.diff("main#1", "HEAD"), ["+"]),
    (lambda agent: agent.session.compare(agent.head, "good"), ["main"]),
]


def test_every_value_has_html_that_untrusted_notebooks_keep(agent):
    for get, says in SHOWN:
        value = get(agent)
        bundle = value._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}
        assert bundle["text/html"] == value._repr_html_()
        page = Page(bundle["text/html"])
        assert page.open == []
        assert set(page.tags) <= SAFE
        assert page.attributes <= {"style", "src", "alt"}
        assert [text for text in says if text not in page.text] == []
        if isinstance(value, list):
            assert value == list(value)
            assert str(value) == str(list(value))


def test_an_unreadable_value_shows_the_error_in_its_html():
    def gone():
        raise Corrupt("the state of <main#5> is damaged")

    point = Checkpoint.deferred(gone, id=5, metadata={"reference": "main#5"})
    assert "the state of &lt;main#5&gt; is damaged" in point._repr_html_()
    branch = InternalSession.deferred(gone, id=1, external_session_id=1, langgraph_session_id="t", name="main")
    assert "is damaged" in branch._repr_html_()
