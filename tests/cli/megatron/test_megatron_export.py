"""Checkpoints for Megatron-LM: the same files, keys and values as its own, and back without loss."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_files import load, unpack
from program import MOCK, message, needs_binary, teratron
from test_megatron_checkpoints import legacy, model, save

pytestmark = needs_binary
TRUE_VOCABULARY = {"gpt_a": 67, "gpt_b": 67, "bert_a": 61, "t5_a": 61}
# What Megatron-LM compares or takes over from a checkpoint.
ARGS = ["num_layers", "encoder_num_layers", "decoder_num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels",
        "group_query_attention", "num_query_groups", "seq_length", "encoder_seq_length", "decoder_seq_length",
        "max_position_embeddings", "position_embedding_type", "add_position_embedding", "use_rotary_position_embeddings",
        "rotary_percent", "rotary_interleaved", "add_bias_linear", "add_qkv_bias", "swiglu", "squared_relu", "openai_gelu",
        "bias_gelu_fusion", "normalization", "norm_epsilon", "apply_layernorm_1p", "apply_residual_connection_post_layernorm",
        "untie_embeddings_and_output_weights", "bert_binary_head", "tokenizer_type", "padded_vocab_size",
        "make_vocab_size_divisible_by", "params_dtype", "fp16", "bf16", "tensor_model_parallel_size",
        "pipeline_model_parallel_size", "pipeline_model_parallel_split_rank", "transformer_pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size", "world_size", "data_parallel_random_init", "use_distributed_optimizer",
        "consumed_train_samples", "consumed_valid_samples", "iteration"]


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    return unpack("legacy.zip", tmp_path_factory.mktemp("legacy"))


def back(source, target, *args, ranks=1, stages=1, **expected):
    result = teratron("ckpt", "convert", "--load", source, "--to-megatron", target, "--target-tensor-parallel-size", ranks,
                      "--target-pipeline-parallel-size", stages, *args, **expected)
    return result if expected.get("code") else Path(target)


def forth(source, target, *args):
    teratron("ckpt", "convert", "--from-megatron", source, "--save", target, *args)
    return target


def tensors_of(folder):
    return {name: tensor for file in sorted(Path(folder).glob("iter_*/*.safetensors")) for name, tensor in load_file(file).items()}


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def compare(ours, theirs, path=()):
    """Kinds of dicts, keys in their order, shapes, dtypes and values; the padding of the vocabulary may differ."""
    if isinstance(theirs, dict):
        assert type(ours) is type(theirs) and list(ours) == list(theirs), path
        for key in theirs:
            compare(ours[key], theirs[key], (*path, key))
    elif theirs is None:
        assert ours is None, path
    else:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), path
        if path[-2] in ("word_embeddings", "output_layer", "word_embeddings_for_head") or path[-2:] == ("lm_head", "bias"):
            return
        assert torch.equal(ours, theirs), path


def vocabulary(files, *keys):
    """A tensor of the vocabulary, joined."""
    parts = []
    for path in files:
        found = load(path)["model"]
        for key in keys:
            found = found[key]
        parts.append(found)
    return torch.cat(parts)


@pytest.mark.parametrize("case, ranks, stages", [("gpt_a", 2, 2), ("gpt_b", 2, 1), ("bert_a", 2, 1), ("t5_a", 1, 2), ("t5_a", 2, 1)])
def test_files_are_those_of_megatron(fixtures, tmp_path, case, ranks, stages):
    theirs = fixtures / case / f"tp{ranks}_pp{stages}"
    rows = TRUE_VOCABULARY[case]
    ours = back(forth(theirs, tmp_path / "ours", "--vocab-size", rows), tmp_path / "back", ranks=ranks, stages=stages)
    assert files_of(ours).keys() == files_of(theirs).keys()
    assert (ours / "latest_checkpointed_iteration.txt").read_text() == (theirs / "latest_checkpointed_iteration.txt").read_text()
    for name, path in files_of(theirs).items():
        if not name.endswith(".pt"):
            continue
        got, expected = load(files_of(ours)[name]), load(path)
        compare(got["model"], expected["model"])
        assert set(got) == set(expected) - {"optimizer", "opt_param_scheduler", "rng_state"}
        for key in set(got) - {"args", "model"}:
            assert got[key] == expected[key] and type(got[key]) is type(expected[key]), key
        for key in ARGS:
            assert getattr(got["args"], key) == getattr(expected["args"], key), key
    words = ["language_model", "embedding", "word_embeddings", "weight"]
    first = [[path for name, path in files_of(folder).items() if name.endswith(".pt") and "_001/" not in name] for folder in (ours, theirs)]
    got, expected = (vocabulary(files, *words) for files in first)
    assert torch.equal(got[:rows], expected[:rows]) and all(torch.equal(row, got[rows - 1]) for row in got[rows:])


@pytest.mark.parametrize("family, ranks, stages, swiglu", [("gpt", 2, 4, True), ("gpt", 1, 2, False), ("bert", 2, 2, False)])
def test_there_and_back_changes_nothing(tmp_path, family, ranks, stages, swiglu):
    source = save(tmp_path / "in", model(family, swiglu=swiglu, rows=13), swiglu=swiglu)
    ours = forth(source, tmp_path / "ours")
    folder = back(ours, tmp_path / "back", "--megatron-names", "v2" if stages == 2 else "core", "--make-vocab-size-divisible-by", 4, ranks=ranks, stages=stages)
    again = forth(folder, tmp_path / "again")
    got, expected = tensors_of(again), tensors_of(ours)
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)
    settings, expected = (json.loads(next(path.glob("iter_*/manifest.json")).read_text())["config"] for path in (again, ours))
    assert {name: settings[name] for name in expected if name != "make_vocab_size_divisible_by"} == {
        name: value for name, value in expected.items() if name != "make_vocab_size_divisible_by"}


RUNS = {"gpt": ["--num-layers", 4, "--num-attention-heads", 4, "--group-query-attention", "--num-query-groups", 2, "--swiglu",
                "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--normalization", "RMSNorm", "--bf16"],
        "bert": ["--num-layers", 4],
        "t5": ["--encoder-num-layers", 2, "--decoder-num-layers", 4, "--encoder-seq-length", 16, "--decoder-seq-length", 8,
               "--vocab-extra-ids", 10]}


@pytest.mark.parametrize("family, stages", [("gpt", 2), ("bert", 4), ("t5", 3)])
def test_runs_come_back_with_all_rows(tmp_path, family, stages):
    """With the state of the optimizer. The vocabulary of a NullTokenizer has one token more than --vocab-size."""
    flags = [flag for index, flag in enumerate(MOCK) if family != "t5" or not {"--seq-length", "--num-layers"} & {*MOCK[max(index - 1, 0):index + 1]}]
    teratron("pretrain", family, *flags, "--train-iters", 1, *RUNS[family], "--save", tmp_path / "run")
    again = forth(back(tmp_path / "run", tmp_path / "back", ranks=2, stages=stages), tmp_path / "again")
    got, expected = tensors_of(again), tensors_of(tmp_path / "run")
    assert sum(name.startswith("optimizer.exp_avg_sq.") for name in expected) > 20
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)
    assert expected["embedding.word_embeddings.weight"].shape[0] % 2 == 1


def test_v2_names_are_those_that_v2_wrote(tmp_path):
    tensors = model("bert")
    ours = forth(save(tmp_path / "in", tensors, ranks=2), tmp_path / "ours")
    folder = back(ours, tmp_path / "back", "--megatron-names", "v2", "--make-vocab-size-divisible-by", 8, ranks=2)
    for rank in range(2):
        got = load(folder / f"release/mp_rank_{rank:02}/model_optim_rng.pt")["model"]
        expected = legacy(tensors, 0, 1, rank, 2, 3.0, 2, False)["model"]
        flat = lambda tree, path="": ({path: tree} if torch.is_tensor(tree) else  # noqa: E731
                                      {key: value for name in tree for key, value in flat(tree[name], f"{path}.{name}").items()})
        got, expected = flat(got), flat(expected)
        assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)


def test_torch_reads_the_files_as_weights_alone(tmp_path):
    ours = forth(save(tmp_path / "in", model()), tmp_path / "ours")
    folder = back(ours, tmp_path / "back", "--target-params-dtype", "bf16")
    file = folder / "release/mp_rank_00/model_optim_rng.pt"
    with torch.serialization.safe_globals([argparse.Namespace]):
        for options in ({}, {"mmap": True}):
            state = torch.load(file, weights_only=True, **options)
            assert state["args"].params_dtype == torch.bfloat16 and state["args"].bf16 and state["checkpoint_version"] == 3.0
            weight = state["model"]["language_model"]["encoder"]["layers.3.mlp.dense_4h_to_h.weight"]
            assert torch.equal(weight, tensors_of(ours)["decoder.layers.3.mlp.linear_fc2.weight"].bfloat16())


def test_what_is_refused(tmp_path):
    ours = forth(save(tmp_path / "in", model()), tmp_path / "ours")
    message(back(ours, tmp_path / "x", ranks=3, code=2), "2 attention heads", "--target-tensor-parallel-size")
    message(back(ours, tmp_path / "x", stages=3, code=2), "4 layers", "--target-pipeline-parallel-size")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    message(back(ours, tmp_path / "full", code=2), "not empty")
    # A full disk in the middle of the last file.
    message(back(ours, tmp_path / "x", code=4, fault="file.write@hit=40:errno=ENOSPC"), "space")
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob("x.partial*"))
