"""Large conversions: memory, and what an interruption leaves."""

import os

import pytest

from program import interrupted, measured, needs_binary, teratron
from test_megatron_checkpoints import model, save
from test_megatron_torch_dist import save as save_dist

pytestmark = needs_binary


def test_an_interruption_leaves_nothing_that_looks_whole(tmp_path):
    source = save(tmp_path / "in", model(), ranks=2)
    (tmp_path / "a").mkdir()
    left = interrupted(["ckpt", "convert", "--from-megatron", source, "--save", tmp_path / "a/out"], tmp_path / "a",
                       "file.write@hit=3:delay=60000")
    assert left == {"out"}
    teratron("ckpt", "convert", "--from-megatron", source, "--save", tmp_path / "a/out")
    (tmp_path / "b").mkdir()
    back = ["ckpt", "convert", "--load", tmp_path / "a/out", "--to-megatron", tmp_path / "b/out", "--target-tensor-parallel-size", "2"]
    left = interrupted(back, tmp_path / "b", "file.write@hit=60:delay=60000")
    assert not left
    teratron(*back)


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="converts 2 GB; needs TERATRON_LONG_TESTS")
def test_memory_does_not_grow_with_the_model(tmp_path):
    tensors = model(layers=10, hidden=1024, heads=16, rows=512)
    save_dist(tmp_path / "dist", tensors, ranks=2, args={"num_attention_heads": 16})
    save(tmp_path / "legacy", tensors, ranks=2, heads=16)
    size = sum(path.stat().st_size for path in (tmp_path / "legacy").rglob("*.pt"))
    start, _ = measured("ckpt", "--help")
    for name, arguments in {"torch_dist": ["--from-megatron", tmp_path / "dist", "--save", tmp_path / "a"],
                            "torch": ["--from-megatron", tmp_path / "legacy", "--save", tmp_path / "b"],
                            "back": ["--load", tmp_path / "b", "--to-megatron", tmp_path / "c", "--target-tensor-parallel-size", 2]}.items():
        memory, seconds = measured("ckpt", "convert", *arguments)
        print(f"{name}: {size / 1e9:.2f} GB in {seconds:.1f} s, {size / seconds / 1e9:.2f} GB/s, peak {memory / 1e6:.0f} MB")
        assert memory - start < size / 2
