"""The command `troupe`: the program in the package's bin/, with the PyTorch that this Python has. A module of its own,
because `import troupe` imports PyTorch, which takes two seconds.

Also which PyTorch a build is for, for both: CMake writes troupe_build.py beside a library, and a wheel has it as
troupe/_build.py."""
import importlib.metadata
import importlib.util
import os
import pathlib
import runpy
import sys

EXIT_MACHINE = 7


def build_of(file):
    """VERSION, TORCH and SUPPORTED of a record; of a build that has none, nothing is known."""
    return runpy.run_path(str(file)) if os.path.exists(file) else None


def minor(version):
    """2.15 of 2.15.1+cpu."""
    return ".".join(version.split(".")[:2])


def refusal(torch, build):
    """Why this build is not for that PyTorch (None: nothing is there) and what to do; None where it is.

    A minor version changes PyTorch's C++ interface: the library would end in an undefined symbol or read fields that moved."""
    if build is None or torch is not None and minor(torch) == minor(build["TORCH"]):
        return None
    own = minor(build["TORCH"])
    install = f"pip install 'torch=={own}.*'"
    if torch is None:
        return f"there is no PyTorch for {sys.executable}, and this build of troupe {build['VERSION']} needs {own}. Run: {install}"
    said = f"PyTorch here is {torch}; this build of troupe {build['VERSION']} is for {own}, because PyTorch's C++ interface " \
           f"changes with every minor version. Run: {install}"
    here = minor(torch)
    if here not in build["SUPPORTED"]:
        return f"{said} (troupe {build['VERSION']} is built for {', '.join(build['SUPPORTED'])}, not for {here})"
    return f"{said}, or install the wheel for {here}, troupe_moe-{build['VERSION']}+torch{here}-*.whl, or in the source tree: " \
           f"pip install . -C torch={here}"


def main():
    here = pathlib.Path(__file__).resolve().parent / "troupe"
    found = importlib.util.find_spec("torch")  # not imported
    there = found is not None and found.submodule_search_locations
    if said := refusal(importlib.metadata.version("torch") if there else None, build_of(here / "_build.py")):
        print(f"troupe: {said}", file=sys.stderr)
        sys.exit(EXIT_MACHINE)
    torch = pathlib.Path(found.submodule_search_locations[0]).resolve()
    if torch.parent != here.parent:  # beside each other they find each other
        folders = [torch / "lib", *sorted((torch.parent / "nvidia").glob("*/lib"))]
        before = os.environ.get("LD_LIBRARY_PATH", "")
        os.environ["LD_LIBRARY_PATH"] = ":".join([str(f) for f in folders] + ([before] if before else []))
    program = here / "bin" / "troupe"
    os.execv(program, ["troupe", *sys.argv[1:]])


if __name__ == "__main__":
    main()
