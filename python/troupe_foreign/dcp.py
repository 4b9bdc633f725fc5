"""torch.distributed.checkpoint: `.metadata`, a pickle that says which chunk of which tensor lies where, and *.distcp,
where each chunk is a file of torch.save. Megatron's torch_dist is this with its arguments in common.pt beside it."""
import io
import json
import pathlib
import pickle

import torch
from torch.distributed.checkpoint import filesystem, metadata

from .tensors import Fault, Tensor, cause, check_sums, stand_in

# Plain data; each is made without running anything of the file's.
CLASSES = {f"{c.__module__}.{c.__qualname__}": c for c in (
    metadata.Metadata, metadata.MetadataIndex, metadata.TensorStorageMetadata, metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata, metadata.TensorProperties, metadata.StorageMeta, metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo, torch.Size)}
CLASSES["torch.serialization._get_layout"] = torch.serialization._get_layout


def member(kind, name):
    """As Python 3.11.0 to 3.11.3 pickle a member of an Enum; getattr of anything else is nobody's business here."""
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise ValueError(f"asks for {name!r} of {kind!r}")
    return kind[name]


CLASSES["builtins.getattr"] = member


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return CLASSES.get(f"{module}.{name}") or stand_in(f"{module}.{name}")


def read_metadata(folder):
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            found = Unpickler(file).load()
        if not isinstance(found, metadata.Metadata) or not found.storage_data:
            raise ValueError("holds no table of tensors")
    except (OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, IndexError, pickle.UnpicklingError) as e:
        raise Fault(f"{path}: cannot be read ({e or type(e).__name__}). Without it the files beside it cannot be told "
                    "apart: take another copy, or an earlier step") from e
    return found


class Reader:
    def __init__(self, folder, sums=True):
        self.folder, self.sums = pathlib.Path(folder), sums
        self.meta = read_metadata(self.folder)
        self.last = (None, None)  # the chunk read last: parts of one follow each other
        self.places = {}          # name -> (n, chunks by their first n offsets): in those dimensions each chunk is 1 wide

    def chunk(self, name, offsets, sizes, dtype):
        key = (name, tuple(offsets))
        if self.last[0] == key:
            return self.last[1]
        self.last = (None, None)
        info = self.meta.storage_data.get(metadata.MetadataIndex(name, offsets))
        if info is None:
            raise Fault(f"{self.folder / '.metadata'}: says nowhere in which file the part of {name} at "
                        f"{list(offsets)} lies: the save did not end well. Take an earlier step")
        path = self.folder / info.relative_path
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise Fault(f"{self.folder / '.metadata'}: says that {name} lies in {info.relative_path}, outside this folder")
        if getattr(info, "transform_descriptors", None):
            raise Fault(f"{path}: {name} is stored through {', '.join(info.transform_descriptors)}, which is not read "
                        "here. Save it again without")
        try:
            with path.open("rb") as file:
                file.seek(info.offset)
                data = file.read(info.length)
        except OSError as e:
            raise Fault(f"{path}: {e.strerror}; the part of {name} at {list(offsets)} should be in it. Copy the whole "
                        "folder, of all machines that saved it") from e
        if len(data) != info.length:
            raise Fault(f"{path}: ends after {path.stat().st_size} bytes, and {name} needs those up to "
                        f"{info.offset + info.length}: it was cut short. Copy it again, or take an earlier step")
        try:
            if self.sums:
                check_sums(io.BytesIO(data))
            made = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as e:  # whatever zipfile and torch.load say of bytes that torch.save did not write
            raise Fault(f"{path}: the {info.length} bytes at {info.offset}, of {name}, are damaged: {cause(e)}. Copy the "
                        "file again, or take an earlier step. If it was saved with set_crc32_options(False): "
                        "--no-sums") from e
        if not isinstance(made, torch.Tensor) or tuple(made.shape) != tuple(sizes) or made.dtype != dtype:
            have = f"{list(made.shape)} {made.dtype}" if isinstance(made, torch.Tensor) else type(made).__name__
            raise Fault(f"{path}: holds {have} for the part of {name} at {list(offsets)}, and .metadata says "
                        f"{list(sizes)} {dtype}: they are not of one save")
        self.last = (key, made.detach())
        return self.last[1]

    def near(self, name, index):
        """The chunks that may hold the part at these leading indices: a model's experts have tens of thousands."""
        chunks = self.meta.state_dict_metadata[name].chunks
        if name not in self.places:
            wide = [i for c in chunks for i, s in enumerate(c.sizes) if s != 1]
            n, by_offset = min(wide, default=0), {}
            for chunk in chunks:
                by_offset.setdefault(tuple(chunk.offsets[:n]), []).append(chunk)
            self.places[name] = n, by_offset
        n, by_offset = self.places[name]
        return by_offset.get(tuple(index[:n]), []) if len(index) >= n else chunks

    def read(self, name, index):
        """The part at these leading indices, out of all chunks that meet it."""
        entry = self.meta.state_dict_metadata[name]
        begin = [*index, *[0] * (len(entry.size) - len(index))]
        end = [*(i + 1 for i in index), *entry.size[len(index):]]
        dtype = entry.properties.dtype
        sizes = [e - b for b, e in zip(begin, end)]
        out, filled = None, 0
        for chunk in self.near(name, index):
            low = [max(b, o) for b, o in zip(begin, chunk.offsets)]
            high = [min(e, o + s) for e, o, s in zip(end, chunk.offsets, chunk.sizes)]
            if any(h <= b for b, h in zip(low, high)):
                continue
            part = self.chunk(name, chunk.offsets, chunk.sizes, dtype)
            part = part[tuple(slice(b - o, h - o) for b, h, o in zip(low, high, chunk.offsets))]
            filled += part.numel()
            if list(part.shape) == sizes:
                out = part
                continue
            out = torch.empty(sizes, dtype=dtype) if out is None else out
            out[tuple(slice(b - o, h - o) for b, h, o in zip(low, high, begin))] = part
        if filled != torch.Size(sizes).numel():
            raise Fault(f"{self.folder}: the parts of {name} hold {filled} of {torch.Size(sizes).numel()} elements at "
                        f"{list(index)}: a rank's part was not saved. Take an earlier step")
        out = torch.empty(sizes, dtype=dtype) if out is None else out  # of no elements
        return out.reshape(entry.size[len(index):])

    def tensors(self):
        """All tensors, and the names of what is none."""
        found, other = {}, []
        for name, entry in self.meta.state_dict_metadata.items():
            if not isinstance(entry, metadata.TensorStorageMetadata):
                other.append(name)
                continue
            found[name] = Tensor(tuple(entry.size), entry.properties.dtype,
                                 lambda index, name=name: self.read(name, index), f"{self.folder}: {name}")
        return found, other


def check_kind(folder):
    """Megatron's metadata.json names the format: zarr, an old one, is another."""
    path = folder / "metadata.json"
    kind = json.loads(path.read_text()).get("sharded_backend") if path.exists() else "torch_dist"
    if kind != "torch_dist":
        raise Fault(f"{path}: sharded_backend is {kind!r}; torch_dist is read. Save it with Megatron again: "
                    "--ckpt-convert-format torch_dist")
