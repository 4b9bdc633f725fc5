"""The gate of bench/gpu_layer.py: a layer may not become slower than the file of its times says.

The file, docs/bench/layer_gate.json, holds what the layer took when it was last measured, forward with backward:
  {device: {shape: {"ms": 3.21, "best_of": 3, "date": "2026-11-27", "commit": "1a2b3c4"}}}
ms is the best of three medians; the gate compares with the best of three medians of today. What has no `best_of` was recorded
as the middle of three, which is a little more: record it again.
"""
import datetime
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TRIES = 3  # medians, of which the best counts: noise of a GPU only adds to a time


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
        found[shape] = dict(ms=round(best_of(medians(shape)), 5), best_of=TRIES, date=datetime.date.today().isoformat(),
                            commit=commit)
        print(f"{shape}: recorded {found[shape]['ms']:.3f} ms", flush=True)
    entries = read(path)
    entries[device] = {**entries.get(device, {}), **found}
    write(path, entries)


def best_of(medians):
    return min(itertools.islice(medians, TRIES))


def without_entry(path, device, shapes):
    """Those of the shapes that the file has nothing of for this device."""
    entries = read(path).get(device, {})
    return [shape for shape in shapes if shape not in entries]


def gate(entries, medians, within):
    """Prints a line a shape; 1 where one is slower, else 0."""
    slower = []
    for shape, entry in entries.items():
        best = best_of(medians(shape))
        good = best <= entry["ms"] * (1 + within)
        print(f"{shape}: wanted {entry['ms']:.3f} ms ({entry['date']}, {entry['commit']}), measured {best:.3f} ms, "
              f"ratio {best / entry['ms']:.3f}" + ("" if good else "  SLOWER"), flush=True)
        if not good:
            slower.append(shape)
    if slower:
        print(f"gpu_layer: {', '.join(slower)}: slower than recorded by more than {100 * within:g} %", file=sys.stderr)
    return 1 if slower else 0
