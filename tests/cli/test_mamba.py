"""`pretrain mamba`: hybrids on one rank and on many, packed documents, texts, messages about bad input."""

import json

import pytest
from program import VOCABULARY, losses, message, needs_binary, teratron, weights

pytestmark = needs_binary

SIZES = ["--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--max-position-embeddings", 32, "--mamba-num-heads", 8,
         "--mamba-head-dim", 16, "--mamba-num-groups", 2, "--mamba-state-dim", 16, "--position-embedding-type", "none",
         "--normalization", "RMSNorm"]
RUN = [*SIZES, *VOCABULARY, "--mock-data", "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", "1e-3", "--train-iters", 4, "--log-interval", 1,
       "--eval-iters", 0, "--device", "cpu", "--num-threads", 1, "--hidden-dropout", 0, "--attention-dropout", 0]
EXPERTS = ["--num-experts", 4, "--moe-ffn-hidden-size", 24, "--moe-router-topk", 2, "--moe-router-dtype", "fp32"]
PACKED = ["--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"]
# Ranks, pattern, flags; the same model on one rank has neither | nor the flags.
LAYOUTS = [(2, "MMMM", ["--tp", 2, "--sequence-parallel"]), (2, "M-M*M-|M*", ["--pp", 2]),
           (2, "M-|M*|M-|M*", ["--pp", 2]), (2, "M-M*M-M*", ["--cp", 2]), (2, "M*ME", ["--ep", 2, *EXPERTS]),
           (2, "M-M*", ["--use-distributed-optimizer", *PACKED]),
           (8, "M-|M*M-M*", ["--tp", 2, "--pp", 2, "--cp", 2, "--sequence-parallel", "--use-distributed-optimizer"])]


def train(pattern, *flags, ranks=1, **expected):
    launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--"] if ranks > 1 else []
    return teratron(*launch, "pretrain", "mamba", "--hybrid-layer-pattern", pattern, *RUN, *flags, **expected)


@pytest.fixture(scope="module")
def alone():
    """Losses of a model on one rank."""
    known = {}

    def losses_of(pattern, flags):
        own = [*(EXPERTS if "--num-experts" in flags else []), *(PACKED if PACKED[0] in flags else [])]
        key = (pattern.replace("|", ""), *map(str, own))
        if key not in known:
            known[key] = losses(train(key[0], *own).stdout)
        return known[key]
    return losses_of


@pytest.mark.parametrize("ranks, pattern, flags", LAYOUTS, ids=lambda value: value if isinstance(value, str) else None)
def test_layouts_train_alike(ranks, pattern, flags, alone):
    text = train(pattern, *flags, ranks=ranks).stdout
    assert losses(text) == pytest.approx(alone(pattern, flags), rel=2e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    train("M*ME", *EXPERTS, "--save", folder / "run", "--save-interval", 2)
    return folder


def test_names_are_megatrons(run):
    names = weights(run / "run", 4)
    for name in ("layers.0.norm.weight", "layers.0.mixer.in_proj.weight", "layers.0.mixer.conv1d.weight", "layers.0.mixer.conv1d.bias",
                 "layers.0.mixer.dt_bias", "layers.0.mixer.A_log", "layers.0.mixer.D", "layers.0.mixer.norm.weight",
                 "layers.0.mixer.out_proj.weight", "layers.1.self_attention.linear_qkv.weight", "layers.3.mlp.router.weight",
                 "final_norm.weight"):
        assert f"decoder.{name}" in names


def test_resuming_changes_no_bit(run, tmp_path):
    train("M*ME", *EXPERTS, "--load", run / "run", "--ckpt-step", 2, "--save", tmp_path / "on")
    one, other = weights(run / "run", 4), weights(tmp_path / "on", 4)
    assert sorted(one) == sorted(other) and all(one[name].equal(other[name]) for name in one)


def test_texts_on_every_layout(run, tmp_path):
    """Greedy and beams, with prompts of several lengths at once."""
    requests = [{"tokens": [1, 2, 3], "max_new_tokens": 20, "top_k": 1}, {"tokens": [9] * 25, "max_new_tokens": 5, "num_beams": 3},
                {"tokens": [4], "max_new_tokens": 9, "top_k": 1}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))

    def answers(*flags, ranks=1):
        launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--"] if ranks > 1 else []
        teratron(*launch, "generate", "--load", run / "run", "--device", "cpu", "--num-threads", 1, "--input", tmp_path / "in.jsonl",
                 "--output", tmp_path / "out.jsonl", *flags)
        return [[choice["tokens"] for choice in answer.get("choices", [answer])]
                for answer in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())]
    expected = answers()
    assert [len(choices) for choices in expected] == [1, 1, 1] and len(expected[0][0]) == 20
    assert answers("--tp", 2, ranks=2) == answers("--pp", 2, ranks=2) == expected
    answers("--mamba-inference-ssm-states-dtype", "bf16")
    teratron("pretrain", "mamba", *RUN, *EXPERTS, "--hybrid-layer-pattern", "M*ME", "--load", run / "run", "--finetune", "--lora-rank", 2,
             "--train-iters", 2, "--save", tmp_path / "lora")


def test_a_published_command_line():
    """pretrain_mamba.py with ratios, as in Megatron-LM's example."""
    flags = [word for word in RUN if word != "--num-layers"]
    text = teratron("pretrain_mamba.py", *flags, "--num-layers", 10, "--hybrid-attention-ratio", 0.1, "--hybrid-mlp-ratio", 0.3, "--is-hybrid-model",
                    "--spec", "megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec", "--train-iters", 1).stdout
    assert "hybrid_attention_ratio" in text and len(losses(text)) == 1


BAD = [(["--hybrid-layer-pattern", "MXM"], 1, "'X' in the pattern"), (["--hybrid-layer-pattern", "MDM"], 1, "sparse attention"),
       (["--hybrid-layer-pattern", "M|M|M", "--pp", 2], 2, "3 segments"), (["--hybrid-layer-pattern", "MM", "--mamba-num-heads", 9], 1, "mamba_num_heads = 9"),
       (["--hybrid-layer-pattern", "MM", "--mamba-num-groups", 1, "--tp", 2], 2, "mamba_num_groups = 1"),
       (["--hybrid-layer-pattern", "MMMM", "--hybrid-mlp-ratio", 0.5], 1, "hybrid_mlp_ratio"),
       (["--hybrid-layer-pattern", "MM", "--mamba-num-heads", 2, "--cp", 4, "--recurrent-cp-comm-type", "heads"], 4, "context_parallel_size = 4")]


@pytest.mark.parametrize("flags, ranks, said", BAD, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_input(flags, ranks, said, tmp_path):
    launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", tmp_path / "logs", "--"] if ranks > 1 else []
    message(teratron(*launch, "pretrain", "mamba", *RUN, "--save", tmp_path / "run", *flags, code=2), said)
    assert not (tmp_path / "run").exists()
