#!/usr/bin/env python3
"""On a GPU: two runs of a recipe have the same bits, by default (row 61), and so has one whose steps are replayed
(row 63). On two, over NCCL: layouts are one GPU's run, and a killed rank ends the other. Skipped where there are none."""
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from layout_runs import Layout, LayoutRuns, recipe_on
from nano_run import PATIENCE, TROUPE, NanoRun
from ranks_run import RANKS_NANO, RanksRun

GPU = os.path.exists("/dev/nvidiactl")
GPUS = len(glob.glob("/dev/nvidia[0-9]*"))
RECIPE = """
model: {layers: 2, width: 256, heads: 4, kv_heads: 2, head_dim: 64, vocab: 256, max_positions: 512, KEYS
        moe: {experts: 8, top_k: 2, hidden: 128}}
data: {train: [TRAIN], sequence: 512, tokenizer: bytes}
train: {global_batch: 16, micro_batch: 8, steps: 50, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
checkpoint: {dir: run, every_steps: 25}
log: {tensorboard: false}
run: {device: cuda}
"""


class GpuRuns(NanoRun):
    TEXT = "".join(f"{i} green bottles, {i * i % 97} of them on the wall.\n" * (1 + i % 13) for i in range(3000))

    def run_once(self, name, *sets):
        words = [w for s in (f"checkpoint.dir={name}", *sets) for w in ("--set", s)]
        ran = subprocess.run([str(TROUPE), "train", "nano.yaml", *words], cwd=self.folder, env=self.env(),
                             capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().split("\n")[:-1]]
        losses = [(r["step"], r["loss"], r["grad_norm"]) for r in rows if "loss" in r and "event" not in r]
        self.assertGreaterEqual(len(losses), 50)
        tensors = {str(p.relative_to(self.folder / name)): self.tensors_of(p)
                   for p in (self.folder / name).rglob("*.safetensors")}
        self.assertGreaterEqual(len(tensors), 2)
        return ran.stderr, losses, tensors

    def tensors_of(self, path):
        """The hash of a file's bytes behind its head, which names the run."""
        data = path.read_bytes()
        return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little"):]).hexdigest()

    def write(self, keys="", train="{kind: text, path: text.txt}"):
        (self.folder / "nano.yaml").write_text(RECIPE.replace("KEYS", keys).replace("TRAIN", train))


@unittest.skipUnless(GPU, "no GPU on this machine")
class SameBits(GpuRuns):
    def check(self, *sets):
        said, *one = self.run_once("one", *sets)
        _, *two = self.run_once("two", *sets)
        self.assertEqual(one, two)
        return said

    def test_61_two_runs_are_the_same_bits_by_default(self):
        self.write()
        self.assertIn("attention: cuDNN's, the same bits each time", self.check())

    def test_61_with_windows_and_sinks(self):
        self.write("sinks: true, window: 100,")
        self.assertIn("attention: cuDNN's", self.check())

    def test_61_with_documents_of_their_own(self):
        texts = [f"{i} is the number of this document. " * (1 + i * 7 % 30) for i in range(600)]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        subprocess.run([str(TROUPE), "data", "build", "text.jsonl", "-o", "corpus", "-t", "bytes", "--no-eod"],
                       cwd=self.folder, env=self.env(), capture_output=True, check=True)
        self.write(train="{path: corpus}")
        self.assertIn("attention: cuDNN's", self.check("data.documents=sequences"))

    def test_61_in_fp32_by_pytorchs_attention(self):
        self.write()
        self.assertIn("attention: PyTorch's: cuDNN's computes in bf16 and fp16", self.check("train.precision=fp32"))

    def test_the_fastest_attention_can_be_asked_for(self):
        self.write()
        said, _, _ = self.run_once("one", "run.deterministic=false")
        self.assertIn("attention: PyTorch's: run.deterministic is false", said)


