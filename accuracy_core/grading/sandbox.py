"""Confinement of a submission's process: Landlock for files and TCP, seccomp for sockets, limits for the rest.

Applied by the process to itself, before any of the submission's code is loaded, and irrevocable. Kernel interfaces as
in landlock(7), seccomp(2) and setrlimit(2); through ctypes, as no Python binding of theirs is kept up.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
#: every right of the first ABI, and REFER, TRUNCATE, IOCTL_DEV of later ones
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
_TCP = (1 << 0) | (1 << 1)  # bind, connect; from ABI 4 on
#: system calls that open a network, reach or signal another process, or start one, by machine: socket, connect, bind,
#: listen, socketpair, ptrace, process_vm_readv and _writev, pidfd_open, kill, tkill, execve, execveat, fork, vfork
_DENIED = {
    "x86_64": (41, 42, 49, 50, 53, 101, 310, 311, 434, 62, 200, 59, 322, 57, 58),
    "aarch64": (198, 203, 200, 201, 199, 117, 270, 271, 434, 129, 130, 221, 281),
}
#: (clone, clone3): only threads may be cloned; clone3 hides its flags in memory, and libc falls back to clone
_CLONE = {"x86_64": (56, 435), "aarch64": (220, 435)}
_CLONE_THREAD = 0x00010000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ERRNO_EPERM, _ERRNO_ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


class SandboxUnavailable(OSError):
    """This kernel cannot confine a process: nothing of a submission may run."""


def confine(
    writable: Path,
    readable: Sequence[Path] = (Path("/"),),
    *,
    memory_bytes: int,
    cpu_seconds: int,
    file_bytes: int = 1 << 30,
) -> None:
    """Confine this process and its children: writes below `writable` only, no network, no
    new process, limits on the rest. Threads are allowed.

    Raises SandboxUnavailable when the kernel lacks Landlock or seccomp.
    """
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_seconds)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SandboxUnavailable(ctypes.get_errno(), "no_new_privs is refused")
    _landlock(libc, writable, readable)
    _seccomp(libc)


def available() -> bool:
    """Whether this kernel can do it."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_CREATE_RULESET, None, 0, 1) >= 1 and platform.machine() in _DENIED


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _landlock(libc: ctypes.CDLL, writable: Path, readable: Sequence[Path]) -> None:
    abi = int(libc.syscall(_CREATE_RULESET, None, 0, 1))
    if abi < 1:
        raise SandboxUnavailable(ctypes.get_errno(), "the kernel has no Landlock")
    files = _ALL_FILES[min(abi, max(_ALL_FILES))]
    attributes = struct.pack("=QQ", files, _TCP if abi >= 4 else 0)[: 16 if abi >= 4 else 8]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise SandboxUnavailable(ctypes.get_errno(), "no Landlock ruleset")
    try:
        for path, rights in [*((path, _READ_ONLY) for path in readable), (writable, files)]:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", rights & files, descriptor)
                if libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0):
                    raise SandboxUnavailable(ctypes.get_errno(), f"no Landlock rule for {path}")
            finally:
                os.close(descriptor)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            raise SandboxUnavailable(ctypes.get_errno(), "Landlock is refused")
    finally:
        os.close(ruleset)


def _seccomp(libc: ctypes.CDLL) -> None:
    """A classic BPF filter: another architecture is killed, calls in _DENIED get EPERM, the rest passes."""
    machine = platform.machine()
    if machine not in _DENIED:
        raise SandboxUnavailable(0, f"no list of system calls for {machine}")
    clone, clone3 = _CLONE[machine]
    load, equal, any_bit, ret = 0x20, 0x15, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (ret, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(equal, 0, 1, clone3), (ret, 0, 0, _ERRNO_ENOSYS)]
    # clone: the low half of its first argument, at offset 16, has the thread flag, or it is refused
    program += [(equal, 0, 4, clone), (load, 0, 0, 16), (any_bit, 0, 1, _CLONE_THREAD)]
    program += [(ret, 0, 0, _ALLOW), (ret, 0, 0, _ERRNO_EPERM)]
    for number in _DENIED[machine]:
        program += [(equal, 0, 1, number), (ret, 0, 0, _ERRNO_EPERM)]
    program.append((ret, 0, 0, _ALLOW))
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, fprog, 0, 0):
        raise SandboxUnavailable(ctypes.get_errno(), "seccomp is refused")
