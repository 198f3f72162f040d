"""Container values: snapshots, the result of a restore, and settings converted to command-line options."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentgit.values import escape_path


@dataclass(frozen=True)
class ContainerSnapshot:
    """The files of a container at one moment, as an image."""

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
        """Return the fields as JSON-like values."""
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
    """The result of restoring a container."""

    snapshot: str
    safety: str | None
    not_included: tuple[str, ...]
    not_kept: tuple[str, ...]
    not_mounted: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[tuple[str, str], ...]:
        """The paths that are unchanged, each with the reason."""
        return tuple((path, "a volume or a mount, which is not part of an image") for path in self.not_included)

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """The paths that cannot be restored, each with the reason."""
        return tuple((path, "a volume or a mount that the container no longer has") for path in self.not_mounted)

    def __str__(self) -> str:
        lines = [f"restored {self.snapshot}"]
        lines += [f"{self.safety} holds the previous state"] if self.safety else []
        lines += [f"missing: {escape_path(path)} was {why}" for path, why in self.missing]
        lines += [f"unchanged: {escape_path(path)} is {why}" for path, why in self.left]
        return "\n".join(lines + [f"setting changed: {name}" for name in self.not_kept])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-like values."""
        return {
            "snapshot": self.snapshot,
            "safety": self.safety,
            "not_included": list(self.not_included),
            "not_kept": list(self.not_kept),
            "not_mounted": list(self.not_mounted),
        }


Inspection = Mapping[str, Any]
"""The description of one container, as `docker inspect` or `podman inspect` prints it."""

STRING_OPTIONS = {
    "NetworkMode": "--network",
    "CgroupnsMode": "--cgroupns",
    "IpcMode": "--ipc",
    "PidMode": "--pid",
    "UTSMode": "--uts",
    "UsernsMode": "--userns",
    "CpusetCpus": "--cpuset-cpus",
    "CpusetMems": "--cpuset-mems",
    "VolumeDriver": "--volume-driver",
}
"""Settings with a string value, each with its option."""

NUMBER_OPTIONS = {
    "Memory": "--memory",
    "MemoryReservation": "--memory-reservation",
    "MemorySwap": "--memory-swap",
    "CpuShares": "--cpu-shares",
    "CpuPeriod": "--cpu-period",
    "CpuQuota": "--cpu-quota",
    "BlkioWeight": "--blkio-weight",
    "OomScoreAdj": "--oom-score-adj",
    "PidsLimit": "--pids-limit",
    "ShmSize": "--shm-size",
}
"""Settings with a numeric value, each with its option. 0 and null mean that the setting was not given."""

FLAG_OPTIONS = {
    "AutoRemove": "--rm",
    "Init": "--init",
    "OomKillDisable": "--oom-kill-disable",
    "Privileged": "--privileged",
    "PublishAllPorts": "--publish-all",
    "ReadonlyRootfs": "--read-only",
}

LIST_OPTIONS = {
    "Binds": "--volume",
    "CapAdd": "--cap-add",
    "CapDrop": "--cap-drop",
    "Dns": "--dns",
    "DnsOptions": "--dns-option",
    "DnsSearch": "--dns-search",
    "ExtraHosts": "--add-host",
    "GroupAdd": "--group-add",
    "Links": "--link",
    "SecurityOpt": "--security-opt",
    "VolumesFrom": "--volumes-from",
}

MAPPING_OPTIONS = {"Sysctls": "--sysctl", "StorageOpt": "--storage-opt"}

HOST_NAMED_MODES = ("host", "container:")
"""Prefixes of network modes in which a container has no host name of its own."""

COMPARED_FIELDS = (
    "Cmd",
    "Domainname",
    "Entrypoint",
    "Env",
    "Hostname",
    "OpenStdin",
    "StopSignal",
    "Tty",
    "User",
    "WorkingDir",
)
"""The fields of `Config` that `differences` compares."""

IGNORED_FIELDS = frozenset(
    {"Annotations", "Binds", "ConsoleSize", "ContainerIDFile", "Isolation", "LogConfig", "Mounts"}
)
"""Fields of `HostConfig` that `differences` ignores: they are not settings, or the container's `Mounts` covers them."""


def options(container: Inspection) -> list[str]:
    """Return the options of `create` for a container with the same settings as this one.

    They do not include the command, environment variables, labels, user and working directory, which the image of a
    snapshot contains.
    """
    return list(_options(container))


def mounts(container: Inspection) -> tuple[str, ...]:
    """Return the paths in a container that its images do not contain: volumes, mounted directories, tmpfs mounts."""
    tmpfs = container["HostConfig"].get("Tmpfs") or {}
    return tuple(sorted({mount["Destination"] for mount in container.get("Mounts") or ()} | set(tmpfs)))


