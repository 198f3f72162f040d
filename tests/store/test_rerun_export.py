"""Exports carry reruns: what was only simulated stays so, and the report is read from the other database."""

from io import BytesIO

import pytest
from exports import carried, forged, of, written
from scripted import call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Corrupt, Simulated


@pytest.fixture
def other():
    with agentgit.open(":memory:") as repo:
        yield repo


def rerun(repo, world):
    """Create a session with a rerun that calls a sofa instead of a table, and return the rerun."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; add table")
    model = scripted(calls(call("add", item="chair"), call("add", item="sofa")), "ordered")
    return agent.rerun(tool_node_graph(model, world.tools()))


def wrapped(repo, world, branch="rerun"):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", branch=branch, effects=world.effects())


def test_a_report_survives_an_export_and_what_was_simulated_is_not_done_there(repo, other, world):
    """The report names the calls of the new database. There its calls never run, so that nothing goes on from it."""
    before = rerun(repo, world).report
    carried(repo, "s", other)
    after = wrapped(other, world).report
    session = other.session("s")
    track = {one.id: one.args for one in session.tool_track(branch="main")}
    assert str(after) == str(before)
    assert [track[one.recorded_id] for one in after.matched] == [{"item": "chair"}]
    assert [track[one.id] for one in after.not_made] == [{"item": "table"}]
    assert session.branch("rerun").status == "simulated"
    with pytest.raises(Simulated):
        wrapped(other, world).run("go on")
    steps = wrapped(other, world, "main").session.plan_switch("rerun").steps
    simulated = [step for step in steps if step.invocation.status == "simulated"]
    assert [(step.action, step.invocation.args) for step in simulated] == [("block", {"item": "chair"})]
    assert not other.maintenance.fsck(level=3).findings


def test_a_rerun_that_became_real_is_exported(repo, other, world):
    rerun(repo, world)
    real = wrapped(repo, world, "main").switch("rerun", sync="world")
    real.run("add lamp")
    wrapped(repo, world, "main").merge("rerun", resolve="theirs")
    carried(repo, "s", other)
    assert other.session("s").branch("rerun").status == "open"
    assert not other.maintenance.fsck(level=3).findings


def test_an_export_without_secrets_has_none_in_the_report_of_a_rerun(repo, other, world):
    rerun(repo, world)
    file = BytesIO()
    repo.session("s").export(file, redact=lambda text: text.replace("sofa", "[hidden]"))
    file.seek(0)
    other.import_(file)
    assert [one.args for one in wrapped(other, world).report.new] == [{"item": "[hidden]"}]


def test_an_export_with_a_damaged_report_or_that_calls_a_rerun_real_is_refused(repo, other, world):
    rerun(repo, world)
    for where, change in [
        ("branch", lambda branch: branch["meta"].pop("rerun")),
        ("branch", lambda branch: branch["meta"]["rerun"].update(is_real=True)),
        ("operation", lambda operation: operation.update(kind="fork")),
        ("operation", lambda operation: operation["report"].update(turns=-1)),
        ("operation", lambda operation: operation["report"].update(colour="red")),
        ("operation", lambda operation: operation["report"].pop("source")),
        ("operation", lambda operation: operation["report"]["calls"][0].update(recorded_id=5)),
        ("operation", lambda operation: operation["report"].update(tokens={"m": [1] * 9})),
        ("operation", lambda operation: operation["report"].update(seconds="long")),
    ]:

        def damage(records, where=where, change=change):
            change(next(one for one in of(records, where) if "rerun" in (one.get("name"), one.get("kind"))))

        with pytest.raises(Corrupt, match="simulated" if where == "branch" else None):
            other.import_(forged(written(repo, "s"), damage))
        assert not other.sessions()
