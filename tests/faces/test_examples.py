"""The programs in `examples/` do what their README files say."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from web_servers import free_port, running

import agentgit

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.long


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "COLUMNS": "200"}
    environment.pop("MODEL", None)
    result = subprocess.run(  # noqa: S603  # our own commands
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def commands(example):
    text = (EXAMPLES / example / "README.md").read_text()
    return [line.split("   #")[0].strip() for line in re.findall(r"^agentgit .*", text, re.MULTILINE)]


def test_the_coding_agent_gets_its_files_back(tmp_path):
    told = run(tmp_path, sys.executable, EXAMPLES / "coding_agent" / "coder.py")
    assert told.count("The tests pass.") == 2
    assert "FAILED (failures=1)" in told
    assert (tmp_path / "project" / "price.py").read_text() == "def price(chairs):\n    return 40 * chairs\n"
    for line in commands("coding_agent"):
        assert run(tmp_path, "bash", "-c", line)
    assert "main-2" in run(tmp_path, "agentgit", "tree", "price")


def test_the_coding_agent_writes_only_in_its_project(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "coding_agent")
    monkeypatch.chdir(tmp_path)
    import coder

    for path in ("../out.txt", "/etc/passwd", "a/../../out.txt"):
        with pytest.raises(ValueError, match="not in the project"):
            coder.inside(path)


@pytest.fixture
def bot(tmp_path, monkeypatch):
    """Start the support bot as its README says; return clients of two customers, and one with a wrong key."""
    for name in ("MODEL", "AGENTGIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    add, create = commands("support_bot")[:2]
    keys = {"nobody": "wrong"}
    for name in ("ada", "bob"):
        run(tmp_path, "bash", "-c", add.replace("ada", name))
        keys[name] = re.findall(r"\S{30,}", run(tmp_path, "bash", "-c", create.replace("ada", name)))[0]
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    given = {"SHOP_FOLDER": str(tmp_path), "PYTHONPATH": str(EXAMPLES.parent)}
    with ExitStack() as stack:
        url = stack.enter_context(running(command, port, tmp_path / "log", EXAMPLES / "support_bot", **given))

        def client(key):
            headers = {"Authorization": f"Bearer {key}"}
            return stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60))

        yield {name: client(key) for name, key in keys.items()}


def orders(folder):
    """List the open orders of the shop, which is the truth about what the bot did."""
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        return [row[0] for row in shop.execute("SELECT item FROM orders WHERE status = 'open'")]


def test_a_customer_takes_a_message_back(bot, tmp_path):
    ada = bot["ada"]
    answer = ada.post("/chats/sofa/messages", json={"text": "order two chairs"}).json()
    assert answer == {"answer": "Ordered 2 chairs for 80 euros (chair-1).", "branch": "main"}
    ada.post("/chats/sofa/messages", json={"text": "order a lamp"})
    message = [one for one in ada.get("/chats/sofa/messages").json() if one["type"] == "human"][-1]["id"]
    assert "lamp" in ada.get(f"/chats/sofa/messages/{message}/plan").json()["plan"]
    assert orders(tmp_path) == ["chair", "lamp"]
    assert "1 reversed" in ada.delete(f"/chats/sofa/messages/{message}").json()["report"]
    assert orders(tmp_path) == ["chair"]
    ada.post("/chats/sofa/messages", json={"text": "mail the receipt"})
    message = [one for one in ada.get("/chats/sofa/messages").json() if one["type"] == "human"][-1]["id"]
    refused = ada.delete(f"/chats/sofa/messages/{message}")
    assert refused.status_code == 409
    assert "cannot be undone" in refused.json()["error"]
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        assert [one.name for one in repo.as_user("ada").session("sofa").branches()] == ["main", "main-2"]


def test_customers_do_not_see_each_other(bot, tmp_path):
    bot["ada"].post("/chats/sofa/messages", json={"text": "order two chairs"})
    assert bot["bob"].get("/chats/sofa/messages").status_code == 404
    assert bot["nobody"].get("/chats/sofa/messages").status_code == 401
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        assert repo.as_user("bob").sessions() == []
