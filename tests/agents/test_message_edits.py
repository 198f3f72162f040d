"""After any edit of a conversation, every checkpoint has the same state as with InMemorySaver."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from saver_checkpoints import on

from agentgit import SQLModelSaver

VERBS = ("say", "say long", "replace", "edit", "edit silently", "remove", "reorder", "swap", "clear")
WAYS = ("node", "update", "update of the past")

edits = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 7), st.sampled_from(WAYS)), min_size=1, max_size=12)


class Edited(MessagesState):
    """A conversation, notes, and the edit to make next."""

    notes: list[str]
    todo: list[tuple[str, int, int]]


def edited(messages, verb, where, number):
    """Return the state update of an edit, and make the change at once if the edit is in place."""
    new = HumanMessage(f"text {number}" * (20_000 if verb == "say long" else 1), id=f"m{number}")
    if verb.startswith("say") or not messages:
        return {"messages": [new]}
    chosen = messages[where % len(messages)]
    if verb == "replace":
        return {"messages": [HumanMessage(f"instead {number}", id=chosen.id)]}
    if verb.startswith("edit"):
        chosen.content = f"{chosen.content[:20]}, edited {number}"
        chosen.additional_kwargs["edits"] = [*chosen.additional_kwargs.get("edits", []), number]
        return {"messages": [chosen]} if verb == "edit" else {"notes": [f"silently {number}"]}
    if verb == "remove":
        return {"messages": [RemoveMessage(id=chosen.id)]}
    kept = {"reorder": messages[::-1], "swap": [chosen, *(m for m in messages if m is not chosen)], "clear": []}
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept[verb]]}


def editor(saver):
    """Compile a graph whose node makes the edit in `todo`."""

    def edit(state):
        ((verb, where, number),) = state["todo"]
        return edited(state["messages"], verb, where, number)

    return StateGraph(Edited).add_node("edit", edit).add_edge(START, "edit").compile(checkpointer=saver)


def apply(graph, config, verb, where, way, number):
    """Edit the newest state of a thread, or an earlier one."""
    if way == "node":
        # Saved synchronously, because a node that edits in place would race with a save in the background.
        graph.invoke({"todo": [(verb, where, number)]}, config, durability="sync")
        return
    history = list(graph.get_state_history(config))
    state = history[where % len(history)] if way == "update of the past" and history else graph.get_state(config)
    change = edited(list(state.values.get("messages", [])), verb, where, number)
    graph.update_state(state.config, change, as_node="edit")


def states(graph, config):
    """Return the values at every checkpoint of a thread, newest first, with the type of each message."""
    found = [state.values for state in graph.get_state_history(config)]
    return [(values, [type(message) for message in values.get("messages", [])]) for values in found]


numbers = count()


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits)
def test_every_edit_produces_the_states_of_inmemorysaver(database, edits):
    ours, theirs = editor(SQLModelSaver(database)), editor(InMemorySaver())
    config = on(f"example {next(numbers)}")  # the examples share the database and the values stored by content
    for number, (verb, where, way) in enumerate(edits):
        for graph in (ours, theirs):
            apply(graph, config, verb, where, way, number)
    expected = states(theirs, config)
    assert states(ours, config) == expected
    assert states(editor(SQLModelSaver(database)), config) == expected


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "edit silently"])
def test_an_edit_leaves_the_previous_checkpoint_unchanged(database, verb):
    graph = editor(SQLModelSaver(database))
    for number in range(3):
        apply(graph, on("t"), "say", 0, "update", number)
    before = graph.get_state(on("t"))
    apply(graph, on("t"), verb, 1, "node", 3)
    assert graph.get_state(on("t")).values["messages"] != before.values["messages"]
    assert graph.get_state(before.config).values == before.values
    assert editor(SQLModelSaver(database)).get_state(before.config).values == before.values
