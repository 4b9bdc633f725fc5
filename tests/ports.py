"""Ports at which ranks of a test meet: no two processes on this machine have the same at a time."""
import fcntl
import itertools
import os
import pathlib
import tempfile

BLOCKS, SIZE, FIRST = 150, 60, 20000  # below those that a system gives out by itself
mine = None  # this process's block: its lock, and the ports that are still unused


def locked_block():
    folder = pathlib.Path(tempfile.gettempdir()) / f"troupe-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for block in range(BLOCKS):
        lock = (folder / str(block)).open("w")  # open until the process ends, and its lock with it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        first = FIRST + block * SIZE
        return lock, itertools.cycle(range(first, first + SIZE))
    raise RuntimeError(f"all {BLOCKS} blocks of ports are taken: {folder}")


def free_port():
    global mine  # noqa: PLW0603
    if mine is None:
        mine = locked_block()
    return next(mine[1])
