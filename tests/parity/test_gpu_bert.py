"""BERT on a GPU: the CPU's curve, half precision, FP8, CUDA graphs, bitwise resume, and two GPUs."""

import functools

import pytest

import gpu_training
from gpu_training import DROPOUT, LAYOUTS, MOCK, NO_DROPOUT, STEPS, close, two_gpus

pytestmark = gpu_training.needs_gpu
SHAPE = ["--num-layers", "4", "--seq-length", "64"]
train = functools.partial(gpu_training.train, "bert", SHAPE)
MODELS = {
    "megatron": [],
    "hugging-face": ["--apply-residual-connection-post-layernorm", "--no-bias-gelu-fusion"],
    "one-loss": ["--bert-no-binary-head"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return gpu_training.sentences(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("dropout", [NO_DROPOUT, DROPOUT], ids=["no-dropout", "dropout"])
def test_fp32_curve_is_the_cpus(tmp_path, data, model, dropout):
    flags = [*data, *dropout, *MODELS[model]]
    gpu = train(tmp_path, "gpu", *flags)
    assert len(gpu) == STEPS
    close(gpu, train(tmp_path, "cpu", *flags, "--device", "cpu"), rel=2e-4)


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("precision", ["--bf16", "--fp16"])
def test_half_precision_follows_fp32(tmp_path, data, model, precision):
    more = ["--initial-loss-scale", "65536"] if precision == "--fp16" else []
    flags = [*data, *NO_DROPOUT, *MODELS[model]]
    full = train(tmp_path, "fp32", *flags)
    close(train(tmp_path, "half", *flags, precision, *more), full, rel=3e-2)


@pytest.mark.parametrize("precision, rel", [([], 2e-4), (["--bf16"], 2e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [NO_DROPOUT, DROPOUT], ids=["no-dropout", "dropout"])
def test_removing_the_padding_changes_no_curve(tmp_path, data, precision, rel, dropout):
    flags = [*data, *dropout, *precision, "--cuda-graph-impl", "none"]
    padded = train(tmp_path, "padded", *flags, "--remove-padding", "never")
    packed = train(tmp_path, "packed", *flags, "--remove-padding", "always")
    assert packed != padded, "other kernels, other rounding"
    close(packed, padded, rel=rel)


GRAPHS = {
    "fp32": [], "bf16": ["--bf16"], "fp16": ["--fp16", "--initial-loss-scale", "65536"],
    "fp8": ["--bf16", "--fp8-format", "hybrid"], "dropout": ["--bf16", *DROPOUT],
    "one-loss": ["--bf16", "--bert-no-binary-head"],
}


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("text", [False, True], ids=["full-rows", "padded-rows"])
def test_cuda_graphs_leave_every_bit_as_it_is(tmp_path, data, name, text):
    flags = ["--deterministic-mode", *(data if text else MOCK), *NO_DROPOUT, *GRAPHS[name]]
    eager = train(tmp_path, "eager", *flags, "--cuda-graph-impl", "none", "--remove-padding", "never")
    assert train(tmp_path, "graphs", *flags, "--cuda-graph-impl", "local") == eager


@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_resume_is_bitwise_in_deterministic_mode(tmp_path, data, precision):
    flags = [*data, "--deterministic-mode", *DROPOUT, *precision]
    whole = train(tmp_path, "whole", *flags)
    train(tmp_path, "halves", "--exit-interval", "10", *flags)
    assert train(tmp_path, "halves", *flags) == whole


def test_fp8_follows_bf16_over_300_steps(tmp_path, data):
    flags = [*data, *NO_DROPOUT, "--bf16", "--train-iters", "300", "--lr", "5e-4", "--hidden-size", "128"]
    half = train(tmp_path, "bf16", *flags)
    fp8 = train(tmp_path, "fp8", *flags, "--fp8-format", "hybrid")

    def mean(steps):
        return sum(step["lm loss"] for step in steps) / len(steps)

    assert len(fp8) == 300
    assert mean(half[-50:]) < 0.97 * mean(half[:20]), "the model learns"
    assert mean(fp8[-50:]) == pytest.approx(mean(half[-50:]), rel=1e-2)


@two_gpus
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_two_gpus_follow_one(tmp_path, data, layout, precision):
    """The same micro-batches; 50 steps."""
    flags = [*data, *DROPOUT, *precision, "--train-iters", "50", "--lr", "5e-4"]
    one = train(tmp_path, "one", *flags)
    two = train(tmp_path, "two", *flags, *LAYOUTS[layout], gpus=2)
    close(two, one, rel=2e-2 if precision else 2e-4)
