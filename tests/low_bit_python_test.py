"""torch.ops.troupe.low_bit_*: the bytes and values of each format beside numpy, PyTorch's float8, transformers' mxfp4 and, where
it is installed, bitsandbytes."""
import fractions
import os
import pathlib
import unittest

import numpy as np
import torch

torch.ops.load_library(str(pathlib.Path(os.environ["TROUPE_BUILD"], "libtroupe.so")))
OPS = torch.ops.troupe
ROWS, K = 6, 512
GROUPS = {"nf4": 64, "int8": 128, "fp8": 128, "mxfp4": 32}
# bitsandbytes/functional.py, get_4bit_type("nf4"): quantiles of the normal distribution.
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], np.float32)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)


def nearest(text):
    """The float nearest to a decimal number, as C++ reads it: by way of a double some come out as their neighbors."""
    x = np.float32(text)
    return min((np.nextafter(x, np.float32(-2)), x, np.nextafter(x, np.float32(2))),
               key=lambda near: abs(fractions.Fraction(float(near)) - fractions.Fraction(text)))


# As bitsandbytes has them: where a midpoint lies between two floats, its own digits decide.
NF4_MIDPOINTS = np.array([nearest(text) for text in (
    "-0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544 -0.23460740596055984 "
    "-0.13791173323988914 -0.045525018125772476 0.03979014977812767 0.1202552504837513 0.2035212516784668 "
    "0.2920137718319893 0.3893125355243683 0.5016634166240692 0.6427869200706482 0.8614784181118011").split()], np.float32)
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def normal(*sizes, device="cpu", dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(device, dtype)


def groups_of(x, size):
    return x.float().cpu().numpy().reshape(-1, size)


def nibbles(codes, even_high):
    """Two codes a byte."""
    even, odd = codes[:, 0::2], codes[:, 1::2]
    return (even << 4 | odd if even_high else odd << 4 | even).astype(np.uint8)


def quotients(x, scale):
    return np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)


def nf4(x):
    scale = np.abs(x).max(1, keepdims=True)
    codes = (quotients(x, scale)[..., None] > NF4_MIDPOINTS).sum(-1)
    return nibbles(codes, even_high=True), scale, NF4[codes] * scale


def int8(x):
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(quotients(x, scale)), -127, 127)
    return codes.astype(np.int8).view(np.uint8), scale, codes * scale


def fp8(x):
    scale = np.abs(x).max(1, keepdims=True) / np.float32(448)
    rounded = torch.from_numpy(quotients(x, scale)).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8).numpy(), scale, rounded.float().numpy() * scale


def mxfp4(x):
    largest = np.abs(x).max(1, keepdims=True)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - 2 + 127, 0).clip(0, 254)
    t = np.ldexp(x, 127 - exponent)
    apart = np.abs(np.abs(t)[..., None] - E2M1)
    # Of two magnitudes as near, the even code.
    codes = np.lexsort((np.broadcast_to(np.arange(8) % 2, apart.shape), apart))[..., 0]
    values = np.ldexp(np.copysign(E2M1[codes], t), exponent - 127)
    return nibbles(codes + 8 * np.signbit(t), even_high=False), exponent.astype(np.uint8), values


REFERENCE = {"nf4": nf4, "int8": int8, "fp8": fp8, "mxfp4": mxfp4}


class Formats(unittest.TestCase):
    def same(self, got, want):
        want = torch.from_numpy(np.ascontiguousarray(want)).view(got.shape)
        self.assertTrue(torch.equal(got.cpu(), want), (got, want))

    def check(self, x, name):
        values, scales = OPS.low_bit_pack(x, name)
        want_values, want_scales, want = REFERENCE[name](groups_of(x, GROUPS[name]))
        self.same(values, want_values)
        self.same(scales, want_scales)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            back = OPS.low_bit_unpack(values, scales, name, dtype)
            self.assertEqual((back.dtype, back.shape), (dtype, x.shape))
            wanted = torch.from_numpy(want.astype(np.float32)).view(x.shape).to(dtype)
            self.assertTrue(torch.equal(back.cpu(), wanted), (name, dtype))

    def test_q9_bytes_scales_and_values_are_numpys(self):
        for device in DEVICES:
            for name in GROUPS:
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    with self.subTest(name, dtype=dtype, device=device):
                        self.check(normal(3, ROWS, K, device=device, dtype=dtype), name)

    def test_q9_ties_and_zeros_are_numpys(self):
        eighths = torch.arange(-4, 4, 0.125).repeat(8)  # of which the largest of each group is 4
        midpoints = torch.from_numpy(NF4_MIDPOINTS).repeat(5)[:63]
        for device in DEVICES:
            for name in GROUPS:
                self.check((eighths * (4 if name == "fp8" else 1)).view(1, K).to(device), name)
                self.check(torch.zeros(ROWS, K, device=device), name)
            self.check(torch.cat([torch.ones(1), midpoints]).view(1, 64).to(device), "nf4")

    def test_q9_sizes_are_those_of_the_page(self):
        for name, bits in {"nf4": 4.5, "int8": 8.25, "fp8": 8.25, "mxfp4": 4.25}.items():
            stored = OPS.low_bit_pack(normal(ROWS, K), name)
            self.assertEqual(sum(t.nbytes for t in stored) * 8, bits * ROWS * K)

    def test_q9_refusals_say_what_must_be(self):
        x = normal(ROWS, K)
        with self.assertRaisesRegex(RuntimeError, "format must be nf4, int8, fp8 or mxfp4; it is nf5"):
            OPS.low_bit_pack(x, "nf5")
        for name, size in GROUPS.items():
            with self.assertRaisesRegex(RuntimeError, f"rows of x must be whole groups of {size} elements"):
                OPS.low_bit_pack(x[:, :size - 16], name)
            bad = x.clone()
            bad[0, 0], bad[1, 2], bad[-1, -1] = float("nan"), float("inf"), -float("inf")
            with self.assertRaisesRegex(RuntimeError, f"must be finite; 3 of {ROWS * K} are NaN or infinite"):
                OPS.low_bit_pack(bad, name)


