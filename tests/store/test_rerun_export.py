"""Exports carry reruns: what was only simulated stays so, and the report is read from the other database."""

from io import BytesIO

import pytest
from exports import carried, forged, of, written
from scripted import World, call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Corrupt, Simulated


@pytest.fixture
def other():
    """Open another repository in memory."""
    with agentgit.open(":memory:") as repo:
        yield repo


@pytest.fixture
def world():
    """Create a world for the test."""
    return World()


def rerun(repo, world):
    """Create a session with a rerun that calls a sofa instead of a table, and return the rerun."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; add table")
    model = scripted(calls(call("add", item="chair"), call("add", item="sofa")), "ordered")
    return agent.rerun(tool_node_graph(model, world.tools()))


def wrapped(repo, world, branch="rerun"):
    """Return an agent on a branch of the only session."""
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", branch=branch, effects=world.effects())


def test_a_report_survives_an_export(repo, other, world):
    """The report names the calls of the new database, and everything else in it is the same."""
    before = rerun(repo, world).report
    carried(repo, "s", other)
    after = wrapped(other, world).report
    track = {one.id: one.args for one in other.session("s").tool_track(branch="main")}
    assert str(after) == str(before)
    assert [track[one.recorded_id] for one in after.matched] == [{"item": "chair"}]
    assert [track[one.id] for one in after.not_made] == [{"item": "table"}]
    assert track[after.new[0].nearest_id] == {"item": "table"}
    assert not other.maintenance.fsck(level=3).findings


def test_what_was_simulated_is_not_done_after_an_import(repo, other, world):
    """In another database, too, a rerun goes on only after its calls have run there."""
    rerun(repo, world)
    carried(repo, "s", other)
    agent = wrapped(other, world, "main")
    assert other.session("s").branch("rerun").status == "simulated"
    with pytest.raises(Simulated):
        wrapped(other, world).run("go on")
    plan = agent.session.plan_switch("rerun")
    simulated = [step for step in plan.steps if step.invocation.status == "simulated"]
    assert [(step.action, step.invocation.args) for step in simulated] == [("redo", {"item": "chair"})]


@pytest.mark.parametrize("change", [lambda meta: meta.pop("rerun"), lambda meta: meta["rerun"].update(is_real=True)])
def test_an_export_that_counts_simulated_calls_as_done_is_refused(repo, other, world, change):
    """A file in which the branch of a rerun is called real, without its calls having run, is not imported."""
    rerun(repo, world)

    def damage(records):
        change(next(one for one in of(records, "branch") if one["name"] == "rerun")["meta"])

    with pytest.raises(Corrupt, match="simulated"):
        other.import_(forged(written(repo, "s"), damage))
    assert not other.sessions()


def test_a_rerun_that_became_real_is_exported(repo, other, world):
    """A rerun whose calls have run, and what was merged from it, can be imported elsewhere."""
    rerun(repo, world)
    real = wrapped(repo, world, "main").switch("rerun", sync="world")
    real.run("add lamp")
    wrapped(repo, world, "main").merge("rerun", resolve="theirs")
    carried(repo, "s", other)
    assert other.session("s").branch("rerun").status == "open"
    assert not other.maintenance.fsck(level=3).findings


def test_an_export_without_secrets_has_none_in_the_report_of_a_rerun(repo, other, world):
    """The arguments in a report are redacted like those of the calls."""
    rerun(repo, world)
    file = BytesIO()
    repo.session("s").export(file, redact=lambda text: text.replace("sofa", "[hidden]"))
    file.seek(0)
    other.import_(file)
    assert [one.args for one in wrapped(other, world).report.new] == [{"item": "[hidden]"}]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(kind="fork"),
        lambda record: record["report"].update(turns=-1),
        lambda record: record["report"].update(colour="red"),
        lambda record: record["report"].pop("source"),
        lambda record: record["report"]["calls"][0].update(recorded_id=5),
        lambda record: record["report"].update(tokens={"m": [1] * 9}),
        lambda record: record["report"].update(seconds="long"),
    ],
)
def test_a_damaged_report_is_refused(repo, other, world, change):
    """An export whose report of a rerun is damaged is refused, and nothing is imported."""
    rerun(repo, world)

    def damage(records):
        change(next(one for one in of(records, "operation") if one["kind"] == "rerun"))

    file = forged(written(repo, "s"), damage)
    with pytest.raises(Corrupt):
        other.import_(file)
    assert not other.sessions()
