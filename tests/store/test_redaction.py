"""An export without secrets, which can still be run again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from scripted import GRAPHS, call, calls, obeying, quick_tool, scripted

import agentgit
from agentgit import Conflict, InvalidInput
from agentgit.effects.invocation import identity

KEY, EMAIL, PIN = 'sk-live-ä"9f8e7d6c', "ann@example.org", 918273
"""A key, which stands below names like `api_key`; an address, which only a function can know; a number."""


def login(api_key: str, pin_token: int, options: dict) -> dict:
    """Log in."""
    return {"session_token": f"tok-{api_key}", "echo": f"logged in with {api_key}", "pin": pin_token, **options}


def mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


PROMPT = f"log in with {KEY} and tell {EMAIL}"


def asked():
    options = {"credentials": {"user": "bob-the-user", "password": KEY}}
    logs_in = call("login", api_key=KEY, pin_token=PIN, options=options)
    return scripted(calls(logs_in, call("mail", to=EMAIL)), f"done with {KEY}")


def hide_addresses(text):
    return re.sub(r"\w+@example\.org", "someone@example.net", text)


def graph(kind="tool_node", model=None):
    return GRAPHS[kind](model or asked(), [quick_tool(login), quick_tool(mail)])


EFFECTS = {"login": "irreversible", "mail": "irreversible"}


def exported(session, **options):
    file = BytesIO()
    session.export(file, **options)
    return file.getvalue()


def secrets_in(data):
    """Return which secrets occur in a file, as they are or as a hash."""
    found = [KEY.encode(), KEY.encode("unicode_escape"), KEY[:8].encode(), EMAIL.encode(), b"bob-the-user"]
    hashes = [sha256(one).hexdigest().encode() for one in (KEY.encode(), EMAIL.encode())]
    hashes += [identity("mail", {"to": EMAIL}, None).encode()]
    return [one for one in [*found, *hashes] if one in data]


@pytest.mark.parametrize("kind", GRAPHS)
def test_no_secret_is_left_in_the_file_and_its_rerun_matches(repo, kind):
    agent = repo.wrap(graph(kind), "s", effects=EFFECTS)
    agent.invoke({"messages": [HumanMessage(PROMPT)]})
    agent.checkpoint(f"with {EMAIL}", description=KEY, data={"auth": KEY})
    assert secrets_in(exported(agent.session))
    data = exported(agent.session, branch="main", redact=hide_addresses)
    assert secrets_in(data) == []
    assert f'"pin_token":{PIN}'.encode() not in data
    with agentgit.open(":memory:") as other:
        session = other.import_(BytesIO(data), session="s").session
        assert not other.maintenance.fsck().findings
        recorded = other.session(session.id).tool_track()
        placeholder = recorded[0].args["api_key"]
        assert placeholder.startswith("REDACTED-")
        assert recorded[0].result["echo"] == f"logged in with {placeholder}"
        assert recorded[1].args == {"to": "someone@example.net"}
        model = scripted(calls(*(call(one.tool_name, **one.args) for one in recorded)), f"done with {placeholder}")
        (row,) = other.rerun("s", graph(kind, model), effects=EFFECTS).rows
        assert (row.status, row.match_rate, row.error) == ("done", 1.0, None)
        assert row.report.is_same_state


def test_names_alone_are_enough_and_nothing_else_changes(repo):
    agent = obeying(repo, session="plain")
    agent.run("add chair")

    def lines(**options):
        """Return the lines of an export without its header and its end."""
        return exported(agent.session, **options).splitlines()[1:-1]

    assert lines(redact=True) == lines()
    other = repo.wrap(graph(), "secret", effects=EFFECTS)
    other.run(PROMPT)
    data = exported(other.session, redact=True)
    assert EMAIL.encode() in data
    assert KEY[:8].encode() not in data


@dataclass
class Login:
    """An object that LangGraph's serializer writes."""

    user: str
    api_key: str


class State(MessagesState):
    """A state with an object, plain values, bytes and a token count."""

    login: Login
    raw: bytes
    settings: dict


def test_objects_bytes_long_texts_and_token_counts(repo):
    long = f"{'word ' * 300_000}{KEY}"
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}

    def act(state):
        reply = AIMessage(long, usage_metadata=usage, response_metadata={"token_usage": {"total_tokens": 7}})
        return {
            "messages": [reply],
            "login": Login("bob", KEY),
            "raw": KEY.encode(),
            "settings": {"db_password": "pw1", "note": "the pw1 is pw12", "X-Auth-Token": ""},
        }

    agent = repo.wrap(StateGraph(State).add_node("act", act).add_edge(START, "act").compile(), "s")
    agent.run("hi")
    data = exported(agent.session, redact=True)
    assert secrets_in(data) == []
    with agentgit.open(":memory:") as other:
        other.import_(BytesIO(data), session="s")
        state = other.session("s").get_checkpoint("HEAD").session_state
        assert state["login"]["user"] == "bob"
        assert state["login"]["api_key"].startswith("REDACTED-")
        assert state["settings"]["db_password"].startswith("REDACTED-")
        assert state["settings"]["note"] == f"the {state['settings']['db_password']} is pw12"
        reply = other.session("s").branch().conversation_history[-1]
        assert reply["content"].endswith("REDACTED-1")
        assert other.session("s").stats().to_dict()["tokens"] == repo.session("s").stats().to_dict()["tokens"]


def test_a_branch_is_exported_without_its_reruns(repo):
    """Nothing of a rerun happened, so the export of a branch has none, and that of a rerun alone is refused."""
    agent = repo.wrap(graph(), "s", effects=EFFECTS)
    agent.run(PROMPT)
    before = exported(agent.session, branch="main")
    rerun = agent.rerun(graph())
    assert len(exported(agent.session, branch="main").splitlines()) == len(before.splitlines())
    with pytest.raises(Conflict, match="is a rerun"):
        exported(agent.session, branch=rerun.branch.name)
    whole = exported(agent.session, redact=hide_addresses)
    assert secrets_in(whole) == []
    with agentgit.open(":memory:") as other:
        session = other.import_(BytesIO(whole)).session
        assert [branch.status for branch in other.session(session.id).branches()] == ["open", "simulated"]


def test_what_cannot_be_redacted_is_refused(repo, tmp_path):
    agent = repo.wrap(graph(), "s", effects=EFFECTS)
    agent.run(PROMPT)
    target = tmp_path / "s.jsonl"
    for wrong in (
        {"redact": "secrets"},
        {"redact": True, "files": True},
        {"redact": lambda text: None},
        {"redact": lambda text: f"{text}\ud800"},
    ):
        with pytest.raises(InvalidInput):
            agent.session.export(target, **wrong)
    with pytest.raises(ZeroDivisionError):
        agent.session.export(target, redact=lambda text: 1 / 0)
    assert not target.exists()
