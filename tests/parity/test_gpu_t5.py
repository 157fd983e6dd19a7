"""T5 on a GPU: the CPU's curve, half precision, CUDA graphs, bitwise resume, and two GPUs."""

import functools

import pytest

import gpu_training
from gpu_training import DROPOUT, LAYOUTS, MOCK, NO_DROPOUT, STEPS, close, two_gpus

pytestmark = gpu_training.needs_gpu
SHAPE = ["--encoder-num-layers", "2", "--decoder-num-layers", "3", "--encoder-seq-length", "64", "--decoder-seq-length", "32"]
train = functools.partial(gpu_training.train, "t5", SHAPE)
RELATIVE = ["--position-embedding-type", "relative"]
PUBLISHED = [*RELATIVE, "--softmax-scale", "1", "--normalization", "RMSNorm", "--disable-bias-linear", "--no-lm-head-bias"]
MODELS = {
    "megatron": [],
    "megatron-relative": RELATIVE,
    "v1.0": [*PUBLISHED, "--relu", "--scale-decoder-outputs"],
    "v1.1": [*PUBLISHED, "--geglu", "--untie-embeddings-and-output-weights", "--kv-channels", "24"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return [*gpu_training.sentences(tmp_path_factory.mktemp("text")), "--vocab-extra-ids", "30"]


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


GRAPHS = {
    "fp32": [], "bf16": ["--bf16"], "fp16": ["--fp16", "--initial-loss-scale", "65536"], "dropout": ["--bf16", *DROPOUT],
    "relative": ["--bf16", *RELATIVE], "v1.1": ["--bf16", *MODELS["v1.1"]],
}


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("text", [False, True], ids=["full-rows", "padded-rows"])
def test_cuda_graphs_leave_every_bit_as_it_is(tmp_path, data, name, text):
    flags = ["--deterministic-mode", *(data if text else MOCK), *NO_DROPOUT, *GRAPHS[name]]
    eager = train(tmp_path, "eager", *flags, "--cuda-graph-impl", "none")
    assert train(tmp_path, "graphs", *flags, "--cuda-graph-impl", "local") == eager


@pytest.mark.parametrize("model", ["megatron", "v1.0"])
@pytest.mark.parametrize("dropout", [NO_DROPOUT, DROPOUT], ids=["no-dropout", "dropout"])
def test_resume_is_bitwise_in_deterministic_mode(tmp_path, data, model, dropout):
    flags = [*data, "--deterministic-mode", *dropout, "--bf16", *MODELS[model]]
    whole = train(tmp_path, "whole", *flags)
    train(tmp_path, "halves", "--exit-interval", "10", *flags)
    assert train(tmp_path, "halves", *flags) == whole


PRECISIONS = {"fp32": ([], 2e-4), "bf16": (["--bf16"], 2e-2)}


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory, data):
    """The flags of a model in a precision, and the losses of 20 steps on one GPU, which all layouts are compared with."""

    @functools.cache
    def run(model, precision):
        flags = [*data, *NO_DROPOUT, *PRECISIONS[precision][0], *MODELS[model], "--lr", "5e-4"]
        return flags, train(tmp_path_factory.mktemp("one"), "run", *flags)

    return run


@two_gpus
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("model", ["megatron", "v1.0"])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_two_gpus_follow_one(tmp_path, one_gpu, layout, model, precision):
    """The same micro-batches."""
    flags, expected = one_gpu(model, precision)
    split = ["--pipeline-model-parallel-split-rank", "1"] if layout == "pp2" else []
    close(train(tmp_path, "two", *flags, *LAYOUTS[layout], *split, gpus=2), expected, rel=PRECISIONS[precision][1])
