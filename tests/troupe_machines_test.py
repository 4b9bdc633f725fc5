"""Row 242 and F169 between machines: two network name spaces with a cable between them stand for two machines, a rank on
each. From a third address a stranger calls every port that the first machine's rank listens at: the run ends as
without it, bit for bit, where TROUPE_PEERS lists the two. And what rank 0 listens at if MASTER_ADDR is a name. Row 247: the
second machine fails its check."""
import os
import pathlib
import subprocess
import sys
import time
import unittest

from nano_run import NANO, PATIENCE, TROUPE, NanoRun
from troupe_strangers_test import FRAMES, HELLO, LIST_KEYS, LISTENS, call, keys_of

FIRST, SECOND, STRANGER, PORT, CHECKS = "10.9.0.1", "10.9.0.2", "10.9.0.3", "29517", "29518"
MACHINES = os.path.exists("/usr/bin/nsenter") and subprocess.run(
    ["unshare", "-rmn", "sh", "-c", "ip link add name va type veth peer name vb && mount -t tmpfs none /tmp"],
    capture_output=True, check=False).returncode == 0


def hexadecimal(address):
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def harass(port_file, counts):
    """On the second machine, from the third address: calls what is listed in the file until that is gone."""
    keep, calls, answers, seen, turn = [], 0, 0, set(), 0
    while True:
        try:
            ports = [int(word) for word in pathlib.Path(port_file).read_text().split()]
        except FileNotFoundError:
            break
        seen |= set(ports)
        for port in ports:
            for frame in FRAMES[turn % 4::4]:
                calls += 1
                answers += call(port, frame, keep, FIRST, STRANGER)
        turn += 1
        while len(keep) > 200:
            keep.pop(0).close()
    pathlib.Path(counts).write_text(f"{calls} {answers} {len(seen)}")


