"""Whose file it is, how long it lives, and what is said when the disk or the kernel refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from file_store_helpers import (
    FORBID_IO_URING,
    ROOT,
    environment,
    fill,
    have_direct,
    needs_io_uring,
    python,
)

from hicache.errors import InputError, TransferError
from hw.storage import ring as io_uring
from hw.storage import slot_file
from hw.storage.file_store import BACKENDS, FileStore
from hw.storage.host import HostBuffer
from hw.storage.slot_file import MARK, remove_stale

PAGE = 8192
OPEN = """
import sys, time
from pathlib import Path
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
store = FileStore(Path(sys.argv[1]), 4, 8192, HostBuffer(4, 8192), workers=2)
store.write(((0, 4),), ((0, 4),))
print(store.file.path, flush=True)
"""


def open_store(path: Path | None, pages: int = 4, **options) -> FileStore:
    return FileStore(path, pages, PAGE, HostBuffer(4, PAGE), **({"workers": 2} | options))


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("hicache-l3-*.slots"))


def test_a_file_in_a_folder_is_removed_at_close(tmp_path):
    store = open_store(tmp_path)
    assert leftovers(tmp_path) == [store.file.path]
    store.close()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_the_temporary_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store(None)
    assert store.file.path.parent == tmp_path
    store.close()


def test_a_file_in_a_folder_is_removed_when_the_process_ends(tmp_path):
    path = python(OPEN, tmp_path).said.strip()
    assert Path(path).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_file_at_a_path_stays_and_is_taken_over(tmp_path):
    path = tmp_path / "l3"
    python(OPEN, path)
    assert path.stat().st_size == 4 * PAGE + len(MARK)
    for pages in (9, 2):
        open_store(path, pages).close()
        assert path.stat().st_size == pages * PAGE + len(MARK)


@pytest.mark.parametrize("content", [b"x", b"# notes\n" * 9000])
def test_a_file_that_is_not_an_l3_is_not_overwritten(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"notes.txt: has {len(content)} bytes that are not an L3"):
        open_store(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/full", "needs a regular file"),
        ("/no/such/folder/l3", "cannot be opened for L3: No such file"),
    ],
)
def test_what_cannot_be_a_slot_file(path, said):
    with pytest.raises(InputError, match=said):
        open_store(Path(path))


def test_a_folder_that_takes_no_files_is_named():
    with pytest.raises(InputError, match="/proc/self: cannot make a file for L3 here"):
        open_store(Path("/proc/self"))


def test_a_second_run_is_told_who_has_the_file(tmp_path):
    path = tmp_path / "l3"
    first = python(OPEN + "sys.stdin.read()", path, wait=False)
    assert first.stdout.readline().strip() == str(path)
    with pytest.raises(InputError, match=f"is the L3 of another run.*{first.pid}"):
        open_store(path)
    assert path.stat().st_size == 4 * PAGE + len(MARK), "it was left as it was"
    first.communicate(timeout=20)
    open_store(path).close()


def test_a_second_store_of_this_process_is_refused_too(tmp_path):
    store = open_store(tmp_path / "l3")
    with pytest.raises(InputError, match="another run"):
        open_store(tmp_path / "l3")
    store.close()


def test_a_killed_run_leaves_no_lock_and_its_file_goes_with_the_next_run(tmp_path):
    killed = python(OPEN + "sys.stdin.read()", tmp_path, wait=False)
    stale = Path(killed.stdout.readline().strip())
    alive = open_store(tmp_path)
    assert stale.exists(), "in use"
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=20)
    assert stale.exists()
    following = open_store(tmp_path)
    assert set(leftovers(tmp_path)) == {alive.file.path, following.file.path}
    following.read((), ())
    alive.write(((0, 4),), ((0, 4),))
    alive.close()
    following.close()


@pytest.mark.parametrize("backend", ["pread", pytest.param("io_uring", marks=needs_io_uring)])
def test_a_killed_run_leaves_a_path_that_the_next_run_can_have(tmp_path, backend):
    if backend != "pread" and not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    code = OPEN.replace("workers=2", f"backend={backend!r}") + "sys.stdin.read()"
    killed = python(code, tmp_path / "l3", wait=False)
    killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=20)
    store = open_store(tmp_path / "l3", backend=backend)
    store.write(((0, 4),), ((0, 4),))
    store.close()


@pytest.mark.parametrize("room", ["reserved", "sparse"])
@pytest.mark.parametrize("before", ["nothing", "a larger L3", "a smaller L3"])
def test_so_does_one_that_is_killed_while_the_file_gets_its_size(tmp_path, before, room):
    path = tmp_path / "l3"
    if before != "nothing":
        open_store(path, 9 if before == "a larger L3" else 2).close()
    dying = OPEN.replace("import sys", "import os, sys").replace("workers=2", f"room={room!r}")
    dying = dying.replace("store = ", f"""
