"""Confinement of a submission's process: Landlock for files and TCP, seccomp for sockets, limits for the rest.

Applied by the process to itself, before any of the submission's code is loaded, and irrevocable. Kernel interfaces as
in landlock(7), seccomp(2) and setrlimit(2); through ctypes, as no Python binding of theirs is kept up.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import accuracy_core

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
#: every right of the first ABI, and REFER, TRUNCATE, IOCTL_DEV of later ones
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
#: TRUNCATE is bit 14, IOCTL_DEV bit 15; a rule for a file may hold no right of directories
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_DEVICE = _OF_A_FILE & ~_EXECUTE
_TCP = (1 << 0) | (1 << 1)  # bind, connect; from ABI 4 on
#: sandbox of signals and abstract sockets; from ABI 6 on
_SCOPED = (1 << 0) | (1 << 1)
#: system calls that open a network, reach another process, start one, or hold memory that no limit counts, by machine:
#: socket, connect, bind, listen, socketpair; ptrace, process_vm_readv and _writev, pidfd_open, _getfd, _send_signal,
#: process_madvise, kcmp, migrate_pages, move_pages; kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo; execve, execveat,
#: fork, vfork, unshare, setns; shmget, shmat, shmctl, msgget, semget, memfd_create; io_uring (it calls for others what
#: is refused here); bpf, perf_event_open, userfaultfd, keyctl, add_key, request_key, mount, chroot
_DENIED = {
    "x86_64": (
        41, 42, 49, 50, 53, 101, 310, 311, 434, 438, 424, 440, 312, 256, 279, 62, 200, 129, 297, 59, 322, 57, 58, 272,
        308, 29, 30, 31, 68, 64, 319, 425, 426, 427, 321, 298, 323, 250, 248, 249, 165, 161,
    ),
    "aarch64": (
        198, 203, 200, 201, 199, 117, 270, 271, 434, 438, 424, 440, 272, 238, 239, 129, 130, 138, 240, 221, 281, 97,
        268, 194, 196, 195, 186, 190, 279, 425, 426, 427, 280, 241, 282, 219, 217, 218, 40, 51,
    ),
}  # fmt: skip
#: allowed for this process only: tgkill(pid, ...), which abort() uses
_OWN_ONLY = {"x86_64": 234, "aarch64": 131}
#: allowed for "this process" or "this thread" only, whose number is 0: prlimit64, setpriority's who is its second
#: argument (sched_setaffinity, sched_setparam, sched_setscheduler, sched_setattr have it first)
_ZERO_FIRST = {"x86_64": (302, 203, 142, 144, 314), "aarch64": (261, 122, 118, 119, 274)}
_REFUSED_TOO = {"x86_64": (141, 251), "aarch64": (140, 30)}  # setpriority, ioprio_set
#: fcntl may not say who gets a descriptor's signals: F_SETOWN, F_SETSIG, F_SETOWN_EX
_FCNTL = {"x86_64": 72, "aarch64": 25}
_FCNTL_DENIED = (8, 10, 15)
#: (clone, clone3): only threads may be cloned; clone3 hides its flags in memory, and libc falls back to clone
_CLONE = {"x86_64": (56, 435), "aarch64": (220, 435)}
_CLONE_THREAD = 0x00010000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: numbers from here on are another ABI's on the same architecture
_X32 = 0x40000000
_ERRNO_EPERM, _ERRNO_ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
#: what Python and torch read; nothing of a home directory, of /etc or of other processes
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system", "/proc/cpuinfo", "/proc/meminfo",
           "/proc/stat", "/dev/urandom", "/dev/random", "/dev/zero")  # fmt: skip
_CUDA = ("/proc", "/sys", "/etc", "/opt", "/dev")


class SandboxUnavailable(OSError):
    """This kernel cannot confine a process: nothing of a submission may run."""


def confine(
    writable: Path,
    readable: Sequence[Path] = (Path("/"),),
    *,
    devices: Sequence[Path] = (Path(os.devnull),),
    memory_bytes: int,
    cpu_seconds: int,
    file_bytes: int = 1 << 30,
) -> None:
    """Confine this process and its children: reads below `readable` and `writable`, writes below `writable` and to
    `devices` only, no network, no new process, no signal to another one, limits on the rest. Threads are allowed.

    Paths that do not exist are left out. Raises SandboxUnavailable when the kernel lacks Landlock or seccomp.
    """
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_seconds)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NOFILE, 256)
    _limit(resource.RLIMIT_CORE, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a grader that is killed leaves nothing behind
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SandboxUnavailable(ctypes.get_errno(), "no_new_privs is refused")
    _landlock(libc, writable, readable, devices)
    _seccomp(libc)


def readable_for(device: str) -> list[Path]:
    """What a submission's process has to read on `device`: interpreter, libraries, this package."""
    own = [Path(accuracy_core.__file__).parent, Path(sys.prefix), Path(sys.base_prefix)]
    return [*own, *map(Path, _SYSTEM), *(map(Path, _CUDA) if device == "cuda" else ())]


