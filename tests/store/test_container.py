"""Container snapshots: snapshots and restores with a real engine, and errors of failing or missing engines."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from container_engines import BASE, HARDENED, opened

from agentgit import Environment, Workspace
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.workspace import container
from agentgit.workspace.container import ContainerEnvironment


@pytest.fixture(scope="session")
def shared_engine():
    with opened() as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    """Yield the engine, and remove the test's containers and snapshots afterwards."""
    yield shared_engine
    shared_engine.clear()


def environment_of(engine, name="box", *settings):
    """Return the environment of a container that `Engine.run` has started."""
    return ContainerEnvironment(name, options=(*HARDENED, *settings), engine=engine.words)


def snapshots(engine):
    """Return the ids of all snapshots."""
    return {one.removeprefix("localhost/") for one in engine.tags() if "agentgit/" in one}


@pytest.fixture
def box(engine):
    engine.run("box")
    return environment_of(engine)


AWKWARD = r"""
mkdir /work /work/empty; cd /work
printf 'one\r\ntwo' > crlf; printf '\000\377\351' > binary; : > nothing; printf s > secret; chmod 600 secret
ln -s nowhere dangling; printf x > 'a b'; printf x > "$(printf 'caf\351')"; printf run > run.sh; chmod 755 run.sh
"""

LOOK = """cd /work; for f in *; do stat -c '%F %a %s' "$f"; readlink "$f"; done; cat crlf binary secret run.sh; true"""