@unittest.skipUnless(GPU, "no GPU on this machine")
class CudaGraph(GpuRuns):
    """train.cuda_graph: two microbatches a step, replayed, are the eager run's bits: losses, norms, checkpoints."""
    STARTS = "cuda graph: forward, backward and update of a step are captured after 3 eager steps, then replayed"
    CAPTURED = "cuda graph: captured forward, backward and update of 2 x 8 sequences of"

    def check(self, *sets):
        _, *eager = self.run_once("one", *sets)
        said, *graph = self.run_once("two", "train.cuda_graph=true", *sets)
        self.assertEqual(eager, graph)
        self.assertIn(self.STARTS, said)
        self.assertEqual(said.count(self.CAPTURED), 1, said)
        return said

    def test_63_a_replayed_run_is_the_same_bits(self):
        self.write()
        self.assertIn("step 4: " + self.CAPTURED, self.check())

    def test_63_a_run_that_resumes_is_the_same_bits(self):
        self.write()
        _, losses, tensors = self.run_once("one")
        self.run_once("two", "train.cuda_graph=true")
        said, again, resumed = self.run_once("two", "train.cuda_graph=true", "checkpoint.resume=step 25")
        self.assertIn("resumed step 25", said)
        self.assertIn("step 29: " + self.CAPTURED, said)
        self.assertEqual(again[-25:], losses[-25:])
        last = {path: bits for path, bits in tensors.items() if path.startswith("step-000050/")}
        self.assertTrue(last)
        self.assertEqual(last, {path: resumed[path] for path in last})

    def test_63_with_evaluations_and_longer_samples_between(self):
        self.write()
        self.check("data.sequence=256", "data.valid=[{kind: text, path: text.txt}]", "eval.every=5 steps",
                   "eval.batches=2", "eval.prompts=[99 green]", "eval.sample_tokens=300")

    def test_63_with_a_bias_that_moves_by_what_the_routers_count(self):
        self.write()
        self.check("model.moe.router={kind: sigmoid_bias}")

    def test_63_with_thresholds_that_move_by_what_the_routers_sum(self):
        self.write()
        self.check("model.moe.router={kind: quantile}")

    def test_63_with_a_loss_over_the_fractions_of_the_step_so_far(self):
        self.write()
        self.check("model.moe.router.balance={global_loss: 0.01}")

    def test_63_with_recomputed_layers_and_experts_in_8_bits(self):
        self.write()
        self.check("train.recompute='1'", "train.fp8={}")

    def test_63_with_attention_and_feed_forwards_in_8_bits(self):
        self.write("first_dense: 1, ffn: 512,")
        said = self.check("model.moe.shared.experts=1", "train.fp8={attention: true, ffn: true}")
        self.assertIn("dense feed-forwards and shared experts of 2 of 2 layers", said)

    def all_products_in_8_bits(self, recipe):
        self.write("first_dense: 1, ffn: 512,")
        said = self.check("model.moe.shared.experts=1", f"train.fp8={{recipe: {recipe}, attention: true, ffn: true}}")
        self.assertIn("In 8 bits on the tensor cores", said)

    def test_63_with_one_scale_a_tensor(self):
        self.all_products_in_8_bits("tensor")

    def test_63_with_scales_of_earlier_steps(self):
        self.all_products_in_8_bits("delayed")

    def test_63_with_a_scale_for_each_128_of_a_tokens_row(self):
        self.all_products_in_8_bits("block")

    def test_63_with_a_loss_scale_that_grows(self):
        self.write()
        self.check("train.precision=fp16", "train.loss_scale={initial: 1024, window: 10}")

    def test_63_with_a_loss_scale_that_overflows(self):
        self.write()
        said = self.check("train.precision=fp16", "train.loss_scale={initial: 1e12, window: 10, hysteresis: 1}", "train.max_skips=99")
        self.assertIn("skipped", said)

    def test_63_with_spikes_that_are_skipped(self):
        self.write()
        said = self.check("train.spike={sigmas: 0.5, window: 4, skip: true}")
        self.assertGreater(said.count("sigma above the last"), 3, said)

    def test_63_with_moments_in_8_bits_and_groups(self):
        self.write()
        self.check("train.optimizer={kind: adamw, moments: int8, groups: [{names: '*.norm*', lr_scale: 2}]}")

    def test_63_of_an_optimizer_whose_update_stays_eager(self):
        self.write()
        _, *eager = self.run_once("one", "train.optimizer={kind: muon}")
        said, *graph = self.run_once("two", "train.optimizer={kind: muon}", "train.cuda_graph=true")
        self.assertEqual(eager, graph)
        self.assertIn("replayed; the update of muon stays eager", said)
        self.assertIn("captured forward and backward of 2 x 8", said)

    def test_63_shapes_of_a_batch_ramp_are_captured_one_by_one(self):
        self.write()
        ramp = ("train.batch_ramp={start: 8, increment: 8, samples: 160}",)
        _, *eager = self.run_once("one", *ramp)
        said, *graph = self.run_once("two", "train.cuda_graph=true", *ramp)
        self.assertEqual(eager, graph)
        self.assertIn("forward, backward and update of 1 x 8 sequences", said)
        self.assertIn(self.CAPTURED, said)


