"""The command `troupe`: the program in the package's bin/, with the PyTorch that this Python has. A module of its own,
because `import troupe` imports PyTorch, which takes two seconds."""
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

TORCH = "2.11."  # what program and library were built with: its C++ interface changes with every minor version
EXIT_MACHINE = 7


def main():
    here = pathlib.Path(__file__).resolve().parent / "troupe"
    found = importlib.util.find_spec("torch")  # not imported
    if found is None or not found.submodule_search_locations:
        sys.exit(f"troupe: there is no PyTorch for {sys.executable}. Run: pip install torch=={TORCH}0")
    version = importlib.metadata.version("torch")
    if not version.startswith(TORCH):
        print(f"troupe: PyTorch here is {version}; this needs {TORCH}x. Run: pip install torch=={TORCH}0", file=sys.stderr)
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
