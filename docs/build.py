"""Hooks of the MkDocs build: the navigation, the references of commands and tables, docstrings and a picture.

`python docs/build.py` redraws the picture from the contracts in pyproject.toml.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.svg"


def on_config(config: Any) -> Any:
    """Replace the patterns in `nav` by the files that match them; called by MkDocs.

    Args:
        config: The configuration from mkdocs.yml.
    """
    placed = {place for place in _places(config.nav) if "*" not in place}
    config.nav = _expanded(config.nav, Path(config.docs_dir), placed)
    return config


def _places(items: list[Any]) -> Iterator[str]:
    """Yield the files and patterns in a part of the navigation."""
    for item in items:
        for part in item.values() if isinstance(item, dict) else [item]:
            yield from _places(part) if isinstance(part, list) else [part]


def _expanded(items: list[Any], folder: Path, placed: set[str]) -> list[Any]:
    result: list[Any] = []
    for item in items:
        if isinstance(item, str) and "*" in item:
            found = {path.relative_to(folder).as_posix() for path in folder.glob(item)} - placed
            result += sorted(found)
            placed |= found
        elif isinstance(item, dict):
            parts = {
                name: _expanded(part, folder, placed) if isinstance(part, list) else part for name, part in item.items()
            }
            result += [{name: part} for name, part in parts.items() if part]
        else:
            result.append(item)
    return result


class Examples(griffe.Extension):
    """A griffe extension for the `Example:` of our docstrings, a section that griffe calls `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one docstring; called by griffe.

        Args:
            obj: The documented object.
        """
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


# -- the reference of the command line

REFERENCE = "reference/cli.md"
"""The page of the commands; two comments in its file mark the places of the generated parts."""

TABLES = "reference/tables.md"
"""The page of the tables, with two such comments."""

SEARCH_BOOSTS = {"reference/": 1e-3, "why/": 1e-5, "changelog": 1e-5}
"""What a hit in these pages counts in the search. A word of a title counts 1,000 times, and guides come first."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Insert the generated parts of the references, and the rank in the search; called by MkDocs.

    Args:
        markdown: The text of a page.
        page: The page.
    """
    if boost := next((boost for place, boost in SEARCH_BOOSTS.items() if page.file.src_uri.startswith(place)), None):
        page.meta["search"] = {"boost": boost}
    if page.file.src_uri == TABLES:
        return markdown.replace("<!-- picture -->", keys()).replace("<!-- tables -->", tables())
    if page.file.src_uri != REFERENCE:
        return markdown
    return markdown.replace("<!-- slash commands -->", slash_commands()).replace("<!-- commands -->", commands())


def commands() -> str:
    """Return every command with its arguments and options, from the help texts in agentgit/cli/, as Markdown."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from agentgit.cli.app import app

    root = get_command(app)
    root.load_all()
    _prepare(root)
    with root.make_context("agentgit", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=root, ctx=context, indent=1, name="agentgit")
    return "".join(map(_linked, re.split(r"^(?=#+ `)", text, flags=re.MULTILINE)))


def _prepare(command: Any) -> None:
    """Sort the commands below a command, and make lists show the whole first line of their help."""
    command.short_help = (command.help or "").partition("\n")[0]
    below = getattr(command, "commands", {})
    for name in sorted(below):
        below[name] = below.pop(name)
        _prepare(below[name])


def _linked(section: str) -> str:
    """Link the commands that the section of a group lists, and show arguments by name only."""
    heading = re.match(r"#+ `(.+)`", section)
    anchor = heading[1].replace(" ", "-") if heading else ""
    section = re.sub(r"^\* `([a-z][a-z-]*)`", rf"* [`\1`](#{anchor}-\1)", section, flags=re.MULTILINE)
    section = re.sub(r"^(\* `[^-`][^`]*) <(?:str|list\[str\])>`", r"\1`", section, flags=re.MULTILINE)
    return re.sub(r"\{([^}|\n]+)\}", r"\1", section)


def slash_commands() -> str:
    """Return the commands of `agentgit chat`, as Markdown."""
    from agentgit.cli.chat.conversation import SLASH_COMMANDS

    return "".join(f"* `/{usage}`: {text}\n" for usage, text in SLASH_COMMANDS.items())


# -- the reference of the tables


def tables() -> str:
    """Return each table with its columns, from the classes in agentgit/store/sql/tables.py, as Markdown."""
    from agentgit.store.sql.columns import TableRow

    classes = {str(one.__tablename__): one for one in TableRow.__subclasses__() if hasattr(one, "__table__")}
    return "".join(_table(name, classes[name]) for name in sorted(classes))


