"""Container snapshots: snapshots and restores with a real engine, and errors of failing or missing engines."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from container_engines import opened

from agentgit import Environment, Workspace
from agentgit.errors import AgentGitError, Conflict, InvalidInput, NotFound, Unavailable
from agentgit.workspace.engines.container import ContainerEnvironment
from agentgit.workspace.engines.container_settings import differences, mounts, options


@pytest.fixture(scope="session")
def shared_engine():
    """Find an engine that can run containers, and import the base image."""
    with opened() as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    """Yield the engine, and remove the test's containers and snapshots afterwards."""
    yield shared_engine
    shared_engine.clear()


@pytest.fixture
def box(engine):
    """Start the container `box`, and return its environment."""
    engine.run("box")
    return ContainerEnvironment("box", engine=engine.words)


AWKWARD = r"""
mkdir /work /work/empty; cd /work
printf 'one\r\ntwo' > crlf; printf '\000\377\351' > binary; : > nothing; printf s > secret; chmod 600 secret
ln -s nowhere dangling; printf x > 'a b'; printf x > "$(printf 'caf\351')"; printf run > run.sh; chmod 755 run.sh
"""

LOOK = r"cd /work; for f in *; do stat -c '%F %a %s' \"$f\"; readlink \"$f\"; done; cat crlf binary secret run.sh"


def test_a_restored_container_has_the_files_of_its_snapshot(engine, box):
    """After a restore every file is as in the snapshot, later files are gone, and the container runs."""
    engine.sh("box", AWKWARD)
    look = LOOK.replace('\\"', '"')
    before = engine("exec", "box", "sh", "-c", look + "; true")
    snapshot = box.checkpoint()
    engine.sh("box", "cd /work; printf changed > crlf; rm binary; chmod 644 secret; printf n > new; rm dangling")
    box.restore(snapshot)
    assert engine("exec", "box", "sh", "-c", look + "; true") == before
    assert engine.inspect("box")["State"]["Running"]
    assert engine.names() == {"box"}


@pytest.mark.long
def test_a_restore_takes_a_safety_snapshot(engine, box):
    """The state before a restore is a safety snapshot, listed like any other, and can be restored."""
    snapshot = box.checkpoint("clean")
    engine.sh("box", "echo unsaved > /note")
    done = box.restore(snapshot)
    assert [(one.id, one.kind, one.message) for one in box.list()] == [
        (done.safety, "safety", f"before the restore of {snapshot}"),
        (snapshot, "manual", "clean"),
    ]
    box.restore(done.safety)
    assert engine.sh("box", "cat /note") == "unsaved\n"


@pytest.mark.long
def test_a_workspace_restore_takes_one_safety_image(engine, box, tmp_path):
    """A restore through a workspace makes one safety image, which is listed once and can be restored."""
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work", tmp_path / "store", environment=box)
    saved = workspace.save("clean")
    engine.sh("box", "echo unsaved > /note")
    done = workspace.restore(saved.id)
    assert [one.id for one in workspace.list()] == [done.safety, saved.id]
    assert [one.kind for one in box.list()] == ["safety", "manual"]
    workspace.restore(done.safety)
    assert engine.sh("box", "cat /note") == "unsaved\n"


@pytest.mark.long
def test_a_restored_container_keeps_its_settings(engine, tmp_path):
    """A restored container keeps its environment, network, limits, security, command, folder, user and labels."""
    (tmp_path / "shared").mkdir()
    engine.run(
        "box",
        *(f"--volume={tmp_path / 'shared'}:/shared:ro", "--volume=kept:/kept", "--volume=/unnamed", "--tmpfs=/memory"),
        *("--env=A=1 2", "--env=B=x\ny", "--label=team=blue", "--workdir=/bin", "--user=0:0", "--hostname=sandbox"),
        *("--cap-drop=CHOWN", "--read-only=false", "--stop-timeout=3", "--restart=on-failure:2", "--shm-size=1m"),
        *("--pids-limit=100", "--add-host=db:10.0.0.1", "--init=false"),
        command=("sleep", "1234"),
    )
    old = engine.inspect("box")
    environment = ContainerEnvironment("box", engine=engine.words)
    done = environment.restore(environment.checkpoint())
    new = engine.inspect("box")
    assert done.not_kept == ()
    assert old["Id"] != new["Id"]
    assert set(old["Config"]["Env"]) <= set(new["Config"]["Env"])  # the engine may add HOME
    for field in ("Cmd", "Entrypoint", "WorkingDir", "User", "Hostname", "StopTimeout"):
        assert new["Config"][field] == old["Config"][field], field
    assert old["Config"]["Labels"].items() <= new["Config"]["Labels"].items()
    for field in ("NetworkMode", "Ulimits", "SecurityOpt", "RestartPolicy", "ShmSize", "PidsLimit", "ExtraHosts"):
        assert new["HostConfig"][field] == old["HostConfig"][field], field


