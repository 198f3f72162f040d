"""The tree with handles: by reference in any program, and by clicks in a notebook."""

import subprocess
import sys

import pytest
from scripted import obedient, tool_node_graph

from agentgit import InvalidInput, NotFound
from agentgit.notebook import browse

# ipywidgets asks for its kernel when a widget is made.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.checkpoint("before the table")
    agent.run("add table")
    return agent


def test_a_handle_compares_plans_and_rolls_back(agent, world):
    tree = browse(agent)
    assert str(tree) == str(agent.tree())
    handle = tree["before the table"]
    assert (handle.reference, handle.branch) == ("main#3", "main")
    assert str(handle.plan_rollback()) == str(agent.plan_rollback("main#3"))
    assert str(handle.diff()) == str(agent.session.diff("main#3", "HEAD"))
    moved = handle.rollback(name="retry")
    assert (world.items, moved.branch.name, tree.agent) == (["chair"], "retry", moved)
    assert str(tree["main"].compare(tree["retry"])) == str(agent.session.compare("main", "retry"))
    assert tree["main"].switch("world").branch.name == "main"
    assert world.items == ["chair", "table"]
    assert tree["main#1"].fork("other").branch.name == "other"
    assert tree["HEAD"].branch == "other"


def test_a_session_without_a_graph_has_handles_too(agent, world):
    tree = browse(agent.session)
    assert tree["before the table"].rollback().branch == "main-2"
    assert world.items == ["chair"]
    assert tree["main#2"].fork("other").branch == "other"
    assert tree["main"].switch("world").status == "done"
    assert world.items == ["chair", "table"]


def test_wrong_references_and_sources_raise(agent):
    with pytest.raises(NotFound, match="no checkpoint 'nowhere'"):
        browse(agent)["nowhere"]
    with pytest.raises(InvalidInput, match="an agent or a session, not str"):
        browse("s")


class Clicks:
    """What a person sees and clicks in the widget, without a browser."""

    def __init__(self, tree) -> None:
        self.widget = tree.widget

    @property
    def state(self):
        return self.widget.state

    def choose(self, ref) -> None:
        self._send("choose", str(ref))

    def click(self, label) -> None:
        (button,) = [one for one in self.state["buttons"] if one["label"] == label]
        self._send(button["action"], button["value"])

    def labels(self):
        return [button["label"] for button in self.state["buttons"]]

    def _send(self, action, value) -> None:
        # The message of a front end, as it arrives from the kernel.
        self.widget._handle_custom_msg({"action": action, "value": value}, [])


def test_a_click_shows_a_plan_and_a_second_one_rolls_back(agent, world):
    tree = browse(agent)
    clicks = Clicks(tree)
    assert clicks.state["title"] == "session s, branch main"
    assert f'<a href="#{tree["main#3"].id}"' in clicks.state["picture"]
    clicks.choose(tree["main#3"].id)
    assert "before the table" in clicks.state["panel"]
    assert clicks.labels() == ["Roll back to here…", "Fork here", "Compare with main"]
    clicks.click("Roll back to here…")
    assert "add(item=&#x27;table&#x27;)" in clicks.state["panel"]
    assert world.items == ["chair", "table"]
    clicks.click("Cancel")
    clicks.click("Roll back to here…")
    clicks.click("Roll back")
    assert world.items == ["chair"]
    assert clicks.state["note"].startswith("Rolled back: session s is on branch main-2.")
    assert tree.agent.branch.name == "main-2"
    clicks.choose("main")
    clicks.click("Compare with main-2")
    assert "diverge at main#3" in clicks.state["panel"]
    clicks.click("Back")
    clicks.click("Switch to main…")
    clicks.click("Switch and change the world")
    assert world.items == ["chair", "table"]
    assert clicks.state["title"] == "session s, branch main"


def test_a_click_that_fails_says_why_in_the_panel(agent, world):
    tree = browse(agent)
    clicks = Clicks(tree)
    clicks.choose("nowhere")
    assert "no checkpoint 'nowhere'" in clicks.state["note"]
    clicks._send("rm -rf", "x")
    clicks._send("rollback", str(tree["main#3"].id))
    assert clicks.state["note"].startswith("Nothing was done: the confirmed plan is not what")
    assert world.items == ["chair", "table"]
    agent.run("send hello")
    clicks.click("Roll back")
    assert clicks.state["note"].startswith("Nothing was done: the confirmed plan is not what")
    clicks.click("Roll back and keep what cannot be undone")
    assert world.items == ["chair"]


def test_hostile_text_stays_text_in_the_widget(repo, world):
    hostile = "<img src=x onerror=alert(1)>"
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), hostile, effects=world.effects())
    agent.run(hostile)
    agent.checkpoint(hostile)
    clicks = Clicks(browse(agent))
    clicks.choose(hostile)
    clicks.click("Roll back to here…")
    for part in ("picture", "panel"):
        assert "<img src=x" not in clicks.state[part]
    assert clicks.state["title"] == f"session {hostile}, branch main"


def test_the_output_has_the_tree_for_readers_without_a_widget(agent):
    bundle = browse(agent)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/html"] == agent.tree()._repr_html_()


def test_a_tree_needs_no_anywidget():
    code = """
import sys
sys.modules["anywidget"] = None
import agentgit
from agentgit.notebook import browse
tree = browse(agentgit.open(":memory:").session("s", create=True))
print(tree.widget, sorted(tree._repr_mimebundle_()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)  # noqa: S603  # our own program
    assert done.stdout == "None ['text/html', 'text/plain']\n"
