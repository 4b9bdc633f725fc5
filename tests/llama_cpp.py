"""llama.cpp itself, on the CPU: the C interface of the library in the PyPI package xllamacpp.

Its structs of parameters change from version to version. They are made by the library, passed back as they are, and one
field is set: the types of the cache's keys and values, two numbers 1 (f16) side by side.
"""
import ctypes
import importlib.util
import pathlib

import numpy as np


def installed():
    return importlib.util.find_spec("xllamacpp") is not None


class Parameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 512)]  # more than any version has


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.c_void_p), ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SILENT = Log(lambda level, text, data: None)


def library():
    folder = pathlib.Path(importlib.util.find_spec("xllamacpp").origin).parent
    lib = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    pointer, ids = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)
    for name, result, *arguments in (
            ("llama_model_default_params", Parameters), ("llama_context_default_params", Parameters),
            ("llama_model_load_from_file", pointer, ctypes.c_char_p, Parameters),
            ("llama_init_from_model", pointer, pointer, Parameters), ("llama_decode", ctypes.c_int32, pointer, Batch),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), pointer), ("llama_free", None, pointer),
            ("llama_model_free", None, pointer), ("llama_model_get_vocab", pointer, pointer),
            ("llama_tokenize", ctypes.c_int32, pointer, ctypes.c_char_p, ctypes.c_int32, ids, ctypes.c_int32,
             ctypes.c_bool, ctypes.c_bool)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(SILENT, None)
    lib.llama_backend_init()
    return lib


class Model:
    def __init__(self, path):
        self.lib = library()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp does not load {path}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_model_free(self.model)

    def logits(self, ids, vocab):
        """[len(ids), vocab]"""
        parameters = self.lib.llama_context_default_params()
        words = (ctypes.c_int32 * 128).from_buffer(parameters)
        cache = next(i for i in range(12, 127) if words[i] == words[i + 1] == 1)
        words[cache] = words[cache + 1] = 0  # f32
        context = self.lib.llama_init_from_model(self.model, parameters)
        count = len(ids)
        batch = Batch(count, (ctypes.c_int32 * count)(*ids), None, None, None, None, (ctypes.c_int8 * count)(*[1] * count))
        try:
            if self.lib.llama_decode(context, batch) != 0:
                raise ValueError("llama_decode failed")
            return np.ctypeslib.as_array(self.lib.llama_get_logits(context), (count, vocab)).copy()
        finally:
            self.lib.llama_free(context)

    def ids(self, text):
        out = (ctypes.c_int32 * 4096)()
        data = text.encode()
        count = self.lib.llama_tokenize(self.lib.llama_model_get_vocab(self.model), data, len(data), out, 4096, True, True)
        return list(out[:count])