@pytest.mark.long
def test_mounts_are_reported_as_not_included(engine, tmp_path):
    """A volume or mount is in no image; it stays unchanged, and the result says so."""
    (tmp_path / "shared").mkdir()
    engine.run("box", f"--volume={tmp_path / 'shared'}:/shared", "--volume=/unnamed", "--tmpfs=/memory")
    environment = ContainerEnvironment("box", engine=engine.words)
    snapshot = environment.checkpoint()
    engine.sh("box", "echo kept > /shared/file; echo kept > /unnamed/file")
    done = environment.restore(snapshot)
    assert done.not_included == ("/memory", "/shared", "/unnamed")
    assert "unchanged: /shared is a volume or a mount" in str(done)
    assert engine.sh("box", "cat /shared/file /unnamed/file") == "kept\nkept\n"
    assert json.loads(json.dumps(done.to_dict())) == done.to_dict()


@pytest.mark.long
def test_a_stopped_container_stays_stopped(engine, box):
    """A restore of a stopped container works and does not start it."""
    snapshot = box.checkpoint()
    engine("stop", "box")
    box.restore(snapshot)
    assert not engine.inspect("box")["State"]["Running"]


@pytest.mark.long
def test_a_removed_container_is_created_again(engine, box):
    """A snapshot stores the settings, so a removed container can be restored."""
    engine.sh("box", "echo saved > /note")
    old, snapshot = engine.inspect("box"), box.checkpoint()
    engine("rm", "--force", "box")
    done = box.restore(snapshot)
    assert done.safety is None
    assert engine.sh("box", "cat /note") == "saved\n"
    assert differences(old, engine.inspect("box")) == ()


@pytest.mark.long
def test_concurrent_snapshots_and_restores_wait_for_each_other(engine, box):
    """Concurrent snapshots and restores of one container all succeed and leave one container."""
    first = box.checkpoint()
    works = [box.checkpoint, lambda: box.restore(first), ContainerEnvironment("box", engine=engine.words).checkpoint]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    assert engine.names() == {"box"}
    assert len(box.list()) == 4


@pytest.mark.long
def test_a_container_started_with_rm_is_restored_too(engine):
    """A container started with --rm is gone as soon as it stops; it is replaced like any other."""
    engine.run("box", "--rm", "--volume=/data")
    environment = ContainerEnvironment("box", engine=engine.words)
    snapshot = environment.checkpoint()
    engine.sh("box", "echo unsaved > /note; echo kept > /data/file")
    done = environment.restore(snapshot)
    assert engine.sh("box", "ls / && cat /data/file").count("kept") == 1
    assert "note" not in engine.sh("box", "ls /")
    environment.restore(done.safety)
    assert engine.sh("box", "cat /note") == "unsaved\n"
    assert engine.inspect("box")["HostConfig"]["AutoRemove"]


@pytest.mark.long
def test_deleted_snapshots_free_their_images(engine, box):
    """Delete and gc remove the images themselves, except the one that the container is made of."""
    at_first = engine.images()
    made = []
    for number in range(5):
        engine.sh("box", f"echo {number} > /number")
        made.append(box.checkpoint(str(number)))
    box.delete(made[0])
    assert box.get(made[0]) is None
    assert len(engine.images() - at_first) == 4
    safety = box.restore(made[1]).safety
    with pytest.raises(Conflict, match="Restore another snapshot first"):
        box.delete(made[1])
    assert set(box.gc(keep=1)) == set(made[2:])
    assert {one.id for one in box.list()} == {safety, made[1]}
    assert len(engine.images() - at_first) == 2


@pytest.mark.long
def test_an_image_committed_from_a_restored_container_is_no_snapshot(engine, box):
    """An image that a person commits from our container has our labels, and is neither listed nor removed."""
    box.restore(box.checkpoint())
    engine("commit", "box", "mine:1")
    assert len(box.list()) == 2
    box.gc(keep=0)
    assert engine("images", "--quiet", "mine:1").strip()
    engine("rm", "--force", "box")
    engine("rmi", "--force", "mine:1")


