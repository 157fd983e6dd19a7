"""Curves of 50 steps on several GPUs are those of one GPU with the same micro-batches: T5, BERT and experts."""

import functools

import pytest
import torch

import gpu_training
from gpu_training import MOCK, NO_DROPOUT, close, two_gpus

pytestmark = [*gpu_training.needs_gpu, two_gpus]
SHARDED = ["--use-distributed-optimizer", "--overlap-param-gather"]
EXPERTS = ["--num-experts", "8", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "128", "--moe-aux-loss-coeff", "1e-2",
           "--moe-router-dtype", "fp32", "--moe-grouped-gemm", "--swiglu", "--disable-bias-linear", "--normalization", "RMSNorm",
           "--position-embedding-type", "rope"]
FAMILIES = {
    "t5": ("t5", ["--encoder-num-layers", "4", "--decoder-num-layers", "4", "--encoder-seq-length", "128", "--decoder-seq-length",
                  "64", "--position-embedding-type", "relative"]),
    "bert": ("bert", ["--num-layers", "8", "--seq-length", "128"]),
    "experts": ("gpt", ["--num-layers", "4", "--seq-length", "128", *EXPERTS]),
}
ALL_TO_ALL = ["--moe-token-dispatcher-type", "alltoall"]
TWO_BY_TWO = ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--pipeline-model-parallel-size", "2"]
LAYOUTS = {
    "t5": {
        "pp4": ["--pipeline-model-parallel-size", "4", "--pipeline-model-parallel-split-rank", "2"],
        "tp2-pp2": [*TWO_BY_TWO, "--pipeline-model-parallel-split-rank", "1"],
        "dp4": SHARDED,
    },
    "bert": {
        "tp4": ["--tensor-model-parallel-size", "4", "--sequence-parallel"],
        "pp4-interleaved": ["--pipeline-model-parallel-size", "4", "--num-virtual-stages-per-pipeline-rank", "2"],
        "dp4": SHARDED,
    },
    "experts": {
        "ep4": ["--expert-model-parallel-size", "4", *SHARDED],
        "ep4-alltoall": ["--expert-model-parallel-size", "4", *ALL_TO_ALL, *SHARDED],
        "ep2-tp2": ["--expert-model-parallel-size", "2", *TWO_BY_TWO[:3], *SHARDED],
        "ep2-pp2": ["--expert-model-parallel-size", "2", *TWO_BY_TWO[3:], *SHARDED],
        "two-ep2": ["--expert-model-parallel-size", "2", *SHARDED],
        "two-ep2-alltoall": ["--expert-model-parallel-size", "2", *ALL_TO_ALL, *SHARDED],
        "two-ep2-padded": ["--expert-model-parallel-size", "2", *ALL_TO_ALL, "--moe-expert-capacity-factor", "8",
                           "--moe-pad-expert-input-to-capacity"],
        "two-tp2-ep2": ["--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "1", *TWO_BY_TWO[:3], *ALL_TO_ALL],
    },
}
WIDE = ["--hidden-size", "256", "--max-position-embeddings", "128", "--micro-batch-size", "2", "--global-batch-size", "16",
        "--train-iters", "50", "--lr", "5e-4", *MOCK, *NO_DROPOUT]
PRECISIONS = {"fp32": ([], 2e-4), "bf16": (["--bf16"], 2e-2)}


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory):
    """The flags of a family in a precision, and its losses on one GPU."""

    @functools.cache
    def run(family, precision):
        command, shape = FAMILIES[family]
        flags = [*shape, *WIDE, *PRECISIONS[precision][0]]
        return command, flags, gpu_training.train(command, [], tmp_path_factory.mktemp("one"), "run", *flags)

    return run


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("family, layout", [(family, layout) for family in LAYOUTS for layout in LAYOUTS[family]])
def test_several_gpus_follow_one(tmp_path, one_gpu, family, layout, precision):
    gpus = 2 if layout.startswith("two-") else 4
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    command, flags, expected = one_gpu(family, precision)
    assert len(expected) == 50
    several = gpu_training.train(command, [], tmp_path, "several", *flags, *LAYOUTS[family][layout], gpus=gpus)
    close(several, expected, rel=PRECISIONS[precision][1])
