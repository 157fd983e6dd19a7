"""CUDA's libraries are loaded where there is a driver, and only there (kernels/common/cuda_libraries.cpp)."""

import subprocess

import pytest

from program import BINARY, MOCK, needs_binary, teratron, train

pytestmark = needs_binary


def library(folder, name):
    """An empty shared library."""
    source = folder / "empty.c"
    source.write_text("")
    subprocess.run(["cc", "-shared", source, "-o", folder / name], check=True)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The libraries' folder of a machine with a driver, but without GPUs."""
    if "(CPU-only build)" in teratron("env").stdout:
        pytest.skip("a CPU-only build")
    library(tmp_path, "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return tmp_path


def test_the_program_does_not_need_them():
    needed = subprocess.run(["readelf", "-d", BINARY], capture_output=True, text=True, check=True).stdout
    for name in ("libcudart", "libtorch_cuda", "libc10_cuda", "libcublasLt", "libnccl", "libcudnn"):
        assert name not in needed, f"{name}: kernels/common/cuda_imports.def lacks a function"


@pytest.mark.usefixtures("driver")
def test_they_are_loaded_beside_a_driver():
    said = teratron("env").stdout
    assert "\ncuDNN " in said and "\nNCCL " in said and "\nGPUs          0\n" in said
    assert "lm loss" in train(*MOCK, "--train-iters", "2").stdout


def test_a_library_without_the_functions_is_named(driver):
    library(driver, "libc10_cuda.so")
    result = subprocess.run([BINARY, "env"], capture_output=True, text=True)
    said = result.stderr
    assert result.returncode == 2 and "a library of torch 2.11 cannot be used: " in said and "undefined symbol" in said and "Install torch" in said
