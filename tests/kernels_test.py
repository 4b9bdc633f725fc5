"""Each folder of troupe/kernels/ is a kernel with all its parts: the formula in the header, a reference in double
precision, the CPU path, the CUDA path, and one test that compares them."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent / "troupe/kernels"
# Products of matrices run on ATen where there is no GPU; cpu_gemm is for where ATen's depend on the batch. row_scores is a step of the
# CUDA feed-forward alone: on the CPU scores are read where they are used. fp8_tiles feeds the 8-bit kernels of moe_sm90; the CPU rounds
# by kernels/fp8.
ELSEWHERE = {"grouped_gemm": {"cpu"}, "moe_sm90": {"cpu"}, "row_scores": {"cpu"}, "fp8_tiles": {"cpu"}, "cpu_gemm": {"cuda"}}
ONE_ROUNDING = {"accumulate", "fp8_tiles"}  # their formula is in f32


class Kernels(unittest.TestCase):
    def test_each_is_a_folder_with_all_its_parts(self):
        folders = sorted(f for f in ROOT.iterdir() if f.is_dir() and f.name != "device")
        self.assertGreater(len(folders), 25)
        for folder in folders:
            name = folder.name
            with self.subTest(name):
                texts = {f.name: f.read_text() for f in folder.iterdir()}
                header, test = texts[f"{name}.h"], texts[f"{name}_test.cpp"]
                self.assertTrue(header.startswith("// "), "the header begins with what it computes")
                declared = set(re.findall(r"\b(\w+_(?:ref|cpu|cuda))\(", header))
                kinds = {one.rsplit("_", 1)[1] for one in declared}
                want = {"ref", "cpu", "cuda"} - ELSEWHERE.get(name, set())
                self.assertLessEqual(want, kinds, f"{name}.h declares {sorted(declared)}")
                sources = "".join(text for file, text in texts.items() if file.endswith(".cpp") and "_test" not in file)
                for kind in want - {"cuda"}:
                    self.assertTrue(re.search(rf"^void \w+_{kind}\(", sources, re.M), f"no {kind} is defined")
                # What only moves numbers or counts sums none.
                reference = texts[f"{name}.cpp"] + texts.get(f"{name}_ref.cpp", "")
                exact = "float" not in reference or name in ONE_ROUNDING
                self.assertTrue(exact or "double" in reference, "the reference sums in float")
                if "cuda" in want:
                    self.assertTrue(any(file.endswith(".cu") for file in texts), "no .cu")
                    self.assertTrue(re.search(r"kCuda|_cuda\b|TROUPE_CUDA_PATH", test), "CUDA is not tested")
                self.assertTrue(re.search(r"_ref\b|run_ref", test), "nothing is compared with the reference")


if __name__ == "__main__":
    unittest.main()
