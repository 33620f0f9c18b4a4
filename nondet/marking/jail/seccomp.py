"""A system-call filter: no sockets, no new processes, no signals to others, no mounts.

Classic BPF as in seccomp(2). Every refused call fails with EPERM, so the program sees an ordinary
PermissionError and the verdict is the same on every machine. Numbers are those of the Linux
headers asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# name: (x86_64, aarch64); None where the architecture has no such call.
REFUSED: dict[str, tuple[int, int | None]] = {
    "socket": (41, 198),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "acct": (163, 89),
    "personality": (135, 92),
    "quotactl": (179, 60),
}
# Allowed only when the first argument is the caller's own process.
ONLY_SELF = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
SELF_OR_ZERO = {"prlimit64": (302, 261)}
CLONE, CLONE3 = (56, 220), (435, 435)
FCNTL, IOCTL = (72, 25), (16, 29)
OWNER_COMMANDS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file
OWNER_REQUESTS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x10000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value & 0xFFFFFFFF)


def filter_program(pid: int) -> bytes | None:
    """The filter for one process as BPF bytes; None on a machine it is not written for."""
    if platform.machine() not in _MACHINES:
        return None
    arch, audit = _MACHINES[platform.machine()]
    refuse, allow = _step(_RETURN, _ERRNO | _EPERM), _step(_RETURN, _ALLOW)
    number, argument = _step(_LOAD, 0), (_step(_LOAD, 16), _step(_LOAD, 24))
    steps = [_step(_LOAD, 4), _step(_EQUAL, audit, 1, 0), _step(_RETURN, _KILL), number]
    if arch == 0:  # the x32 numbers would go round the list
        steps += [_step(_AT_LEAST, 0x40000000, 0, 1), _step(_RETURN, _KILL)]
    for pair in REFUSED.values():
        call = pair[arch]
        if call is not None:
            steps += [_step(_EQUAL, call, 0, 1), refuse]
    steps += [_step(_EQUAL, CLONE3[arch], 0, 1), _step(_RETURN, _ERRNO | _ENOSYS)]

    def guarded(call: int, checks: list[bytes]) -> list[bytes]:
        return [_step(_EQUAL, call, 0, len(checks)), *checks]

    thread = [argument[0], _step(_ANY_BIT, _CLONE_THREAD, 0, 1), allow, refuse]
    steps += guarded(CLONE[arch], thread)
    for own in ONLY_SELF.values():
        steps += guarded(own[arch], [argument[0], _step(_EQUAL, pid, 0, 1), allow, refuse])
    for own in SELF_OR_ZERO.values():
        either = [argument[0], _step(_EQUAL, pid, 1, 0), _step(_EQUAL, 0, 0, 1), allow, refuse]
        steps += guarded(own[arch], either)
    for pair2, bad in ((FCNTL, OWNER_COMMANDS), (IOCTL, OWNER_REQUESTS)):
        refusals = [part for value in bad for part in (_step(_EQUAL, value, 0, 1), refuse)]
        steps += guarded(pair2[arch], [argument[1], *refusals, allow])
    return b"".join([*steps, allow])


def refuse_calls(libc: ctypes.CDLL) -> bool:
    """Put the filter in force for this process, for good. False where that is not possible."""
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    code = filter_program(os.getpid())
    if code is None:
        return False
    program = _Program(len(code) // 8, code)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
