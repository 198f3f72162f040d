"""The kit in deploy/: the image, nginx, the systemd units and the compose file."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import container_engines
import host_images
import httpx
import pytest
import yaml
from kits import DEPLOY, ROOT, TENANT, execute, libpq, live, told
from postgres_databases import in_schema
from real_proxies import NAME, browser, nginx
from sqlalchemy import URL
from web_servers import free_port
from web_visitors import sign_in

import agentgit

COMPOSE = DEPLOY / "compose.yaml"


# -- nginx


@contextmanager
def proxied(address: str, folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    """Run the real nginx with the kit's configuration; yield a browser that reaches it, and the port of plain http."""
    server, plain_port = (DEPLOY / "nginx.conf").read_text(), free_port()
    assert set(re.findall(r"\$\{\w+\}", server)) == {"${SERVER_NAME}", "${BACKEND}"}
    changes = {
        "${SERVER_NAME}": NAME,
        "${BACKEND}": address,
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "/etc/nginx/tls/": f"{folder}/",
    }
    with nginx(folder, server, changes) as port, browser(folder, port, "127.0.0.2") as client:
        yield client, plain_port


def check_proxied(address: str, folder: Path, key: str) -> None:
    """Check what the kit promises about a server behind its nginx."""
    with proxied(address, folder) as (client, plain_port):
        entered = sign_in(client, key)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "__Host-agentgit" in client.cookies
        assert client.get("/sessions").status_code == 200
        assert "max-age" in client.get("/").headers["strict-transport-security"]
        plain = httpx.get(f"http://127.0.0.1:{plain_port}/a?b=c", headers={"host": NAME})
        assert (plain.status_code, plain.headers["location"]) == (301, f"https://{NAME}/a?b=c")
        with pytest.raises(httpx.ConnectError), browser(folder, client._transport._port, "127.0.0.2") as other:
            other.get("https://other.example.com/")


# -- systemd


def units(folder: Path) -> dict[str, Path]:
    """Copy the units to a folder, with programs that exist here in place of /opt/agentgit."""
    found = {}
    for path in DEPLOY.glob("agentgit*.*er*"):
        text = path.read_text().replace("/opt/agentgit/bin/agentgit", str(Path(sys.executable).parent / "agentgit"))
        found[path.name] = folder / path.name
        found[path.name].write_text(text.replace("/opt/agentgit/deploy/", f"{DEPLOY}/"))
    return found


