"""The wheel beside a torch that was built without CUDA."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import teratron
import torch
from small import PROGRAM

PACKAGE = Path(teratron.__file__).parent
TORCH = Path(torch.__file__).parent
MOCK = ("pretrain", "gpt", "--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "8",
        "--max-position-embeddings", "8", "--micro-batch-size", "2", "--global-batch-size", "2", "--lr", "1e-3", "--train-iters", "2",
        "--tokenizer-type", "NullTokenizer", "--vocab-size", "40", "--mock-data", "--log-interval", "1")


def binaries():
    return [PACKAGE / "bin/teratron", *PACKAGE.glob("lib/*.so"), *PACKAGE.glob("_engine*.so"), *PACKAGE.parent.glob("teratron.libs/*")]


@pytest.mark.parametrize("binary", binaries(), ids=lambda binary: binary.name)
def test_no_binary_needs_cuda_at_its_start(binary):
    shown = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert needed and not [name for name in needed if re.match(r"lib(torch_cuda|c10_cuda|cu|nccl|nv)", name)]


def library(path, name="", *arguments):
    """A shared library without functions."""
    source = path.with_suffix(".c")
    source.write_text("")
    subprocess.run(["cc", "-shared", source, "-o", path, f"-Wl,-soname,{name or path.name}", *arguments], check=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The wheel's program beside torch's libraries for CPUs alone, on a machine with an NVIDIA driver."""
    folder = tmp_path_factory.mktemp("without_cuda")
    (folder / "torch/lib").mkdir(parents=True)
    for file in [TORCH / "lib/libtorch_cpu.so", TORCH / "lib/libc10.so", *(TORCH / "lib").glob("libgomp*")]:
        (folder / "torch/lib" / file.name).symlink_to(file)
    # PyTorch's own for CPUs need no CUDA either; that of the test's torch does.
    library(folder / "torch/lib/libtorch.so", "", "-Wl,--no-as-needed", folder / "torch/lib/libtorch_cpu.so",
            "-Wl,--unresolved-symbols=ignore-all")
    (folder / "nvidia").symlink_to(TORCH.parent / "nvidia")
    for part in ("teratron/bin", "teratron/lib", "teratron.libs"):
        shutil.copytree(PACKAGE.parent / part, folder / part)
    library(folder / "libcuda.so.1")
    return folder / "teratron/bin/teratron"


def run(program, *arguments):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parents[2])}
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)


def test_it_says_so(program):
    assert re.search(r"^CUDA +none \(torch without CUDA\)$", run(program, "env").stdout, re.MULTILINE)
    refused = run(program, *MOCK, "--device", "cuda")
    assert refused.returncode == 2 and "no GPU is visible" in refused.stderr


def test_it_trains_as_beside_the_other(program):
    def losses(shown):
        assert shown.returncode == 0, shown.stderr
        return re.findall(r"lm loss: (\S+)", shown.stdout)
    other = subprocess.run([PROGRAM, *MOCK, "--device", "cpu"], capture_output=True, text=True)
    assert losses(run(program, *MOCK)) == losses(other) != []