def _table(name: str, row: Any) -> str:
    text = " ".join((row.__doc__ or "").split())
    lines = [f"## `{name}`\n", f"{text}\n", "| column | type | refers to |", "|---|---|---|"]
    for column in row.__table__.c:
        kind = type(column.type).__name__ + ("" if column.nullable else ", not NULL")
        targets = ", ".join(sorted(f"`{key.target_fullname}`" for key in column.foreign_keys))
        lines.append(f"| {'**' * column.primary_key}`{column.name}`{'**' * column.primary_key} | {kind} | {targets} |")
    return "\n".join(lines) + "\n\n"


def keys() -> str:
    """Return the foreign keys as an SVG: an arc from each table to the one that it refers to."""
    from agentgit.store.sql.columns import METADATA

    names = [table.name for table in METADATA.sorted_tables]
    arcs, right = list[str](), 0
    for table in METADATA.sorted_tables:
        for key in table.foreign_key_constraints:
            start, end = names.index(table.name), names.index(key.referred_table.name)
            color = "#c2410c" if key.ondelete == "CASCADE" else "#64748b"
            reach = 24 + 13 * abs(start - end)
            right = max(right, reach)
            y1, y2 = 20 + LINE * start - 2, 20 + LINE * end + 2
            path = f"M170 {y1} C{170 + reach} {y1} {170 + reach} {y2} 174 {y2}"
            title = escape(f"{table.name}.{', '.join(key.column_keys)} → {key.referred_table.name}")
            style = f'fill="none" stroke="{color}" marker-end="url(#end)"'
            arcs.append(f'<path d="{path}" {style}><title>{title}</title></path>')
    labels = [
        f'<text x="164" y="{24 + LINE * n}" text-anchor="end" font-family="monospace">{name}</text>'
        for n, name in enumerate(names)
    ]
    marker = '<marker id="end" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
    width, height = 180 + right, LINE * len(names) + 12
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12" role="img" \
aria-label="The foreign keys of the tables" style="max-width: {width}px; background: #fff">
<defs>{marker}<path d="M0 0 L7 3.5 L0 7 Z" fill="#334155"/></marker></defs>
{"".join(arcs + labels)}
</svg>"""


# -- the picture of the rooms

LINE, WIDTH = 20, 860
"""The height of a room's line and the width of the picture, in pixels."""

PURE, OTHER = "#fff8e1", "#e0f2f1"


def rooms() -> str:
    """Return the rooms of the contracts in pyproject.toml, from top to bottom, as an SVG."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"] == "rooms")
    pure = {name for one in contracts if one["name"].startswith("the pure") for name in one["source_modules"]}
    shapes, y = list[str](), 34
    for layer in layers:
        names = sorted(layer.split(" | "))
        shapes += _layer(names, y, {name for name in names if f"agentgit.{name}" in pure})
        y += LINE * len(names) + 18
    return _picture("\n".join(shapes), y)


def _layer(names: list[str], y: int, pure: set[str]) -> Iterator[str]:
    height = LINE * len(names) + 12
    yield f'<rect x="40" y="{y}" width="{WIDTH - 60}" height="{height}" rx="5" fill="{OTHER}" stroke="#c3c8d1"/>'
    for line, name in enumerate(names):
        text = y + 20 + line * LINE
        if name in pure:
            yield f'<rect x="42" y="{text - 16}" width="{WIDTH - 64}" height="{LINE + 4}" rx="4" fill="{PURE}"/>'
        shown = name if _file(name).stem == name else f"{name}/"
        yield f'<text x="54" y="{text}" font-family="monospace" font-weight="bold" fill="#222">{shown}</text>'
        yield f'<text x="236" y="{text}" font-size="13" fill="#333">{escape(_what(name))}</text>'


def _file(name: str) -> Path:
    """Return the file of a room: the `__init__.py` of a package, or the module."""
    package = ROOT / "agentgit" / name / "__init__.py"
    return package if package.exists() else package.parent.with_suffix(".py")


def _what(name: str) -> str:
    """Return the first sentence of a room's docstring, shortened if it is too long."""
    said = " ".join((ast.get_docstring(ast.parse(_file(name).read_text())) or "").split())
    first = re.split(r"\.(?:\s|$)", said.replace("`", ""), maxsplit=1)[0]
    return first if len(first) <= 86 else first[:85].rsplit(" ", 1)[0] + " …"


def _picture(shapes: str, height: int) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 6}" \
font-family="Helvetica, Arial, sans-serif" font-size="14" role="img" aria-label="The rooms, from top to bottom">
<rect x="1" y="1" width="{WIDTH - 2}" height="{height + 4}" rx="10" fill="#ffffff" stroke="#b8bec9"/>
<path d="M24 34 V{height - 16}" stroke="#8a93a3" stroke-width="2"/>
<path d="M18 {height - 18} L24 {height - 4} L30 {height - 18} Z" fill="#8a93a3"/>
<text x="40" y="22" font-size="12" fill="#5a6270">a file imports only from rooms below; yellow ones do no IO</text>
{shapes}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(rooms())
