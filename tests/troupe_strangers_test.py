"""Row 242 of docs/reference/FEATURES.md: a process of another user beside a run of `troupe launch`. It calls every port at which
the run listens, again and again, with garbage, with frames of PyTorch's store that are right, and as a peer of Gloo:
the run ends as without it, bit for bit. And what ranks listen at."""
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time
import unittest

import encodings.idna  # noqa  # a process that has become another user may not read where it is
from nano_run import NANO, PATIENCE, TROUPE, NanoRun
from ports import free_port

NOBODY = 65534
LISTENS = "0A"
MAGIC = 0x3C85F7CE
SET, ADD, APPEND, DELETE, QUEUE_PUSH, LIST_KEYS = 1, 4, 9, 8, 14, 17  # of c10d::detail::QueryType


def text(words):
    return struct.pack("<Q", len(words)) + words


HELLO = b"\0" + struct.pack("<I", MAGIC)
FRAMES = [
    os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n", b"\0" * 64, b"\xff" * 64,
    HELLO + bytes([SET]) + text(b"first end") + text(b"\x1b[31m") + bytes([ADD]) + text(b"first end")
    + struct.pack("<q", 1),
    HELLO + bytes([APPEND]) + text(b"much") + text(b"x" * (1 << 20)),
    HELLO + bytes([SET]) + struct.pack("<Q", 1 << 62),
    HELLO + bytes([QUEUE_PUSH]) + text(b"q") + text(b"x" * 4096),
    *(struct.pack("<Q", n) + os.urandom(256) for n in range(12)),  # the numbers of Gloo's first pairs
]


def listening(of_user):
    """Addresses and ports, as the kernel tells anybody, at which processes of the user listen."""
    out = set()
    for table, size in (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32)):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and int(words[7]) == of_user:
                at, port = words[1].split(":")
                out.add((at[:size], int(port, 16), int(words[9])))
    return out


