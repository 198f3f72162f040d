"""The widget that makes a tree clickable in JupyterLab, VS Code and marimo. Only this module imports anywidget."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from agentgit.effects.plan import SWITCH
from agentgit.errors import AgentGitError, PlanChanged, RollbackIncomplete, WorldDiverged
from agentgit.render.svg import tree_svg
from agentgit.render.text import clean

if TYPE_CHECKING:
    from agentgit.effects import RollbackPlan
    from agentgit.notebook.tree_handles import CheckpointHandle, TreeHandles


_STATIC = files("agentgit.notebook") / "static"

Button = dict[str, str]
"""A button: its label, and the action and the checkpoint that it sends."""


NOW = "The plan below is what would be done now."


class TreeWidget(anywidget.AnyWidget):
    """A tree whose checkpoints can be clicked, and a panel with the content and the actions of the chosen one.

    What changes the outside world is carried out by a second click, below its plan.
    """

    _esm = (_STATIC / "tree.js").read_text(encoding="utf-8")
    _css = (_STATIC / "tree.css").read_text(encoding="utf-8")

    state = traitlets.Dict().tag(sync=True)
    """What is drawn: the picture, the line with session and branch, the chosen checkpoint, a note, a panel, buttons."""

    def __init__(self, browser: TreeHandles) -> None:
        super().__init__()
        self._browser = browser
        self._chosen: CheckpointHandle | None = None
        self._shown_plan = ""
        """The identity of the plan in the panel."""
        self._actions = {
            "choose": self._choose,
            "plan": self._plan,
            "rollback": self._rollback,
            "force": self._force,
            "fork": self._fork,
            "switch": self._switch,
            "sync": self._sync,
            "compare": self._compare,
            "update": self._update,
        }
        self.on_msg(self._receive)
        self._draw()

    def view(self) -> dict[str, Any]:
        bundle = self._repr_mimebundle_() or ({},)
        return {kind: value for kind, value in bundle[0].items() if kind != "text/plain"}

    def _receive(self, widget: Any, message: Any, buffers: Any) -> None:
        """Carry out a click. Its error is shown in the panel, because a click has no cell that could fail."""
        action = self._actions.get(str(message.get("action"))) if isinstance(message, dict) else None
        if action is None:
            return
        try:
            action(str(message.get("value", "")))
        except AgentGitError as error:
            details = error.report if isinstance(error, RollbackIncomplete) else None
            details = error.plan if isinstance(error, WorldDiverged) else details
            self._draw(
                clean(error.worded("notebook")),
                details._repr_html_() if details is not None else "",
                [_button("Back", "choose", self._chosen)] if self._chosen is not None else [],
            )

    # -- actions, each with the reference or the text that its button sends

    def _choose(self, ref: str) -> None:
        # The picture sends ids; a person may type any reference.
        self._chosen = handle = self._browser[int(ref) if ref.isascii() and ref.isdigit() else ref]
        is_current = handle.checkpoint.internal_session_id == self._here().id
        buttons = [_button("Roll back to here…", "plan", handle), _button("Fork here", "fork", handle)]
        if not is_current:
            buttons.append(_button(f"Switch to {clean(handle.branch)}…", "switch", handle))
        buttons.append(_button(f"Compare with {clean(self._here().name)}", "compare", handle))
        self._draw("", handle.checkpoint._repr_html_(), buttons)

    def _plan(self, ref: str) -> None:
        handle = self._browser[int(ref)]
        self._offer(handle, handle.plan_rollback())

    def _offer(self, handle: CheckpointHandle, plan: RollbackPlan, note: str = "Nothing is changed yet.") -> None:
        """Show a plan, and the buttons that carry it out or leave it."""
        self._shown_plan = plan.identity
        if plan.kind == SWITCH:
            buttons = [_button("Switch and change the world", "sync", handle)] if plan.is_admissible else []
        elif plan.is_admissible:
            buttons = [_button("Roll back", "rollback", handle)]
        else:
            forced = _button("Roll back and keep what cannot be undone", "force", handle)
            buttons = [forced] if plan.is_forcible else []
        self._draw(note, plan._repr_html_(), [*buttons, _button("Cancel", "choose", handle)])

    def _rollback(self, ref: str, *, force: bool = False) -> None:
        handle = self._browser[int(ref)]
        try:
            report: Any = handle.rollback(force=force, plan=self._shown_plan)
        except PlanChanged as changed:
            self._offer(handle, changed.plan, f"{changed.message} {NOW}")
            return
        self._draw_moved("Rolled back", (report if self._browser.agent is None else report.report)._repr_html_())

    def _force(self, ref: str) -> None:
        self._rollback(ref, force=True)

    def _fork(self, ref: str) -> None:
        report: Any = self._browser[int(ref)].fork()
        if self._browser.agent is None:
            name = clean(str(report.branch))
            self._draw(f"Forked: branch {name}. The session stays on branch {clean(self._here().name)}.")
        else:
            self._draw_moved("Forked")

    def _switch(self, ref: str) -> None:
        handle = self._browser[int(ref)]
        plan = self._browser.session.plan_switch(handle.checkpoint.internal_session_id)
        if plan.changes_world:
            self._offer(handle, plan)
            return
        self._shown_plan = plan.identity
        self._sync(ref)

    def _sync(self, ref: str) -> None:
        handle = self._browser[int(ref)]
        try:
            handle.switch("world", plan=self._shown_plan)
        except PlanChanged as changed:
            self._offer(handle, changed.plan, f"{changed.message} {NOW}")
            return
        self._draw_moved("Switched")

    def _compare(self, ref: str) -> None:
        handle = self._browser[int(ref)]
        comparison = handle.compare(self._here().name)
        self._draw("", comparison._repr_html_(), [_button("Back", "choose", handle)])

    def _update(self, _: str) -> None:
        self._chosen = None
        self._draw()

    # -- what is drawn

    def _here(self) -> Any:
        """Return the branch that the next action starts from."""
        return self._browser.session.branch(self._browser.branch_id)

    def _draw_moved(self, what: str, panel: str = "") -> None:
        branch = clean(self._here().name)
        hint = (
            "" if self._browser.agent is None else " In the next cell: agent = tree.agent, if the tree is called tree."
        )
        self._chosen = None
        self._draw(f"{what}: session {clean(self._browser.session.reference)} is on branch {branch}.{hint}", panel)

    def _draw(self, note: str = "", panel: str = "", buttons: list[Button] | None = None) -> None:
        browser = self._browser
        self.state = {
            "title": f"session {clean(browser.session.reference)}, branch {clean(self._here().name)}",
            "picture": tree_svg(browser.session.tree(), link=lambda point: f"#{point.id}"),
            "chosen": str(self._chosen.id) if self._chosen is not None else "",
            "note": note,
            "panel": panel,
            "buttons": buttons or [],
        }


def _button(label: str, action: str, handle: CheckpointHandle) -> Button:
    return {"label": label, "action": action, "value": str(handle.id)}
