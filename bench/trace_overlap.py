#!/usr/bin/env python3
"""How much of a step's transfers between ranks goes on beside products, from a trace that `profile` left.

  troupe train run.yaml --set 'profile={from: 12, steps: 2}'
  python3 bench/trace_overlap.py runs/run/profile-12.json [STEPS of the trace, 2]

Prints a line of JSON: per step the milliseconds of NCCL's kernels, of these those during which another kernel ran on
the GPU (`hidden_ms`), and the milliseconds in which no kernel but NCCL's ran (`exposed_ms`); then the same of all
kernels. A GPU runs kernels of several streams at once: times are of the union of their intervals.
"""
import json
import pathlib
import sys


def union(intervals):
    """Disjoint and in order."""
    out = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def common(left, right):
    """The length of the intersection of two lists of disjoint intervals in order."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def overlap_of(path, steps):
    kernels = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "kernel"]
    spans = {True: [], False: []}
    for kernel in kernels:
        spans["nccl" in kernel["name"].lower()].append((kernel["ts"], kernel["ts"] + kernel["dur"]))
    transfers, others = union(spans[True]), union(spans[False])
    hidden = common(transfers, others)
    ms = 1e-3 / steps
    return dict(transfers_ms=round(length(transfers) * ms, 3), hidden_ms=round(hidden * ms, 3),
                exposed_ms=round((length(transfers) - hidden) * ms, 3),
                busy_ms=round(length(union(spans[True] + spans[False])) * ms, 3), launches=len(kernels) // steps)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    print(json.dumps(overlap_of(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)))


if __name__ == "__main__":
    main()