@unittest.skipUnless(GPU, "no GPU on this machine")
class ActivationOffload(GpuRuns):
    """train.offload_layers: what blocks keep waits in host memory; losses, norms and checkpoints are those of a run without it."""
    MOVED = r"step 1: activation offload: [1-9][\d.]* MiB went to host memory and back in the step"

    def peak(self, name):
        rows = [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().split("\n")[:-1]]
        return max(r["memory_peak"] for r in rows if "memory_peak" in r)

    def check(self, layers, *sets):
        _, *plain = self.run_once("one", *sets)
        said, *offloaded = self.run_once("two", f"train.offload_layers={layers}", *sets)
        self.assertEqual(plain, offloaded)
        self.assertIn("activation offload: what the first", said)
        self.assertRegex(said, self.MOVED)

    def test_115_offloaded_layers_are_the_same_bits_in_less_memory(self):
        self.write()
        self.check(8, "model.layers=8")
        self.assertLess(self.peak("two"), self.peak("one"))

    def test_115_beside_recomputed_layers_and_experts_in_8_bits(self):
        self.write()
        self.check(2, "model.layers=3", "train.recompute='[0]*2+[1]*1'", "train.fp8={}")

    def test_115_with_documents_and_a_shared_expert(self):
        self.write()
        self.check(2, "model.moe.shared={experts: 1, hidden: 128}", "data.documents=sequences")


@unittest.skipUnless(GPU, "no GPU on this machine")
class StateOffload(GpuRuns):
    """train.offload_state: masters and moments in pinned host memory; losses, norms and checkpoints are those of a run without it."""
    def peak(self, name):
        rows = [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().split("\n")[:-1]]
        return max(r["memory_peak"] for r in rows if "memory_peak" in r)

    def check(self, *sets):
        _, *plain = self.run_once("one", *sets)
        said, *offloaded = self.run_once("two", "train.offload_state=true", *sets)
        self.assertEqual(plain, offloaded)
        self.assertIn("state offload: masters and moments are in pinned host memory", said)
        self.assertIn("GiB of host memory for masters and optimizer state", said)

    def test_115_offloaded_state_is_the_same_bits_in_less_memory(self):
        self.write()
        self.check("model.layers=8", "model.width=512", "model.moe.hidden=512")
        self.assertLess(self.peak("two"), self.peak("one"))

    def test_115_updates_in_backward_are_the_same_bits_in_less_memory(self):
        self.write()
        # Enough layers that their gradients are more than the windows of state (optim/state_stream.h), which are beside backward then.
        large = ("model.layers=24", "model.width=512", "model.moe.hidden=512", "train.recompute='1'", "train.micro_batch=16")
        for number, form in enumerate((("train.clip=0",), ("train.clip=0", "train.optimizer.moments=int8", "train.offload_state=true"),
                                       ("train.clip=0.5", "train.clip_by=last_step", "train.offload_state=true"))):
            with self.subTest(form):
                for name in ("one", "two"):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                _, *plain = self.run_once("one", *large, *form)
                said, *early = self.run_once("two", "train.update=in_backward", *large, *form)
                self.assertEqual(plain, early)
                self.assertIn("update in backward", said)
                self.assertLess(self.peak("two"), self.peak("one"))

    def test_115_offloaded_state_in_other_types(self):
        self.write()
        for sets in (("train.optimizer.moments=int8",), ("train.precision=fp32",), ("train.precision=fp16",),
                     ("train.optimizer.kind=muon",), ("train.optimizer.kind=lion", "train.optimizer.moments=bf16")):
            with self.subTest(sets):
                for name in ("one", "two"):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                self.check(*sets)


