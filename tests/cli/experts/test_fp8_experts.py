"""Experts in FP8 on the command line: exact resumes, also of the scales, and resumes in another layout."""

from program import needs_binary
from test_experts import losses, run

pytestmark = needs_binary

# Sizes in multiples of 16 on every rank.
FP8 = ["--bf16", "--fp8-format", "hybrid", "--moe-ffn-hidden-size", "32", "--ffn-hidden-size", "64", "--fp8-amax-history-len", "3",
       "--fp8-amax-compute-algo", "max"]
LAYOUT = ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "2",
          "--use-distributed-optimizer"]
SCALES = "optimizer.fp8_scale.decoder.layers.1.mlp.experts.linear_fc2.weight"


def train(folder, iterations, ranks, flags, *more):
    return losses(run(folder / "logs", ranks, [*FP8, *flags], iterations, *more))


def test_a_resume_is_exact(tmp_path):
    for ranks, flags in ((1, []), (4, LAYOUT)):
        folder = tmp_path / str(ranks)
        whole = train(tmp_path, 8, ranks, flags)
        half = train(tmp_path, 4, ranks, flags, "--save", folder, "--save-interval", "4")
        assert half == whole[:4] and len(whole) == 8
        assert SCALES in (folder / "iter_0000004" / "manifest.json").read_text()
        assert train(tmp_path, 8, ranks, flags, "--load", folder) == whole[4:]


def test_a_resume_in_another_layout_and_bf16_are_close(tmp_path):
    whole = train(tmp_path, 8, 1, [], "--save", tmp_path / "saved", "--save-interval", "4", "--exit-interval", "4")
    serial = train(tmp_path, 8, 1, [], "--load", tmp_path / "saved")
    parallel = train(tmp_path, 8, 4, LAYOUT, "--load", tmp_path / "saved")
    bf16 = losses(run(tmp_path / "logs", 1, ["--bf16", "--moe-ffn-hidden-size", "32", "--ffn-hidden-size", "64"], 8))
    assert len(serial) == len(parallel) == 4 and serial != bf16[4:]
    for rows, bound in ((parallel, 2e-3), (bf16[4:], 1e-2)):
        for one, other in zip(serial, rows):
            assert abs(one[0] - other[0]) < bound * one[0], (one, other)
    assert len(whole) == 4
