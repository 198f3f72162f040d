"""What building the site needs: navigation by patterns, and the word `Example:` of our docstrings."""

import re
from pathlib import Path
from typing import Any

import griffe


def on_config(config: Any) -> Any:
    """Put the files that there are in the place of the patterns in `nav`; called by MkDocs.

    Args:
        config: what mkdocs.yml says.
    """
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(items: list[Any], folder: Path) -> list[Any]:
    result: list[Any] = []
    for item in items:
        if isinstance(item, str) and "*" in item:
            result += sorted(path.relative_to(folder).as_posix() for path in folder.glob(item))
        elif isinstance(item, dict):
            parts = {name: _expanded(part, folder) if isinstance(part, list) else part for name, part in item.items()}
            result += [{name: part} for name, part in parts.items() if part]
        else:
            result.append(item)
    return result


class Examples(griffe.Extension):
    """Our docstrings write `Example:`; griffe knows that section as `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one docstring; called by griffe.

        Args:
            obj: whose docstring it is.
        """
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