def test_systemd_accepts_the_units(tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    found = units(tmp_path)
    assert set(found) == {"agentgit.service", "agentgit-backup.service", "agentgit-backup.timer"}
    done = subprocess.run(  # noqa: S603
        ["systemd-analyze", "verify", "--man=no", *found.values()],  # noqa: S607
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "agentgit" in line]
    assert (ours, done.returncode) == ([], 0), done.stderr
    rated = subprocess.run(  # noqa: S603
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", found["agentgit.service"]],  # noqa: S607
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout


@pytest.mark.long
def test_the_command_of_the_unit_serves_behind_nginx(postgres_tables: URL, tmp_path: Path):
    """The unit's command checks the schema, serves, and stops when it is told to; signing in works through nginx."""
    with agentgit.open(postgres_tables) as repo:
        key = repo.keys.create("mine", user=repo.users.add("ada", is_admin=True)).secret
    lines = units(tmp_path)["agentgit.service"].read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    database = f"dbname={postgres_tables.database}"
    environment = libpq(postgres_tables, PUBLIC_URL=f"https://{NAME}", AGENTGIT_DATABASE_URL=database)
    port = free_port()
    check, serve = (
        shlex.split(settings[name].replace("${PUBLIC_URL}", environment["PUBLIC_URL"]))
        for name in ("ExecStartPre", "ExecStart")
    )
    subprocess.run(check, env=environment, check=True, capture_output=True)  # noqa: S603
    with subprocess.Popen([*serve, f"--port={port}"], env=environment, cwd=tmp_path) as process:  # noqa: S603
        try:
            wait_until_ready(port)
            check_proxied(f"127.0.0.1:{port}", tmp_path, key)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def wait_until_ready(port: int, log: Callable[[], str] = str) -> None:
    """Wait until a server says that it is ready; fail with its log after a minute."""
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    pytest.fail(f"The server is not ready after a minute. {log()}")


# -- the compose file and the image


def composed(**environment: str) -> dict[str, Any]:
    """Return the services of the compose file, with variables as compose replaces them."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if not environment.get(name) and kind == ":?":
            raise KeyError(name)
        return environment.get(name) or (rest or "" if kind == ":-" else "")

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: filled(one) for name, one in part.items()}
        if isinstance(part, list):
            return [filled(one) for one in part]
        return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", value, part) if isinstance(part, str) else part

    return filled(yaml.safe_load(COMPOSE.read_text()))["services"]


FILLED = {"SERVER_NAME": NAME, "POSTGRES_PASSWORD": "p", "AGENTGIT_PASSWORD": "a", "SUBNET": "127.0.0.1"}


def test_the_compose_file_names_files_and_variables_that_exist():
    services = composed(**FILLED)
    mounted = [mount.split(":")[0] for one in services.values() for mount in one.get("volumes", ())]
    files = [DEPLOY / path for path in mounted if path.startswith("./") and path not in ("./tls", "./backups")]
    assert [path for path in files if not path.exists()] == []
    assert {path.name for path in files} == {"create-role.sh", "nginx.conf"}
    example = re.findall(r"^(\w+)=", (DEPLOY / "example.env").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text())) <= set(example)
    assert set(example) <= set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    for name in ("SERVER_NAME", "POSTGRES_PASSWORD", "AGENTGIT_PASSWORD"):
        with pytest.raises(KeyError, match=name):
            composed(**FILLED | {name: ""})
    assert services["agentgit"]["environment"]["PGUSER"] == "agentgit"
    assert [name for name, one in services.items() if "ports" in one] == ["nginx"]


PROGRAMS = ("pg_dump", "pg_restore", "psql", "createdb", "dropdb", "vacuumdb")
EXTRAS = ("cli", "encryption", "mcp", "otel", "postgres", "server")


def base_image() -> bytes:
    """Return this machine's Python with all that agentgit needs, and PostgreSQL's programs, as a tar file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], "hatchling", "pip"]
    needed += [text for extra in EXTRAS for text in project["optional-dependencies"][extra]]
    found = [Path(shutil.which(name)).resolve() for name in PROGRAMS]
    if found[0].name == "pg_wrapper":  # Debian's, which starts the newest version
        [*_, newest] = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        found = [newest / name for name in PROGRAMS]
    return host_images.tree((text for text in needed if not text.startswith("agentgit")), found)


@pytest.fixture
def engine(postgres_tables: URL) -> Iterator[container_engines.Engine]:
    """Build the image from the Containerfile on this machine's Python, since no registry can be reached."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"left out: {', '.join(missing)} is not installed: apt-get install postgresql-client")
    with container_engines.opened(base_image) as engine:
        arguments = {"BASE": container_engines.BASE, "CLIENT": "", "PIP_OPTIONS": "--no-build-isolation --no-index"}
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        limits = [one for one in container_engines.HARDENED if "ulimit" in one or "seccomp" in one]
        podman = ("--format=docker", "--layers=false") if engine.words[0] == "podman" else ()
        file = f"--file={DEPLOY / 'Containerfile'}"
        engine("build", *podman, *limits, "--network=host", *given, file, "--tag=agentgit-test:1", str(ROOT))
        yield engine
        engine.clear()
        engine("rmi", "--force", "agentgit-test:1")


@pytest.fixture
def role(postgres_tables: URL) -> Iterator[str]:
    """Create the role of the server with the kit's script, under another name, and drop it at the end."""
    name = f"agentgit_test_{uuid.uuid4().hex}"
    code = (DEPLOY / "create-role.sh").read_text().replace("ROLE agentgit ", f"ROLE {name} ")
    more = {
        "POSTGRES_USER": postgres_tables.username,
        "POSTGRES_DB": postgres_tables.database,
        "AGENTGIT_PASSWORD": "it's\\a $secret",
    }
    subprocess.run(["sh", "-c", code], env=libpq(postgres_tables, **more), check=True)  # noqa: S603, S607
    yield name
    execute(postgres_tables, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def hardened(service: dict[str, Any], **environment: str) -> list[str]:
    """Return the options with which a container of a service runs, on the network of this machine."""
    given = [f"--env={name}={value}" for name, value in (service["environment"] | environment).items()]
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])  # noqa: S108  # of a container
    safe = ["--read-only", "--cap-drop=all", "--tmpfs=/tmp", *(f"--security-opt={o}" for o in service["security_opt"])]
    limits = [one for one in container_engines.HARDENED if "ulimit" in one or "seccomp" in one]
    return [*given, *safe, *limits, "--network=host"]


