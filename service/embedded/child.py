"""Become a child that cannot outlive its parent, then turn into the real program.

This file is run by path (`python -I -S child.py …`) and imports the standard library only. A wrapper is used because
`preexec_fn` is unsafe where the parent has threads. The order matters:

1. wait for the exclusive lock, which every remaining process of a killed earlier run still holds;
2. remove stale files, now that nobody can be using them;
3. become the user the program accepts (PostgreSQL refuses root);
4. ask for a signal when the parent dies: step 3 would have cleared it; then look whether the parent died meanwhile;
5. accept signals that our own parents may ignore or block, as a shell does for what it runs in the background;
6. exec: the process id stays, so the parent watches the real program.
"""

import argparse
import ctypes
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

EXIT_COULD_NOT_START = 79
"""Anything that went wrong before the exec; the reason is on stderr, where the program's own log goes."""

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CLONE_NEWUSER = 0x10000000
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySet(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def hold_exclusively(path: str, seconds: float) -> None:
    """Take the lock and keep it for the program and all its descendants: the descriptor stays open through exec."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of an earlier run are still there after {seconds:g} s") from None
            time.sleep(0.02)
        else:
            return


def enter_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace in which the program sees itself as `uid`, while files keep their real owner."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {outer_gid} 1"), ("uid_map", f"{uid} {outer_uid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def become(uid: int, gid: int) -> None:
    """Change to `uid` for good, keeping only CAP_DAC_OVERRIDE, root's access to every folder.

    With that one capability no folder's permissions have to change. NO_SETUID_FIXUP makes access(2) honour it too, by
    which PostgreSQL looks for its own executable.
    """
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    low = 1 << _CAP_DAC_OVERRIDE
    sets = (_CapabilitySet * 2)(_CapabilitySet(low, low, low), _CapabilitySet(0, 0, 0))
    _check(_libc.capset(ctypes.byref(header), sets), "capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE)


def die_with_parent(signal_number: int, parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent died before the child could start")


def accept_signals() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--exclusive", help="file to lock for as long as the program or a descendant lives")
    parser.add_argument("--wait", type=float, default=10.0)
    parser.add_argument("--stale", action="append", default=[], help="file to remove first")
    parser.add_argument("--identity", choices=("self", "namespace", "user"), default="self")
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--gid", type=int, default=0)
    parser.add_argument("--reach", help="folder the program must be able to write")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    try:
        if arguments.exclusive is not None:
            hold_exclusively(arguments.exclusive, arguments.wait)
        for path in arguments.stale:
            Path(path).unlink(missing_ok=True)
        if arguments.identity == "namespace":
            enter_namespace(arguments.uid, arguments.gid)
        elif arguments.identity == "user":
            become(arguments.uid, arguments.gid)
        die_with_parent(arguments.signal, arguments.parent)
        if arguments.reach is not None and not os.access(arguments.reach, os.W_OK | os.X_OK):
            raise PermissionError(f"no access to {arguments.reach}")
        accept_signals()
        os.execv(arguments.command[0], arguments.command)  # noqa: S606 - becoming that program is the point
    except OSError as error:
        sys.stderr.write(f"could not start {arguments.command[0]}: {error}\n")
        sys.exit(EXIT_COULD_NOT_START)


if __name__ == "__main__":
    main()
