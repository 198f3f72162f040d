"""Every line of the table in docs/moving-in.md runs, from top to bottom."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from file_tools import desk, home
from langchain_core.messages import HumanMessage
from scripted import obedient, tool_node_graph

import agentgit
from agentgit import Checkpoint, Workspace
from agentgit.checkpoints.retention import Retention

__all__ = ["desk", "home"]  # the fixtures

PAGE = Path(__file__).parents[2] / "docs" / "moving-in.md"
THEIRS = [{"id": "s:1", "name": "cart", "timestamp": "2025-05-01T12:00:00+00:00", "data": {"items": 2}}]


def rows():
    table = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in table[2:]]


def lines_by_system():
    """Return the code of the right column by system; the first row of each begins with its name in bold."""
    found = {}
    for theirs, ours in rows():
        if name := re.match(r"\*\*(.+?)\*\*", theirs):
            lines = found[name[1]] = []
        [code] = re.findall(r"^`(.+)`$", ours)
        lines.append(code)
    return found


SYSTEMS = lines_by_system()


@pytest.fixture
def namespace(repo, desk, tmp_path):
    graph = desk.graph()
    return {
        "repo": repo,
        "graph": graph,
        "effects": desk.world.effects(),
        "folder": desk.root,
        "storage": tmp_path / "storage",
        "seen": [],
        "theirs": json.dumps(THEIRS),
        "ask": lambda text: {"messages": [("user", text)]},
        "session": repo.session("site", create=True),
        **{thing.__name__: thing for thing in (Checkpoint, Workspace, Retention, HumanMessage)},
        **{thing.__name__: thing for thing in (datetime, timedelta, json)},
        "UTC": UTC,
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_line_of_the_page_for_users_of_other_systems_runs(namespace, desk, system):
    if system.startswith("AgentGit"):
        namespace["graph"] = tool_node_graph(obedient(), desk.world.tools())
    if system.startswith(("Chimera", "PraisonAI")):
        (desk.root / "a.txt").write_text("zero")
    for line in SYSTEMS[system]:
        exec(compile(line, line, "exec"), namespace)  # noqa: S102  # the page of this repository
    assert namespace["repo"].maintenance.fsck(2).is_sound


def test_the_page_has_rows_for_each_of_the_five_systems():
    assert len(SYSTEMS) == 5
    assert all(len(lines) >= 10 for lines in SYSTEMS.values())
    assert all(len(row) == 2 for row in rows())
    assert len(PAGE.read_text("utf-8").split()) <= 1100


def test_breakpilot_users_find_what_they_kept(repo):
    session = repo.session("s", create=True)
    session.retention.set(Retention.by_name())
    names = [f"step {n % 7}" if n % 10 else f"once {n}" for n in range(120)]
    made = [session.checkpoint(name, data={"n": n}) for n, name in enumerate(names)]
    kept = [one.metadata["data"]["n"] for one in session.checkpoints()]
    newest = {name: n for n, name in enumerate(names)}
    assert {0, *range(100, 120), *newest.values()} <= set(kept)
    assert len(kept) <= 51
    assert session.log().latest("once 10").id == made[10].id
    result = session.retention.clear()
    assert [verdict.point.id for verdict in result.kept] == [made[-1].id]
    assert all(verdict.why for verdict in result.kept)


def test_checkpoints_of_agentgit_0_1_are_imported(repo):
    """Rows of AgentGit 0.1, with small ids and times without a zone, become a session after one conversion."""
    old = [
        {
            "id": n,
            "internal_session_id": 3,
            "checkpoint_name": f"step {n}",
            "session_state": {"counter": n},
            "conversation_history": [{"role": "user", "content": f"text {i}"} for i in range(n)],
            "is_auto": n % 2 == 0,
            "created_at": datetime(2025, 5, n).isoformat(),  # as that version wrote it
            "metadata": {"session_id": "thread", "session_type": "langgraph", "tool_track_position": 0},
            "user_id": 1,
            "tool_invocations": [],
        }
        for n in (1, 2, 3)
    ]
    with pytest.raises(agentgit.InvalidInput, match="time zone"):
        repo.import_([Checkpoint.from_dict(one) for one in old], session="moved")
    zoned = [one | {"created_at": datetime.fromisoformat(one["created_at"]).astimezone().isoformat()} for one in old]
    repo.import_([Checkpoint.from_dict(one) for one in zoned], session="moved")
    read = repo.session("moved").checkpoints()
    former = [one.metadata["data"]["imported"] for one in read]
    assert [(one["id"], one["session_type"]) for one in former] == [(n, "langgraph") for n in (1, 2, 3)]
    assert [(one.checkpoint_name, one.session_state["counter"]) for one in read] == [
        (f"step {n}", n) for n in (1, 2, 3)
    ]
