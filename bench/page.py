"""Writing what was measured into a page, in place of what was there."""

from __future__ import annotations

import re
from collections.abc import Mapping


def written(page: str, blocks: Mapping[str, str]) -> str:
    """Replace the first text block under each heading.

    Args:
        page: in Markdown.
        blocks: what to show there, by heading.

    Raises:
        ValueError: a heading, or a block under it, is missing.

    Example:
        >>> written("## Time\\n\\n```text\\nold\\n```\\n", {"Time": "new"})
        '## Time\\n\\n```text\\nnew\\n```\\n'
    """
    for heading, block in blocks.items():
        under = rf"(?ms)(^#+ {re.escape(heading)}\n(?:(?!#+ )[^\n]*\n)*?```text\n).*?(^```$)"
        shown = f"{block}\n".replace("\\", r"\\")
        page, count = re.subn(under, rf"\g<1>{shown}\g<2>", page, count=1)
        if not count:
            raise ValueError(f"The page has no text block under the heading {heading!r}; write one, then try again.")
    return page
