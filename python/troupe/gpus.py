"""Which GPUs are here, asked of NVML alone, and whether this build of troupe is for one of them. CUDA is not initialized:
`import troupe` asks, and a process that forks afterwards could no longer use a GPU."""
import ctypes
import os
import warnings

import torch


def found(library="libnvidia-ml.so.1"):
    """(10 major + minor, name) of each GPU of this machine; none where there is no driver, or it does not answer."""
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return []
        try:
            count = ctypes.c_uint()
            if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return []
            gpus = [_one(nvml, index) for index in range(count.value)]
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no such library, or an older one
        return []
    return [gpu for gpu in gpus if gpu]


def _one(nvml, index):
    handle, major, minor, name = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(96)
    if (nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0
            or nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != 0):
        return None
    named = nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))) == 0
    return 10 * major.value + minor.value, name.value.decode(errors="replace") if named else ""


def why_no_code(gpus):
    """Why the build runs on none of these GPUs, with which it is for and how to build for them; empty where it does, and
    for a build without CUDA."""
    return torch.ops.troupe.why_no_gpu_code([capability for capability, _ in gpus], [name for _, name in gpus])


def warn_without_code():
    """Where GPUs are here and the build has code for none. One of several is seen when it is first used."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if (hidden is not None and hidden.strip() in ("", "-1")) or not torch.ops.troupe.gpu_architectures():
        return
    if why := why_no_code(found()):
        warnings.warn(f"troupe computes on the CPU alone here: {why}", stacklevel=3)
