"""An installed Troupe is found, linked and run by a project that knows nothing of this tree."""
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("TROUPE_BUILD", ROOT / "build/release"))


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prefix, cls.work = pathlib.Path(folder.name, "prefix"), pathlib.Path(folder.name, "work")
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)

    def test_consumer_builds_and_runs(self):
        run("cmake", "-G", "Ninja", "-S", ROOT / "examples/consumer", "-B", self.work,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        run("cmake", "--build", self.work)
        said = run(self.work / "consumer")
        self.assertRegex(said, r"router.*gradient norm \d")
        rows = [int(n) for n in re.findall(r"expert \d got (\d+) rows", said)]
        self.assertEqual((len(rows), sum(rows)), (8, 2 * 16 * 2))  # dropless: each token's two choices

    def built(self, example):
        """The example's program, built against what is installed."""
        work = self.work / example
        run("cmake", "-G", "Ninja", "-S", ROOT / "examples" / example, "-B", work,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        run("cmake", "--build", work)
        return work / example

    def losses_of(self, example):
        losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", run(self.built(example)))]
        self.assertEqual(len(losses), 4)
        return losses

    def test_145_a_router_of_ones_own_in_two_files_learns(self):
        losses = self.losses_of("router")
        self.assertLess(losses[-1], losses[0] / 4)

    def test_139_a_block_of_ones_own_in_one_file_learns(self):
        losses = self.losses_of("block")
        self.assertLess(losses[-1], losses[0] / 2)

    def test_252_a_sharded_model_over_two_and_four_ranks_is_one_process(self):
        program = self.built("sharded")
        numbers = re.compile(r"loss (\d\.\d+)  gradient norm (\d+\.\d+)")
        models, want = {}, None
        for ranks in (1, 2, 4):
            model = self.work / f"sharded_over_{ranks}.pt"
            said = self.over_ranks(ranks, program, model)
            got = [tuple(map(float, pair)) for pair in numbers.findall(said)]
            self.assertEqual(len(got), 4, said)
            want = want or got
            for pair, expected in zip(got, want):
                for one, other in zip(pair, expected):
                    self.assertAlmostEqual(one, other, delta=1e-7)
            models[ranks] = model.stat().st_size
        self.assertLess(want[-1][0], want[0][0] / 4)
        self.assertGreater(models[4], 8 * 2 * 12 * 32 * 32)  # whole: two blocks' matrices in f64
        self.assertEqual(len(set(models.values())), 1, models)

    def over_ranks(self, ranks, program, *arguments):
        """What rank 0 printed; all of them end with 0."""
        if ranks == 1:
            return run(program, *arguments)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        started = [subprocess.Popen([str(word) for word in (program, *arguments)],
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    env={**env, "RANK": str(rank)}) for rank in range(ranks)]
        try:
            said = [process.communicate(timeout=120)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        self.assertEqual([process.returncode for process in started], [0] * ranks, "\n".join(said))
        return said[0]

    def test_another_pytorch_is_refused_with_both_versions(self):
        """A library is for the minor version that it was built with; one that is not supported builds none."""
        built = re.search(r"^__version__ = '(\d+\.\d+)", (self.torch_root() / "torch/version.py").read_text(), re.M)[1]
        other = "2.12" if built != "2.12" else "2.13"
        for version, source, said in [
                (f"{other}.0", ROOT / "examples/consumer", rf"PyTorch {other}\.0 .* built\s+with {built},"),
                ("2.10.0", ROOT, r"PyTorch 2\.10\.0 .* built\s+with 2\.11,\s+2\.12,")]:
            site = self.prefix / f"site-{version}"
            (site / "torch").mkdir(parents=True)
            (site / "torch/version.py").write_text(f"__version__ = '{version}+cpu'\n")
            with self.assertRaises(AssertionError) as raised:
                run("cmake", "-G", "Ninja", "-S", source, "-B", site / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                    f"-DTROUPE_TORCH_ROOT={site}", "-DTROUPE_CUDA=OFF", "-DTROUPE_TESTS=OFF", "-DTROUPE_BENCHES=OFF")
            self.assertRegex(" ".join(str(raised.exception).split()), said)

    def torch_root(self):
        """The site-packages folder that the build was made with."""
        return pathlib.Path(re.search(r"^TROUPE_TORCH_ROOT:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1])

    def test_another_version_is_refused(self):
        """Before 1.0 another minor version too, in CMake's package and in the library's name."""
        for version in ("99.0", "0.1"):
            (self.prefix / version).mkdir(parents=True)
            (self.prefix / version / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\n"
                f"find_package(troupe {version} REQUIRED)\n")
            with self.assertRaisesRegex(AssertionError, re.escape(version)):
                run("cmake", "-G", "Ninja", "-S", self.prefix / version, "-B", self.prefix / version / "build",
                    f"-DCMAKE_PREFIX_PATH={self.prefix}")
        ours = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(\d+\.\d+)\.", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]
        self.assertTrue((self.prefix / f"lib/libtroupe.so.{ours}").exists())

    def test_headers_need_nothing_that_is_not_installed(self):
        """Every quoted include of an installed header is installed too; no test helper is."""
        headers = sorted((self.prefix / "include").rglob("*.h"))
        self.assertGreater(len(headers), 10)
        for header in headers:
            self.assertNotIn("testing", header.relative_to(self.prefix).parts)
            for line in header.read_text().splitlines():
                if line.startswith('#include "'):
                    name = line.split('"')[1]
                    self.assertTrue((self.prefix / "include" / name).exists(), f"{header}: {name}")


if __name__ == "__main__":
    unittest.main()