real, left = os.{"posix_fallocate" if room == "reserved" else "ftruncate"}, [2]
def then_die(*arguments):
    real(*arguments)
    left[0] -= 1
    if not left[0] or {room!r} == "reserved":
        os.kill(os.getpid(), 9)
os.posix_fallocate = os.ftruncate = then_die
store = """.replace("os.posix_fallocate = os.ftruncate", {
        "reserved": "os.posix_fallocate", "sparse": "os.ftruncate"}[room]))  # fmt: skip
    killed = python(dying, path, wait=False)
    killed.communicate(timeout=20)
    assert killed.returncode == -signal.SIGKILL
    assert path.stat().st_size >= 4 * PAGE
    store = open_store(path)
    store.write(((0, 4),), ((0, 4),))
    store.close()


@needs_io_uring
def test_a_ring_does_not_keep_the_lock_of_a_closed_store(tmp_path, monkeypatch):
    if not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    monkeypatch.setattr(slot_file, "PATIENCE_S", 0)
    host = HostBuffer(8192, PAGE)
    for _ in range(10):
        store = FileStore(tmp_path / "l3", 4, PAGE, host, backend="io_uring", workers=2)
        store.write(((0, 4),), ((0, 4),))
        store.close()


def test_only_dead_runs_files_are_stale(tmp_path):
    (tmp_path / "hicache-l3-dead.slots").write_bytes(b"")
    (tmp_path / "hicache-l3-other.txt").write_bytes(b"")
    (tmp_path / "hicache-l3-folder.slots").mkdir()
    (tmp_path / "precious").write_bytes(b"gold")
    (tmp_path / "hicache-l3-link.slots").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "hicache-l3-fifo.slots")
    assert [path.name for path in remove_stale(tmp_path)] == ["hicache-l3-dead.slots"]
    assert len(list(tmp_path.iterdir())) == 5


def test_a_run_that_starts_keeps_its_file_though_another_tidies_up(tmp_path, monkeypatch):
    real, times = slot_file._lock, []

    def lock(fd, path):
        if not times:  # the other one comes between the making and the locking
            times.append(path)
            assert remove_stale(tmp_path) == [path]
        real(fd, path)

    monkeypatch.setattr(slot_file, "_lock", lock)
    store = open_store(tmp_path)
    assert store.file.path != times[0]
    assert leftovers(tmp_path) == [store.file.path]
    store.write(((0, 4),), ((0, 4),))
    store.close()


@pytest.mark.parametrize("where", ["folder", "path"])
def test_too_little_room_is_told_with_both_numbers(tmp_path, where):
    pages = (1 << 50) // PAGE
    path = tmp_path if where == "folder" else tmp_path / "l3"
    with pytest.raises(InputError) as caught:
        open_store(path, pages)
    asked, free = re.search(
        r": (\d+) bytes were asked for, (\d+) are free", str(caught.value)
    ).groups()
    assert int(asked) == pages * PAGE + len(MARK)
    assert 0 < int(free) < 1 << 50
    assert list(tmp_path.iterdir()) == []


def test_the_room_is_really_reserved(tmp_path):
    reserved, sparse = open_store(tmp_path, 256), open_store(tmp_path, 256, room="sparse")
    assert reserved.file.path.stat().st_blocks * 512 >= 256 * PAGE
    assert sparse.file.path.stat().st_blocks * 512 < 256 * PAGE / 2
    reserved.close()
    sparse.close()


FULL = """
import sys
from pathlib import Path
from file_store_helpers import fill
from hicache.errors import InputError, TransferError
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
folder, backend = Path(sys.argv[1]), sys.argv[2]
host = HostBuffer(64, 65536)
pages = fill(host)
try:
    FileStore(folder, 64, 65536, host, backend=backend, workers=2)