def differences(before: Inspection, after: Inspection) -> tuple[str, ...]:
    """Return the names of the settings that differ between two containers."""
    old_settings, new_settings = _comparable_settings(before), _comparable_settings(after)
    return tuple(
        sorted(
            name
            for name in old_settings.keys() | new_settings.keys()
            if old_settings.get(name) != new_settings.get(name)
        )
    )


def _options(container: Inspection) -> Iterator[str]:
    host = container["HostConfig"]
    for key, option in STRING_OPTIONS.items():
        if host.get(key) not in (None, "", "default"):
            yield f"{option}={host[key]}"
    for key, option in NUMBER_OPTIONS.items():
        if host.get(key) and not (key == "ShmSize" and host.get("IpcMode", "").startswith(HOST_NAMED_MODES)):
            yield f"{option}={host[key]}"
    yield from (option for key, option in FLAG_OPTIONS.items() if host.get(key))
    for key, option in LIST_OPTIONS.items():
        yield from (f"{option}={value}" for value in host.get(key) or ())
    for key, option in MAPPING_OPTIONS.items():
        yield from (f"{option}={name}={value}" for name, value in (host.get(key) or {}).items())
    yield from _formatted_options(host)
    yield from _mount_options(container)
    yield from _process_options(container["Config"], host)


def _formatted_options(host: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of settings that need special formatting."""
    if host.get("NanoCpus"):
        yield f"--cpus={host['NanoCpus'] / 1e9:g}"
    if host.get("Runtime") not in (None, "", "oci"):  # podman always reports "oci"; its runtime is a global option
        yield f"--runtime={host['Runtime']}"
    restart = host.get("RestartPolicy") or {}
    if restart.get("Name") not in (None, "", "no"):
        max_retries = restart.get("MaximumRetryCount")
        yield f"--restart={restart['Name']}" + (f":{max_retries}" if max_retries else "")
    for limit in host.get("Ulimits") or ():
        yield f"--ulimit={limit['Name'].removeprefix('RLIMIT_').lower()}={limit['Soft']}:{limit['Hard']}"
    for port, bindings in (host.get("PortBindings") or {}).items():
        for binding in bindings or ():
            address = f"{binding['HostIp']}:" if binding.get("HostIp") else ""
            yield f"--publish={address}{binding.get('HostPort', '')}:{port}"
    for device in host.get("Devices") or ():
        permissions = device.get("CgroupPermissions")
        yield f"--device={device['PathOnHost']}:{device['PathInContainer']}" + (
            f":{permissions}" if permissions else ""
        )
    for path, tmpfs_options in (host.get("Tmpfs") or {}).items():
        yield f"--tmpfs={path}:{tmpfs_options}" if tmpfs_options else f"--tmpfs={path}"


def _mount_options(container: Inspection) -> Iterator[str]:
    """Yield the options of mounts that are not among the binds. An anonymous volume keeps its generated name."""
    host = container["HostConfig"]
    known_targets = {part for bind in host.get("Binds") or () for part in bind.split(":")}
    for mount in host.get("Mounts") or ():
        known_targets.add(mount["Target"])
        fields = [f"type={mount['Type']}", f"target={mount['Target']}"]
        fields += [f"source={mount['Source']}"] if mount.get("Source") else []
        yield "--mount=" + _comma_separated(fields + (["readonly"] if mount.get("ReadOnly") else []))
    for mount in container.get("Mounts") or ():
        if mount["Type"] == "volume" and mount["Destination"] not in known_targets:
            yield f"--volume={mount['Name']}:{mount['Destination']}" + ("" if mount["RW"] else ":ro")


def _process_options(config: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    if config.get("Tty"):
        yield "--tty"
    if config.get("OpenStdin"):
        yield "--interactive"
    if config.get("StopTimeout") is not None:
        yield f"--stop-timeout={config['StopTimeout']}"
    if config.get("StopSignal"):
        yield f"--stop-signal={config['StopSignal']}"
    is_host_name_shared = (host.get("NetworkMode") or "").startswith(HOST_NAMED_MODES) or host.get("UTSMode") == "host"
    if config.get("Hostname") and not is_host_name_shared:
        yield f"--hostname={config['Hostname']}"
    if config.get("Domainname"):
        yield f"--domainname={config['Domainname']}"


def _comma_separated(fields: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _comparable_settings(container: Inspection) -> dict[str, Any]:
    host = {key: _normalize(value) for key, value in container["HostConfig"].items() if key not in IGNORED_FIELDS}
    config = {key: _normalize(container["Config"].get(key)) for key in COMPARED_FIELDS}
    mount_fields = [
        (mount["Type"], mount.get("Name") or mount.get("Source"), mount["Destination"], mount["RW"])
        for mount in container.get("Mounts") or ()
    ]
    return host | config | {"Mounts": _normalize(mount_fields)}


def _normalize(value: Any) -> Any:
    """Return a normalized value, so that equivalent values are equal: lists are sorted and empty values are None."""
    if isinstance(value, list):
        return sorted(map(repr, value)) or None
    return value or None
