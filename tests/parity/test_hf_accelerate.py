"""Accelerate's conversion script as it is called: formats are recognized, and any source goes into any destination.

TERATRON_BINARY names the program.
"""
import argparse
import json
import os
import subprocess

import pytest

from test_hf_conversion import BINARY, assert_same, random_model, run, with_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TO_TRANSFORMERS = ["ckpt", "convert", "--convert_checkpoint_from_megatron_to_transformers", "--load_path",
                   "gpt/iter_0000000", "--save_path", "gpt/trfs_checkpoint", "--max_shard_size", "200MB",
                   "--tokenizer_name", "gpt2", "--print-checkpoint-structure"]
TO_MEGATRON = ["ckpt", "convert", "--load_path", "gpt/trfs_checkpoint", "--save_path", "gpt/megatron_lm_checkpoint",
               "--target_tensor_model_parallel_size", "2", "--target_pipeline_model_parallel_size", "2",
               "--target_data_parallel_size", "2", "--target_params_dtype", "bf16", "--make_vocab_size_divisible_by",
               "128", "--use_distributed_optimizer", "--print-checkpoint-structure"]


def run_in(folder, *args, code=0, **variables):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, cwd=folder, timeout=300,
                          env={**os.environ, "HF_HUB_CACHE": str(folder / "no-cache"), **variables})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def ranks_of(folder):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return {path.parent.name: torch.load(path, weights_only=True) for path in folder.glob("*/mp_rank_*/*.pt")}


def test_both_commands_as_they_stand(tmp_path):
    """From our checkpoint to Transformers, and from there to Megatron-LM's files of 2 x 2 ranks, and back."""
    model = with_tokenizer(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", model, "--save", tmp_path / "gpt")
    said = run_in(tmp_path, *TO_TRANSFORMERS)
    assert "nothing is downloaded" in said
    assert "# transformer.h.0.attn.c_attn.weight" in said and "torch.Size([48, 144])" in said
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "gpt" / "trfs_checkpoint")
    first = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert_same(first.state_dict(), again.state_dict())
    transformers.AutoTokenizer.from_pretrained(tmp_path / "gpt" / "trfs_checkpoint")
    said = run_in(tmp_path, *TO_MEGATRON, code=2)  # one layer has no two stages
    assert "layers" in said and not (tmp_path / "gpt" / "megatron_lm_checkpoint").exists()


def test_to_megatron_is_cut_as_asked(tmp_path):
    model = random_model("gpt2")
    model.save_pretrained(tmp_path / "gpt" / "trfs_checkpoint")
    said = run_in(tmp_path, *TO_MEGATRON)
    assert "no effect on weights: --target-data-parallel-size, --use-distributed-optimizer" in said
    assert "mp_rank_00_001" in said and "....# embedding" in said
    files = ranks_of(tmp_path / "gpt" / "megatron_lm_checkpoint")
    assert sorted(files) == ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"]
    rank = files["mp_rank_00_000"]
    rows = rank["model"]["language_model"]["embedding"]["word_embeddings"]["weight"]
    assert rows.shape == (128, 48) and rows.dtype == torch.bfloat16 and rank["args"].make_vocab_size_divisible_by == 128
    assert (rank["args"].tensor_model_parallel_size, rank["args"].pipeline_model_parallel_size) == (2, 2)
    assert not [path.name for path in (tmp_path / "gpt").iterdir() if "partial" in path.name]
    # Megatron-LM's files are recognized, too, and hold the same weights.
    back = ["ckpt", "convert", "--convert_checkpoint_from_megatron_to_transformers", "--load_path",
            "gpt/megatron_lm_checkpoint", "--save_path", "again", "--target_params_dtype", "fp32"]
    run_in(tmp_path, *back)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert_same({name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()}, again.state_dict())


def test_megatron_to_transformers_in_one_call(tmp_path):
    model = random_model("llama-gqa")
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--to-megatron", tmp_path / "meg",
        "--target-tensor-parallel-size", 2)
    said = run("ckpt", "convert", "--from-megatron", tmp_path / "meg", "--to-hf", tmp_path / "out", "--max-shard-size",
               "50KB", "--target-params-dtype", "bf16")
    assert "wrote" in said and "train from" not in said
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_same(model.bfloat16().state_dict(), again.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "meg", "out"]


def test_the_structure_alone(tmp_path):
    random_model("gpt2").save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--to-megatron", tmp_path / "meg")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ours")
    for source, expected in [(["--from-megatron", tmp_path / "meg"], "......# layers.1.input_norm.weight"),
                             (["--from-hf", tmp_path / "in"], "# transformer.wte.weight"),
                             (["--load", tmp_path / "ours"], "# decoder.layers.1.mlp.linear_fc2.weight"),
                             (["--load_path", tmp_path / "ours"], "torch.Size([192, 48])")]:
        said = run("ckpt", "convert", "--print-checkpoint-structure", *source)
        assert expected in said, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "meg", "ours"]


def test_a_tokenizer_by_its_name_comes_from_the_cache(tmp_path):
    model = with_tokenizer(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", model, "--save", tmp_path / "gpt")
    snapshot = tmp_path / "cache" / "models--gpt2" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "cache" / "models--gpt2" / "refs").mkdir()
    (tmp_path / "cache" / "models--gpt2" / "refs" / "main").write_text("abc")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["version"] = "1.0"
    (snapshot / "tokenizer.json").write_text(json.dumps(tokenizer))
    said = run_in(tmp_path, *TO_TRANSFORMERS, HF_HUB_CACHE=str(tmp_path / "cache"))
    assert "downloaded" not in said
    assert (tmp_path / "gpt" / "trfs_checkpoint" / "tokenizer.json").read_text() == json.dumps(tokenizer)


def test_what_is_missing_or_too_much(tmp_path):
    random_model("gpt2").save_pretrained(tmp_path / "in")
    hf = ["--from-hf", tmp_path / "in"]
    for flags, message in [([], "no source is given"), (hf, "no destination is given"),
                           ([*hf, "--load", "x", "--save", "y"], "more than one source"),
                           ([*hf, "--to-hf", "x", "--save", "y"], "more than one destination"),
                           (["--load", "x", "--save", "y"], "the same format"),
                           ([*hf, "--save", tmp_path / "y", "--num-layers", 3], "unknown argument")]:
        assert message in run("ckpt", "convert", *flags, code=2), flags
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        said = run("ckpt", "convert", "--load_path", path, "--save_path", tmp_path / "x", code=4)
        assert "there is no checkpoint" in said and not (tmp_path / "x").exists()
