"""The conversation on the page of a session: turns, cards of calls, images, and pages of a long one."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from echo_graph import echo
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from scripted import tool_node_graph
from web_servers import PIXEL, repo, told
from web_visitors import ada

from agentgit.demo import EFFECTS, ScriptedModel, build

__all__ = ["ada", "repo", "told"]  # the fixtures


def images(page: str) -> list[str]:
    return [html.unescape(source) for source in re.findall(r'<img src="([^"]*/image[^"]*)"', page)]


def test_images_of_messages_are_served_by_this_server(ada, repo, tmp_path):
    agent = repo.wrap(tool_node_graph(ScriptedModel(replies=["I see."]), [echo]), "pictures")
    blocks = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "image", "base64": "PHN2Zy8+", "mime_type": "image/svg+xml"},
        {"type": "image", "base64": "!!!", "mime_type": "image/png"},
    ]
    agent.invoke({"messages": [{"role": "user", "content": blocks}]})
    page = ada.get(f"/sessions/{repo.session('pictures').id}").text
    source, damaged = images(page)
    ada.get(damaged, 404)
    image = ada.get(source)
    assert (image.headers["content-type"], image.content[:4]) == ("image/png", b"\x89PNG")
    assert image.headers["cache-control"] == "no-store"
    at_end, _ = images(ada.get(f"/sessions/{agent.session.id}?at={agent.get_checkpoint('HEAD').id}").text)
    assert ada.get(at_end).content == image.content
    assert 'href="https://a.example/b.png"' in page
    for block in (0, 2, 3, 9):
        ada.get(re.sub(r"block=\d+", f"block={block}", source), 404)


def test_a_page_of_a_session_without_checkpoints_or_messages_is_shown(ada, repo):
    session = repo.session("empty", create=True)
    page = ada.get(f"/sessions/{session.id}").text
    assert "No messages yet" in page
    assert f'method="post" action="/sessions/{session.id}/fork"' not in page
    session.checkpoint("by hand")
    assert "by hand" in ada.get(f"/sessions/{session.id}").text


def test_a_call_that_a_rollback_kept_is_shown_as_kept(ada, repo):
    session = repo.session("support-42")
    session.rollback("before the mail", force=True)
    page = ada.get(f"/sessions/{session.id}?branch=main-2").text
    cards = dict(
        re.findall(r'class="tool-name">(\w+)<.*?<span class="tool-chips">.*?([a-z ]+)</span></span>', page, re.S)
    )
    assert cards == {"create_order": "done", "charge_card": "undone", "send_mail": "kept"}


def test_a_call_that_ran_again_is_shown_with_its_new_result(ada, repo, tmp_path):
    """After a redo, the card, the tool track and the API show the new run; the card also has the old result."""
    agent = repo.wrap(build(tmp_path / "shop.db"), "again", effects=EFFECTS)
    agent.run("order two chairs")
    agent.checkpoint("before")
    agent.run("a table and two lamps, please")
    session = agent.rollback("before").session
    before = session.tool_track(branch="main")[1]
    assert "undone" in ada.get(f"/sessions/{session.id}?branch=main").text
    session.switch("main", sync="world", force=True)
    newest = session.tool_track()[1]
    assert newest.result["order"] != before.result["order"]
    card = re.findall(r'<details class="tool">.*?</details>', ada.get(f"/sessions/{session.id}").text, re.S)[1]
    assert re.findall(r'class="chip[^"]*">([^<]+)<', card)[-2:] == ["done", "ran again"]
    result, earlier = (
        re.search(rf"<dt>{name}</dt><dd><pre>(.*?)</pre>", card, re.S)[1]
        for name in ("Result", "Result in the conversation")
    )
    assert newest.result["order"] in result
    assert before.result["order"] in earlier
    row = re.findall(r"<tr>.*?</tr>", ada.get(f"/sessions/{session.id}/tool-track?branch=main").text, re.S)[2]
    assert newest.result["order"] in row
    answer = ada.get(f"/api/v1/sessions/{session.id}/tool-track?branch=main").json()
    assert answer["items"][1]["id"] == newest.id


def trimming_graph(keep: int) -> CompiledStateGraph:
    """Make a graph that answers each message, and then keeps only the newest messages."""

    def answer(state: MessagesState) -> dict[str, Any]:
        gone = [RemoveMessage(id=message.id) for message in state["messages"][: 1 - keep]]
        return {"messages": [*gone, AIMessage(f"answer to {state['messages'][-1].text}")]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


def shown(page: str) -> list[tuple[str, list[str]]]:
    """Return the reference of each turn of a page, and the texts of its messages."""
    turns = re.findall(r'<article class="turn"(.*?)</article>', page, re.S)
    return [
        (
            "".join(re.findall(r'aria-label="Turn from ([^"]+)"', turn)),
            re.findall(r'<div class="prose"><p>(.*?)</p>', turn, re.S),
        )
        for turn in turns
    ]


@pytest.mark.long
def test_the_page_of_a_graph_that_removes_messages_shows_those_that_are_left(ada, repo):
    """Each message that a graph left is in its own turn: on the newest page, an earlier one and at a checkpoint."""
    agent = repo.wrap(trimming_graph(4), "trimmed")
    for number in range(40):
        agent.run(f"question {number}")
    at = f"/sessions/{agent.session.id}"
    page = ada.get(at).text
    left = [[f"question {number}", f"answer to question {number}"] for number in (38, 39)]
    assert [texts for _, texts in shown(page) if texts] == left
    assert [texts for _, texts in shown(page)][-2:] == left
    before = re.search(r'href="([^"]*before=(\d+)[^"]*)#talk" rel="next"', page)
    earlier = shown(ada.get(before.group(1).replace("&amp;", "&")).text)
    end = agent.session.get_checkpoint(int(before.group(2)))
    assert [text for _, texts in earlier for text in texts] == [one["content"] for one in end.conversation_history]
    assert earlier[-1][1] == [one["content"] for one in end.conversation_history][-2:]
    assert shown(ada.get(f"{at}?at={end.id}").text)[-2:] == [earlier[-1], (end.metadata["reference"], [])]


@pytest.mark.long
def test_a_page_of_a_session_shows_at_most_300_messages(ada, repo):
    """The messages of a long conversation are on several pages, each on one, also if one turn has all of them."""
    agent = repo.wrap(trimming_graph(10_000), "talkative")
    agent.run("question")
    agent.invoke({"messages": [HumanMessage(f"line {number}") for number in range(700)]})
    page, texts, sizes = ada.get(f"/sessions/{agent.session.id}").text, list[str](), list[int]()
    while True:
        on_page = [text for _, messages in shown(page) for text in messages]
        texts, sizes = [*on_page, *texts], [*sizes, len(on_page)]
        link = re.search(r'href="([^"]*)#talk" rel="next"', page)
        if link is None:
            break
        page = ada.get(link.group(1).replace("&amp;", "&")).text
        assert "Newest turns" in page
    assert texts == [one["content"] for one in agent.history()]
    assert sizes == [300, 300, 103]


def test_a_page_of_a_session_is_small_whatever_arguments_a_call_has(ada, repo):
    args = {"k" * 10_000: 1, "deep": [[["x" * 100] * 9] * 9] * 9, **{f"a{number}": number for number in range(9_000)}}
    agent = repo.wrap(trimming_graph(9), "wide")
    calls = [
        {"name": "echo", "args": args, "id": "c1"},
        *({"name": "echo", "args": {}, "id": f"{n}"} for n in range(399)),
    ]
    agent.invoke({"messages": [AIMessage("", tool_calls=calls)]})
    page = ada.get(f"/sessions/{agent.session.id}").text
    [line, *others] = re.findall(r'<code class="tool-args">(.*?)</code>', page, re.S)
    assert len(others) == 299
    assert "100 more calls not shown" in page
    assert line.startswith("k" * 100 + "…=1, deep=")
    assert line.endswith(", …")
    assert len(line) < 2_000