except InputError as error:
    print(error)
store = FileStore(folder, 64, 65536, host, backend=backend, workers=2, room="sparse")
store.write(((0, 2),), ((0, 2),))
try:
    store.write(((0, 64),), ((0, 64),))
except TransferError as error:
    print(error)
store.write(((3, 2),), ((0, 2),))  # what was allocated already can be written again
store.read(((0, 2),), ((7, 2),))
assert bytes(host.view(7, 1)) == pages[3]
store.close()
assert list(folder.iterdir()) == []
"""


@pytest.mark.parametrize(
    "backend", ["pread", "direct", pytest.param("io_uring", marks=needs_io_uring)]
)
def test_a_disk_that_runs_full(tmp_path, backend):
    tools = shutil.which("unshare"), shutil.which("mount")
    prepare = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    inside = ["unshare", "-rm", "sh", "-c"]
    if (
        not all(tools)
        or subprocess.run([*inside, prepare], capture_output=True, check=False).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    if backend != "pread" and not have_direct(Path("/dev/shm")):
        pytest.skip("tmpfs does not do O_DIRECT here")
    done = subprocess.run(
        [*inside, f'{prepare} && exec "$@"', "sh", sys.executable, "-c", FULL, tmp_path, backend],
        cwd=ROOT,
        env=environment(Path(__file__).parent),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    at_open, at_write = done.stdout.splitlines()
    assert re.search(r"4194328 bytes were asked for, \d+ are free .*\(ENOSPC\)", at_open)
    assert re.search(r"writing slot \d+ .*\(ENOSPC\); 0 bytes are free on its disk", at_write)


LIMITED = """
import resource, sys
from pathlib import Path
from hicache.errors import InputError, TransferError
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
folder, host = Path(sys.argv[1]), HostBuffer(8, 65536)
store = FileStore(folder, 8, 65536, host, workers=2, room="sparse")
resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 65536 + 100, -1))
for what in (
    lambda: store.write(((0, 8),), ((0, 8),)),
    lambda: FileStore(folder, 8, 65536, host, workers=2),
):
    try:
        what()
    except (InputError, TransferError) as error:
        print(type(error).__name__, error)
