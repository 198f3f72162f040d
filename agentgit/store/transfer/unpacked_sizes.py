"""To how much the values and files of an export unpack. No IO."""

from __future__ import annotations

from collections.abc import Iterable

UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO = 2**30, 100
"""The size to which a value or a directory may unpack: so many bytes or, if it is more, so many times all contents."""


class UnpackedSizes:
    """The sizes to which the values or the files of an export unpack. Each comes after those that it refers to."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sizes: dict[bytes | int, int] = {}
        self._content_bytes = 0

    def add(self, key: bytes | int, size: int, parts: Iterable[bytes | int] = ()) -> int:
        self._content_bytes += size
        total = size + self.require(parts)
        if key in self._sizes:
            raise ValueError(f"is a duplicate of {self._name(key)}")
        self._sizes[key] = total
        return total

    def require(self, parts: Iterable[bytes | int]) -> int:
        """Check that the parts came before, and that they do not unpack to too much together."""
        total = 0
        for part in parts:
            if part not in self._sizes:
                raise ValueError(f"refers to {self._name(part)}, which did not come before it")
            total += self._sizes[part]
        if total > max(UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO * self._content_bytes):
            raise ValueError(f"unpacks to more than {MAX_UNPACK_RATIO} times the {self._kind}s of the export")
        return total

    def _name(self, key: bytes | int) -> str:
        return f"directory {key}" if isinstance(key, int) else f"{self._kind} {key.hex()}"