def devices_for(device: str) -> list[Path]:
    """Device files that a submission's process writes to."""
    cards = sorted(Path("/dev").glob("nvidia*")) if device == "cuda" else []
    return [Path(os.devnull), *cards]


def available() -> bool:
    """Whether this kernel can do it."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_CREATE_RULESET, None, 0, 1) >= 1 and platform.machine() in _DENIED


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _landlock(libc: ctypes.CDLL, writable: Path, readable: Sequence[Path], devices: Sequence[Path]) -> None:
    abi = int(libc.syscall(_CREATE_RULESET, None, 0, 1))
    if abi < 1:
        raise SandboxUnavailable(ctypes.get_errno(), "the kernel has no Landlock")
    files = _ALL_FILES[min(abi, max(_ALL_FILES))]
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    attributes = struct.pack("=QQQ", files, _TCP, _SCOPED)[:size]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise SandboxUnavailable(ctypes.get_errno(), "no Landlock ruleset")
    rules = [*((path, _READ_ONLY) for path in readable), *((path, _DEVICE) for path in devices), (writable, files)]
    try:
        for path, rights in rules:
            if not path.exists():
                continue
            rights &= files if path.is_dir() else files & _OF_A_FILE
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", rights, descriptor)
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
    load, equal, above, any_bit, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    # instructions: operation, jump when it holds, jump when it does not, value. Arguments of a call lie 8 bytes apart
    # from offset 16 on; the low half is compared, as the kernel takes these arguments as 32-bit numbers
    first, second = 16, 24
    program = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (ret, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(above, 0, 1, _X32), (ret, 0, 0, _KILL)]
    program += [(equal, 0, 1, clone3), (ret, 0, 0, _ERRNO_ENOSYS)]
    # clone: the low half of its first argument, at offset 16, has the thread flag, or it is refused
    program += [(equal, 0, 4, clone), (load, 0, 0, first), (any_bit, 0, 1, _CLONE_THREAD)]
    program += [(ret, 0, 0, _ALLOW), (ret, 0, 0, _ERRNO_EPERM)]
    for number, wanted in [(_OWN_ONLY[machine], os.getpid()), *((one, 0) for one in _ZERO_FIRST[machine])]:
        program += [(equal, 0, 4, number), (load, 0, 0, first), (equal, 0, 1, wanted)]
        program += [(ret, 0, 0, _ALLOW), (ret, 0, 0, _ERRNO_EPERM)]
    denied = len(_FCNTL_DENIED)
    program += [(equal, 0, denied + 3, _FCNTL[machine]), (load, 0, 0, second)]
    program += [(equal, denied - place, 0, command) for place, command in enumerate(_FCNTL_DENIED)]
    program += [(ret, 0, 0, _ALLOW), (ret, 0, 0, _ERRNO_EPERM)]
    for number in (*_DENIED[machine], *_REFUSED_TOO[machine]):
        program += [(equal, 0, 1, number), (ret, 0, 0, _ERRNO_EPERM)]
    program.append((ret, 0, 0, _ALLOW))
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, fprog, 0, 0):
        raise SandboxUnavailable(ctypes.get_errno(), "seccomp is refused")
