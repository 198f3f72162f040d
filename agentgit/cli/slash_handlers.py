"""The slash commands of the chat: each calls the agent and writes the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from agentgit.cli import output, slash_commands
from agentgit.errors import NotFound
from agentgit.render.text import Line, Span, clean
from agentgit.render.views import conversation
from agentgit.render.views import diff as diffs
from agentgit.render.views import log as logs
from agentgit.render.views import rollback as rollbacks
from agentgit.render.views import tree as trees
from agentgit.render.views.lists import branch_lines

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.merge import MergePlan
    from agentgit.checkpoints.queries import Tag
    from agentgit.cli.conversation import Chat
    from agentgit.cli.slash_commands import SlashCommand
    from agentgit.effects import RollbackPlan


def run_command(chat: Chat, order: SlashCommand) -> None:
    """Run a slash command.

    Raises:
        AgentGitError: As the operation that the command runs.
    """
    _HANDLERS[order.form.name](chat, order)


# -- rollback, undo and redo


def _confirm_and_run(chat: Chat, order: SlashCommand, plan: RollbackPlan, move: Callable[[], RollbackAgent]) -> None:
    """Show a plan, ask for confirmation, run the operation, and continue with the agent that it returns."""
    if chat.confirm_plan(order, plan):
        chat.agent = move()
        chat.show_report()


def _back(chat: Chat, order: SlashCommand, place: str | int) -> None:
    agent, force = chat.agent, slash_commands.FORCE in order.options
    _confirm_and_run(chat, order, agent.plan_rollback(place), lambda: agent.rollback(place, force=force))


def _rollback(chat: Chat, order: SlashCommand) -> None:
    _back(chat, order, order.words[0])


def _undo(chat: Chat, order: SlashCommand) -> None:
    agent, steps, force = chat.agent, order.number() or 1, slash_commands.FORCE in order.options
    _confirm_and_run(chat, order, agent.plan_undo(steps), lambda: agent.undo(steps, force=force))


def _redo(chat: Chat, order: SlashCommand) -> None:
    agent, force = chat.agent, slash_commands.FORCE in order.options
    _confirm_and_run(chat, order, agent.plan_redo(), lambda: agent.redo(force=force))


def _plan(chat: Chat, order: SlashCommand) -> None:
    output.show(rollbacks.lines(chat.agent.plan_rollback(order.words[0]), width=output.width()))


def _resume(chat: Chat, order: SlashCommand) -> None:
    report = chat.repo.resume(order.number() or 0, force=slash_commands.FORCE in order.options)
    chat.agent = chat.agent.switch(report.branch)
    output.show(rollbacks.lines(report, width=output.width()))


def _resolve(chat: Chat, order: SlashCommand) -> None:
    result = output.parse_result(order.options.get(slash_commands.RESULT))
    call = chat.repo.resolve(order.number() or 0, order.words[1].replace("-", "_"), result=result)
    output.show(conversation.call_lines([call], width=output.width()))


def _rewind(chat: Chat, order: SlashCommand) -> None:
    agent, point = chat.agent, order.words[0]
    plan = agent.session.plan_rewind(point, branch=agent.branch_id)
    if chat.confirm_plan(order, plan):
        changes = agent.rewind_files(point, force=slash_commands.FORCE in order.options)
        output.show(rollbacks.file_lines(changes, width=output.width()))


# -- checkpoints


def _create(chat: Chat, order: SlashCommand) -> None:
    names = {point.name for branch in chat.agent.tree().walk() for point in branch.points}
    made = chat.agent.checkpoint(order.word(0) or next_name(names), description=order.word(1))
    output.show(logs.lines([made], width=output.width(), zone=None))


def next_name(taken: Iterable[str | None]) -> str:
    """Return an unused name for a checkpoint that is created without one.

    Example:
        >>> next_name({"checkpoint-1", "before payment"})
        'checkpoint-2'
    """
    names, number = set(taken), 1
    while f"checkpoint-{number}" in names:
        number += 1
    return f"checkpoint-{number}"


def _saved(chat: Chat) -> list[int]:
    """List the ids of the session's checkpoints that are not automatic, oldest first."""
    points = [point for branch in chat.agent.tree().walk() for point in branch.points]
    return sorted(point.id for point in points if not point.is_auto)


def _list(chat: Chat, order: SlashCommand) -> None:
    found = [chat.agent.session.get_checkpoint(one) for one in _saved(chat)]
    none = [(Span("no named checkpoints yet; /checkpoint create NAME creates one"),)]
    output.show(logs.lines(found, width=output.width(), zone=None) or none)


def _last(chat: Chat, order: SlashCommand) -> None:
    behind = _checkpoint_ids_on_path(chat.agent)
    saved = [one for one in _saved(chat) if one in behind]
    if not saved:
        raise NotFound("There is no named checkpoint on this branch. /checkpoint create NAME creates one.")
    _back(chat, order, saved[-1])


def _checkpoint_ids_on_path(agent: RollbackAgent) -> set[int | None]:
    """Return the ids of the checkpoints on the agent's path, including the points where its branches start."""
    known = {branch.id: branch for branch in agent.tree().walk()}
    found = {point.id for point in agent.checkpoints()}
    on: int | None = agent.branch_id
    while on is not None:
        found.add(known[on].branch_point_id)
        on = known[on].parent_id
    return found


