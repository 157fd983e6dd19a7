"""The script ./run, where it can be tried without a build, and the wrapper that starts a packaged program."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **environment):
    env = {"PATH": "/usr/bin:/bin", **{k: str(v) for k, v in environment.items()}}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env)


def test_help_names_every_command():
    text = run(ROOT / "run", "help").stdout
    for command in "demo test build teratron package tidy format clean".split():
        assert f"\n  {command} " in text


@pytest.mark.parametrize("arguments", [["dmeo"], ["build", "--preset", "fast"], ["demo", "--frehs"], ["test", "--all"],
                                       ["package", "--small"]])
def test_what_it_does_not_know_is_an_error(arguments):
    result = run(ROOT / "run", *arguments)
    assert result.returncode == 1
    assert arguments[-1] in result.stderr


@pytest.fixture
def package(tmp_path):
    """A package whose program prints its arguments and where it looks for libraries, and a torch beside it."""
    (tmp_path / "package/libexec").mkdir(parents=True)
    program = tmp_path / "package/libexec/teratron"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH" "$@"\n')
    program.chmod(0o755)
    shutil.copy(ROOT / "tools/package_wrapper", tmp_path / "package/teratron")
    site = tmp_path / "site-packages"
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/lib/libtorch_cpu.so").touch()
    (site / "torch/lib/libtorch_cuda.so").touch()
    (site / "torch/__init__.py").write_text("raise ImportError('must not be imported')\n")
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
    return tmp_path


def test_wrapper_takes_torch_from_the_variable(package):
    site = package / "site-packages"
    result = run(package / "package/teratron", "env", "a b", TERATRON_TORCH=site)
    assert result.returncode == 0, result.stderr
    libraries, *arguments = result.stdout.splitlines()
    assert libraries.split(":") == [f"{site}/torch/lib", f"{site}/nvidia/cu13/lib", f"{site}/nvidia/nccl/lib",
                                    f"{package}/package/lib"]
    assert arguments == ["env", "a b"]


def test_wrapper_asks_python_without_importing_torch(package):
    result = run(package / "package/teratron", PYTHONPATH=package / "site-packages")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{package}/site-packages/torch/lib:")


def test_wrapper_works_through_a_link(package):
    os.symlink(package / "package/teratron", package / "elsewhere")
    result = run(package / "elsewhere", "x", TERATRON_TORCH=package / "site-packages")
    assert (result.returncode, result.stdout.splitlines()[1:]) == (0, ["x"])


@pytest.mark.parametrize("version", ["2.10.1+cu130", "2.12.0", "1.2.11"])
def test_wrapper_refuses_another_torch(package, version):
    (package / "site-packages/torch/version.py").write_text(f"__version__ = '{version}'\n")
    result = run(package / "package/teratron", TERATRON_TORCH=package / "site-packages")
    assert result.returncode == 2
    assert "torch 2.11 is needed" in result.stderr and version in result.stderr


def test_wrapper_says_that_torch_is_missing_or_without_cuda(package):
    result = run(package / "package/teratron", TERATRON_TORCH=package)
    assert result.returncode == 2 and "pip install torch==2.11.0" in result.stderr
    (package / "site-packages/torch/lib/libtorch_cuda.so").unlink()
    result = run(package / "package/teratron", TERATRON_TORCH=package / "site-packages")
    assert result.returncode == 2 and "without CUDA 13" in result.stderr
