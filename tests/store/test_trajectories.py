"""Trajectories, and the commands that export and import sessions."""

from __future__ import annotations

import json
from io import BytesIO, TextIOWrapper

import pytest
from command_line import run
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from scripted import World, agent_graph, obedient, tool_node_graph

import agentgit
from agentgit import NotFound


@pytest.fixture
def agent(repo):
    """Return an agent with a good turn, a bad turn that was rolled back, and another turn instead of it."""
    shop = World()
    agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
    agent.run("add chair; charge 5")
    agent.checkpoint("good", data={"reward": 1.0})
    agent.run("note it")
    agent.checkpoint(data={"reward": -1, "label": "bad"})
    retry = agent.rollback("good")
    retry.run("look")
    return retry


def test_a_step_has_an_observation_an_action_and_results(agent, repo):
    """Each AI message is one step, with the messages since the last one, the calls and their results."""
    first, second, *_ = repo.session("s").trajectories(branch="main")
    assert (first["session"], first["branch"], first["step"]) == ("s", "main", 0)
    assert [m["content"] for m in first["observation"]] == ["add chair; charge 5"]
    assert [c["name"] for c in first["action"]["tool_calls"]] == ["add", "charge"]
    assert [(r["tool"], r["status"], r["effect"]) for r in first["results"]] == [
        ("add", "done", "reversible"),
        ("charge", "done", "compensable"),
    ]
    assert first["results"][1]["result"] == {"charged": 5}
    assert [m["role"] for m in second["observation"]] == ["tool", "tool"]
    assert (second["action"]["content"], second["results"]) == ("done", [])


def test_a_step_has_the_state_hash_of_the_checkpoint_before_it(agent, repo):
    for step in repo.session("s").trajectories(branch="main"):
        place = repo.session("s").get_checkpoint(step["state"]["checkpoint"])
        assert step["state"]["state_hash"] == (place.metadata["state_hash"] or None)
        assert place.metadata["message_count"] <= step["state"]["messages"]


def test_rewards_and_labels_are_read_from_checkpoints(agent, repo):
    judged = [(step["reward"], step["label"], step["done"]) for step in repo.session("s").trajectories(branch="main")]
    assert judged == [(None, None, False), (1.0, "good", False), (None, None, False), (-1, "bad", True)]


def test_checkpoints_before_a_summary_reward_no_later_step(repo):
    shop = World()
    agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
    agent.run("one")
    agent.run("two")
    agent.checkpoint("bad", data={"reward": -1})
    agent.update_state(None, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("summary")]})
    agent.run("three")
    agent.checkpoint("good", data={"reward": 1})
    agent.run("four")
    steps = list(repo.session("s").trajectories())
    assert [(step["reward"], step["label"]) for step in steps] == [(1, "good"), (None, None)]
    for step in steps:
        if place := step["state"]["checkpoint"]:
            at = repo.session("s").get_checkpoint(place).conversation_history
            assert at == agent.history()[: len(at)]


def test_each_branch_is_a_trajectory_from_the_root(agent, repo):
    """The steps of each branch, with the beginning that branches share, contain its whole conversation."""
    steps = list(repo.session("s").trajectories())
    assert [step["branch"] for step in steps] == ["main"] * 4 + ["main-2"] * 4
    for name in ("main", "main-2"):
        own = [step for step in steps if step["branch"] == name]
        said = [m for step in own for m in (*step["observation"], step["action"])]
        history = repo.session("s").branch(name).conversation_history
        assert [m["content"] for m in said] == [m["content"] for m in history]
    with pytest.raises(NotFound):
        list(repo.session("s").trajectories(branch="nobody"))


def test_an_exploration_score_is_the_reward_of_the_last_step(repo):
    agent = repo.wrap(agent_graph(obedient(), World().tools()), "s", effects={"look": "read_only"})
    agent.explore(["hi"], choices=2, score=lambda leaf: 0.25)
    last = [step["reward"] for step in repo.session("s").trajectories() if step["done"]]
    assert last == [0.25, 0.25]


def test_a_trajectory_is_the_same_after_an_import(agent, repo):
    file = BytesIO()
    repo.session("s").export(file)
    with agentgit.open(":memory:") as other:
        other.import_(BytesIO(file.getvalue()))
        assert list(other.session("s").trajectories()) == list(repo.session("s").trajectories())


def test_the_command_line_writes_trajectories_as_json(tmp_path):
    """`export --trajectories` writes a line of JSON per step, escaping text that UTF-8 refuses."""
    place, file = tmp_path / "a.db", tmp_path / "steps.jsonl"
    with agentgit.open(place) as repo:
        agent = repo.wrap(tool_node_graph(obedient(), World().tools()), "s")
        agent.run(f"add {chr(0xD800)}")
        steps = json.loads(json.dumps(list(repo.session("s").trajectories())))
    shown = run("export", "--trajectories", "s@main", "-", "--db", place).out
    assert run("export", "--trajectories", "s", file, "--db", place).code == 0
    for written in (shown, file.read_text()):
        assert [json.loads(line) for line in written.splitlines()] == steps


def test_the_command_line_exports_and_imports(tmp_path, monkeypatch):
    """`export` and `import` report counts as text or JSON, and have an exit code for each failure."""
    monkeypatch.chdir(tmp_path)
    with agentgit.open("a.db") as repo:
        agent = repo.wrap(tool_node_graph(obedient(), World().tools()), "s")
        agent.run("add chair")
        agent.fork()
    assert run("export", "s", "s.jsonl", "--db", "a.db").out.startswith("exported  s  2 branches, 3 checkpoints, ")
    told = json.loads(run("export", "s@main", "HEAD~1", "point.jsonl", "--db", "a.db", "--json").out)
    assert (told["of"], told["place"], told["checkpoints"]) == ("checkpoint", "main#1", 2)
    done = run("import", "s.jsonl", "--session", "copy", "--db", "b.db")
    assert done.out.startswith("imported  copy  2 branches, 3 checkpoints, ")
    (tmp_path / "cut.jsonl").write_bytes((tmp_path / "s.jsonl").read_bytes()[:-10])
    for code, words in (
        (6, "import s.jsonl --session copy --db b.db"),
        (12, "import cut.jsonl --db b.db"),
        (2, "import a.db --db b.db"),
        (2, "export s --db a.db"),
        (2, "export s main#1 more x --db a.db"),
        (3, "export nobody x --db a.db"),
    ):
        assert run(*words.split()).code == code, words


def test_an_export_can_be_piped_into_an_import(tmp_path):
    """`export -` writes only the export to standard output, and `import -` reads standard input like a file."""
    with agentgit.open(tmp_path / "a.db") as repo:
        repo.wrap(tool_node_graph(obedient(), World().tools()), "s").run("add chair")
    written = run("export", "s", "-", "--db", tmp_path / "a.db")
    assert written.err.startswith("exported  s  ")
    pipe = TextIOWrapper(BytesIO(written.out.encode()))
    assert run("import", "-", "--db", tmp_path / "b.db", stdin=pipe).code == 0
    with agentgit.open(tmp_path / "b.db") as other:
        assert len(other.session("s").tool_track()) == 1
