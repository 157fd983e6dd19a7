"""The wheel, the program in it, and what importing the package does."""
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import teratron
from small import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"Config", "ConfigError", "Trainer", "TrainStep", "StepResult", "Callback", "ParamGroup", "Checkpoint", "generate",
         "run_ranks"}


@pytest.fixture
def wheel():
    found = list((ROOT / "dist").glob("*"))
    assert len(found) == 1
    return found[0]


def test_the_wheel_has_what_it_needs_and_no_more(wheel):
    assert re.fullmatch(r"teratron-\d+\.\d+\.\d+-cp3\d+-cp3\d+-manylinux_2_\d+_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < 100e6
    names = zipfile.ZipFile(wheel).namelist()
    assert {"teratron/py.typed", "teratron/__init__.pyi"} <= set(names)
    assert not [name for name in names if re.search(r"(^|/)(torch|nvidia)/|lib(torch|c10|cud|nccl|cublas|gomp|stdc)", name)]


def test_the_metadata_ask_for_torch_alone(wheel):
    metadata = importlib.metadata.metadata("teratron")
    assert metadata["Version"] == teratron.__version__ == wheel.name.split("-")[1]
    assert metadata.get_all("Requires-Dist") == ["torch==2.11.*"]
    assert importlib.metadata.distribution("teratron").read_text("RECORD").count("\n") > 10


@pytest.mark.parametrize("command", [[PROGRAM], [sys.executable, "-m", "teratron"]])
def test_the_program_is_the_command(command):
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (shown.stdout, shown.returncode) == (f"teratron {teratron.__version__}\n", 0)
    wrong = subprocess.run([*command, "pretrain", "gpt", "--num-layer", "2"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--num-layers" in wrong.stderr


def environment_after_import(before, **given):
    """OMP_WAIT_POLICY and the warnings of `import teratron`, with a stand-in for torch, which takes seconds to import."""
    code = f"import sys, types\n{before}\nimport teratron, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**clean, **given})
    return done.stdout.strip(), done.stderr


def test_openmp_waits_passively_unless_the_user_chose():
    torch_first = "sys.modules['torch'] = types.ModuleType('torch')"
    assert environment_after_import("") == ("PASSIVE", "")
    assert environment_after_import("", OMP_WAIT_POLICY="ACTIVE") == ("ACTIVE", "")
    assert environment_after_import("", GOMP_SPINCOUNT="5") == ("None", "")
    value, warned = environment_after_import(torch_first)
    assert value == "PASSIVE" and "torch was imported before teratron" in warned
    assert environment_after_import(torch_first, OMP_WAIT_POLICY="PASSIVE")[1] == ""


QUICK = """
import time, os
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
import torch
before = time.process_time()
import teratron
print(time.process_time() - before)
"""


def test_the_import_is_quick():
    """Processor time: what others do on the machine does not count."""
    found = [float(subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    assert min(found) <= 0.05, found


@pytest.mark.parametrize("package, names", [("accelerate", 14), ("megatron", 20), ("nn", 21)])
def test_packages_have_documented_names(package, names):
    module = importlib.import_module(f"teratron.{package}")
    assert len(module.__all__) >= names and module.__doc__
    for name in module.__all__:
        assert getattr(module, name).__doc__, f"{package}.{name}"


def test_names_are_documented():
    assert NAMES <= set(teratron.__all__) <= set(dir(teratron))
    for name in teratron.__all__:
        thing = getattr(teratron, name)
        assert len(thing.__doc__) > 40 and ("Example:" in thing.__doc__ or "    " in thing.__doc__), name
        if isinstance(thing, type) and not issubclass(thing, Exception):
            for method, value in vars(thing).items():
                if not method.startswith("_") and callable(value):
                    assert value.__doc__, f"{name}.{method}"


def test_stubs_have_the_names_of_the_package():
    stubs = (Path(teratron.__file__).parent / "__init__.pyi").read_text()
    assert {name for name in teratron.__all__ if not re.search(rf"\b{name} as {name}\b", stubs)} == set()
