"""recipes/cluster/: the files for Slurm and Kubernetes are what those programs take, their commands what troupe takes, and
their scripts do what docs/guide/clusters.md says. Slurm's own part is asked of a controller with two machines that do not exist,
where Debian's slurm-wlm is installed."""
import contextlib
import copy
import getpass
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import docs_test
import yaml
from nano_run import PATIENCE, TROUPE, NanoRun

ROOT = pathlib.Path(__file__).resolve().parents[1]
SBATCH, JOBSET = ROOT / "recipes/cluster/train.sbatch", ROOT / "recipes/cluster/jobset.yaml"
PAGE = ROOT / "docs/guide/clusters.md"
SLURM = all(map(shutil.which, ("sbatch", "slurmctld", "munged", "scontrol")))
CONF = """
ClusterName=none
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
GresTypes=gpu
NodeName=n[1-2] NodeAddr=127.0.0.1 CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 Gres=gpu:8 State=CLOUD
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def pod():
    return yaml.safe_load(JOBSET.read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def pod_script():
    (script,) = pod()["containers"][0]["args"]
    return script


def troupe_commands(script):
    """The words behind each `troupe` that begins a command of a shell script."""
    joined = script.replace("\\\n", " ")
    return [["troupe", *shlex.split(found.rstrip(" &"))]
            for found in re.findall(r"^(?!#)[^#\n]*?\btroupe ((?:train|launch)\b[^\n]*)", joined, re.M)]


class Scripts(unittest.TestCase):
    def test_bash_reads_them(self):
        for script in (SBATCH.read_text(), pod_script()):
            subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)

    def test_commands_of_troupe_are_parsed(self):
        for place, script in ((SBATCH, SBATCH.read_text()), (JOBSET, pod_script())):
            (words,) = troupe_commands(script)
            self.assertGreaterEqual(words.count("--set"), 2)
            docs_test.Parse().check(words, place.name)
        with self.assertRaises(AssertionError):
            docs_test.Parse().check(troupe_commands('srun -n2 \\\n  troupe train "$x" --set run.graze=4min')[0], "here")

    def test_ranks_have_less_time_than_the_cluster_gives(self):
        grace = [int(re.search(r"run\.grace=(\d+)min", text)[1]) * 60 for text in (SBATCH.read_text(), pod_script())]
        self.assertLess(grace[0], int(re.search(r"#SBATCH --signal=TERM@(\d+)", SBATCH.read_text())[1]))
        self.assertLess(grace[1], pod()["terminationGracePeriodSeconds"])


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


@unittest.skipUnless(SLURM, "slurm-wlm and munge are not installed")
class Slurm(unittest.TestCase):
    """A controller of two machines of eight GPUs, asked what it would do with the script."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.folder.chmod(0o711)
        (cls.folder / "state").mkdir()
        (cls.folder / "key").write_bytes(os.urandom(128))
        (cls.folder / "key").chmod(0o400)
        (cls.folder / "slurm.conf").write_text(CONF.format(
            host=socket.gethostname().split(".")[0], user=getpass.getuser(), port=free_port(), folder=cls.folder))
        cls.env = dict(os.environ, SLURM_CONF=str(cls.folder / "slurm.conf"))
        cls.serve("munged", "--foreground", "--force", f"--key-file={cls.folder}/key", f"--socket={cls.folder}/munge.socket",
                  f"--pid-file={cls.folder}/munged.pid", f"--log-file={cls.folder}/munged.log", f"--seed-file={cls.folder}/seed")
        cls.until(lambda: (cls.folder / "munge.socket").exists())
        cls.serve("slurmctld", "-D", "-c")
        cls.until(lambda: cls.ask("scontrol", "ping").returncode == 0)

    @classmethod
    def serve(cls, *words):
        with open(cls.folder / f"{words[0]}.out", "wb") as out:
            server = subprocess.Popen(words, env=cls.env, stdout=out, stderr=out)

        def end():
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            server.kill()
            server.wait()

        cls.addClassCleanup(end)

    @classmethod
    def until(cls, holds):
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise AssertionError("".join(f"{file.name}: {file.read_text()[-2000:]}" for file in cls.folder.glob("*.out")))
            time.sleep(0.1)

    @classmethod
    def ask(cls, *words):
        return subprocess.run(words, env=cls.env, cwd=cls.folder, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def test_slurm_would_start_it(self):
        said = self.ask("sbatch", "--test-only", SBATCH, "run.yaml")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertRegex(said.stderr, r"to start at \S+ using 128 processors on nodes n\[1-2\]")

    def test_slurm_refuses_what_it_does_not_have_or_know(self):
        script = SBATCH.read_text()
        for old, new in (("--gpus-per-node=8", "--gpus-per-node=9"), ("--signal=TERM@300", "--signal=TREM@300"),
                         ("--requeue", "--requeues"), ("--nodes=2", "--nodes=3")):
            self.assertIn(old, script)
            (self.folder / "wrong.sbatch").write_text(script.replace(old, new))
            self.assertNotEqual(self.ask("sbatch", "--test-only", "wrong.sbatch", "run.yaml").returncode, 0, new)


# What JobSet's and Kubernetes's own schemas say of the fields that we use: a type, or the fields of a map (! before one that must be
# there), a list of what is in brackets, or the texts that are allowed.
ENV = {"!name": str, "value": str, "valueFrom": {"secretKeyRef": {"!name": str, "!key": str}}}
CONTAINER = {"!name": str, "!image": str, "workingDir": str, "command": [str], "args": [str], "env": [ENV],
             "resources": {"limits": {"nvidia.com/gpu": str}}, "volumeMounts": [{"!name": str, "!mountPath": str}]}
POD = {"!restartPolicy": {"Never", "OnFailure"}, "terminationGracePeriodSeconds": int, "!containers": [CONTAINER],
       "volumes": [{"!name": str, "persistentVolumeClaim": {"!claimName": str}, "emptyDir": {"medium": {"Memory"}}}]}
POD_RULE = {"!action": {"FailJob", "FailIndex", "Ignore", "Count"},
            "onExitCodes": {"containerName": str, "!operator": {"In", "NotIn"}, "!values": [int]}}
JOB = {"completionMode": {"Indexed", "NonIndexed"}, "parallelism": int, "completions": int, "backoffLimit": int,
       "podFailurePolicy": {"!rules": [POD_RULE]}, "!template": {"!spec": POD}}
RULE = {"!name": str, "!action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
        "onJobFailureReasons": [{"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
                                 "PodFailurePolicy"}]}
SCHEMA = {"!apiVersion": {"jobset.x-k8s.io/v1alpha2"}, "!kind": {"JobSet"}, "!metadata": {"!name": str}, "!spec": {
    "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
    "failurePolicy": {"maxRestarts": int, "rules": [RULE]},
    "!replicatedJobs": [{"!name": str, "replicas": int, "!template": {"!spec": JOB}}]}}


def faults(value, schema, place=""):
    """What of the value the schema does not allow, each with its place."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{place}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, set):
        return [] if value in schema else [f"{place}: {value!r} is none of {sorted(schema)}"]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{place}: no list"]
        return [fault for i, item in enumerate(value) for fault in faults(item, schema[0], f"{place}[{i}]")]
    if not isinstance(value, dict):
        return [f"{place}: no map"]
    known = {name.lstrip("!"): inner for name, inner in schema.items()}
    out = [f"{place}: no field {name}" for name in value if name not in known]
    out += [f"{place}: {name[1:]} is missing" for name in schema if name.startswith("!") and name[1:] not in value]
    return out + [fault for name in value if name in known for fault in faults(value[name], known[name], f"{place}.{name}")]


class JobSet(unittest.TestCase):
    def test_the_file_has_what_jobset_takes(self):
        self.assertEqual(faults(yaml.safe_load(JOBSET.read_text()), SCHEMA), [])

    def test_numbers_and_names_in_it_agree(self):
        whole = yaml.safe_load(JOBSET.read_text())
        (job,) = whole["spec"]["replicatedJobs"]
        inner, (container,) = job["template"]["spec"], pod()["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        self.assertEqual(inner["completions"], inner["parallelism"])
        self.assertEqual(env["MACHINES"], str(inner["completions"]))
        self.assertEqual(env["GPUS"], container["resources"]["limits"]["nvidia.com/gpu"])
        self.assertEqual(env["MASTER_ADDR"], f'{whole["metadata"]["name"]}-{job["name"]}-0-0.{whole["spec"]["network"]["subdomain"]}')
        self.assertEqual(inner["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"], container["name"])
        self.assertEqual({one["name"] for one in container["volumeMounts"]}, {one["name"] for one in pod()["volumes"]})

    def test_a_wrong_field_is_found(self):
        def planted(change):
            whole = copy.deepcopy(yaml.safe_load(JOBSET.read_text()))
            job = whole["spec"]["replicatedJobs"][0]
            change(whole, job, job["template"]["spec"], job["template"]["spec"]["template"]["spec"])
            return faults(whole, SCHEMA)

        for change in (lambda w, j, s, p: w.update(kind="Job"), lambda w, j, s, p: j.pop("template"),
                       lambda w, j, s, p: s.update(completion=2), lambda w, j, s, p: p.update(restartPolicy="Always"),
                       lambda w, j, s, p: p["containers"][0]["env"].append({"name": "N", "value": 2}),
                       lambda w, j, s, p: w["spec"]["failurePolicy"]["rules"][0].update(action="Fail")):
            self.assertEqual(len(planted(change)), 1)


class Pods(NanoRun):
    """The loop of the pods, with two machines of a rank each that are both here."""

    def start(self, steps, **more):
        (self.folder / "bin").mkdir(exist_ok=True)
        if not (self.folder / "bin/troupe").exists():
            (self.folder / "bin/troupe").symlink_to(TROUPE)
        (self.folder / "here.yaml").write_text(self.RECIPE.replace("steps: 20", f"steps: {steps}"))
        port = str(free_port())
        return [subprocess.Popen(["bash", "-c", pod_script()], cwd=self.folder, stderr=subprocess.PIPE, text=True, env=self.env(
            PATH=f"{self.folder}/bin:{os.environ['PATH']}", MACHINES="2", GPUS="1", RECIPE="here.yaml", RUN="run",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TROUPE_TOKEN="x", JOB_COMPLETION_INDEX=str(i), **more)) for i in range(2)]

    def ended(self, pods):
        said = [one.communicate(timeout=PATIENCE)[1] for one in pods]
        return [one.returncode for one in pods], "".join(said)

    def test_a_run_that_ends_ends_all_pods_with_0(self):
        codes, said = self.ended(self.start(8))
        self.assertEqual(codes, [0, 0], said)
        self.assertIn('"finished"', (self.folder / "run/exit.json").read_text())

    def test_an_evicted_pod_stops_all_ranks_and_the_next_start_resumes(self):
        pods = self.start(300)
        end = time.monotonic() + PATIENCE
        while not (self.folder / "run/step-000005").exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        pods[1].send_signal(signal.SIGTERM)  # the machine that has no rank 0
        codes, said = self.ended(pods)
        self.assertEqual(codes, [75, 0], said)
        stopped = int((self.folder / "run/latest").read_text().strip().removeprefix("step-"))
        self.assertIn('"stopped"', (self.folder / "run/exit.json").read_text())
        codes, said = self.ended(self.start(300))
        self.assertEqual(codes, [0, 0], said)
        self.assertIn(f"step {stopped + 1}/300", said)
        self.assertNotIn("step 1/300", said)
        self.assertIn('"finished"', (self.folder / "run/exit.json").read_text())

    def test_a_pod_ends_with_the_code_of_what_failed(self):
        codes, said = self.ended(self.start("wrong"))
        self.assertEqual(codes, [2, 2], said)


class Variables(unittest.TestCase):
    """The page's table has the variables that the program reads."""
    OTHER = {"ARROW1", "PAR1", "SLURM", "GPU"}  # texts in those files that are no variables

    @staticmethod
    def sources():
        for top in ("troupe", "apps"):
            for file in (ROOT / top).rglob("*.cpp"):
                if "testing" not in file.parts and not file.name.endswith("_test.cpp"):
                    yield file.read_text()

    def test_the_table_has_what_the_program_reads(self):
        rows = re.findall(r"^\| (`[A-Z].*?) \|", PAGE.read_text(), re.M)
        told = {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}
        read, texts = set(), ""
        for text in self.sources():
            texts += text
            if "getenv" in text:
                read |= set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)"', text))
        self.assertGreater(len(read), 40)
        self.assertEqual(sorted(read - self.OTHER - told), [])
        header = (ROOT / "troupe/distributed/status/pulse.h").read_text()
        self.assertEqual(sorted(name for name in told if f'"{name}' not in texts + header), [])


if __name__ == "__main__":
    unittest.main()
