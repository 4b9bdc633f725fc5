"""A run over four hosts of two ranks each, as network and process name spaces on one bridge, whose links are slow and lose
packets: rendezvous, peers, the check of each link, rows that go two_level, a host that is gone with both its ranks and
without a word, the run without it, and with it again.

Links are those of `tc netem`, where the kernel has it; else a queue (`tbf`) of a bounded rate, in which packets wait, and
from which they are dropped. Skipped where a user may not make such name spaces."""
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from nano_run import PATIENCE, TROUPE
from ranks_run import RANKS_NANO, RanksRun

HOSTS, RANKS_OF_HOST, PORT, CHECKS = 4, 2, "29519", "29520"
LINKS = {"netem": "netem delay 3ms 1ms loss 0.5%", "tbf": "tbf rate 100mbit burst 32kb latency 10ms"}


def why_not(*tries):
    """What the first of these scripts that fails in name spaces of its own says, or nothing."""
    for script in tries:
        try:
            ran = subprocess.run(["unshare", "-rmnpfu", "--mount-proc", "sh", "-ec", script], capture_output=True, text=True,
                                 check=False)
        except FileNotFoundError:
            return "needs unshare of util-linux"
        if ran.returncode != 0:
            return f"needs name spaces of users, networks and processes, with ip and a bridge: {ran.stderr.strip()[-200:]}"
    return ""


PAIR = "ip link add name va type veth peer name vb"
NONE = why_not("hostname other", "ip link add name bridge type bridge", PAIR, "mount -t tmpfs none /tmp")
LINK = next((name for name, words in LINKS.items() if not NONE and not why_not(f"{PAIR}; tc qdisc add dev va root {words}")), "")


def address(host):
    return f"10.9.2.{host + 1}"