class Others(unittest.TestCase):
    def test_q9_any_bytes_of_mxfp4_are_what_transformers_makes_of_them(self):
        try:
            from transformers.integrations.mxfp4 import convert_moe_packed_tensors
        except ImportError as error:
            self.skipTest(f"transformers has no mxfp4 here: {error}")
        # Each byte of values beside each scale: [experts, rows, groups, 16].
        values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 128, 16, 16).contiguous()
        scales = torch.arange(256, dtype=torch.uint8).view(2, 128, 1).expand(2, 128, 16).contiguous()
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16):
                want = convert_moe_packed_tensors(values, scales, dtype=dtype).transpose(1, 2)
                got = OPS.low_bit_unpack(values.view(2, 128, 256).to(device), scales.to(device), "mxfp4", dtype)
                self.assertTrue(torch.equal(got.cpu(), want), (device, dtype))

    def test_q9_nf4_is_bitsandbytes_own(self):
        try:
            from bitsandbytes import functional
        except ImportError as error:
            self.skipTest(f"bitsandbytes is not installed: {error}")
        x = normal(ROWS, K)
        theirs, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=False)
        values, scales = OPS.low_bit_pack(x, "nf4")
        self.assertTrue(torch.equal(scales.flatten(), state.absmax.flatten()))
        # They may multiply by 1 / absmax where we divide: a quotient beside a midpoint may go to either side.
        self.assertGreater((values.flatten() == theirs.flatten()).float().mean().item(), 0.999)
        state.absmax = scales.flatten()
        want = functional.dequantize_4bit(values.view(-1, 1), state)
        self.assertTrue(torch.equal(OPS.low_bit_unpack(values, scales, "nf4", torch.float32), want.view(ROWS, K)))


class Products(unittest.TestCase):
    def test_q9_products_and_gradients_are_those_of_the_weight_that_is_read_back(self):
        E, N = 4, 24
        offset = torch.tensor([0, 3, 3, 8, 10], dtype=torch.int32)
        for name in GROUPS:
            one, experts = OPS.low_bit_pack(normal(N, K), name), OPS.low_bit_pack(normal(E, N, K), name)
            x = normal(11, K).requires_grad_()
            w = OPS.low_bit_unpack(*one, name, torch.float32)
            y = OPS.low_bit_linear(x, *one, name)
            torch.testing.assert_close(y, x @ w.T, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], 2 * (x @ w.T) @ w, rtol=1e-4, atol=1e-3)
            w = OPS.low_bit_unpack(*experts, name, torch.float32)
            z = OPS.low_bit_grouped_gemm(x, *experts, name, offset)
            by_loop = torch.cat([x[a:b] @ w[e].T for e, (a, b) in enumerate(zip(offset[:-1], offset[1:]))] + [x[10:] @ w[0].T * 0])
            torch.testing.assert_close(z, by_loop, rtol=1e-4, atol=1e-4)
            got, want = (torch.autograd.grad(t.square().sum(), x)[0] for t in (z, by_loop))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)

    def test_q9_backward_saves_no_tensor_of_the_weights_size(self):
        saved = []
        stored = OPS.low_bit_pack(normal(64, K), "nf4")
        x = normal(3, K).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t):
            y = OPS.low_bit_linear(x, *stored, "nf4")
        self.assertEqual(sorted(saved), sorted(t.nbytes for t in stored))
        y.sum().backward()


if __name__ == "__main__":
    unittest.main()
