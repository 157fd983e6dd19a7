"""Training of models with recurrences: recomputed, resumed, finetuned on packed conversations, with adapters, in FP8; context
parallelism by states."""

import json

import pytest
import torch
from program import VOCABULARY, losses, message, needs_binary, teratron, weights

pytestmark = needs_binary

SIZES = ["--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--max-position-embeddings", 32, "--normalization", "RMSNorm",
         "--mamba-num-heads", 4, "--mamba-head-dim", 16, "--mamba-num-groups", 2, "--mamba-state-dim", 8, "--linear-num-key-heads", 2,
         "--linear-num-value-heads", 4, "--linear-key-head-dim", 8, "--linear-value-head-dim", 8]
KINDS = {"mamba": ["mamba", "--hybrid-layer-pattern", "MM", "--position-embedding-type", "none"],
         "hybrid": ["mamba", "--hybrid-layer-pattern", "M*-GH", "--position-embedding-type", "none"],
         "gdn": ["gpt", "--num-layers", 2, "--experimental-attention-variant", "gdn", "--linear-attention-freq", 2,
                 "--attention-output-gate", "--position-embedding-type", "rope"]}
RUN = [*SIZES, *VOCABULARY, "--mock-data", "--micro-batch-size", 2, "--global-batch-size", 4, "--lr", "1e-3", "--train-iters", 4, "--log-interval", 1,
       "--eval-iters", 0, "--device", "cpu", "--num-threads", 1]
PACKED = ["--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"]


def train(kind, *flags, ranks=1, **expected):
    launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--"] if ranks > 1 else []
    return teratron(*launch, "pretrain", *KINDS[kind], *RUN, *flags, **expected)


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    found = losses(train(request.param, "--save", folder / "run", "--save-interval", 2).stdout)
    assert len(found) == 4
    return request.param, folder / "run", found


def test_recomputation_changes_no_bit(run):
    kind, _, expected = run
    for flags in (["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1], ["--recompute-granularity", "selective"]):
        assert losses(train(kind, *flags).stdout) == expected


def test_resuming_changes_no_bit(run, tmp_path):
    kind, source, expected = run
    assert losses(train(kind, "--load", source, "--ckpt-step", 2, "--save", tmp_path / "on").stdout) == expected[2:]
    one, other = weights(source, 4), weights(tmp_path / "on", 4)
    assert sorted(one) == sorted(other) and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("packed", [[], PACKED], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_states_between_ranks(kind, packed):
    """Heads that four ranks do not divide; the same with two, where they do. Dropout draws the same numbers."""
    flags = ["--hidden-dropout", "0.1", *packed]
    expected = losses(train(kind, *flags).stdout)
    for more, ranks in ((["--cp", 4, "--cp-comm-type", "p2p"], 4), (["--cp", 2, "--recurrent-cp-comm-type", "states"], 2),
                        (["--cp", 2, "--tp", 2, "--sequence-parallel", "--recurrent-cp-comm-type", "states"], 4)):
        assert losses(train(kind, *flags, *more, ranks=ranks).stdout) == pytest.approx(expected, rel=2e-4), more


def test_states_that_heads_could_not_be(tmp_path):
    def refused(kind, *flags):
        return teratron("launch", "--nproc-per-node", 4, "--backend", "threads", "--log-dir", tmp_path / "logs", "--", "pretrain", *KINDS[kind], *RUN,
                        "--cp", 4, "--save", tmp_path / "run", *flags, code=2)
    message(refused("gdn", "--recurrent-cp-comm-type", "heads"), "linear_num_key_heads = 2", "--recurrent-cp-comm-type")
    message(refused("mamba", "--recurrent-cp-comm-type", "heads", "--mamba-num-heads", 2, "--mamba-num-groups", 1), "context_parallel_size = 4")
    message(refused("mamba", "--mamba-num-heads", 2, "--mamba-num-groups", 1, "--mamba-conv-kernel", 16), "--mamba-conv-kernel", "a context-parallel rank has 8")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_fp8(kind):
    """Projections of sizes that FP8 GEMMs have; their losses are near those of bf16."""
    sizes = ["--hidden-size", 64, "--mamba-num-heads", 16, "--mamba-head-dim", 16, "--linear-num-key-heads", 4, "--linear-num-value-heads", 8,
             "--linear-key-head-dim", 16, "--linear-value-head-dim", 16, "--bf16"]
    plain = losses(train(kind, *sizes).stdout)
    assert losses(train(kind, *sizes, "--fp8-format", "hybrid").stdout) == pytest.approx(plain, rel=2e-2)


def conversations(path):
    words = ["fish", "mice", "cat", "dog", "owl"]
    chats = [[{"role": "user", "content": f"say {words[i % 5]} {words[(i + 2) % 5]}"}, {"role": "assistant", "content": " ".join(words[i % 4:])}]
             for i in range(12)]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text("say fish mice cat dog owl\n" * 20)
    teratron("tokenizer", "train", "--input", folder / "text.txt", "--vocab-size", "280", "--output", folder / "tokenizer", "--special-tokens",
             "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder / "tokenizer", "--chat-template", "chatml"]


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_packed_and_alone(kind, tokenizer, tmp_path):
    """Each conversation sees itself alone: rows of several give the loss of rows of one. Then adapters, of which nothing else changes."""
    chats = conversations(tmp_path / "chats.jsonl")
    family, *own = KINDS[kind]
    common = [*own, *SIZES, "--seq-length", 96, "--max-position-embeddings", 96, *tokenizer, "--data-path", chats, "--split", "1,0,0", "--sft", "--micro-batch-size", 1,
              "--lr", "1e-3", "--log-interval", 1, "--eval-iters", 0, "--device", "cpu", "--num-threads", 1, "--calculate-per-token-loss",
              "--hidden-dropout", 0, "--attention-dropout", 0, "--init-method-std", "0.1"]
    alone = losses(teratron("pretrain", family, *common, "--sft-packing", "lines", "--global-batch-size", 12, "--train-iters", 1).stdout)
    packed = teratron("pretrain", family, *common, "--train-iters", 1, "--global-batch-size", 4, "--save", tmp_path / "run").stdout
    assert len(alone) == 1 and losses(packed)[:1] == pytest.approx(alone, rel=1e-5), packed[-500:]
    teratron("pretrain", family, *common, "--global-batch-size", 2, "--train-iters", 2, "--load", tmp_path / "run", "--finetune", "--lora-rank", 2,
             "--save", tmp_path / "lora")
    before, after = weights(tmp_path / "run", 1), weights(tmp_path / "lora", 2)
    adapters = {name for name in after if name.endswith((".lora_A", ".lora_B")) and not name.startswith("optimizer.")}
    assert any("in_proj.lora_B" in name for name in adapters) and all(torch.any(after[name] != 0) for name in adapters)
    assert all(after[name].equal(tensor) for name, tensor in before.items() if not name.startswith("optimizer."))