TWO = (Layout(2, "DDP", tensor=2), Layout(2, "FSDP", expert=2, tensor=2), Layout(2, "ZeRO-1", tensor=2, cut=2),
       Layout(2, "DDP", context=2), Layout(2, "ZeRO-1", expert=2, context=2),
       Layout(2, "DDP", pipeline=2), Layout(2, "DDP", pipeline=2, virtual=2),
       Layout(2, "DDP", pipeline=2, virtual=2, order="dualpipev"), Layout(2, "DDP", pipeline=2, virtual=2, order="zbv"),
       Layout(2, "FSDP", expert=2), Layout(2, "ZeRO-1", expert=2, exact=True))


# Experts over both ranks, which read their rows from each other's memory.
MAPPED = (Layout(2, "ZeRO-1", expert=2), Layout(2, "FSDP", expert=2), Layout(2, "ZeRO-1", expert=2, exact=True),
          Layout(2, "ZeRO-1", expert=2, context=2))


class Layouts(unittest.TestCase):
    """Twenty steps in fp32, as tests/troupe_layouts_test.py has them on CPUs."""

    def check(self, layouts, *sets, **variables):
        with tempfile.TemporaryDirectory() as folder:
            runs = LayoutRuns(folder, recipe_on("cuda"))
            runs.train(layouts[0].reference(), "one", "checkpoint.at=[1]", **variables)
            for layout in layouts:
                with self.subTest(str(layout)):
                    name = str(layout).replace(" ", "-")
                    runs.train(layout, name, "checkpoint.at=[1]", *sets, **variables)
                    start, gradients = runs.start_of("one", name)
                    apart = (*runs.apart("one", name), gradients, runs.end_of("one", name))
                    print(f"{layout}: loss, norm, first gradients, state after 20 steps apart by",
                          " ".join(f"{x:.1e}" for x in apart), flush=True)
                    self.assertEqual(start, 0, "initial weights")
                    self.assertLess(apart[2], 1e-5)
                    # Eight times as wide as on the CPU, and every product in another order of sums.
                    self.assertLess(max(apart[:2]), 1e-4)
                    self.assertLess(apart[3], 1e-3)


@unittest.skipUnless(GPUS > 1, "no two GPUs on this machine")
class TwoGpus(Layouts):
    def test_81_82_97_98_99_101_102_218_223_layouts_are_one_gpus_run(self):
        self.check(TWO)

    def test_83_rows_are_read_from_the_other_gpus_memory(self):
        self.check(MAPPED, "parallel.dispatcher=symmetric")