def fail_at(environment, verb):
    """Make the first call of one engine command fail."""
    plain, failed = environment._run, []

    def run(*words):
        if words[0] == verb and not failed:
            failed.append(words)
            raise Unavailable("the engine says no")
        return plain(*words)

    environment._run = run


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "verb"),
    [((), verb) for verb in ("create", "commit", "rename", "start")] + [(("--rm",), "rename"), (("--rm",), "start")],
)
def test_a_failed_restore_leaves_the_old_container(engine, settings, verb):
    """If the new container cannot be made or started, the old one stays with its files."""
    engine.run("box", *settings)
    environment = ContainerEnvironment("box", engine=engine.words)
    snapshot = environment.checkpoint()
    engine.sh("box", "echo unsaved > /note")
    fail_at(environment, verb)
    with pytest.raises(Unavailable):
        environment.restore(snapshot)
    assert engine.sh("box", "cat /note") == "unsaved\n"
    assert engine.names() == {"box"}


class Killed(BaseException):
    """An exception that stands for the death of a process; no code handles it."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "point"),
    [((), verb) for verb in ("stop", "rename", "rename again", "start", "rm")]
    + [(("--rm",), "rm"), (("--rm",), "start")],
)
def test_a_killed_restore_is_repaired_at_the_next_use(engine, settings, point):
    """After a kill before any engine command, the next use finds one container, and nothing is lost."""
    engine.run("box", *settings)
    killed = ContainerEnvironment("box", engine=engine.words)
    engine.sh("box", "echo saved > /note")
    snapshot = killed.checkpoint()
    engine.sh("box", "echo unsaved > /note")
    die_before(killed, *point.split())
    with pytest.raises(Killed):
        killed.restore(snapshot)
    fresh = ContainerEnvironment("box", engine=engine.words)
    fresh.checkpoint()
    assert engine.names() == {"box"}
    if engine.sh("box", "cat /note") == "saved\n":
        fresh.restore(next(one.id for one in fresh.list() if one.kind == "safety"))
    assert engine.sh("box", "cat /note") == "unsaved\n"


def die_before(environment, verb, again=""):
    """Raise Killed before the first call of an engine command, or before the second one with `again`."""
    plain, met = environment._run, []

    def run(*words):
        met.extend([words] if words[0] == verb else [])
        if len(met) == (2 if again else 1):
            raise Killed
        return plain(*words)

    environment._run = run


@pytest.mark.long
def test_a_missing_container_or_snapshot_is_named(engine):
    """An unknown container and an unknown snapshot raise NotFound with their names."""
    environment = ContainerEnvironment("nobody", engine=engine.words)
    with pytest.raises(NotFound, match="no container nobody"):
        environment.checkpoint()
    engine.run("box")
    with pytest.raises(NotFound, match=r"no snapshot 17\. List its snapshots with list\(\)"):
        ContainerEnvironment("box", engine=engine.words).restore("17")
    with pytest.raises(NotFound, match="no snapshot 17"):
        ContainerEnvironment("box", engine=engine.words).delete("17")


def test_a_missing_engine_raises_unavailable(monkeypatch, tmp_path):
    """If no engine is on PATH, or none answers, Unavailable says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="Neither docker nor podman is on PATH"):
        ContainerEnvironment("box")
    with pytest.raises(Unavailable, match="no-such-engine is not on PATH"):
        ContainerEnvironment("box", engine="no-such-engine").checkpoint()
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\necho 'cannot connect to the daemon' >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(Unavailable, match="cannot connect to the daemon"):
        ContainerEnvironment("box")
    fake.write_text("#!/bin/sh\nexit 0\n")
    assert ContainerEnvironment("box")._engine_command == ("docker",)


BROKEN = {
    "an error": ("echo 'disk full' >&2; exit 125", "disk full"),
    "silence": ("exit 1", "failed"),
    "no answer": ("exec sleep 60", "took longer than 0.1 s"),
    "no JSON": ("echo oops", "not a list of JSON objects"),
    "nothing": ("exit 0", "not a list of JSON objects"),
    "an empty list": ("echo '[]'", "not a list of JSON objects"),
    "a list of something else": ("echo '[7]'", "not a list of JSON objects"),
}
"""Engines that fail, each with its script and the message of the error."""


@pytest.mark.parametrize("failure", BROKEN)
def test_every_failure_of_an_engine_raises_unavailable(tmp_path, failure):
    """An engine that reports an error, gives no answer or gives a strange one raises Unavailable."""
    script, says = BROKEN[failure]
    fake = tmp_path / "engine"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    environment = ContainerEnvironment("box", engine=str(fake), timeout=0.1 if "sleep" in script else 60)
    with pytest.raises(Unavailable, match=says):
        environment.checkpoint()


