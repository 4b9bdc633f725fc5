"""The gate of bench/gpu_layer.py: a layer may not become slower than the file of its times says.

The file, docs/bench/layer_gate.json, holds what the layer took when it was last measured, forward with backward:
  {device: {shape: {"ms": 3.21, "date": "2026-11-27", "commit": "1a2b3c4"}}}
"""
import datetime
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TRIES = 3  # medians: recording takes the middle one, a shape that misses is measured so often in all


class Unusable(Exception):
    """Nothing can be compared or recorded, and why."""


def read(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Unusable(f"{path} is not JSON: {error}") from error


def write(path, entries):
    """The whole file or the old one, never a part."""
    path = pathlib.Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as out:
            json.dump(entries, out, indent=2, sort_keys=True)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def commit_of_tree():
    root = pathlib.Path(__file__).resolve().parents[1]
    try:
        told = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"],
                              capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unusable(f"{root} is no git checkout, so name the commit that is measured: --commit") from error
    return told.stdout.strip()


def wanted(path, device, shapes=None):
    """{shape: its entry} of this device; shapes: all that it has where none are named."""
    entries = read(path).get(device)
    if not entries:
        raise Unusable(f"{path} has no entry for {device}: record one there with --record {path}")
    missing = [shape for shape in shapes or () if shape not in entries]
    if missing:
        raise Unusable(f"{path} has no entry for {', '.join(missing)} on {device}: "
                       f"record it there with --record {path} --shapes {','.join(missing)}")
    return {shape: entries[shape] for shape in shapes or entries}


def record(path, device, shapes, medians, commit):
    """Measures and writes the device's entries of these shapes; all others stay."""
    commit = commit or commit_of_tree()
    read(path)  # before anything is measured
    found = {}
    for shape in shapes:
        found[shape] = dict(ms=round(statistics.median(itertools.islice(medians(shape), TRIES)), 5),
                            date=datetime.date.today().isoformat(), commit=commit)
        print(f"{shape}: recorded {found[shape]['ms']:.3f} ms", flush=True)
    entries = read(path)
    entries[device] = {**entries.get(device, {}), **found}
    write(path, entries)


def holds(ms, medians, within):
    """(whether a shape is no slower than ms by more than this part, its best median). `medians` is asked again where the
    median before it misses, TRIES times in all."""
    best = float("inf")
    for median in itertools.islice(medians, TRIES):
        best = min(best, median)
        if best <= ms * (1 + within):
            return True, best
    return False, best


def gate(entries, medians, within):
    """Prints a line a shape; 1 where one is slower, else 0."""
    slower = []
    for shape, entry in entries.items():
        good, best = holds(entry["ms"], medians(shape), within)
        print(f"{shape}: wanted {entry['ms']:.3f} ms ({entry['date']}, {entry['commit']}), measured {best:.3f} ms, "
              f"ratio {best / entry['ms']:.3f}" + ("" if good else "  SLOWER"), flush=True)
        if not good:
            slower.append(shape)
    if slower:
        print(f"gpu_layer: {', '.join(slower)}: slower than recorded by more than {100 * within:g} %", file=sys.stderr)
    return 1 if slower else 0