# -- branches


def _branch(chat: Chat, order: SlashCommand) -> None:
    made = chat.agent.fork(name=order.word(0))
    chat.agent = made.switch(made.branch)
    _say_where(chat)


def _switch(chat: Chat, order: SlashCommand) -> None:
    (name,), sync, agent = order.words, order.options.get(slash_commands.SYNC), chat.agent
    if sync == "world" and not chat.confirm_plan(order, agent.plan_switch(name)):
        return
    chat.agent = agent.switch(name, sync, force=slash_commands.FORCE in order.options)
    if sync is None:
        _say_where(chat)
    else:
        chat.show_report()


def _say_where(chat: Chat) -> None:
    name = clean(chat.agent.branch.name)
    output.show([(Span(name, "head"), Span(" is the current branch; the world is unchanged"))])


# -- inspection and merging


def _tree(chat: Chat, order: SlashCommand) -> None:
    output.show(trees.lines(chat.agent.tree(), width=output.width(), zone=None))


def _log(chat: Chat, order: SlashCommand) -> None:
    found = list(islice(chat.agent.log(), order.number()))
    output.show(logs.lines(found[::-1], width=output.width(), zone=None) or _NOTHING)


def _track(chat: Chat, order: SlashCommand) -> None:
    found = chat.agent.tool_track()[-(order.number() or 0) :]
    output.show(conversation.call_lines(found, width=output.width()) or [(Span("no tool calls yet"),)])


def _branches(chat: Chat, order: SlashCommand) -> None:
    agent = chat.agent
    output.show(branch_lines(agent.session.branches(), agent.tree(), width=output.width(), zone=None))


def _diff(chat: Chat, order: SlashCommand) -> None:
    agent = chat.agent

    found = agent.diff(order.word(0) or agent.plan_undo().checkpoint_id, order.word(1) or "HEAD")
    output.show(diffs.lines(found, width=output.width()))


def _compare(chat: Chat, order: SlashCommand) -> None:
    output.show(diffs.lines(chat.agent.compare(order.words[0]), width=output.width()))


def _merge(chat: Chat, order: SlashCommand) -> None:
    agent, (place,), resolve = chat.agent, order.words, order.options.get(slash_commands.RESOLVE)
    _run_merge(agent.plan_merge(place, resolve=resolve), lambda: agent.merge(place, resolve=resolve))


def _pick(chat: Chat, order: SlashCommand) -> None:
    agent, (place,) = chat.agent, order.words
    _run_merge(agent.plan_cherry_pick(place), lambda: agent.cherry_pick(place))


def _run_merge(plan: MergePlan, carry: Callable[[], Checkpoint]) -> None:
    """Show a merge plan, and run it unless it is empty.

    There is no confirmation, because the world does not change and a rollback undoes the merge.
    """
    output.show(diffs.merge_lines(plan, width=output.width()))
    if not plan.is_empty:
        output.show(logs.lines([carry()], width=output.width(), zone=None))


# -- search, tags and help


def _search(chat: Chat, order: SlashCommand) -> None:
    every, after = slash_commands.EVERYWHERE in order.options, order.options.get(slash_commands.AFTER)
    found = chat.agent.search(" ".join(order.words), all_branches=every, after=after)
    output.show(logs.hit_lines(found, width=output.width(), zone=None))


def _tag(chat: Chat, order: SlashCommand) -> None:
    *place, name = order.words
    _show_tags([chat.agent.tag(place[0] if place else "HEAD", name)])


def _untag(chat: Chat, order: SlashCommand) -> None:
    gone = chat.agent.session.untag(order.words[0])
    output.show([(Span(f"{clean(gone.reference)} no longer has that tag"),)])


def _tags(chat: Chat, order: SlashCommand) -> None:
    _show_tags(chat.agent.session.tags())


def _show_tags(tags: list[Tag]) -> None:
    none = [(Span("no tags yet; /tag [PLACE] NAME adds one"),)]
    output.show(logs.tag_lines(tags, width=output.width(), zone=None) or none)


def _help(chat: Chat, order: SlashCommand) -> None:
    output.show(slash_commands.lines(output.width()))


_NOTHING: list[Line] = [(Span("no checkpoints yet"),)]

_HANDLERS: dict[str, Callable[[Chat, SlashCommand], None]] = {
    "checkpoint create": _create,
    "checkpoint list": _list,
    "checkpoint restore": _rollback,
    "checkpoint undo": _last,
    "undo": _undo,
    "redo": _redo,
    "rollback": _rollback,
    "plan": _plan,
    "rewind": _rewind,
    "resume": _resume,
    "resolve": _resolve,
    "tree": _tree,
    "log": _log,
    "track": _track,
    "diff": _diff,
    "compare": _compare,
    "merge": _merge,
    "pick": _pick,
    "search": _search,
    "tag": _tag,
    "untag": _untag,
    "tags": _tags,
    "branches": _branches,
    "branch": _branch,
    "switch": _switch,
    "continue": lambda chat, order: chat.turn(None),
    "help": _help,
    "quit": lambda chat, order: None,
}
"""The function for each of `slash.COMMANDS`."""