def test_an_engine_that_cannot_be_run_raises_unavailable(tmp_path):
    """A path that is no program raises Unavailable."""
    fake = tmp_path / "engine"
    fake.write_text("not a program")
    for mode in (0o644, 0o755):
        fake.chmod(mode)
        with pytest.raises(Unavailable, match="cannot be run"):
            ContainerEnvironment("box", engine=str(fake)).checkpoint()


def test_the_engine_that_has_the_container_is_used(monkeypatch, tmp_path):
    """If docker and podman both answer, the one that knows the container is used."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, knows in (("docker", 1), ("podman", 0)):
        (tmp_path / name).write_text(f'#!/bin/sh\n[ "$1" = container ] && exit {knows}; exit 0\n')
        (tmp_path / name).chmod(0o755)
    environment = ContainerEnvironment("box")
    assert environment._engine_command == ("podman",)
    assert isinstance(environment, Environment)


@pytest.mark.parametrize("name", ["", "-rf", "a b", "a/b", "a:b"])
def test_an_invalid_container_name_is_refused(name):
    """A name that could be read as an option or an image is refused before the engine sees it."""
    with pytest.raises(InvalidInput, match="not the name of a container"):
        ContainerEnvironment(name, engine="podman")


@pytest.mark.long
def test_a_container_name_may_have_capitals(engine):
    """A container may have a name that is not valid for an image."""
    engine.run("My_Box")
    environment = ContainerEnvironment("My_Box", engine=engine.words)
    environment.restore(environment.checkpoint())
    assert len(environment.list()) == 2


@pytest.mark.long
def test_an_engine_failure_raises_an_agentgit_error(engine, box):
    """A failure of the engine raises an AgentGitError."""
    engine("rename", "box", "elsewhere")
    with pytest.raises(AgentGitError):
        box.checkpoint()


DOCKER = {
    "Config": {"Hostname": "sandbox", "Domainname": "", "Tty": True, "OpenStdin": True, "StopTimeout": None},
    "HostConfig": {
        "Binds": ["/src:/dst:z"],
        "Mounts": [{"Type": "bind", "Source": "/a,b", "Target": "/m", "ReadOnly": True}],
        "NetworkMode": "bridge",
        "CgroupnsMode": "private",
        "Memory": 1 << 20,
        "NanoCpus": 1500000000,
        "Runtime": "runc",
        "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3},
        "PortBindings": {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8080"}], "81/tcp": None},
        "Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/n", "CgroupPermissions": "r"}],
        "Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": 2}],
        "Tmpfs": {"/run": "size=1m", "/scratch": ""},
        "Sysctls": {"net.ipv4.ip_forward": "1"},
        "ReadonlyRootfs": True,
        "CapAdd": ["NET_ADMIN"],
        "IpcMode": "private",
        "ShmSize": 67108864,
    },
    "Mounts": [
        {"Type": "bind", "Source": "/src", "Destination": "/dst", "RW": True},
        {"Type": "bind", "Source": "/a,b", "Destination": "/m", "RW": False},
        {"Type": "volume", "Name": "f00", "Destination": "/data", "RW": False},
    ],
}
"""The output of `docker inspect` for a container; some settings have another form than with podman."""


def test_container_settings_are_read_in_the_form_of_docker():
    """Settings are read from the output of docker inspect too, with ports, devices and mounts."""
    assert options(DOCKER) == [
        "--network=bridge",
        "--cgroupns=private",
        "--ipc=private",
        "--memory=1048576",
        "--shm-size=67108864",
        "--read-only",
        "--volume=/src:/dst:z",
        "--cap-add=NET_ADMIN",
        "--sysctl=net.ipv4.ip_forward=1",
        "--cpus=1.5",
        "--runtime=runc",
        "--restart=on-failure:3",
        "--ulimit=nofile=1:2",
        "--publish=127.0.0.1:8080:80/tcp",
        "--device=/dev/null:/dev/n:r",
        "--tmpfs=/run:size=1m",
        "--tmpfs=/scratch",
        '--mount=type=bind,target=/m,"source=/a,b",readonly',
        "--volume=f00:/data:ro",
        "--tty",
        "--interactive",
        "--hostname=sandbox",
    ]
    assert mounts(DOCKER) == ("/data", "/dst", "/m", "/run", "/scratch")


def test_a_setting_that_was_not_kept_is_reported():
    """A setting that the engine did not give the new container is reported by name."""
    other = DOCKER | {"HostConfig": DOCKER["HostConfig"] | {"Memory": 0, "Annotations": {"a": "b"}}}
    assert differences(DOCKER, DOCKER) == ()
    assert differences(DOCKER, other) == ("Memory",)
