#!/usr/bin/env python3
"""release.py --torch 2.11,2.15: makes what a release of Troupe consists of, and uploads nothing. `./dev release` calls it.

  --torch VERSIONS   a wheel for each of these PyTorch (or oldest, newest, all)
  --pypi VERSION     of which the wheel under the plain version is, PyPI's; the newest of them
  --from BUILD       a build that is there, in place of one made here for its PyTorch; may be given again
  --compiler NVCC    the CUDA half is built with it; without it the builds made here have none, which is said
  --out FOLDER       dist/0.2.0

The source distribution and the wheels are made of a clean checkout, twine checks them, and each wheel's tests run with that very file
in a clean environment (tests/wheel_test.py). Ends with what a person has to do, or with 1 where something did not pass."""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import make_wheel
import other_torch
import pip_backend
import torch_env

ROOT = make_wheel.ROOT
BOUND = 60e6  # bytes of a wheel: tests/wheel_test.py holds it to that


def git(*words):
    return make_wheel.run("git", "-C", ROOT, *words).rstrip("\n")


def faults(version, changelog, status):
    """Why nothing is made, a line each."""
    if status:
        yield f"files differ from the commit, and a release is of one: {', '.join(line[3:] for line in status.splitlines()[:5])}"
    found = re.search(r"^## (\S+?),? ", changelog, re.M)
    if not found or found[1] != version:
        yield f"the newest section of CHANGELOG.md is {found[1] if found else 'none'}'s, and CMakeLists.txt has {version}"


def pending(version, changelog, has_cuda):
    """What keeps it from being uploaded as it is, a line each: a person decides."""
    if re.search(rf"^## {re.escape(version)}, unreleased$", changelog, re.M):
        yield f"CHANGELOG.md says that {version} is unreleased: write the day, commit, and run this again"
    for wheel, there in has_cuda.items():
        if not there:
            yield f"{wheel} has no CUDA half: it was built without a CUDA compiler"


def builds_of(folders):
    """2.15 -> folder, of builds that are there."""
    out = {}
    for folder in folders:
        path = pathlib.Path(folder).resolve()
        if not (path / "libtroupe.so").exists() or not (path / "troupe").exists():
            sys.exit(f"release: --from {folder}: there is no libtroupe.so and troupe. Run: ./dev build")
        if make_wheel.cached(path, "CMAKE_PROJECT_VERSION") != make_wheel.version():
            sys.exit(f"release: --from {folder} is a build of {make_wheel.cached(path, 'CMAKE_PROJECT_VERSION')}, not of "
                     f"{make_wheel.version()}. Run: ./dev build")
        out[make_wheel.torch_version(path).rpartition(".")[0]] = path
    return out


def built(version, arguments):
    """The folder of a build made here."""
    environment = torch_env.environment(version, cuda=bool(arguments.compiler))
    build = other_torch.configure(version, environment, arguments.compiler)
    other_torch.compile_targets(build, arguments.jobs, *(["troupe_cuda"] if arguments.compiler else []))
    return build


def python_of(build):
    """Of the environment that the build was made with."""
    site = pathlib.Path(make_wheel.cached(build, "TROUPE_TORCH_ROOT"))
    found = site.parents[2] / "bin/python"
    return found if found.exists() else pathlib.Path(sys.executable)


def test_wheel(build, wheel, out):
    """Runs its tests with that file; how many passed, or other_torch.Failed."""
    log, results = out / f"{wheel.stem}.log", out / f"{wheel.stem}.json"
    begin = time.monotonic()
    other_torch.quiet([python_of(build), ROOT / "tools/run_python_test.py", ROOT / "tests/wheel_test.py", results], log,
                      env={**os.environ, "TROUPE_BUILD": str(build), "TROUPE_WHEEL": str(wheel)})
    outcomes = [outcome for _, _, outcome in other_torch.tests.cases(results)]
    return f"{outcomes.count('passed')} passed, {outcomes.count('skipped')} skipped, {time.monotonic() - begin:.0f} s"


def check(files):
    """twine's check of each, warnings too."""
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    ran = subprocess.run(twine, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise other_torch.Failed(f"twine's check:\n{ran.stdout}{ran.stderr}")
    return f"twine's check of {len(files)} files: passed"


def describe(files):
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        yield f"  {file.name}  {file.stat().st_size / 1e6:.1f} MB  sha256 {digest}"


def instructions(version, commit, files, waits):
    """What a person has to do: `files` are the paths, PyPI's are those without a local version."""
    pypi = [file for file in files if "+" not in file.name]
    others = [file for file in files if "+" in file.name]
    yield from (f"Before: {line}" for line in waits)
    yield f"1. Tag the commit:  git tag -a v{version} {commit} -m 'Troupe {version}' && git push origin v{version}"
    yield "2. Upload to PyPI, which takes no local versions; a file cannot be replaced later:"
    yield f"     {pathlib.Path(sys.executable).parent / 'twine'} upload {' '.join(map(str, pypi))}"
    yield "3. Put these, with their sums, on the page of files of the tag; a user installs one by its address:"
    yield from (f"     {file}" for file in others)
    yield "4. In an environment without Troupe:  pip install troupe-moe && troupe doctor"
    yield "5. In CMakeLists.txt the next version, and its section in CHANGELOG.md."


def make(arguments, out):
    """(files, wheel -> build) of all that is made."""
    known, files, wheels = builds_of(arguments.builds), [out / pip_backend.build_sdist(out)], {}
    versions = torch_env.asked(arguments.torch) if arguments.torch else sorted(known, key=lambda text: int(text.split(".")[1]))
    if not versions:
        sys.exit("release: no PyTorch is named: --torch 2.11,2.15, or --from a build")
    pypi = arguments.pypi or versions[-1]
    if pypi not in versions:
        sys.exit(f"release: --pypi {pypi} is none of those that are built, {', '.join(versions)}")
    for version in versions:
        build = known.get(version) or built(version, arguments)
        for public in ([True] if version == pypi else []) + [False]:
            wheel = make_wheel.build_wheel(build, out, public)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
            files.append(wheel)
            wheels[wheel] = build
    return files, wheels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="")
    parser.add_argument("--pypi", default="")
    parser.add_argument("--from", dest="builds", action="append", default=[])
    parser.add_argument("--compiler", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    version, changelog = make_wheel.version(), (ROOT / "CHANGELOG.md").read_text()
    if found := list(faults(version, changelog, git("status", "--porcelain"))):
        sys.exit("\n".join(f"release: {line}" for line in found))
    out = pathlib.Path(arguments.out or ROOT / "dist" / version).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    failed, has_cuda = [], {}
    try:
        files, wheels = make(arguments, out)
        print(check(files), flush=True)
    except other_torch.Failed as why:
        sys.exit(f"release: {why}")
    for wheel, build in wheels.items():
        has_cuda[wheel.name] = (build / "libtroupe_cuda.so").exists()
        try:
            print(f"{wheel.name}, its tests beside PyTorch {make_wheel.torch_version(build)}: {test_wheel(build, wheel, out)}", flush=True)
        except other_torch.Failed as why:
            failed.append(f"{wheel.name}: {why}")
        if wheel.stat().st_size > BOUND:
            failed.append(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, more than {BOUND / 1e6:.0f}")
    if failed:
        sys.exit("\n".join(f"release: {line}" for line in failed))
    print(f"\nTroupe {version} of commit {git('rev-parse', '--short', 'HEAD')}, nothing is uploaded:", *describe(files), "",
          *instructions(version, git("rev-parse", "HEAD"), files, pending(version, changelog, has_cuda)), sep="\n")


if __name__ == "__main__":
    main()
