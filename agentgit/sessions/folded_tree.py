"""Folding of a big tree: which branches are shown, which of them on one line, and how many are hidden. Pure values.

If a tree has more branches than the limit, the path from the root to the current branch is shown in full. Of the
branches that leave this path, the newest are shown on one line each; the others are counted. A list that is cut
after a number of commits would lose the branch points of what it shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agentgit.errors import InvalidInput, NotFound
from agentgit.sessions.tree import Branch, Tree
from agentgit.values import PrintableDrawing


@dataclass(frozen=True, kw_only=True)
class FoldedTree(PrintableDrawing):
    """A tree of which some branches are hidden. `str(folded)` draws it.

    Each branch of the whole tree is shown, or counted once in `hidden` or in `above`.

    Args:
        whole: The tree with all branches.
        tree: The branches that are shown. The points of a branch are those of the whole tree.
        collapsed: The ids of the shown branches that take one line.
        hidden: For the id of a shown branch, the number of hidden branches that leave from it or from a hidden one.
        above: The number of branches that are neither shown nor leave from a shown one.
        counts: For the id of a branch, the number of its checkpoints. A shown branch may have fewer points, see
            `unread`.
    """

    whole: Tree
    tree: Tree
    collapsed: frozenset[int] = frozenset()
    hidden: Mapping[int, int] = field(default_factory=dict)
    above: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)

    def unread(self, branch: Branch) -> int:
        """Return the number of checkpoints of a branch that are not among its points, because nobody read them."""
        return self.counts.get(branch.id, 0) - len(branch.points) if branch.points else 0


def fold(
    tree: Tree,
    *,
    limit: int | None = None,
    branch: int | None = None,
    expand: Collection[int] = (),
    collapse: Collection[int] = (),
) -> FoldedTree:
    """Choose which branches of a tree are shown.

    Example:
        >>> main, *others = [Branch(id=1, name="main"), *(Branch(id=n, name=f"b{n}", parent_id=1) for n in range(2, 9))]
        >>> folded = fold(Tree.grow("s", [main, *others]), limit=3)
        >>> [one.name for one in folded.tree.walk()], folded.hidden
        (['main', 'b7', 'b8'], {1: 5})
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit must be at least 1, not {limit}.")
    branches = {one.id: one for one in tree.walk()}
    if branch is not None and branch not in branches:
        raise NotFound(f"The session {tree.session_name} has no branch with the id {branch}.")
    path = path_of(branches, _focus(branches, branch))
    visible = set(branches) if branch is None else {*path, *_below(branches[branch])}
    if limit is None or len(visible) <= limit:
        shown, opened = set(visible), set(visible)
    else:
        opened = set(path[:limit])
        leaving = {child.id for one in opened for child in branches[one].children}
        leaving |= {root.id for root in tree.roots} if path[-1] in opened else set()
        newest_first = sorted((leaving & visible) - opened, reverse=True)
        shown = {*opened, *newest_first[: limit - len(opened)]}
        _expand(branches, opened, shown, expand, limit)
    for one in (set(collapse) & opened) - set(path):
        opened.discard(one)
        shown.difference_update(child for child in _below(branches[one]) if child != one)
    return _folded(tree, branches, shown, shown - opened)


def _focus(branches: Mapping[int, Branch], branch: int | None) -> Branch | None:
    """Return the branch that must be shown: the given one, the current one, or else the newest."""
    if branch is not None:
        return branches[branch]
    newest = branches[max(branches)] if branches else None
    return next((one for one in branches.values() if one.is_current), newest)


def path_of(branches: Mapping[int, Branch], focus: Branch | None) -> list[int]:
    """Return the ids of a branch and its ancestors, the nearest first."""
    path: list[int] = []
    while focus is not None and focus.id not in path:
        path.append(focus.id)
        focus = branches.get(focus.parent_id) if focus.parent_id is not None else None
    return path


def _below(branch: Branch) -> Iterable[int]:
    return (one.id for one in Tree(session_name="", roots=[branch]).walk())


def _expand(
    branches: Mapping[int, Branch], opened: set[int], shown: set[int], expand: Collection[int], limit: int
) -> None:
    """Add the branches that were asked for to `opened` and to `shown`, parents first, and their newest children."""
    for one in sorted(id for id in expand if id in branches):
        if one in opened or branches[one].parent_id in opened:
            opened.add(one)
            shown.add(one)
            shown.update(child.id for child in branches[one].children[-limit:])


def _folded(tree: Tree, branches: Mapping[int, Branch], shown: set[int], collapsed: set[int]) -> FoldedTree:
    """Build the tree of the shown branches, and count the others."""
    counts = {one.id: len(one.points) for one in branches.values()}
    if len(shown) == len(branches):
        return FoldedTree(whole=tree, tree=tree, collapsed=frozenset(collapsed), counts=counts)
    sizes = dict.fromkeys(branches, 1)
    for one in reversed(list(branches.values())):  # children before their parents
        if one.parent_id in sizes:
            sizes[one.parent_id] += sizes[one.id]
    hidden = {one: sum(sizes[child.id] for child in branches[one].children if child.id not in shown) for one in shown}
    shown_tree = Tree.grow(tree.session_name, [replace(branches[one], children=[]) for one in branches if one in shown])
    return FoldedTree(
        whole=tree,
        tree=shown_tree,
        collapsed=frozenset(collapsed),
        hidden={one: n for one, n in sorted(hidden.items()) if n},
        above=len(branches) - sum(sizes[root.id] for root in shown_tree.roots),
        counts=counts,
    )
