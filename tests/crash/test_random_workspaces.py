"""Restore plans and reports match the disk in random workspaces with links, special files and changing limits."""

from __future__ import annotations

import os
import pwd
import textwrap

import processes
import pytest
import random_workspaces
import soaks

KINDS = ("git", "directory")

AS_NOBODY = """
    import os, pwd, sys
    from pathlib import Path
    import random_workspaces
    place, kind, first, last, rounds = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(pwd.getpwnam("nobody").pw_gid)
        os.setuid(pwd.getpwnam("nobody").pw_uid)
    os.chdir(place)
    for seed in range(first, last):
        (place / str(seed)).mkdir()
        random_workspaces.live(place / str(seed), kind, seed, rounds, closed=True)
"""


def lived(place, kind, seeds, rounds):
    """Run random workspaces as a user whom file modes restrict."""
    place.mkdir()
    for folder in (place.parent, *place.parent.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith(("/dev/shm/", "/tmp/")):  # noqa: S108
            folder.chmod(folder.stat().st_mode | 0o011)
    if os.geteuid() == 0:
        os.chown(place, pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
    done = processes.run(textwrap.dedent(AS_NOBODY), place, kind, *seeds, rounds)
    assert done.returncode == 0, done.stdout + done.stderr


def many(first, number):
    """Return the seeds and the rounds of long lives, which only `make soak` runs."""
    first += soaks.SEED
    return pytest.param((first, first + number), 40, marks=pytest.mark.soak)


@pytest.mark.parametrize(("seeds", "rounds"), [((0, 2), 10), ((2, 4), 10), many(1000, 30), many(1030, 30)])
@pytest.mark.parametrize("kind", KINDS)
def test_restore_reports_match_the_disk_in_random_workspaces(tmp_path, kind, seeds, rounds):
    for seed in range(*seeds):
        (tmp_path / str(seed)).mkdir()
        random_workspaces.live(tmp_path / str(seed), kind, seed, rounds, closed=False)


@pytest.mark.parametrize(("seeds", "rounds"), [((100, 103), 10), many(5000, 20), many(5020, 20)])
@pytest.mark.parametrize("kind", KINDS)
def test_restore_reports_match_the_disk_for_an_unprivileged_user(tmp_path, kind, seeds, rounds):
    lived(tmp_path / "place", kind, seeds, rounds)