@unittest.skipIf(NONE, NONE)
@unittest.skipUnless(LINK or NONE, "needs tc of iproute2, and a kernel with netem or tbf")
class Namespaces(RanksRun):
    RECIPE = RANKS_NANO.replace("experts: 4,", "experts: 8,").replace("global_batch: 8", "global_batch: 24")

    def setUp(self):
        super().setUp()
        self.switch = self.holder(["unshare", "-rmnpfu", "--mount-proc"])
        self.inside(self.switch, "ip link add name bridge type bridge; ip link set bridge up")
        self.hosts = [self.make_host(h) for h in range(HOSTS)]

    def holder(self, words):
        """The process, as this test sees it, that keeps new name spaces."""
        holder = subprocess.Popen([*words, "sh", "-c", "echo here; exec sleep 3600"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "here\n")
        child = int(pathlib.Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])
        while pathlib.Path(f"/proc/{child}/comm").read_text() != "sleep\n":
            if words[0] == "nsenter":  # the one below it
                below = pathlib.Path(f"/proc/{child}/task/{child}/children").read_text().split()
                child = int(below[0]) if below else child
            time.sleep(0.01)
        self.addCleanup(self.end, child)
        return child

    @staticmethod
    def end(process):
        try:
            os.kill(process, signal.SIGKILL)  # the first of its process name space: all in it end
        except ProcessLookupError:
            pass

    def on(self, holder):
        return ["nsenter", "-t", str(holder), "-U", "-m", "-n", "-p", "-u", "--preserve-credentials", f"--wd={self.folder}"]

    def inside(self, holder, script):
        self.command([*self.on(holder), "sh", "-ec", script], 0)

    def make_host(self, host):
        own = self.holder(["nsenter", "-t", str(self.switch), "-U", "-m", "-n", "--preserve-credentials",
                           "unshare", "-mnpfu", "--mount-proc"])
        self.inside(self.switch, f"ip link add name port{host} type veth peer name wire; ip link set port{host} master bridge up")
        # Not of the switch's process name space: there `own` has another number.
        self.command(["nsenter", "-t", str(self.switch), "-U", "-n", "--preserve-credentials", "ip", "link", "set", "wire",
                      "netns", str(own)], 0)
        self.inside(own, f"hostname host{host}; ip link set lo up; ip addr add {address(host)}/24 dev wire; ip link set wire up\n"
                         f"tc qdisc add dev wire root {LINKS[LINK]}")
        return own

    def start_hosts(self, hosts, *sets, name="run", check=False, faults=None):
        """Their ranks, in order. With `check`, the first of each host checks its machine and link before it joins."""
        runs, words = [], [w for s in sets for w in ("--set", s)]
        checked = [str(TROUPE), "launch", "--check-machine", "--check-against", f"{address(0)}:{CHECKS}", "--check-bound",
                   "disk=1MB", "--check-bound", "round_trip=2s", "--check-bound", "link=10KB", "--check-bound", "memory=1MiB", "--"]
        for place, host in enumerate(hosts):
            for local in range(RANKS_OF_HOST):
                rank = place * RANKS_OF_HOST + local
                env = self.env(RANK=str(rank), WORLD_SIZE=str(len(hosts) * RANKS_OF_HOST), LOCAL_RANK=str(local),
                               LOCAL_WORLD_SIZE=str(RANKS_OF_HOST), MASTER_ADDR=address(hosts[0]), MASTER_PORT=PORT,
                               GLOO_SOCKET_IFNAME="wire", TROUPE_PEERS="10.9.2.0/24", TROUPE_FAULT=(faults or {}).get(host, ""))
                with (self.folder / f"{name}.{rank}.txt").open("w") as out:
                    run = subprocess.Popen(
                        [*self.on(self.hosts[host]), *(checked if check and local == 0 else ()), str(TROUPE), "train", "nano.yaml",
                         "--set", f"checkpoint.dir={name}", *words], cwd=self.folder, env=env, stdout=out, stderr=out)
                self.addCleanup(run.wait)
                self.addCleanup(run.kill)
                runs.append(run)
        return runs

    def finish(self, runs, code=0, name="run"):
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(PATIENCE), code, self.text_of(rank, name)[-2000:])

    def test_hosts_meet_check_their_links_and_send_rows_two_level(self):
        sets = ("parallel.expert=8", "train.steps=8", "log.every=1", "run.start_timeout=180s")
        runs = self.start_hosts(range(HOSTS), *sets, check=True)
        self.finish(runs)
        said = self.text_of(0)
        self.assertIn("rows go two_level: 8 ranks share experts, over 4 nodes of 2", said)
        for host in range(1, HOSTS):
            self.assertIn("check: ok    link to the host", self.text_of(host * RANKS_OF_HOST))
        self.train("checkpoint.dir=one", "train.steps=8", "log.every=1")
        self.assertLess(self.apart("one", "run"), 1e-5)

    def test_F84_a_host_that_is_gone_is_named_and_the_run_goes_on_without_it_and_with_it_again(self):
        sets = ("parallel.expert=2", "train.steps=24", "checkpoint.every_steps=4", "checkpoint.background=false", "log.every=1",
                "run.hang_timeout=20s")
        slow = {host: "batch=sleep:150" for host in range(HOSTS)}
        runs = self.start_hosts(range(HOSTS), *sets, faults=slow)
        self.wait_for_step(6)
        # Its cable first: nobody hears of the end of its connections.
        self.inside(self.hosts[-1], "ip link set wire down")
        gone, left = runs[-RANKS_OF_HOST:], runs[:-RANKS_OF_HOST]
        self.kill_ranks(self.hosts[-1])
        for run in gone:
            self.assertNotEqual(run.wait(PATIENCE), 0)
        self.finish(left, code=6)
        texts = [self.text_of(rank) for rank in range(len(left))]
        self.assertTrue(any(re.search(r"E6001 rank [67] of 8 ", text) for text in texts), texts[0][-1500:])
        for text in texts:  # none names a rank that lives
            self.assertNotRegex(text, r"E600[13] (caused by )?rank [0-5][ ,]")

        runs = self.start_hosts(range(HOSTS - 1), *sets, faults=slow)
        self.wait_for(lambda: self.resumes() == 1)
        grown = max(self.losses())
        self.wait_for(lambda: max(self.losses()) >= grown + 2)
        self.kill_ranks(self.hosts[0], signal.SIGTERM)
        self.finish(runs)  # saved, at one step
        self.assertLess(max(self.losses()), 24)

        self.inside(self.hosts[-1], "ip link set wire up")
        runs = self.start_hosts(range(HOSTS), *sets)
        self.finish(runs)
        self.assertEqual(self.resumes(), 2)
        self.assertEqual(sorted(self.losses()), list(range(1, 25)))
        self.train("checkpoint.dir=one", "train.steps=24", "log.every=1")
        self.assertLess(self.apart("one", "run"), 1e-5)

    def resumes(self):
        return len([r for r in self.records() if r.get("event") == "resume"])

    def kill_ranks(self, holder, signal_number=signal.SIGKILL):
        """The training processes of a host, as the system sees them from within."""
        self.inside(holder, "for p in /proc/[0-9]*; do if grep -qz '^RANK=' $p/environ 2>/dev/null && "
                            f"[ \"$(readlink $p/exe)\" = '{TROUPE}' ]; then kill -{int(signal_number)} ${{p#/proc/}}; fi; done")


if __name__ == "__main__":
    unittest.main()