store.write(((0, 3),), ((0, 3),))
"""


def test_a_limit_of_the_file_size_is_told(tmp_path):
    at_write, at_open = python(LIMITED, tmp_path).said.splitlines()
    assert re.search(r"TransferError writing slot [3-7] .*\(EFBIG\)", at_write)
    assert re.search(r"InputError .*524312 bytes were asked for.*\(EFBIG\)", at_open)


def test_writes_to_a_device_that_is_full_fail_and_the_store_goes_on(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    fill(store._host)
    real = store.file.fd
    full = os.open("/dev/full", os.O_RDWR)
    monkeypatch.setattr(store.file, "check", lambda verb: None)
    store.file.fd = full
    with pytest.raises(TransferError, match=r"writing slot 0 .*\(ENOSPC\)"):
        store.write(((0, 1),), ((0, 1),))
    os.close(full)
    store.file.fd = real
    store.write(((0, 4),), ((0, 4),))
    store.close()


def test_a_descriptor_that_was_closed_underneath_is_a_failed_operation(tmp_path):
    store = open_store(tmp_path)
    store.write(((0, 4),), ((0, 4),))
    os.close(store.file.fd)
    with pytest.raises(TransferError, match=r"\(EBADF\)"):
        store.read(((0, 4),), ((0, 4),))
    store.close()
    assert leftovers(tmp_path) == []


@needs_io_uring
def test_where_io_uring_is_forbidden_nothing_takes_its_place(tmp_path):
    code = FORBID_IO_URING + OPEN.replace("workers=2", "backend='io_uring'").replace(
        "store = ", "from hicache.errors import InputError\ntry:\n  store = "
    ).replace("store.write", "except InputError as error:\n  print(error); sys.exit()\nstore.write")
    said = python(code, tmp_path).said
    assert "the back-end io_uring cannot be used here: io_uring is forbidden" in said
    assert "choose direct or pread" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSYS, "this kernel has no io_uring"),
        (errno.EPERM, "io_uring is forbidden"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_a_kernel_without_io_uring_is_told(tmp_path, monkeypatch, code, said):
    def refusing(number: int, *arguments: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(io_uring, "system_call", refusing)
    if not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    with pytest.raises(InputError, match=f"io_uring cannot be used here: {said}"):
        open_store(tmp_path, backend="io_uring")
    assert list(tmp_path.iterdir()) == []


def test_another_processor_is_refused_the_ring(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    if not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    with pytest.raises(InputError, match="not on aarch64: the ring relies on x86's memory order"):
        open_store(tmp_path, backend="io_uring")


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "gds"])
def test_no_descriptor_and_no_thread_outlives_its_store(tmp_path, backend):
    if backend.startswith("io_uring") and needs_io_uring.args[0]:
        pytest.skip("io_uring is not allowed here")
    if backend != "pread" and not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    open_store(tmp_path, backend=backend, checksum="crc32").close()

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = held()
    for _ in range(3):
        store = open_store(tmp_path, backend=backend, checksum="crc32")
        store.write(((0, 4),), ((0, 4),))
        store.read(((0, 4),), ((0, 4),))
        store.close()
    assert held() == before


def test_a_file_system_without_o_direct_is_told(tmp_path, monkeypatch):
    real = fcntl.fcntl

    def refusing(fd, command, *rest):
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, *rest)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    with pytest.raises(InputError, match=r"does not do O_DIRECT .*choose the back-end pread"):
        open_store(tmp_path, backend="direct")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"backend": "mmap"},
            "the back-end is 'mmap'; allowed are auto, pread, direct, io_uring, io_uring_cached, "
            "gds",
        ),
        ({"checksum": "md5"}, "checksum is 'md5'; allowed are none, crc32"),
        ({"room": "none"}, "room is 'none'; allowed are reserved, sparse"),
        ({"workers": 0}, "workers is 0; allowed is 1 to 256"),
        ({"request_bytes": 100}, "request_bytes is 100; allowed is 4096 to"),
        ({"pages": 0}, "pages is 0"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        open_store(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


@needs_io_uring
def test_a_depth_that_no_ring_has_is_refused(tmp_path):
    if not have_direct(tmp_path):
        pytest.skip("the file system does not do O_DIRECT")
    with pytest.raises(InputError, match="a depth of 0; 1 to 4096 are possible"):
        open_store(tmp_path, backend="io_uring", depth=0)
    assert list(tmp_path.iterdir()) == []


def test_gds_without_kvikio_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(InputError, match="the back-end gds needs kvikio, which cannot be imported"):
        open_store(tmp_path, backend="gds")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["host", "gpu"])
def test_gds_moves_pages(tmp_path, memory):
    pytest.importorskip("kvikio")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    host = HostBuffer(8, PAGE)
    pages = fill(host)
    if memory == "gpu":
        on_gpu = torch.frombuffer(bytearray(b"".join(pages)), dtype=torch.uint8).cuda()
        host.view = lambda first, count: on_gpu[first * PAGE : (first + count) * PAGE]
    store = FileStore(tmp_path, 4, PAGE, host, backend="gds", workers=2)
    store.write(((0, 4),), ((0, 4),))
    store.read(((2, 1), (0, 1)), ((6, 1), (5, 1)))
    for page, copy in ((2, 6), (0, 5)):
        bytes_read = host.view(copy, 1)
        found = bytes(bytes_read.cpu().numpy()) if memory == "gpu" else bytes(bytes_read)
        assert found == pages[page]
    store.close()