@unittest.skipUnless(MACHINES, "needs user and network name spaces")
class TroupeMachines(NanoRun):
    RECIPE = NANO.replace("global_batch: 8", "global_batch: 8, micro_batch: 4")

    def setUp(self):
        super().setUp()
        self.first = self.machine(["unshare", "-rmn"])
        self.second = self.machine([*self.on(self.first), "unshare", "-n"])
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{FIRST} rank0.test\n{SECOND} rank1.test\n")
        for machine, script in (
                (self.first, f"""ip link set lo up; ip link add name va type veth peer name vb netns {self.second}
                                 ip addr add {FIRST}/24 dev va; ip link set va up
                                 mount --bind {self.folder}/hosts /etc/hosts"""),
                (self.second, f"""ip link set lo up; ip addr add {SECOND}/24 dev vb; ip addr add {STRANGER}/24 dev vb
                                  ip link set vb up""")):
            self.command([*self.on(machine), "sh", "-ec", script], 0)

    def machine(self, words):
        """The process id of one that has the name spaces."""
        holder = subprocess.Popen([*words, "sh", "-c", "echo $$; exec sleep 3600"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        return int(holder.stdout.readline())

    def on(self, machine):
        return ["nsenter", "-t", str(machine), "-U", "-m", "-n", "--preserve-credentials", f"--wd={self.folder}"]

    def start_run(self, name, host, before=(), sets=(), faults=("batch=sleep:50",) * 2, **more):
        runs = []
        for rank, machine in enumerate((self.first, self.second)):
            env = self.env(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=host,
                           MASTER_PORT=PORT, GLOO_SOCKET_IFNAME=("va", "vb")[rank], TROUPE_FAULT=faults[rank], **more)
            with (self.folder / f"{name}.{rank}.txt").open("w") as out:
                run = subprocess.Popen([*self.on(machine), *before, str(TROUPE), "train", "nano.yaml", "--set",
                                        f"checkpoint.dir={name}", "--set", "train.steps=30", "--set", "run.start_timeout=60s",
                                        *(w for s in sets for w in ("--set", s))],
                                       cwd=self.folder, env=env, stderr=out, stdout=out)
            self.addCleanup(run.wait)
            self.addCleanup(run.kill)
            runs.append(run)
        return runs

    def text_of(self, rank, name):
        return (self.folder / f"{name}.{rank}.txt").read_text()

    def finish(self, runs, name):
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), 0, self.text_of(rank, name))

    def listening(self):
        """(address, port) of every socket that listens on the first machine; addresses as the kernel writes them."""
        out = set()
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{self.first}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS:
                    at, port = words[1].split(":")
                    out.add((at, int(port, 16)))
        return out

    def test_242_F169_a_machine_that_is_not_listed_changes_no_bit_of_a_run(self):
        peers = {"TROUPE_PEERS": f"{FIRST}/32,rank1.test", "TROUPE_TOKEN": "0123456789abcdef"}
        self.finish(self.start_run("alone", FIRST, **peers), "alone")
        ports, counts = self.folder / "ports", self.folder / "counts"
        ports.write_text("")
        stranger = subprocess.Popen([*self.on(self.second), sys.executable, __file__, str(ports), str(counts)],
                                    env=dict(os.environ, PYTHONPATH=str(pathlib.Path(__file__).parent)))
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        runs = self.start_run("beside", FIRST, **peers)
        while any(run.poll() is None for run in runs):
            new = self.folder / "ports.new"
            new.write_text(" ".join(str(port) for _, port in self.listening()))
            new.rename(ports)
            time.sleep(0.02)
        ports.unlink()
        self.finish(runs, "beside")
        self.assertEqual(stranger.wait(PATIENCE), 0)
        calls, answers, seen = map(int, counts.read_text().split())
        self.assertGreater(calls, 100)
        self.assertGreaterEqual(seen, 2)  # the store's, and Gloo's of rank 0
        self.assertEqual(answers, 0)
        self.assertIn("a machine that TROUPE_PEERS does not list connects to a port of this run", self.text_of(0, "beside"))
        self.assert_equal_runs("alone", "beside")

    def test_242_F169_without_a_list_it_is_answered_and_every_key_has_the_token(self):
        """So the test above would find a program that turns nobody away."""
        runs = self.start_run("open", FIRST, TROUPE_TOKEN="0123456789abcdef")
        ask = (f"import socket,time,sys\nfor _ in range(4000):\n  try:\n    s=socket.socket(); s.bind(({STRANGER!r},0)); s.settimeout(1)\n"
               f"    s.connect(({FIRST!r},{PORT})); s.sendall({HELLO + bytes([LIST_KEYS])!r}); a=s.recv(1<<20)\n"
               "    if len(a)>200: sys.stdout.buffer.write(a); break\n  except OSError: pass\n  time.sleep(0.05)\n")
        answer = subprocess.run([*self.on(self.second), sys.executable, "-c", ask], capture_output=True, timeout=PATIENCE,
                                check=True).stdout
        self.finish(runs, "open")
        found = [key for key in keys_of(answer) if not key.startswith(b"init/")]
        self.assertGreater(len(found), 0)  # as many as were there at that moment
        self.assertEqual([key for key in found if b"0123456789abcdef" not in key], [])

    def test_242_F169_ranks_that_have_other_tokens_do_not_meet(self):
        runs = self.start_run("apart", FIRST, TROUPE_TOKEN="one")
        for run in runs[1:]:
            run.kill()
        env = self.env(RANK="1", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=FIRST, MASTER_PORT=PORT,
                       TROUPE_TOKEN="two")
        ran = subprocess.run([*self.on(self.second), str(TROUPE), "train", "nano.yaml", "--set", "run.start_timeout=4s"],
                             cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(ran.returncode, 6, ran.stderr)
        self.assertIn("E6002", ran.stderr)
        runs[0].kill()

    def test_242_F169_a_name_is_listened_at_where_it_stands_for_one_address(self):
        runs, seen = self.start_run("name", "rank0.test"), set()
        while any(run.poll() is None for run in runs):
            seen |= {at for at, port in self.listening() if port == int(PORT)}
            time.sleep(0.02)
        self.finish(runs, "name")
        self.assertEqual(seen, {hexadecimal(FIRST)})
        self.assertNotIn("listens at all interfaces", self.text_of(0, "name"))

    def test_242_F169_a_name_that_stands_for_no_address_here_is_said(self):
        hosts = self.folder / "hosts"
        hosts.write_text(hosts.read_text().replace(f"{FIRST} rank0.test", "127.0.1.1 rank0.test"))
        other = self.folder / "hosts.second"  # the second machine knows it by its address
        other.write_text(f"127.0.0.1 localhost\n{FIRST} rank0.test\n")
        self.second = self.machine([*self.on(self.second), "unshare", "-m"])
        self.command([*self.on(self.second), "mount", "--bind", other, "/etc/hosts"], 0)
        runs = self.start_run("everywhere", "rank0.test")
        self.finish(runs, "everywhere")
        self.assertIn('MASTER_ADDR: "rank0.test" is no address of an interface of this machine here, so rank 0 listens at all '
                      "interfaces. Set MASTER_ADDR to the address by which", self.text_of(0, "everywhere"))

    def test_247_F190_a_machine_with_a_slow_link_is_named_and_the_other_waits_as_for_one_that_never_came(self):
        check = [str(TROUPE), "launch", "--check-machine", "--check-against", f"{FIRST}:{CHECKS}", "--check-bound", "disk=1MB",
                 "--check-bound", "round_trip=300ms", "--check-bound", "link=100KB", "--check-bound", "memory=1MiB", "--"]
        runs = self.start_run("slow", FIRST, check, ["run.start_timeout=10s"], ("", "check.link=sleep:500"))
        self.assertEqual(runs[1].wait(PATIENCE), 7, self.text_of(1, "slow"))
        named = r"stays out of the run: link to the host: round trip \d{3,}\.\d ms, \d+\.\d MB/s; bound: 300ms, 0\.1 MB/s"
        self.assertRegex(self.text_of(1, "slow"), r"machine \S+: E7102 " + named)
        self.assertNotIn("check: ok    link to the host", self.text_of(1, "slow"))
        self.assertEqual(runs[0].wait(PATIENCE), 6, self.text_of(0, "slow"))
        self.assertRegex(self.text_of(0, "slow"), r"reported: machine \S+ " + named)
        self.assertIn("E6002", self.text_of(0, "slow"))

    def test_242_F169_a_list_that_cannot_be_read_ends_the_run_before_it_begins(self):
        for peers in ("10.9.0.0/40", "no.such.host.invalid", ","):
            said = self.train(code=2, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, TROUPE_PEERS=peers)
            self.assertIn("TROUPE_PEERS: E2005", said)


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        harass(*sys.argv[1:])
    else:
        unittest.main()