def test_the_example_of_the_page_runs(engine, box, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    (example,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    more = {"options": HARDENED, "engine": engine.words}
    monkeypatch.setattr(container, "ContainerEnvironment", lambda _, **options: ContainerEnvironment("box", **more))
    exec(example.replace("...", "engine.sh('box', 'echo new > /new')"), {"engine": engine})  # noqa: S102  # our own page
    assert "new" not in engine.sh("box", "ls /").split()


def test_a_restored_container_has_the_files_of_its_snapshot(engine, box):
    engine.sh("box", AWKWARD)
    before = engine.sh("box", LOOK)
    snapshot = box.checkpoint()
    engine.sh("box", "cd /work; printf changed > crlf; rm binary; chmod 644 secret; printf n > new; rm dangling")
    box.restore(snapshot)
    assert engine.sh("box", LOOK) == before
    assert engine.inspect("box")["State"]["Running"]
    assert engine.names() == {"box"}


@pytest.mark.long
def test_a_workspace_restore_takes_one_safety_image(engine, box, tmp_path):
    """A restore through a workspace makes one safety image, which is listed once and can be restored."""
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work", tmp_path / "store", environment=box)
    saved = workspace.save("clean")
    engine.sh("box", "echo unsaved > /note")
    done = workspace.restore(saved.id)
    assert [one.id for one in workspace.list()] == [done.safety, saved.id]
    assert len(snapshots(engine)) == 2
    workspace.restore(done.safety)
    assert engine.sh("box", "cat /note") == "unsaved\n"


@pytest.mark.long
def test_a_restored_container_keeps_its_settings(engine, tmp_path):
    (tmp_path / "shared").mkdir()
    settings = (
        *(f"--volume={tmp_path / 'shared'}:/shared:ro", "--volume=kept:/kept", "--tmpfs=/memory"),
        *("--env=A=1 2", "--env=B=x\ny", "--label=team=blue", "--workdir=/bin", "--user=0:0", "--hostname=sandbox"),
        *("--cap-drop=CHOWN", "--read-only=false", "--stop-timeout=3", "--restart=on-failure:2", "--shm-size=1m"),
        *("--pids-limit=100", "--add-host=db:10.0.0.1", "--init=false"),
    )
    name = "My_Box"  # which no image can be called
    engine.run(name, *settings, command=("sleep", "1234"))
    old = engine.inspect(name)
    environment = environment_of(engine, name, *settings)
    environment.restore(environment.checkpoint())
    new = engine.inspect(name)
    assert len(snapshots(engine)) == 2
    assert old["Id"] != new["Id"]
    assert set(old["Config"]["Env"]) <= set(new["Config"]["Env"])  # the engine may add HOME
    for field in ("Cmd", "Entrypoint", "WorkingDir", "User", "Hostname", "StopTimeout"):
        assert new["Config"][field] == old["Config"][field], field
    assert old["Config"]["Labels"].items() <= new["Config"]["Labels"].items()
    for field in ("NetworkMode", "Ulimits", "SecurityOpt", "RestartPolicy", "ShmSize", "PidsLimit", "ExtraHosts"):
        assert new["HostConfig"][field] == old["HostConfig"][field], field


@pytest.mark.long
def test_mounts_are_reported_as_not_included(engine, tmp_path):
    (tmp_path / "shared").mkdir()
    settings = (f"--volume={tmp_path / 'shared'}:/shared", "--volume=named:/named", "--tmpfs=/memory")
    engine.run("box", *settings)
    environment = environment_of(engine, "box", *settings)
    snapshot = environment.checkpoint()
    engine.sh("box", "echo kept > /shared/file; echo kept > /named/file")
    done = environment.restore(snapshot)
    assert [path for path, _ in done.left] == ["/memory", "/named", "/shared"]
    assert "a volume or a mount" in str(done)
    assert engine.sh("box", "cat /shared/file /named/file") == "kept\nkept\n"
    assert json.loads(json.dumps(done.to_dict())) == done.to_dict()


@pytest.mark.long
def test_a_stopped_container_stays_stopped_and_a_removed_one_is_created_again(engine, box):
    engine.sh("box", "echo saved > /note")
    snapshot = box.checkpoint()
    engine("stop", "box")
    box.restore(snapshot)
    assert not engine.inspect("box")["State"]["Running"]
    engine("rm", "--force", "box")
    assert box.restore(snapshot).safety is None
    assert engine.sh("box", "cat /note") == "saved\n"
    assert engine.inspect("box")["State"]["Running"]


@pytest.mark.long
def test_concurrent_snapshots_and_restores_wait_for_each_other(engine, box):
    first = box.checkpoint()
    works = [box.checkpoint, lambda: box.restore(first), environment_of(engine).checkpoint]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    assert engine.names() == {"box"}
    assert len(snapshots(engine)) == 4


REFUSED = {
    "gone once it stops": ("--rm", "AutoRemove"),
    "a setting would be lost": ("--env=A=1", r"would differ from box in .*Ulimits.*options="),
}


@pytest.mark.long
@pytest.mark.parametrize("why", REFUSED)
def test_a_container_that_cannot_be_made_again_as_it_was_is_refused(engine, why):
    setting, told = REFUSED[why]
    engine.run("box", setting)
    options = (*HARDENED, setting) if setting == "--rm" else ()
    environment = ContainerEnvironment("box", options=options, engine=engine.words)
    snapshot = environment.checkpoint()
    with pytest.raises(InvalidInput, match=told):
        environment.check(snapshot) if setting == "--rm" else environment.restore(snapshot)
    assert engine.names() == {"box"}
    assert engine.inspect("box")["State"]["Running"]
    assert snapshots(engine) == {snapshot}


@pytest.mark.long
def test_deleted_snapshots_free_their_images(engine, box):
    at_first = engine.images()
    made = []
    for number in range(5):
        engine.sh("box", f"echo {number} > /number")
        made.append(box.checkpoint())
    assert snapshots(engine) == set(made)
    box.delete(made[0])
    assert snapshots(engine) == set(made[1:])
    assert len(engine.images() - at_first) == 4
    safety = box.restore(made[1]).safety
    with pytest.raises(Unavailable, match="rmi failed for the container"):
        box.delete(made[1])
    for one in made[2:]:
        box.delete(one)
    assert snapshots(engine) == {safety, made[1]}
    assert len(engine.images() - at_first) == 2


class Killed(BaseException):
    """An exception that stands for the death of a process; no code handles it."""


STOPS = [
    *((Unavailable, verb, 1) for verb in ("create", "stop", "commit", "rename", "start")),
    *((Killed, verb, 1) for verb in ("stop", "commit", "rename", "start", "rm")),
    (Killed, "rename", 2),
]
"""Errors, each with the engine command before which it is raised, and the number of that command's call."""


@pytest.mark.long
@pytest.mark.parametrize(("error", "verb", "time"), STOPS)
def test_a_failed_or_killed_restore_leaves_the_old_container(engine, error, verb, time):
    engine.run("box")
    environment = environment_of(engine)
    snapshot = environment.checkpoint()
    engine.sh("box", "echo unsaved > /note")
    plain, met = environment._run, []

    def run(*words):
        met.extend([words] if words[0] == verb else [])
        if len(met) == time and (words[0] == verb or error is Killed):
            raise error("the engine says no")
        return plain(*words)

    environment._run = run
    with pytest.raises(error):
        environment.restore(snapshot)
    if error is Killed:
        environment_of(engine).checkpoint()  # the next use takes it back
    assert engine.sh("box", "cat /note") == "unsaved\n"
    assert engine.names() == {"box"}


@pytest.mark.long
def test_a_missing_container_or_snapshot_is_named(engine):
    environment = environment_of(engine, "nobody")
    with pytest.raises(NotFound, match="no container nobody"):
        environment.checkpoint()
    engine.run("box")
    with pytest.raises(NotFound, match="no snapshot 17"):
        environment_of(engine).restore("17")
    with pytest.raises(NotFound, match=f"no snapshot {BASE}"):
        environment_of(engine).delete(BASE)
    snapshot = environment_of(engine).checkpoint()
    environment_of(engine).check(snapshot)
    engine("rmi", snapshot)
    with pytest.raises(NotFound, match=f"no snapshot {snapshot}"):
        environment_of(engine).check(snapshot)


BROKEN = {
    "an error": ("#!/bin/sh\necho 'disk full' >&2; exit 125", "disk full"),
    "silence": ("#!/bin/sh\nexit 1", "failed"),
    "no answer": ("#!/bin/sh\nexec sleep 60", "took longer than 0.1 s"),
    "no JSON": ("#!/bin/sh\necho oops", "is not JSON"),
    "nothing": ("#!/bin/sh\nexit 0", "is not JSON"),
    "no program": ("not a program", "cannot be run"),
}
"""Engines that fail, each with its script and the message of the error."""


@pytest.mark.parametrize("failure", BROKEN)
def test_every_failure_of_an_engine_raises_unavailable(tmp_path, failure):
    script, says = BROKEN[failure]
    fake = tmp_path / "engine"
    fake.write_text(script)
    fake.chmod(0o755)
    environment = ContainerEnvironment("box", engine=str(fake), timeout=0.1 if "sleep" in script else 60)
    with pytest.raises(Unavailable, match=says):
        environment.checkpoint()


def test_docker_is_used_or_podman_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for options, name in (({}, "docker"), ({"engine": "no-such-engine"}, "no-such-engine")):
        with pytest.raises(Unavailable, match=rf"{name} .*not on PATH"):
            ContainerEnvironment("box", **options).checkpoint()
    for name in ("podman", "docker"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho I am {name} >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
        environment = ContainerEnvironment("box")
        assert isinstance(environment, Environment)
        with pytest.raises(Unavailable, match=f"I am {name}"):
            environment.checkpoint()


@pytest.mark.parametrize("name", ["", "-rf", "a b", "a/b", "a:b"])
def test_an_invalid_container_name_is_refused(name):
    """A name that could be read as an option or an image is refused before the engine sees it."""
    with pytest.raises(InvalidInput, match="not the name of a container"):
        ContainerEnvironment(name, engine="podman")
