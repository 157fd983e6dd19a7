"""A CUDA driver that does not start, and one without a GPU: a stand-in for libcuda.so.1 gives their answers."""
import os
import subprocess

import pytest

from program import BINARY, environment, needs_binary

NO_DEVICE, MISMATCH = 100, 803


def run(folder, *words, answer):
    source, library = folder / "driver.cpp", folder / "libcuda.so.1"
    source.write_text(f'extern "C" int cuInit(unsigned) {{ return {answer}; }}')
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    paths = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    return subprocess.run([BINARY, *words], env=environment() | {"LD_LIBRARY_PATH": paths},
                          capture_output=True, text=True, timeout=120)


@pytest.fixture(autouse=True)
def only_with_gpu_kernels():
    facts = subprocess.run([BINARY, "env"], capture_output=True, text=True, check=True).stdout
    if "GPU kernels   none" in facts:
        pytest.skip("the program is built without CUDA")


@needs_binary
def test_a_driver_without_a_gpu_is_no_error(tmp_path):
    result = run(tmp_path, "env", answer=NO_DEVICE)
    assert result.returncode == 0, result.stderr
    assert "GPUs          0" in result.stdout


@needs_binary
def test_a_driver_that_does_not_start_is_no_reason_to_compute_on_cpus(tmp_path):
    words = ["pretrain", "gpt", "--num-layers", "1", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "8",
             "--micro-batch-size", "1", "--train-iters", "1", "--lr", "1e-4", "--mock-data", "--tokenizer-type",
             "NullTokenizer", "--vocab-size", "31"]
    facts = run(tmp_path, "env", answer=MISMATCH)
    assert facts.returncode == 0 and "does not start" in facts.stdout
    result = run(tmp_path, *words, answer=MISMATCH)
    assert result.returncode == 5
    assert "does not start" in result.stderr and "803" in result.stderr and "--device cpu" in result.stderr
    assert run(tmp_path, *words, "--device", "cpu", answer=MISMATCH).returncode == 0
