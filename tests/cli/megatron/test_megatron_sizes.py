"""Large conversions: memory, progress, and what an interruption leaves."""

import os
import re
import signal
import subprocess
import time

import pytest
import torch

from program import BINARY, environment, needs_binary, teratron
from test_megatron_checkpoints import model, save
from test_megatron_torch_dist import save as save_dist

pytestmark = needs_binary


def interrupted(arguments, folder, fault):
    """SIGINT while a write waits; what is in the folder then."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(fault))
    deadline = time.monotonic() + 30
    while not list(folder.glob("*.partial-*")) and not list(folder.glob("*/*.partial-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    return {path.name for path in folder.rglob("*")}


def test_an_interruption_leaves_nothing_that_looks_whole(tmp_path):
    source = save(tmp_path / "in", model(), ranks=2)
    (tmp_path / "a").mkdir()
    left = interrupted(["ckpt", "convert", "--from-megatron", source, "--save", tmp_path / "a/out"], tmp_path / "a",
                       "file.write@hit=3:delay=60000")
    assert "manifest.json" not in left and not [name for name in left if re.fullmatch(r"iter_\d+", name)], left
    teratron("ckpt", "convert", "--from-megatron", source, "--save", tmp_path / "a/out")
    (tmp_path / "b").mkdir()
    back = ["ckpt", "convert", "--load", tmp_path / "a/out", "--to-megatron", tmp_path / "b/out", "--target-tensor-parallel-size", "2"]
    left = interrupted(back, tmp_path / "b", "file.write@hit=60:delay=60000")
    assert "out" not in left and "latest_checkpointed_iteration.txt" not in left, left
    teratron(*back)


def large(folder, layers, hidden):
    """A GPT whose largest tensor is an eighth of it."""
    generator = torch.Generator().manual_seed(0)
    tensors = model(layers=layers, hidden=64, heads=4, rows=512)
    grown = {}
    for name, tensor in tensors.items():
        shape = [size // 64 * hidden if size >= 64 and size != 512 else size for size in tensor.shape]
        grown[name] = torch.rand(1 << 20, generator=generator).repeat(-(-torch.Size(shape).numel() // (1 << 20)))[:torch.Size(shape).numel()].view(shape)
    return save_dist(folder / "dist", grown, ranks=2, args={"num_attention_heads": 4}), save(folder / "legacy", grown, ranks=2, heads=4)


def measured(*arguments):
    """Peak memory in bytes, and seconds."""
    start = time.monotonic()
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, output
    return usage.ru_maxrss << 10, time.monotonic() - start


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="converts 6 GB; needs TERATRON_LONG_TESTS")
def test_memory_does_not_grow_with_the_model(tmp_path):
    dist, legacy = large(tmp_path, 10, 4096)
    size = sum(path.stat().st_size for path in legacy.rglob("*.pt"))
    for name, arguments in {"torch_dist": ["--from-megatron", dist, "--save", tmp_path / "a"],
                            "torch": ["--from-megatron", legacy, "--save", tmp_path / "b"],
                            "back": ["--load", tmp_path / "b", "--to-megatron", tmp_path / "c", "--target-tensor-parallel-size", 2]}.items():
        memory, seconds = measured("ckpt", "convert", *arguments)
        print(f"{name}: {size / 1e9:.2f} GB in {seconds:.1f} s, {size / seconds / 1e9:.2f} GB/s, peak {memory / 1e6:.0f} MB")
        assert memory < 4096 * 4 * 4096 * 4 + (1 << 30)