@unittest.skipUnless(GPU, "no GPU on this machine")
class OneGpuOfTwoRanks(Layouts):
    """Two processes on one GPU: every transfer goes through host memory and Gloo."""

    def test_97_99_101_102_layouts_of_two_ranks_are_one_gpus_run(self):
        self.check(TWO, "parallel.backend=gloo", CUDA_VISIBLE_DEVICES="0")

    def test_a_launcher_of_two_ranks_is_told_how_to_share_the_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = LayoutRuns(folder, recipe_on("cuda"))
            words = [str(TROUPE), "launch", "-n", "2", "--", "train", "layout.yaml"]
            words += [w for s in TWO[0].sets() for w in ("--set", s)]
            for more, code, said in ((), 7, "LOCAL_RANK 1: E7101 has no GPU of its own"), \
                                    (("--set", "parallel.backend=gloo"), 0, "through host memory over Gloo"):
                ran = subprocess.run([*words, *more], cwd=runs.folder, env=dict(os.environ, CUDA_VISIBLE_DEVICES="0"),
                                     capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(ran.returncode, code, ran.stderr[-2000:])
                self.assertIn(said, ran.stderr)


TRACED = """
model: {layers: 4, width: 1024, heads: 8, head_dim: 128, vocab: 512, max_positions: 2048,
        moe: {experts: 8, top_k: 2, hidden: 512, shared: {experts: 1, hidden: 1024}}}
data: {train: [{kind: mock}], sequence: 2048}
train: {global_batch: 8, micro_batch: 4, steps: 6, optimizer: {lr: 1e-4}, schedule: {kind: constant}}
parallel: {expert: 2, shard: zero1}
checkpoint: {dir: run, every_steps: 0}
profile: {from: 6, steps: 1}
log: {tensorboard: false}
run: {device: cuda}
"""


def shared_before_return(names):
    """For each computation of the shared expert: whether the routed experts are computed after it and before the next transfer,
    which brings their rows back. If so, it runs between the send of rows and their return. `names` are those of kernels, in
    order. The last kernel of experts combines the rows of each token's choices: 1 of the shared one, 2 of the others."""
    out = []
    for i, name in enumerate(names):
        if re.search(r"combine_kernel<.*, 1>\(", name):
            rest = itertools.takewhile(lambda n: "SendRecv" not in n, names[i:])
            out.append(any(re.search(r"combine_kernel<.*, 2>\(", n) for n in rest))
    return out


def waits_in_layers(events):
    """The calls of a step's trace in which the host waits for its GPU, from the first launch of a router's, an exchange's or a
    combination's kernel to the last one, in all threads that launch kernels; and the copies to the host that are begun there."""
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    by_correlation = {e["args"]["correlation"]: e for e in calls if "correlation" in e.get("args", {})}

    def begun_by(events, pattern):
        """(call, event) of the events with such a name whose call is known."""
        pairs = ((by_correlation.get(e["args"]["correlation"]), e) for e in events if re.search(pattern, e["name"]))
        return [(call, e) for call, e in pairs if call]
    kernels = begun_by([e for e in events if e.get("cat") == "kernel"], "")
    times = [call["ts"] for call, e in kernels if re.search(r"(route|peer_rows|combine)_kernel<", e["name"])]
    threads = {call["tid"] for call, _ in kernels}
    copies = begun_by([e for e in events if e.get("cat") == "gpu_memcpy"], "DtoH")
    found = [(e, e["name"]) for e in calls if re.search(r"Synchronize|^cudaMemcpy$|^cudaFree$|^cuMemcpyDtoH", e["name"])]
    found += [(call, e["name"]) for call, e in copies]
    return [name for call, name in found if call["tid"] in threads and min(times) <= call["ts"] <= max(times)]


def copies_beside_kernels(events, direction):
    """How many of a trace's copies between the GPU and pinned memory run while a kernel of another stream does, and of how many."""
    kernels = [e for e in events if e.get("cat") == "kernel"]
    # Of 1 MiB and more: those of activations.
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and direction in e["name"] and e["args"]["bytes"] >= 1 << 20]

    def beside(copy):
        end = copy["ts"] + copy["dur"]
        return any(k["args"]["stream"] != copy["args"]["stream"] and k["ts"] < end and copy["ts"] < k["ts"] + k["dur"]
                   for k in kernels)
    return sum(map(beside, copies)), len(copies)


