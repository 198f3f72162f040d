"""Values that describe a container: its snapshots, and the result of a restore."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentgit.values import shown


@dataclass(frozen=True)
class ContainerSnapshot:
    """The files of a container at one moment, as an image.

    Args:
        id: The id that `restore` and `delete` take.
        message: The user's description of it.
        created_at: UTC.
        kind: `manual`, or `safety` if a restore took it.
        image: The tag of the image.
        size: The size of the image with the layers that it shares, in bytes.
        running: True if the container ran then.
        not_included: Paths in the container that the image does not hold: volumes, mounts.
        settings: The options that a container of it is made with, if the container itself is gone.
    """

    id: str
    message: str
    created_at: datetime
    kind: str
    image: str
    size: int
    running: bool
    settings: tuple[str, ...] = ()
    not_included: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like values."""
        return {
            "id": self.id,
            "message": self.message,
            "created_at": self.created_at.isoformat(),
            "kind": self.kind,
            "image": self.image,
            "size": self.size,
            "running": self.running,
            "not_included": list(self.not_included),
        }


@dataclass(frozen=True)
class ContainerRestored:
    """The result of restoring a container.

    Args:
        snapshot: The id of the snapshot that the container is based on now.
        safety: The id of the snapshot that was taken of it before; None if there was no container.
        not_included: Paths in the container that are in no image, so that they are unchanged: volumes, mounts.
        not_kept: Settings of the old container that the engine did not give the new one in the same way.
        not_mounted: Paths that were a volume or a mount when the snapshot was taken, and are none now.
    """

    snapshot: str
    safety: str | None
    not_included: tuple[str, ...]
    not_kept: tuple[str, ...]
    not_mounted: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[tuple[str, str], ...]:
        """The paths that stay as they are, each with the reason."""
        return tuple((path, "a volume or a mount, which no image holds") for path in self.not_included)

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """The paths that cannot be restored, each with the reason."""
        return tuple((path, "a volume or a mount that the container does not have now") for path in self.not_mounted)

    def __str__(self) -> str:
        lines = [f"restored {self.snapshot}"]
        lines += [f"{self.safety} is how it was before"] if self.safety else []
        lines += [f"missing: {shown(path)} was {why}" for path, why in self.missing]
        lines += [f"left as it is: {shown(path)} is {why}" for path, why in self.left]
        return "\n".join(lines + [f"not the same as before: {name}" for name in self.not_kept])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like values."""
        return {
            "snapshot": self.snapshot,
            "safety": self.safety,
            "not_included": list(self.not_included),
            "not_kept": list(self.not_kept),
            "not_mounted": list(self.not_mounted),
        }
