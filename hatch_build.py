"""The description and the addresses of the project on a package index, which a release builds from one variable.

A package index shows README.md without the repository, so relative links and pictures would point at nothing. With
$AGENTGIT_REPOSITORY_URL, such as https://git.example.com/team/agentgit, they point at the files of the version's tag,
as GitHub and GitLab serve them. Without it, links become their texts and pictures are left out.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "AGENTGIT_REPOSITORY_URL"

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)]+)\)")
"""A link to a file of the repository, or a picture in it."""

COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


class ProjectMetadata(MetadataHookInterface):
    """Add the description and the addresses of the project to its metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`, unless the source distribution that is built from has them.

        Args:
            metadata: The table `project` of pyproject.toml.
        """
        address, tag = os.environ.get(VARIABLE, "").rstrip("/"), f"v{metadata['version']}"
        if address and not re.fullmatch(r"https://[^\s()<>]+", address):
            raise ValueError(f"{VARIABLE} must be an https address, such as https://git.example.com/team/agentgit")
        if "readme" not in metadata:
            page = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            metadata["readme"] = {"content-type": "text/markdown", "text": description(page, address, tag)}
        if "urls" not in metadata and address:
            metadata["urls"] = urls(address, tag)


def description(page: str, address: str, tag: str) -> str:
    """Return the text of README.md for a page that is not in the repository.

    Args:
        page: The text of README.md.
        address: The address of the repository; empty if it is not known.
        tag: The tag of the version.
    """

    def elsewhere(link: re.Match[str]) -> str:
        if not address:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({address}/{kind}/{tag}/{link['path']})"

    return LINK.sub(elsewhere, COMMENT.sub("", page))


def urls(address: str, tag: str) -> dict[str, str]:
    """Return the addresses that an index lists beside the description.

    Args:
        address: The address of the repository.
        tag: The tag of the version.
    """
    files = f"{address}/blob/{tag}"
    return {
        "Repository": address,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Security": f"{files}/SECURITY.md",
        "Issues": f"{address}/issues",
    }
