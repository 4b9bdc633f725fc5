"""bench/hf_step.py --together: the sides of one process take turns step by step."""
import os
import pathlib
import resource
import subprocess
import sys
import time

from hf_parts import adamw, implementation_of, make_model, put_sonicmoe_in_place, say

STEP = str(pathlib.Path(__file__).with_name("hf_step.py"))


def tune(m):
    """SonicMoE's kernels for these sizes: what it finds and compiles is kept for the process that times it."""
    import torch
    put_sonicmoe_in_place()
    model = make_model({**m, "layers": 1, "vocab": 128}, "cuda", "sonicmoe")
    rows, k = m["sequences"] * m["tokens"], m["k"]
    x = torch.randn(rows, m["d"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids = torch.rand(rows, m["experts"], device="cuda").topk(k, -1)[1]
    weights = torch.rand(rows, k, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    experts = model.model.layers[0].mlp.experts
    dy = torch.randn_like(x)  # a sum's gradient has no strides, which SonicMoE refuses
    for _ in range(2):
        experts(x, ids, weights).backward(dy)
    torch.cuda.synchronize()


class Together:
    """The sides of one process: they share a model, and its optimizer's state."""

    def __init__(self, m, args):
        import torch
        self.torch, self.m, self.args, self.device = torch, m, args, m.get("device", "cpu")
        if args.threads:
            torch.set_num_threads(args.threads)
        torch._dynamo.config.recompile_limit = 64  # an entry a side
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.model = make_model(m, self.device, "grouped_mm")
        self.compiled = torch.compile(self.model)
        self.adam = adamw(self.model)
        torch.manual_seed(2)
        self.batches = torch.randint(0, m["vocab"], (args.steps, m["sequences"], m["tokens"]), device=self.device)

    def forward_backward(self, side, batch):
        implementation, compiled = implementation_of(side)
        self.model.set_experts_implementation(implementation)
        loss = (self.compiled if compiled else self.model)(input_ids=batch, labels=batch).loss
        loss.backward()
        return loss, self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)

    def ready(self, side):
        """Compiles; what is to be compared, of the first weights."""
        if side.startswith("troupe"):
            import troupe
            print(troupe.patch(self.model), flush=True)
        if side.startswith("sonicmoe"):
            put_sonicmoe_in_place()
        for _ in range(2):
            loss, norm = self.forward_backward(side, self.batches[0])
            self.adam.zero_grad(set_to_none=True)
        return {"times": [], "work": [], "losses": [loss.item()], "norms": [norm.item()], "peak": 0}

    def turn(self, side, step):
        on_gpu = self.device == "cuda"
        wait = self.torch.cuda.synchronize if on_gpu else lambda: None
        wait()
        if on_gpu:
            self.torch.cuda.reset_peak_memory_stats()
        start, worked = time.perf_counter(), time.process_time()
        self.forward_backward(side, self.batches[step])
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        wait()
        peak = self.torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return time.perf_counter() - start, time.process_time() - worked, peak


def start_tuning(model, sides, args):
    if not any(side.startswith("sonicmoe") for side in sides):
        return None
    os.environ.update(QUACK_CACHE_AUTOTUNING="1", QUACK_COMPILE_WORKERS=str(os.cpu_count()))
    words = [sys.executable, STEP, model, "--one", "tune", "--sequences", str(args.sequences)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def together(model, m, args):
    began = time.perf_counter()
    left = lambda: args.together - (time.perf_counter() - began)
    sides = sorted(args.sides.split(","), key=lambda side: side.startswith("sonicmoe"))  # tuned beside the others
    if any(side.startswith("troupe-all") for side in sides):
        sys.exit("hf_step: --together has no troupe-all: name --sides without it")
    tuner, all_of, found = start_tuning(model, sides, args), Together(m, args), {}
    for side in sides:
        if side.startswith("sonicmoe") and tuner is not None:
            try:
                said = tuner.communicate(timeout=max(left(), 1))[1].strip().splitlines()[-1:]
                wrong = f": it failed, {said}" if tuner.returncode else ""
                print(f"SonicMoE tuned itself, {args.together - left():.0f} s after the start{wrong}", flush=True)
            except subprocess.TimeoutExpired:
                tuner.kill()
            tuner = None
        if left() <= 0:
            print(f"{side}: no time was left to make it ready", flush=True)
            continue
        try:
            found[side] = [all_of.ready(side)]
            print(f"{side}: ready {args.together - left():.0f} s after the start", flush=True)
        except Exception as error:  # the report names a side that cannot run; the others are measured
            print(f"{side}: cannot run: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}", flush=True)
            all_of.adam.zero_grad(set_to_none=True)
    if not found:
        sys.exit("hf_step: no side could run")
    turns = 0
    while turns < args.steps and (left() > 0 or turns <= args.skip):
        for side, (run,) in found.items():
            seconds, worked, peak = all_of.turn(side, turns)
            run["peak"] = max(run["peak"], peak)
            if turns >= args.skip:
                run["times"].append(seconds)
                run["work"].append(worked)
        turns += 1
    say(found, m, f"{model}, {m['sequences'] * m['tokens']:,} tokens a step, one process, sides by turns, medians of "
                  f"{turns - args.skip} steps, {args.together - left():.0f} s in all; losses and norms of the first weights")
