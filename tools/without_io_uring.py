#!/usr/bin/env python3
"""Runs a program where the kernel refuses io_uring, as Docker's default seccomp profile does.

usage: tools/without_io_uring.py PROGRAM [ARGS...]      Linux on x86_64 or aarch64
"""

import ctypes
import os
import struct
import sys

SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_EPERM = 0x00050000 | 1
IO_URING_SETUP = 425  # the same number on x86_64 and aarch64; enter and register follow
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def instruction(code, jump_true, jump_false, value):
    return struct.pack("HBBI", code, jump_true, jump_false, value)


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    # Load the system call number; EPERM for 425..=427 (io_uring_setup, _enter, _register), allow the rest.
    program = b"".join([
        instruction(0x20, 0, 0, 0),
        instruction(0x35, 0, 2, IO_URING_SETUP),
        instruction(0x25, 1, 0, IO_URING_SETUP + 2),
        instruction(0x06, 0, 0, SECCOMP_RET_EPERM),
        instruction(0x06, 0, 0, SECCOMP_RET_ALLOW),
    ])
    code = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters, 0, 0):
        raise SystemExit(f"seccomp: {os.strerror(ctypes.get_errno())}: this kernel cannot filter system calls")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
