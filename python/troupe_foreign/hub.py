"""A folder of safetensors in Hugging Face's layout, written beside its place and renamed when it is whole."""
import contextlib
import json
import os
import pathlib
import shutil

import torch

from .tensors import Fault

SHARD = 4 << 30  # bytes of a file, about; no more than one tensor is in memory
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
          torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}


def size_of(tensor):
    return torch.Size(tensor.shape).numel() * tensor.dtype.itemsize


def shared_out(tensors, most):
    """The names of each file, in order."""
    files, size = [[]], 0
    for name, tensor in tensors.items():
        if files[-1] and size + size_of(tensor) > most:
            files.append([])
            size = 0
        files[-1].append(name)
        size += size_of(tensor)
    return files


def write_file(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise Fault(f"{tensor.where}: {tensor.dtype} has no place in safetensors")
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at := at + size_of(tensor)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            data = tensor.read(())
            if tuple(data.shape) != tensor.shape or data.dtype != tensor.dtype:
                raise Fault(f"{tensor.where}: {name} was read as {list(data.shape)} {data.dtype}, not as "
                            f"{list(tensor.shape)} {tensor.dtype}")
            file.write(data.contiguous().reshape(-1).view(torch.uint8).numpy())
        file.flush()
        os.fsync(file.fileno())


def sync(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def staged(target):
    """A new folder that takes the target's name if all goes well, and is removed if not."""
    target = pathlib.Path(target).absolute()
    if target.exists():
        raise Fault(f"{target}: is there, and nothing is replaced. Give another folder, or remove it")
    if not target.parent.is_dir():
        raise Fault(f"{target.parent}: is no folder; make it first")
    stage = target.parent / f".{target.name}.partial-{os.getpid()}"
    stage.mkdir()
    try:
        yield stage
        sync(stage)
        stage.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write(target, config, tensors, most=SHARD):
    """`config`: of config.json, or None. Returns the bytes of all tensors."""
    total = sum(map(size_of, tensors.values()))
    with staged(target) as stage:
        files, places = shared_out(tensors, most), {}
        for number, names in enumerate(files, 1):
            file = f"model-{number:05}-of-{len(files):05}.safetensors" if len(files) > 1 else "model.safetensors"
            write_file(stage / file, {name: tensors[name] for name in names})
            places.update(dict.fromkeys(names, file))
        texts = {"config.json": config} if config else {}
        if len(files) > 1:
            texts["model.safetensors.index.json"] = {"metadata": {"total_size": total}, "weight_map": places}
        for name, value in texts.items():
            with (stage / name).open("w") as file:
                file.write(json.dumps(value, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
    return total
