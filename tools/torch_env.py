#!/usr/bin/env python3
"""torch_env.py VERSION [--cuda]: makes a virtual environment with PyTorch of this minor version (2.15) and what the tests need,
once, in .venv/torch-2.15 (--cuda: .venv/torch-2.15-cuda), and prints the folder.

Without --cuda it is what `./dev setup` installs without a GPU: the wheel alone, without the 3 GB of NVIDIA's libraries that
it names, which tools/cuda_stand_ins.py stands in for; a wheel without CUDA (TROUPE_TORCH_INDEX=https://download.pytorch.org/whl/cpu)
needs no stand-ins."""
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tools/requirements"
# Of python.txt, those that require torch: with them pip would bring all that torch requires.
NEED_TORCH = ("accelerate", "peft")


def supported():
    """2.11, 2.12 and so on: cmake/torch.cmake has the list."""
    return re.search(r"^set\(TROUPE_TORCH_SUPPORTED ([\d. ]+)\)", (ROOT / "cmake/torch.cmake").read_text(), re.M)[1].split()


def asked(text):
    """The versions of "2.11,2.15", or of `oldest`, `newest` and `all`; ends with words where one is not supported."""
    known = supported()
    words = {"oldest": known[:1], "newest": known[-1:], "all": known}
    out = [version for word in text.split(",") for version in words.get(word, [word])]
    for version in out:
        if version not in known:
            sys.exit(f"there is no PyTorch {version or 'without a number'} for Troupe: it is built with {', '.join(known)} "
                     "(cmake/torch.cmake), which `oldest`, `newest` and `all` name too")
    return list(dict.fromkeys(out))


def lines(name):
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def cuda_parts(requires):
    """What `import torch` loads of NVIDIA's even without a GPU, as its wheel pins it: the runtime and CUPTI."""
    out = []
    for line in requires:
        line = line.split(";")[0].strip()
        if toolkit := re.match(r"cuda-toolkit\[[^]]*\]\s*(.*)", line):
            out.append(f"cuda-toolkit[cudart,cupti]{toolkit[1].replace(' ', '')}")
        elif re.match(r"nvidia-cuda-(cupti|runtime)\b", line):
            out.append(line.replace(" ", ""))
    return out


def site_of(folder):
    (site,) = (folder / "lib").glob("python3*/site-packages")
    return site


def version_of(folder):
    """Of the PyTorch in it: 2.15.0."""
    text = (site_of(folder) / "torch/version.py").read_text()
    return re.search(r"^__version__ = '(\d+\.\d+\.\d+)", text, re.M)[1]


def steps(version, cuda):
    """What pip installs, in order: words a step. The parts that the wheel of torch names come after it."""
    index = ["--index-url", os.environ["TROUPE_TORCH_INDEX"]] if os.environ.get("TROUPE_TORCH_INDEX") else []
    python = lines("python")
    later = [line for line in python if line.split("==")[0] in NEED_TORCH]
    yield [*index, *([] if cuda else ["--no-deps"]), f"torch=={version}.*"]
    yield [line for line in python if line not in later]
    yield ["--no-deps", *later, *(lines("cutlass") + lines("cudnn") if cuda else [])]


def mark(version, cuda):
    return hashlib.sha256(repr([*steps(version, cuda), NEED_TORCH]).encode()).hexdigest()[:16]


def environment(version, cuda=False):
    """The folder; made where it is not there, or was made of other requirements."""
    folder = ROOT / ".venv" / f"torch-{version}{'-cuda' if cuda else ''}"
    done = folder / ".done"
    if done.exists() and done.read_text() == mark(version, cuda):
        return folder
    begun = folder / ".begun"
    if not begun.exists() or begun.read_text() != mark(version, cuda):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        begun.write_text(mark(version, cuda))
    pip = [folder / "bin/python", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    for words in steps(version, cuda):
        install([*pip, *words])
    if not cuda and (site_of(folder) / "torch/lib/libtorch_cuda.so").exists():
        torch = next(importlib.metadata.distributions(name="torch", path=[str(site_of(folder))]))
        install([*pip, *cuda_parts(torch.requires or [])])
        install([folder / "bin/python", ROOT / "tools/cuda_stand_ins.py", site_of(folder)])
    install([folder / "bin/python", "-c", "import torch; print('PyTorch', torch.__version__)"])
    done.write_text(mark(version, cuda))
    return folder


def install(words):
    ran = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{ran.stdout[-3000:]}\ntorch_env: this failed: {' '.join(map(str, words))}\nThe same command goes on from here")


if __name__ == "__main__":
    (wanted,) = asked(sys.argv[1])
    print(environment(wanted, "--cuda" in sys.argv[2:]))
