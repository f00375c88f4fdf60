"""The file behind L3: as many slots of one size as the tier has pages; page number = slot number.

    | slot 0 | slot 1 | ... | slot n - 1 | MARK |

The mark at the end says whose file this is: a file that is neither empty nor marked is not
overwritten. (While it gets its size, it is marked at its beginning: a run may be killed then, too.)
There is no header and no directory, and what is in the slots is not read back after a
restart: which page holds what is known only to the engine that wrote it.

    path given is ...   the file is                            at exit
    None, or a folder   made under a name of its own           removed
    a file, or nothing  taken over or made                     kept

A file is locked (flock) while it is open. The lock goes with the process, so a killed run leaves
none, and a file under such a name that nobody locks is a dead run's: the next one removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Literal

from hicache.errors import InputError, TransferError

PREFIX, SUFFIX = "hicache-l3-", ".slots"
MARK = b"hicache-lab slots of L3\n"
PATIENCE_S = 0.5
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Room = Literal["reserved", "sparse"]
Access = Literal["page cache", "O_DIRECT"]


class SlotFile:
    """An open, locked slot file. `fd` is good for as many threads as like."""

    def __init__(
        self, path: Path | None, slots: int, slot_bytes: int, access: Access, room: Room
    ) -> None:
        """`room` "reserved": the disk has room for all slots, or InputError; "sparse": blocks are
        allocated as slots are written, which then may fail.
        """
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.size_bytes = slots * slot_bytes + len(MARK)
        if path is None:
            path = Path(tempfile.gettempdir())
        self.temporary = path.is_dir()
        if self.temporary:
            remove_stale(path)
            self.fd, self.path = _make_in(path)
        else:
            self.fd, self.path = _take(path)
        ours = os.fstat(self.fd)
        self.more_fds: list[int] = []
        name = self.path if self.temporary else None
        self._close = weakref.finalize(
            self, _release, self.fd, self.more_fds, ours, name, os.getpid()
        )
        try:
            self._allocate(room)
            if access == "O_DIRECT":
                _bypass_cache(self.fd, self.path)
            else:
                _expect_no_order(self.fd)
        except BaseException:
            self.close()
            raise
        self.filesystem = _filesystem(os.fstat(self.fd).st_dev)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._close.alive

    def close(self) -> None:
        """Close the file, and with it the lock; remove it if it has a name of its own."""
        self._close()

    def open_more(self, count: int) -> list[int]:
        """Descriptors for reading through the page cache: `count` more open files of this file, in
        `more_fds` and closed with it. They are for threads that read at once: the kernel counts the
        users of an open file, and cores that count in one place wait for one another. No lock is
        theirs. Fewer, where there is no /proc, no permission, or half of the descriptors that this
        process may have are in use.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        ours = os.fstat(self.fd)
        for _ in range(count):
            try:
                fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
            except OSError:
                break
            if fd >= most or not os.path.samestat(os.fstat(fd), ours):
                os.close(fd)
                break
            self.more_fds.append(fd)
            _expect_no_order(fd)
        return self.more_fds

    def check(self, verb: str) -> None:
        """Whether the file is still the one that was opened. Raises TransferError.

        `verb`: "reading", "writing", for the message.
        """
        assert not self.closed, "an operation on a closed file"
        try:
            now = os.fstat(self.fd)
        except OSError as error:
            raise TransferError(f"{verb} {self.path} failed: {_reason(error)}") from error
        if not now.st_nlink:
            raise TransferError(f"{verb} {self.path} failed: the file was removed or replaced")
        if now.st_size != self.size_bytes:
            raise TransferError(
                f"{verb} {self.path} failed: the file has {now.st_size} bytes instead of "
                f"{self.size_bytes}; something else cut or overwrote it"
            )

    def failure(self, verb: str, position: int, error: OSError | str) -> TransferError:
        """What to raise for a request at `position` that failed."""
        why = error if isinstance(error, str) else _reason(error)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            why += f"; {_free_bytes(self.fd)} bytes are free on its disk"
        slot = position // self.slot_bytes
        return TransferError(f"{verb} slot {slot} of {self.path} failed: {why}")

    def _allocate(self, room: Room) -> None:
        """Give the file its size, its room and its mark."""
        reserved_bytes = os.fstat(self.fd).st_blocks * 512
        try:
            os.pwrite(self.fd, MARK, 0)
            if room == "reserved":
                free_bytes = _free_bytes(self.fd)
                if self.size_bytes > free_bytes + reserved_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(self.fd, min(self.size_bytes, os.fstat(self.fd).st_size))
                os.posix_fallocate(self.fd, 0, self.size_bytes)
            else:
                os.ftruncate(self.fd, len(MARK))
                os.ftruncate(self.fd, self.size_bytes)
            os.pwrite(self.fd, MARK, self.size_bytes - len(MARK))
        except OSError as error:
            os.ftruncate(self.fd, 0)
            if not self.temporary:
                self.path.unlink(missing_ok=True)
            raise InputError(
                f"{self.path}: no room for an L3 of {self.slots} pages of {self.slot_bytes} "
                f"bytes: {self.size_bytes} bytes were asked for, {_free_bytes(self.fd)} are free "
                f"({_reason(error)})"
            ) from error