@pytest.mark.long
def test_the_image_serves_backs_up_and_restores_as_the_compose_file_says(
    engine, role, postgres_tables, postgres_spare, tmp_path
):
    """The image, run with the commands of the compose file, upgrades the tables, serves, backs up and restores.

    PostgreSQL and nginx are those of this machine: the images of the compose file cannot be had without a registry.
    """
    image, port, services = "agentgit-test:1", free_port(), composed(**FILLED)
    names = {
        "PGHOST": postgres_tables.host,
        "PGPORT": str(postgres_tables.port or 5432),
        "PGPASSWORD": postgres_tables.password or "",
    }
    owner = {**names, "PGUSER": postgres_tables.username, "PGDATABASE": postgres_tables.database}
    owner["AGENTGIT_DATABASE_URL"] = f"dbname={postgres_tables.database}"
    live(postgres_tables, tmp_path)

    [sh, option, code] = services["upgrade"]["entrypoint"]
    words = hardened(services["upgrade"], **owner)
    engine(
        "run", "--rm", *words, f"--entrypoint={sh}", image, option, code.replace("--role agentgit", f"--role {role}")
    )
    with agentgit.open(postgres_tables) as repo:
        key = repo.keys.create("mine", user=repo.users.add("ada", is_admin=True)).secret

    more = {**names, "PGUSER": role, "PGPASSWORD": "it's\\a $secret"}
    words = hardened(services["agentgit"], **more, AGENTGIT_DATABASE_URL=f"dbname={postgres_tables.database}")
    state = "--volume=state:/var/lib/agentgit"
    engine("run", "--detach", "--name=kit", *words, state, image, *services["agentgit"]["command"], f"--port={port}")
    wait_until_ready(port, lambda: engine.logs("kit"))
    probe = engine.inspect("kit")["Config"]["Healthcheck"]["Test"]
    assert probe[0] == "CMD"
    engine("exec", "kit", *(word.replace(":8700/", f":{port}/") for word in probe[1:]))
    assert engine("exec", "kit", "id", "-u").strip() == "10001"
    check_proxied(f"127.0.0.1:{port}", tmp_path, key)
    engine("stop", "--time=60", "kit")
    assert engine.inspect("kit")["State"]["ExitCode"] == 0

    backups = tmp_path / "backups"
    backups.mkdir()
    backups.chmod(0o777)
    mount = f"--volume={backups}:/backups"
    words = [*hardened(services["backup"], **owner), mount, f"--entrypoint={services['backup']['entrypoint'][0]}"]
    file = engine("run", "--rm", *words, image, *services["backup"]["command"]).strip()
    words = [*hardened(services["restore"], **owner), mount, f"--entrypoint={services['restore']['entrypoint'][0]}"]
    assert engine("run", "--rm", *words, image, file, postgres_spare.database).endswith("is sound.\n")
    assert told(in_schema(postgres_spare, TENANT)) == told(in_schema(postgres_tables, TENANT))
