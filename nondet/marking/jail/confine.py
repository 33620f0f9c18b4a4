"""What a confined process may see: its own folder and the Python library, nothing else.

Two layers. A private root made of read-only binds in namespaces of its own (mounts, network, IPC,
host name); and Landlock rules that say the same again and also work where namespaces are not
allowed. See namespaces(7), mount_namespaces(7), landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sysconfig
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_KEPT = 2 | 4 | 8 | 1024  # nosuid, nodev, noexec, noatime: a user namespace may not clear them
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_LANDLOCK = (444, 445, 446)  # create_ruleset, add_rule, restrict_self
# Rights on files known to each Landlock version, as one mask.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_WRITE, _READ, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_NET_TCP, _SCOPES = 3, 3
TMPFS = "size=64m,nr_inodes=1024,mode=700"


def readable() -> list[str]:
    """Folders and devices a Python program needs to read: the library and shared objects."""
    names = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    names += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", str(Path(os.__file__).parent)]
    names += [str(sysconfig.get_config_var("LIBDIR") or "/usr/lib")]
    found = dict.fromkeys(os.path.realpath(name) for name in names if Path(name).is_dir())
    top = [a for a in found if not any(a != b and a.startswith(b + "/") for b in found)]
    return [*top, "/dev/null", "/dev/zero", "/dev/urandom"]


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    args = (source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data.encode())
    _check(LIBC.mount(*args), f"mount {target}")


def own_namespaces(root: str) -> None:
    """Give this process a private root at the empty folder ``root`` and no network.

    Root needs no user namespace and becomes ``nobody`` afterwards; anybody else gets one in which
    they stay who they are. Raises OSError where the system does not allow it; the caller must
    then start anew, since half of it may have been done.
    """
    user, group = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWNET | _NEWIPC | _NEWUTS | (_NEWUSER if user else 0)
    _check(LIBC.unshare(flags), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for path in readable():
        _bind(path, root + path)
    for link in ("lib", "lib64"):
        if Path("/" + link).is_symlink() and not Path(root, link).exists():
            Path(root, link).symlink_to(Path("/" + link).readlink())
    box = Path(root, "box")
    box.mkdir()
    _mount("tmpfs", str(box), "tmpfs", _NOSUID | _NODEV, TMPFS)
    os.chown(box, user or NOBODY, group or NOBODY)
    os.chdir(root)
    _mount("none", root, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    machine = os.uname().machine
    _check(LIBC.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    _check(LIBC.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def _bind(path: str, target: str) -> None:
    if Path(path).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    _mount(path, target, None, _BIND | _REC)
    kept = os.statvfs(target).f_flag & _KEPT
    devices = 0 if path.startswith("/dev/") else _NODEV
    _mount("none", target, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | devices | kept)


def give_up_rights(change_user: bool) -> None:
    """Drop all capabilities, and become ``nobody`` where root may and is asked to."""
    if change_user and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    call = _CAPSET.get(os.uname().machine)
    if call is not None:
        LIBC.syscall(call, struct.pack("Ii", 0x20080522, 0), bytes(24))


def landlock(writable: str) -> bool:
    """Allow this process to read ``readable`` and to use one folder; no TCP. False if not there."""
    create, add, restrict = _LANDLOCK
    version = LIBC.syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    files = _FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)]
    fields = [files, _NET_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0]
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attr = struct.pack("QQQ", *fields)[:size]
    rules = LIBC.syscall(create, attr, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for path, rights in [(p, _READ | _READ_DIR) for p in readable()] + [(writable, files)]:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            wanted = rights if Path(path).is_dir() else _READ | (_WRITE if "null" in path else 0)
            LIBC.syscall(add, rules, 1, struct.pack("=Qi", wanted & files, handle), 0)
            os.close(handle)
        LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        return bool(LIBC.syscall(restrict, rules, 0) == 0)
    finally:
        os.close(rules)
