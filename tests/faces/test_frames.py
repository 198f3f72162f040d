"""Lists, logs, search results and statistics as pandas DataFrames."""

from datetime import UTC, datetime

import pandas
import pytest
from scripted import obedient, tool_node_graph

from agentgit import Checkpoint, ToolInvocation
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import Corrupt
from agentgit.sessions.messages import History


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; note hurry")
    agent.checkpoint("before", data={"reward": 1})
    agent.session.tag("HEAD", "good", branch=agent.branch_id)
    agent.fork(name="b2").run("send hello")
    return agent


def test_checkpoints_and_logs_are_frames_with_one_row_each(agent):
    points, log = agent.checkpoints().to_frame(), agent.session.log(which="all").to_frame()
    assert points["reference"].tolist() == ["main#1", "main#2", "main#3"]
    assert log["reference"].tolist() == [point.metadata["reference"] for point in agent.session.log(which="all")]
    assert list(points.columns) == list(log.columns)
    named = points.iloc[2]
    assert (named["checkpoint_name"], named["tags"], named["data"]) == ("before", ["good"], {"reward": 1})
    assert points["tool_track_position"].max() == 2
    assert str(points["created_at"].dtype) == "datetime64[us, UTC]"
    assert points["created_at"].is_monotonic_increasing
    assert points["is_auto"].tolist() == [True, True, False]


def test_the_track_search_and_other_lists_are_frames(agent):
    track = agent.at("b2").tool_track().to_frame()
    assert track["tool_name"].tolist() == ["add", "note", "send"]
    assert track["args"].tolist()[0] == {"item": "chair"}
    assert (track["ended_at"] >= track["started_at"]).all()
    assert track["replay_of"].isna().tolist() == [False, False, True]
    assert set(agent.session.search("chair", branch=agent.branch_id).to_frame()["reference"]) == {"main#2"}
    assert agent.session.branches().to_frame()["name"].tolist() == ["main", "b2"]
    assert agent.session.tags().to_frame()["reference"].tolist() == ["main#3"]
    assert agent.history().to_frame()["role"].value_counts()["tool"] == 2
    assert agent.tool_track()[-1:].to_frame()["tool_name"].tolist() == ["note"]
    assert type(agent.tool_track()[0]) is ToolInvocation


def test_statistics_are_a_frame_with_one_row_for_each_branch(agent):
    stats = agent.session.stats()
    frame = stats.to_frame().set_index("branch")
    assert frame.index.tolist() == ["main", "b2"]
    assert frame["checkpoints"].sum() == stats.total.checkpoints
    assert frame["calls"].sum() == sum(stats.total.calls.values())
    assert frame["cost"].isna().all()


def test_an_empty_result_is_a_frame_with_columns_and_types(agent):
    """An empty result has the columns and types of a full one, so that code after it need not ask."""
    full = (
        agent.checkpoints(),
        agent.tool_track(),
        agent.session.search("chair", branch=agent.branch_id),
        agent.session.log(branch=agent.branch_id),
        agent.history(),
    )
    empty = (
        agent.checkpoints()[:0],
        agent.tool_track()[:0],
        agent.session.search("zzz", branch=agent.branch_id),
        agent.session.log(name="zzz", branch=agent.branch_id),
        History(),
    )
    for one, other in zip(full, empty, strict=True):
        assert other.to_frame().empty
        assert other.to_frame().dtypes.to_dict() == one.to_frame().dtypes.to_dict()


async def test_a_log_is_read_for_a_frame_without_blocking_the_event_loop(repo):
    session = repo.session("s", create=True)
    assert (await session.log().ato_frame()).empty


def test_a_frame_holds_any_text_and_number_and_loads_no_states():
    hostile = "\ud800<script>\x00\u202e"
    call = ToolInvocation(
        id=2**53 - 1, internal_session_id=1, position=0, tool_name=hostile, args={hostile: 2**70}, replay_of=2**53 - 2
    )
    frame = ToolTrack([call, ToolInvocation(id=1, internal_session_id=1, position=1, tool_name="add")]).to_frame()
    assert frame["id"].tolist() == [2**53 - 1, 1]
    assert frame["replay_of"][0] == 2**53 - 2
    assert (frame["tool_name"][0], frame["args"][0]) == (hostile, {hostile: 2**70})
    points = Checkpoints([Checkpoint(created_at=datetime(2026, 1, 2, tzinfo=UTC)), Checkpoint()]).to_frame()
    assert points["created_at"][0] == pandas.Timestamp("2026-01-02", tz="UTC")
    assert points["created_at"].isna().tolist() == [False, True]

    def damaged():
        raise Corrupt("the state is damaged")

    point = Checkpoint.deferred(damaged, id=5, metadata={"reference": "main#5"})
    assert Checkpoints([point]).to_frame()["reference"].tolist() == ["main#5"]