def remove_stale(folder: Path) -> list[Path]:
    """Remove files that runs left in `folder` when they were killed; what is in use, or belongs to
    somebody else, stays. Returns the removed ones.
    """
    removed: list[Path] = []
    for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISREG(os.fstat(fd).st_mode) and _is_at(path, os.fstat(fd)):
                path.unlink()
                removed.append(path)
        except OSError:
            continue  # in use
        finally:
            os.close(fd)
    return removed


def _make_in(folder: Path) -> tuple[int, Path]:
    """A new file with a name of its own, locked."""
    while True:
        try:
            fd, name = tempfile.mkstemp(SUFFIX, PREFIX, folder)
        except OSError as error:
            raise InputError(
                f"{folder}: cannot make a file for L3 here: {_reason(error)}"
            ) from error
        path = Path(name)
        # Between its making and its locking a starting run may take it for a dead one's.
        try:
            _lock(fd, path)
            if _is_at(path, os.fstat(fd)):
                return fd, path
        except _InUse:
            pass
        except InputError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        os.close(fd)


def _take(path: Path) -> tuple[int, Path]:
    """The file at `path`, made if there is none, locked."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise InputError(f"{path}: cannot be opened for L3: {_reason(error)}") from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InputError(f"{path}: L3 needs a regular file")
            _lock(fd, path)
            if not _is_at(path, os.fstat(fd)):  # removed while it was being opened
                os.close(fd)
                continue
            size_bytes = os.fstat(fd).st_size
            places = (max(0, size_bytes - len(MARK)), 0)
            if size_bytes and all(os.pread(fd, len(MARK), place) != MARK for place in places):
                raise InputError(
                    f"{path}: has {size_bytes} bytes that are not an L3 of an earlier run, and "
                    f"would be overwritten; remove it, or give another path"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd, path


class _InUse(InputError):
    """Another process holds the lock."""


def _lock(fd: int, path: Path) -> None:
    """Lock, or tell who has it. The io_uring of a killed process holds its file until the kernel
    has taken it down, so that nothing is written there after the lock is gone: hence the patience.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise _InUse(
                    f"{path}: is the L3 of another run{_owner(os.fstat(fd))}; wait for its end, "
                    f"or give another path"
                ) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be locked: {_reason(error)}") from error
        time.sleep(0.02)


def _owner(status: os.stat_result) -> str:
    """Who holds the lock, if the kernel tells."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()  # "1:", "FLOCK", "ADVISORY", "WRITE", pid, device, 0, "EOF"
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == device:
            return f" (process {fields[4]})"
    return ""


def _bypass_cache(fd: int, path: Path) -> None:
    """O_DIRECT for an open file."""
    os.fsync(fd)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        kind = _filesystem(os.fstat(fd).st_dev)
        raise InputError(
            f"{path}: the file system ({kind}) does not do O_DIRECT ({_reason(error)}); choose "
            f"the back-end pread, or another folder"
        ) from error


def _expect_no_order(fd: int) -> None:
    """What lies behind a page is another prompt's: reading ahead keeps the disk busy with what
    nobody asked for.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def _is_at(path: Path, status: os.stat_result) -> bool:
    """Whether `path` still names that file."""
    try:
        return os.path.samestat(status, path.stat())
    except OSError:
        return False


def _release(
    fd: int, more_fds: list[int], ours: os.stat_result, path: Path | None, process: int
) -> None:
    """Close and remove, once: at `close`, when the object is forgotten, or at the exit of the
    process that opened the file (not of one that it forked).
    """
    ours_to_end = os.getpid() == process
    if path is not None and ours_to_end and _is_at(path, ours):
        path.unlink(missing_ok=True)
    for more in more_fds:
        with suppress(OSError):
            os.close(more)
    with suppress(OSError):  # closed underneath: nothing is left to do
        if ours_to_end:  # an io_uring that is being taken down may hold the file a little longer
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _free_bytes(fd: int) -> int:
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize


def _filesystem(device: int) -> str:
    """The kind of file system: "ext4", "tmpfs", ...; "?" where the kernel does not tell."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "?"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0]
    return "?"


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror} ({name})" if name else str(error)
