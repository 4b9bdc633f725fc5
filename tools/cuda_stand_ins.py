#!/usr/bin/env python3
"""cuda_stand_ins.py SITE_PACKAGES: lets Python import a PyTorch whose CUDA libraries were left out.

`import torch` loads libtorch_cuda, which names 3.4 GB of NVIDIA libraries; without a GPU none of
them is ever called. Here each one that is missing is a link to one small library, which defines the
symbols asked of it and stops the process, with a message, should one be called."""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
void troupe_cuda_stand_in(void) {
  fputs("a CUDA library was called, and only PyTorch's CPU part is installed: ./dev setup --cuda\\n",
        stderr);
  abort();
}
"""
# PyTorch 2.15 names NVRTC too.
LEFT_OUT = r"(cublas|cudnn|cufft|cufile|curand|cusolver|cusparse|nccl|nvrtc|nvshmem)"
UNDEFINED = re.compile(rf" [Uwv] (\w*{LEFT_OUT}\w*)(?:@(\S+))?$", re.M | re.I)


def asked_for(libraries):
    """The symbols of the libraries left out, by version: {'libcublas.so.13': {...}, '': {...}}."""
    symbols = collections.defaultdict(set)
    for library in libraries:
        run = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True)
        for symbol, _, version in UNDEFINED.findall(run.stdout):
            if not symbol.startswith("_Z"):  # PyTorch's own
                symbols[version].add(symbol)
    return symbols


def needed(libraries):
    for library in libraries:
        run = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True,
                             check=True)
        yield from re.findall(r"\(NEEDED\).*\[(.*)\]", run.stdout)


def main(site_packages):
    torch, folder = site_packages / "torch/lib", site_packages / "nvidia/cu13/lib"
    libraries = sorted(torch.glob("lib*cuda*.so")) + [torch / "libtorch_python.so",
                                                      torch / "libtorch_nvshmem.so"]
    here = {p.name for place in (torch, folder) for p in place.iterdir()}
    missing = {name for name in needed(libraries)
               if re.match(f"lib{LEFT_OUT}", name) and name not in here}
    symbols = asked_for(libraries)
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stand_in.c"), pathlib.Path(work, "versions")
        alias = "".join(f'__asm__(".globl {n}\\n.set {n}, troupe_cuda_stand_in");\n'
                        for names in symbols.values() for n in sorted(names))
        source.write_text(SOURCE + alias)
        script.write_text("".join(f"{version} {{ {'; '.join(sorted(names))}; }};\n"
                                  for version, names in symbols.items() if version))
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda_stand_in.so"),
                        f"-Wl,--version-script={script}", str(source)], check=True)
    for name in sorted(missing):
        (folder / name).symlink_to("libcuda_stand_in.so")
        print(f"{name} stands in for the real one")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
