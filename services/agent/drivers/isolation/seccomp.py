"""A filter of system calls that ordinary tasks do not need and that had kernel vulnerabilities.

Decides the list: calls that change the machine, look into other processes, or make new namespaces. They fail with
EPERM, as without the right to them. Numbers are per architecture; where we know none there is no filter, and the
fingerprint says so. Source: the kernel's tables, and what Docker's default profile refuses.
"""

import ctypes
import os
import struct

from services.agent.drivers.isolation.kernel import check, libc

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
#: clone() with any of these flags makes a namespace.
_NAMESPACES = 0x7E020000
#: x86_64 also lets 32-bit-pointer calls in by this bit of the number.
_X32 = 0x40000000
#: Call, its number on x86_64, its number on aarch64; 0: not there.
_TABLE = """
ptrace 101 117            personality 135 92        pivot_root 155 41         chroot 161 51
acct 163 89               mount 165 40              umount2 166 39            swapon 167 224
swapoff 168 225           reboot 169 142            sethostname 170 161       setdomainname 171 162
iopl 172 0                ioperm 173 0              init_module 175 105       delete_module 176 106
quotactl 179 60           settimeofday 164 170      adjtimex 159 171          clock_settime 227 112
kexec_load 246 104        add_key 248 217           request_key 249 218       keyctl 250 219
unshare 272 97            perf_event_open 298 241   name_to_handle_at 303 264 open_by_handle_at 304 265
clock_adjtime 305 266     setns 308 268             process_vm_readv 310 270  process_vm_writev 311 271
kcmp 312 272              finit_module 313 273      kexec_file_load 320 294   bpf 321 280
userfaultfd 323 282       io_uring_setup 425 425    open_tree 428 428         move_mount 429 429
fsopen 430 430            fsconfig 431 431          fsmount 432 432           fspick 433 433
pidfd_getfd 438 438       mount_setattr 442 442
"""
_WORDS = _TABLE.split()
#: Machine -> the kernel's name of its architecture, numbers refused, number of clone.
_CALLS = {
    "x86_64": (0xC000003E, tuple(int(word) for word in _WORDS[1::3]), 56),
    "aarch64": (0xC00000B7, tuple(int(word) for word in _WORDS[2::3] if word != "0"), 220),
}
#: clone3 hides its flags behind a pointer: "not there" makes libraries fall back to clone.
_CLONE3, _ENOSYS = 435, 0x00050026


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def known() -> bool:
    """Return whether a filter exists for this architecture."""
    return os.uname().machine in _CALLS


def program(machine: str) -> bytes:
    """Build the filter of an architecture, in the kernel's form."""
    architecture, calls, clone = _CALLS[machine]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    steps = [step(_LOAD, 4), step(_EQUAL, architecture, 1), step(_RETURN, _KILL), step(_LOAD, 0)]
    steps += [step(_AT_LEAST, _X32, 0, 1), step(_RETURN, _EPERM)]
    steps += [step(_EQUAL, _CLONE3, 0, 1), step(_RETURN, _ENOSYS)]
    for number in sorted(calls):
        steps += [step(_EQUAL, number, 0, 1), step(_RETURN, _EPERM)]
    steps += [step(_EQUAL, clone, 0, 4), step(_LOAD, 16), step(_AND, _NAMESPACES)]
    steps += [step(_EQUAL, 0, 1), step(_RETURN, _EPERM), step(_RETURN, _ALLOW)]
    return b"".join(steps)


def restrict() -> None:
    """Disable the calls permanently, for this process and its children. Needs no_new_privs. Raises OSError."""
    code = program(os.uname().machine)
    filled = _Program(length=len(code) // 8, code=code)
    done = libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(filled), 0, 0)
    check(int(done), "seccomp")