def sockets_of(pids):
    """The sockets, by number, that the processes have."""
    out = set()
    for pid in pids:
        try:
            links = [os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        out |= {int(link[8:-1]) for link in links if link.startswith("socket:[")}
    return out


def keys_of(answer):
    """The keys in what the store answers to LIST_KEYS."""
    out, at = [], 8
    while at + 8 <= len(answer):
        size = struct.unpack_from("<Q", answer, at)[0]
        out.append(answer[at + 8:at + 8 + size])
        at += 8 + size
    return out


def call(port, frame, keep, host="127.0.0.1", source=None):
    """One connection, from `source` if that is given; whether there was an answer."""
    caller = socket.socket()
    caller.settimeout(0.05)
    try:
        if source:
            caller.bind((source, 0))
        caller.connect((host, port))
        caller.sendall(frame)
        caller.sendall(HELLO + bytes([LIST_KEYS]))
        answer = caller.recv(1 << 16)
        for key in keys_of(answer):  # a key that the server names could end the run
            caller.sendall(bytes([SET]) + text(key) + text(b"no number") + bytes([DELETE]) + text(key))
        keep.append(caller)  # it stays open, as long as there is room
        return bool(answer)
    except OSError:
        caller.close()
        return False


def harass(orders, counts):
    """As another user: calls the ports that `orders` names, of the newest line, until its end."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    keep, calls, answers, seen, ports, part, turn = [], 0, 0, set(), [], b"", 0
    while True:
        try:
            if not (more := os.read(orders, 1 << 16)):
                break
            *lines, part = (part + more).split(b"\n")
            ports = [int(word) for word in lines[-1].split()] if lines else ports
        except BlockingIOError:
            pass
        seen |= set(ports)
        for port in ports:
            for frame in FRAMES[turn % 4::4]:
                calls += 1
                answers += call(port, frame, keep)
        turn += 1
        while len(keep) > 200:
            keep.pop(0).close()
    os.write(counts, f"{calls} {answers} {len(seen)}".encode())


class TroupeStrangers(NanoRun):
    RECIPE = NANO.replace("global_batch: 8", "global_batch: 8, micro_batch: 2")

    def launch(self, name, **more):
        run = subprocess.Popen([str(TROUPE), "launch", "-n", "2", "--", "train", "nano.yaml", "--set",
                                f"checkpoint.dir={name}", "--set", "train.steps=30"], cwd=self.folder,
                               env=self.env(TROUPE_FAULT="batch=sleep:50", **more), stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def processes_of(self, run):
        children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children")
        return [run.pid, *map(int, children.read_text().split())] if children.exists() else [run.pid]

    def listening_of(self, run):
        """(address, port) of the launcher's and its ranks' listening sockets."""
        own = sockets_of(self.processes_of(run))
        return {(at, port) for at, port, number in listening(os.getuid()) if number in own}

    def test_242_ranks_listen_at_the_loopback_interface_alone(self):
        run, seen = self.launch("alone"), set()
        while run.poll() is None:
            seen |= {at for at, _ in self.listening_of(run)}
            time.sleep(0.02)
        self.assertEqual(run.wait(), 0, run.stderr.read())
        self.assertEqual(seen, {"0100007F"})

    def test_242_ranks_without_a_launcher_listen_at_the_address_that_is_named(self):
        port, runs, seen = free_port(), [], set()
        for rank in range(2):
            run = subprocess.Popen([str(TROUPE), "train", "nano.yaml", "--set", "train.steps=30"], cwd=self.folder,
                                   env=self.env(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                MASTER_PORT=str(port), TROUPE_FAULT="batch=sleep:50"),
                                   stderr=subprocess.DEVNULL)
            self.addCleanup(run.wait)
            self.addCleanup(run.kill)
            runs.append(run)
        while all(run.poll() is None for run in runs):
            for run in runs:
                seen |= self.listening_of(run)
            time.sleep(0.02)
        self.assertEqual([run.wait(PATIENCE) for run in runs], [0, 0])
        self.assertEqual({at for at, _ in seen}, {"0100007F"})
        self.assertIn(port, {at for _, at in seen})

    @unittest.skipUnless(os.geteuid() == 0, "needs to be root, to be another user too")
    def test_242_F169_a_process_of_another_user_changes_no_bit_of_a_run(self):
        self.assertEqual((alone := self.launch("alone")).wait(PATIENCE), 0, alone.stderr.read())
        orders, ours = os.pipe()
        told, counts = os.pipe()
        os.set_blocking(orders, False)
        stranger = os.fork()
        if stranger == 0:
            os.close(ours)
            try:
                harass(orders, counts)
            finally:
                os._exit(0)
        os.close(counts)
        self.addCleanup(os.waitpid, stranger, 0)
        self.addCleanup(os.close, told)
        with os.fdopen(ours, "w", buffering=1) as out:  # its end is the stranger's
            run = self.launch("beside")
            while run.poll() is None:
                out.write(" ".join(str(port) for _, port in self.listening_of(run)) + "\n")
                time.sleep(0.01)
        said = run.stderr.read()
        calls, answers, ports = map(int, os.read(told, 100).split())
        self.assertEqual(run.returncode, 0, said)
        self.assertGreater(calls, 100)
        self.assertGreaterEqual(ports, 3)  # the store's, and one of each rank
        self.assertEqual(answers, 0)
        self.assertIn("another user of this machine connects to a port of this run; it is turned away", said)
        self.assert_equal_runs("alone", "beside")

    def test_242_a_process_of_the_same_user_is_let_in(self):
        """So the test above would find a program that turns nobody away: who is of the run's user gets the keys."""
        run, answered = self.launch("run"), threading.Event()
        before = time.monotonic()
        while run.poll() is None and not answered.is_set() and time.monotonic() < before + PATIENCE:
            for _, port in self.listening_of(run):
                with socket.socket() as caller:
                    caller.settimeout(0.2)
                    try:
                        caller.connect(("127.0.0.1", port))
                        caller.sendall(HELLO + bytes([LIST_KEYS]))
                        if caller.recv(8):
                            answered.set()
                    except OSError:
                        pass
            time.sleep(0.02)
        run.kill()
        self.assertTrue(answered.is_set())


if __name__ == "__main__":
    unittest.main()