class Trace(unittest.TestCase):
    def test_copies_are_beside_kernels_of_other_streams_alone(self):
        def ran(cat, name, stream, ts, dur, size=1 << 21):
            return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"stream": stream, "bytes": size}}
        events = [ran("kernel", "add", 7, 0, 10), ran("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 20, 5, 10),
                  ran("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 20, 15, 5), ran("kernel", "mul", 20, 16, 2),
                  ran("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 20, 2, 1, size=8),
                  ran("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 9, 5)]
        self.assertEqual(copies_beside_kernels(events, "DtoH"), (1, 2))
        self.assertEqual(copies_beside_kernels(events, "HtoD"), (1, 1))

    def test_waits_are_found_between_the_first_and_the_last_layer_alone(self):
        def call(at, name, cat="cuda_runtime", tid=1):
            return {"cat": cat, "name": name, "ts": at, "tid": tid, "args": {"correlation": at}}

        def ran(at, name, cat="kernel"):
            return [call(at, "cudaLaunchKernel"), dict(call(at, name, cat), ts=at + 100)]
        events = [*ran(1, "add"), call(2, "cudaStreamSynchronize"), *ran(3, "troupe::route_kernel<float>(a)"),
                  call(5, "cudaEventSynchronize"), call(6, "cudaStreamWaitEvent"), call(7, "cudaStreamSynchronize", tid=2),
                  *ran(8, "Memcpy DtoH (Device -> Pinned)", "gpu_memcpy"), *ran(9, "Memcpy HtoD", "gpu_memcpy"),
                  *ran(11, "troupe::peer_combine_kernel<float>(b)"), call(12, "cudaStreamSynchronize")]
        self.assertEqual(waits_in_layers(events), ["cudaEventSynchronize", "Memcpy DtoH (Device -> Pinned)"])

    def test_the_order_of_kernels_is_told_apart(self):
        send, shared, routed = "ncclDevKernel_SendRecv(a)", "combine_kernel<T, 8, 1>(b)", "combine_kernel<T, 8, 2>(b)"
        self.assertEqual(shared_before_return([send, shared, routed, send, "add"]), [True])
        self.assertEqual(shared_before_return([send, routed, send, shared]), [False])


@unittest.skipUnless(GPU, "no GPU on this machine")
class OffloadTrace(GpuRuns):
    def test_115_copies_run_beside_kernels(self):
        """Some copies of each layer and microbatch, but of the last layer's: on its way back nothing but the head lies between. How
        many is a matter of PCIe: they take longer here than the layer beside them."""
        text = TRACED.replace("parallel: {expert: 2, shard: zero1}\n", "")
        (self.folder / "nano.yaml").write_text(text)
        words = [w for s in ("train.offload_layers=4", "checkpoint.dir=traced") for w in ("--set", s)]
        subprocess.run([str(TROUPE), "train", "nano.yaml", *words], cwd=self.folder, env=self.env(), capture_output=True,
                       timeout=300, check=True)
        events = json.loads((self.folder / "traced" / "profile-6.json").read_text())["traceEvents"]
        for direction in ("DtoH", "HtoD"):
            beside, copies = copies_beside_kernels(events, direction)
            print(f"{direction}: {beside} of {copies} copies of activations run beside kernels", flush=True)
            self.assertGreaterEqual(copies, 4 * 2)  # layers, microbatches
            self.assertGreaterEqual(beside, 3 * 2)


@unittest.skipUnless(GPUS > 1, "no two GPUs on this machine")
class TwoGpusTrace(RanksRun):
    RECIPE = TRACED

    def test_93_the_shared_expert_lies_between_send_and_return(self):
        for overlap in (True, False):
            name = f"run{overlap}"
            self.train_ranks(2, f"model.moe.shared.overlap={str(overlap).lower()}", name=name)
            trace = json.loads((self.folder / name / "profile-6.json").read_text())
            kernels = sorted((e["ts"], e["name"]) for e in trace["traceEvents"] if e.get("cat") == "kernel")
            self.assertEqual(shared_before_return([n for _, n in kernels]), [overlap] * 8)  # 4 forward, 4 backward

    def test_54_rows_from_the_other_gpus_memory_need_no_wait_of_the_host(self):
        """From the first layer's router in a step to the end of the last backward: what all-to-all waits for would be seen."""
        waits = {}
        for kind in ("all_to_all", "symmetric"):
            self.train_ranks(2, f"parallel.dispatcher={kind}", "train.global_batch=16", name=kind)
            trace = json.loads((self.folder / kind / "profile-6.json").read_text())
            waits[kind] = waits_in_layers(trace["traceEvents"])
            print(f"{kind}: the host waits {len(waits[kind])} times in 4 layers of 2 microbatches", flush=True)
        self.assertGreaterEqual(len(waits["all_to_all"]), 4 * 2)
        self.assertEqual(waits["symmetric"], [])


@unittest.skipUnless(GPUS > 1, "no two GPUs on this machine")
class TwoGpusFaults(RanksRun):
    RECIPE = RANKS_NANO.replace("device: cpu", "device: cuda").replace("width: 32", "width: 256")

    def test_F84_a_killed_rank_ends_the_other_in_each_layout(self):
        for keys in ((), ("tensor=2",), ("context=2",), ("pipeline=2",), ("expert=2", "shard=full"),
                     ("expert=2", "shard=zero1", "dispatcher=symmetric")):
            with self.subTest(keys):
                name = "-".join(keys) or "data"
                runs = self.start_ranks(2, "run.hang_timeout=10min", "train.steps=1000000", "log.every=1",
                                        *(f"parallel.{k}" for k in keys), name=name)
                self.wait_for_step(10, name)
                runs[1].send_signal(signal.SIGKILL)
                begin = time.monotonic()
                self.assertEqual(runs[0].wait(PATIENCE), 6, self.text_of(0, name)[-1500:])
                print(f"{name}: ended {time.monotonic() - begin:.1f} s after the kill", flush=True)
                self.assertIn("E6001", self.text_of(0, name))
                self.assertIn("rank 1", self.text_of(0, name))
                self.assertLess(time.monotonic() - begin, 100)


if __name__ == "__main__":
    unittest.main()
