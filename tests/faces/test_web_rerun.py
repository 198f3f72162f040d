"""The page of a rerun: the recorded conversation and the rerun in two columns, and how each call was answered."""

import pytest
from fastapi.testclient import TestClient
from scripted import call, calls, obedient, scripted, tool_node_graph

from agentgit.web import OwnerLink, app


@pytest.fixture
def visit(repo, world):
    """Serve a session with a rerun in which a sofa takes the place of a table; return a function that reads a page."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; add table")
    model = scripted(calls(call("add", item="chair"), call("add", item="sofa")), "<b>ordered</b>")
    agent.rerun(tool_node_graph(model, world.tools()))
    link = OwnerLink()
    client = TestClient(app(repo, link=link, hosts=["testserver"]))
    client.cookies.set("agentgit-80", link.token)

    def read(path, status=200):
        answer = client.get(f"/sessions/{agent.session.id}{path}")
        assert answer.status_code == status, answer.text
        return answer.text

    return read


def test_the_page_marks_where_they_diverge_and_how_calls_were_answered(visit):
    page = visit("/rerun?branch=rerun")
    assert page.count("They diverge here") == 1
    assert 'aria-label="Recorded: main"' in page
    assert 'aria-label="Rerun: rerun"' in page
    assert "&lt;b&gt;ordered" in page
    for word in (">matched<", ">new<", ">not made<", "the record", "no such call"):
        assert word in page
    assert "no report of a rerun" in visit("/rerun?branch=main", 404)


def test_the_tree_and_the_branch_lead_to_the_report(visit):
    """The branch of a rerun offers nothing that is always refused."""
    assert "/rerun?branch=rerun" in visit("/tree")
    page = visit("?branch=rerun")
    toolbar = page.split('class="toolbar"')[1].split("</div>")[0]
    assert "Report of the rerun" in toolbar
    assert "Fork" not in toolbar
    assert "Switch to this branch" in toolbar
