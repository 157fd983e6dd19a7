"""Hugging Face models in and out of the built program, against `transformers`: weights bitwise, logits in fp32.

TERATRON_BINARY names the program.
"""
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from hf_configs import CONFIGS, LLAMA3_ROPE  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TERATRON_BINARY", str(ROOT / "build/release/teratron/cli/teratron"))

if not os.path.exists(BINARY):
    pytest.skip(f"no program at {BINARY}: set TERATRON_BINARY", allow_module_level=True)


HYBRIDS = ("mamba2", "bamba", "nemotron_h", "falcon_h1", "granitemoehybrid")  # of our family of that name


def run(*args, code=0):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, errors="replace",
                          timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def random_model(name, dtype=torch.float32):
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    with torch.no_grad():  # norms and biases that start as ones and zeros would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        biases = {key: buffer + torch.randn_like(buffer) * 0.1 for key, buffer in model.named_buffers()
                  if key.endswith("e_score_correction_bias")}
    model = model.to(dtype).eval()
    for key, bias in biases.items():  # fp32 in every file
        model.get_submodule(key.rpartition(".")[0]).e_score_correction_bias = bias
    return model


def assert_same(one, other):
    assert sorted(one) == sorted(other)
    for name in one:
        assert one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]), name


def check_out_of_in(name, dtype, tmp_path):
    """Files with an index, a checkpoint, and files again: the same bits and the same logits in transformers."""
    model = random_model(name, dtype)
    model.save_pretrained(tmp_path / "in", max_shard_size="50KB")
    assert (tmp_path / "in" / "model.safetensors.index.json").exists()
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt", "--max-shard-size", "60KB")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").eval()
    assert_same(model.state_dict(), again.state_dict())
    first = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype="auto").eval()
    ids = torch.arange(2 * 32).reshape(2, 32) * 7 % 101
    with torch.no_grad():
        expected, got = first(ids).logits, again(ids).logits
    if name.startswith(HYBRIDS):  # chunk_size, which orders sums, is not kept
        assert dtype == torch.bfloat16 or (got - expected).norm() <= 1e-5 * expected.norm()
    else:
        assert torch.equal(got, expected), "config.json says something else"
    return model


def check_logits(model, tmp_path):
    """The program's own."""
    torch.manual_seed(1)
    lines = [torch.randint(0, 101, (length,)) for length in (1, 17, 64)]
    (tmp_path / "ids.txt").write_text("".join(" ".join(map(str, line.tolist())) + "\n" for line in lines))
    run("logits", "--load", tmp_path / "ckpt", "--input", tmp_path / "ids.txt", "--output", tmp_path / "out.safetensors")
    got = load_file(tmp_path / "out.safetensors")
    for index, line in enumerate(lines):
        with torch.no_grad():
            expected = model(line[None]).logits[0].float()
        actual = got[f"logits.{index}"]
        assert actual.shape == expected.shape
        assert (actual - expected).norm() <= 1e-5 * expected.norm(), f"line {index}"


@pytest.mark.parametrize("name", CONFIGS)
def test_in_and_out(name, tmp_path):
    check_logits(check_out_of_in(name, torch.float32, tmp_path), tmp_path)


DRIVER = pathlib.Path(BINARY).resolve().parents[2] / "tests" / "parity_model"


def named_as_ours(model, folder):
    """The tensors of a model under our names."""
    model.save_pretrained(folder / "in")
    run("ckpt", "convert", "--from-hf", folder / "in", "--save", folder / "ckpt")
    return load_file(folder / "ckpt" / "iter_0000000" / "shard-00000.safetensors")


@pytest.mark.skipif(not DRIVER.is_file(), reason="TERATRON_BINARY names no build with tests")
@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gemma", "olmo2", "bloom", "gpt_neox", "opt", "mixtral", "qwen2_moe",
                                  "qwen3_moe", "mamba2", "mamba2-limits", "nemotron_h", "bamba", "qwen3_next", "qwen3_5_text", "falcon_h1",
                                  "falcon_h1-norm", "falcon_h1-after", "granitemoehybrid", "granitemoehybrid-dense", "olmo_hybrid",
                                  "olmo_hybrid-rope", "deepseek_v3", "deepseek_v3-yarn", "deepseek_v2-groups", "phi3", "glm4_moe",
                                  "glm4_moe-plain", "minimax_m2", "minimax_m2-one", "ernie4_5_moe", "cohere", "cohere-qk-norm", "cohere2",
                                  "nanochat", "llama4_text", "llama4_text-two"])
def test_gradients(name, tmp_path):
    """Gradients are converted as weights are, then compared by our names."""
    model = random_model(name)
    weights = named_as_ours(model, tmp_path / "weights")
    save_file({f"weight.{key}": value for key, value in weights.items()}, tmp_path / "weights.safetensors")
    torch.manual_seed(2)
    text = torch.randint(5, 101, (33, 2))  # not the padding id, whose gradient transformers leaves out
    index = torch.arange(32)[:, None].expand(32, 2).contiguous()
    save_file({"0.tokens": text[:-1].clone(), "0.labels": text[1:].clone(), "0.sequence_index": index,
               "0.loss_mask": torch.ones(32, 2)}, tmp_path / "batches.safetensors")
    flags = ["--hf-config", str(tmp_path / "weights" / "in"), "--seq-length", "32", "--hidden-dropout", "0",
             "--attention-dropout", "0", "--micro-batch-size", "2", "--train-iters", "1", "--lr", "1",
             "--make-vocab-size-divisible-by", "1", "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
    family = "mamba" if name.startswith(HYBRIDS) else "gpt"
    cases = [{"name": "case", "family": family, "flags": flags, "dtype": "fp32", "steps": 0, "vocabulary": 101,
              "batches": str(tmp_path / "batches.safetensors"), "weights": str(tmp_path / "weights.safetensors")}]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run([DRIVER, tmp_path / "cases.json", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ours = load_file(tmp_path / "case.safetensors")
    logits = model(text[:-1].T).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[1:].T.flatten())
    assert (ours["logits"].transpose(0, 1) - logits).norm() <= 1e-4 * logits.norm()
    assert (ours["loss.0"] - loss).abs() <= 1e-4 * loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    expected = {key: value for key, value in named_as_ours(model, tmp_path / "gradients").items() if not key.endswith("expert_bias")}
    largest = max(value.norm() for value in expected.values())
    assert {f"gradient.{key}" for key in expected} == {key for key in ours if key.startswith("gradient.")}
    for key, value in expected.items():
        assert (ours[f"gradient.{key}"] - value).norm() <= 1e-4 * max(value.norm(), 1e-3 * largest), key


REFUSED = {  # a family, a change of its config.json, what the error says
    "opt-350m": ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
    "opt-projection": ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim"),
    "opt-gelu": ("opt", {"activation_function": "gelu"}, "activation_function"),
    "llama-mlp-biases": ("llama2", {"mlp_bias": True}, "mlp_bias"),
    "gemma-softcap": ("gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "gemma-activation": ("gemma", {"hidden_act": "silu"}, "hidden_act"),
    "gemma-bidirectional": ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "olmo2-rope": ("olmo2", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0}}, "longrope"),
    "bloom-slow": ("bloom", {"slow_but_exact": True}, "slow_but_exact"),
    "neox-biases": ("gpt_neox", {"attention_bias": False}, "attention_bias"),
    "neox-activation": ("gpt_neox", {"hidden_act": "silu"}, "hidden_act"),
    "llama3-factors": ("llama3-positions", {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 2.0}},
                       "low_freq_factor"),
    "gemma3n": ("gemma", {"model_type": "gemma3n"}, "several residual streams"),
    "scaling beside rope_parameters": ("llama2", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    "scaling by no whole number": ("qwen2", {"rope_scaling": {"type": "linear", "factor": 2.5}}, "'factor' = 2.5"),
    "zamba2": ("llama2", {"model_type": "zamba2"}, "attention is shared by layers at several depths"),
    "kimi": ("llama2", {"model_type": "kimi_linear"}, "decays are of each channel of the keys"),
    "falcon-biases": ("falcon_h1", {"projectors_bias": True}, "'mamba_proj_bias' and 'projectors_bias' differ"),
    "falcon-factors": ("falcon_h1", {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers"),
    "falcon-channels": ("falcon_h1", {"mamba_d_ssm": 100}, "mamba_d_head"),
    "granite-positions": ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
    "granite-layers": ("granitemoehybrid", {"layer_types": ["mamba", "attention"]}, "layer_types"),
    "olmo-heads": ("olmo_hybrid", {"linear_num_value_heads": 5}, "linear_num_key_heads"),
    "quantized": ("llama2", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_exactly_is_refused(name, tmp_path):
    family, change, reason = REFUSED[name]
    random_model(family).save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt", code=4)
    assert reason in said and not (tmp_path / "ckpt").exists()


def test_a_scaling_beside_rope_parameters_counts(tmp_path):
    """The latter are not read then, not even their base."""
    model = random_model("llama2")
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    keys = json.loads(file.read_text())
    keys["rope_parameters"]["rope_theta"] = 777.0
    file.write_text(json.dumps({**keys, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(type(model).from_pretrained(tmp_path / "in").eval(), tmp_path)


def test_files_of_transformers_4_are_read(tmp_path):
    """GPT-NeoX: other names of keys and of the output layer."""
    model = random_model("gpt_neox-sequential")
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    keys = json.loads(file.read_text())
    rope = keys.pop("rope_parameters")
    file.write_text(json.dumps({**keys, "rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)


def test_a_convolution_is_cut_where_its_parts_end(tmp_path):
    """transformers writes three equal parts of queries, keys and values, which it joins again; files here have the true ones."""
    model = random_model("olmo_hybrid")
    model.save_pretrained(tmp_path / "in")
    for source, target in (("in", "out"), ("out", "again")):
        run("ckpt", "convert", "--from-hf", tmp_path / source, "--save", tmp_path / f"{source}-ckpt")
        run("ckpt", "convert", "--to-hf", tmp_path / target, "--load", tmp_path / f"{source}-ckpt")
    before, after, again = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out", "again"))
    parts = [f"model.layers.0.linear_attn.{part}_conv1d.weight" for part in "qkv"]
    assert [len(before[part]) for part in parts] == [48, 48, 48] and [len(after[part]) for part in parts] == [36, 36, 72]
    assert torch.equal(torch.cat([before[part] for part in parts]), torch.cat([after[part] for part in parts]))
    assert_same(after, again)


def test_names_of_layers_as_older_files_have_them(tmp_path):
    """Norms by the names that transformers has in memory, types of layers by their old names, positions that are null."""
    for name, change in (("olmo_hybrid", {"rope_parameters": None}), ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba"]})):
        model = random_model(name)
        model.save_pretrained(tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        tensors = load_file(tmp_path / name / "model.safetensors")
        for new, old in (("attention_layer_norm", "input_layernorm"), ("feedforward_layer_norm", "post_attention_layernorm"),
                         ("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
                         ("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight")):
            tensors = {key.replace(new, old): value for key, value in tensors.items()}
        save_file(tensors, tmp_path / name / "model.safetensors", {"format": "pt"})
        (tmp_path / name / "work").mkdir()
        run("ckpt", "convert", "--from-hf", tmp_path / name, "--save", tmp_path / name / "work" / "ckpt")
        check_logits(model, tmp_path / name / "work")


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "nemotron_h-moe", "granitemoehybrid"])
def test_in_and_out_in_bf16(name, tmp_path):
    check_out_of_in(name, torch.bfloat16, tmp_path)
    run("ckpt", "verify", tmp_path / "ckpt")


def test_megatron_layout(tmp_path):
    """Names and rows as Megatron-LM's own loader makes them, written down once more, independently."""
    model = random_model("llama-gqa")
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    theirs = model.state_dict()
    ours = load_file(tmp_path / "ckpt" / "iter_0000000" / "shard-00000.safetensors")
    heads, groups, width = 6, 2, 8
    for layer in range(2):
        attention = f"model.layers.{layer}.self_attn."
        q = theirs[attention + "q_proj.weight"].view(groups, heads // groups * width, 48)
        k = theirs[attention + "k_proj.weight"].view(groups, width, 48)
        v = theirs[attention + "v_proj.weight"].view(groups, width, 48)
        prefix = f"decoder.layers.{layer}."
        assert torch.equal(ours[prefix + "self_attention.linear_qkv.weight"], torch.cat([q, k, v], 1).view(-1, 48))
        mlp = f"model.layers.{layer}.mlp."
        assert torch.equal(ours[prefix + "mlp.linear_fc1.weight"],
                           torch.cat([theirs[mlp + "gate_proj.weight"], theirs[mlp + "up_proj.weight"]]))
        assert torch.equal(ours[prefix + "mlp.linear_fc2.weight"], theirs[mlp + "down_proj.weight"])
    assert torch.equal(ours["output_layer.weight"], theirs["lm_head.weight"])
    assert torch.equal(ours["decoder.final_layernorm.weight"], theirs["model.norm.weight"])
    manifest = json.loads((tmp_path / "ckpt" / "iter_0000000" / "manifest.json").read_text())
    assert set(manifest["tensors"]) == set(ours)


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa"])
def test_types_are_converted_as_torch_does(name, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    for flag, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / flag, "--target-params-dtype", flag)
        run("ckpt", "convert", "--to-hf", tmp_path / f"{flag}-out", "--load", tmp_path / flag)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"{flag}-out", dtype="auto")
        assert_same(model.to(dtype).state_dict(), again.state_dict())
        model = random_model(name)


def small_tokenizer(folder):
    """Trained by the program, as vocab.json, merges.txt and tokenizer.json."""
    folder.mkdir()
    (folder / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 20)
    run("tokenizer", "train", "--input", folder / "text.txt", "--output", folder, "--vocab-size", 280)
    return folder


def with_tokenizer(folder, rows=280):
    """A GPT-2 with its tokenizer of 280 tokens beside it, as transformers saves them."""
    tokenizer = small_tokenizer(folder.parent / "tokenizer")
    config = transformers.GPT2Config(n_embd=48, n_layer=1, n_head=4, vocab_size=rows, n_positions=64, bos_token_id=None,
                                     eos_token_id=None)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    return folder


def test_a_model_brings_its_tokenizer_and_takes_it_along(tmp_path):
    with_tokenizer(tmp_path / "in")
    along = {"generation_config.json": '{"temperature": 0.7}', "chat_template.jinja": "{{ messages }}"}
    for name, text in along.items():
        (tmp_path / "in" / name).write_text(text)
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    said = run("generate", "--load", tmp_path / "ckpt", "--prompt", "the cat", "--max-new-tokens", 3, "--device", "cpu")
    assert "the cat" in said
    again = run("generate", "--load", tmp_path / "ckpt" / "iter_0000000", "--prompt", "the cat", "--max-new-tokens", 3,
                "--device", "cpu")
    assert again.split("the cat", 1)[1] == said.split("the cat", 1)[1]
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "in" / "tokenizer.json").read_bytes()
    assert all((tmp_path / "out" / name).read_text() == text for name, text in along.items())
    ends = json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"]
    tokens = {token["content"]: token["id"]
              for token in json.loads((tmp_path / "in" / "tokenizer.json").read_text())["added_tokens"]}
    assert ends == tokens["<|endoftext|>"]


@pytest.mark.parametrize("source", ["--use-checkpoint-args", "--hf-config"])
def test_embedding_rows_beyond_the_tokenizer_come_along(source, tmp_path):
    folder = with_tokenizer(tmp_path / "in", rows=300)
    run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / "ckpt")
    common = ["pretrain", "gpt", "--load", tmp_path / "ckpt", "--finetune", "--tokenizer-type", "HuggingFaceTokenizer",
              "--tokenizer-model", folder / "tokenizer.json", "--seq-length", 16, "--micro-batch-size", 1, "--lr", 0,
              "--train-iters", 1, "--eval-iters", 0, "--device", "cpu", "--mock-data", "--save", tmp_path / "trained"]
    run(*common, source, *([folder] if source == "--hf-config" else []))
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "trained")
    assert_same(load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors"))
    said = run(*common[:-2], "--num-layers", 1, "--hidden-size", 48, "--num-attention-heads", 4,
               "--max-position-embeddings", 64, code=4)
    assert "[300, 48]" in said and "vocabularies differ" in said and "--use-checkpoint-args" in said


def test_a_trained_model_is_exported_with_its_vocabulary(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    files = ["--vocab-file", tokenizer / "vocab.json", "--merge-file", tokenizer / "merges.txt"]
    run("pretrain", "gpt", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
        "--max-position-embeddings", 16, "--micro-batch-size", 2, "--train-iters", 1, "--lr", "1e-3", "--eval-iters", 0,
        "--device", "cpu", "--mock-data", "--tokenizer-type", "GPT2BPETokenizer", *files, "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    loaded = transformers.GPT2Tokenizer(str(tmp_path / "out" / "vocab.json"), str(tmp_path / "out" / "merges.txt"))
    text = "the dog sat"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode(text) == loaded.encode(text)
    ours = subprocess.run([BINARY, "tokenizer", "encode", "--tokenizer-type", "GPT2BPETokenizer", *map(str, files)],
                          input=text, capture_output=True, text=True, check=True).stdout.split()
    assert loaded.encode(text) == list(map(int, ours))
    (tokenizer / "vocab.json").unlink()
    said = run("ckpt", "convert", "--to-hf", tmp_path / "bare", "--load", tmp_path / "ckpt")
    assert "no tokenizer is copied" in said and "--tokenizer-name" in said
    assert not (tmp_path / "bare" / "vocab.json").exists()


BERT_VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on mat ##s e ##e caf Cat 中 . ! , \U0001f600".split()


def bert_vocab(folder):
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in BERT_VOCAB))
    return folder / "vocab.txt"


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_a_wordpiece_vocabulary_is_exported_as_tokenizer_json(kind, tmp_path):
    flags = ["--tokenizer-type", kind, "--vocab-file", bert_vocab(tmp_path / "tokenizer"), "--vocab-extra-ids", 2]
    run("pretrain", "gpt", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
        "--max-position-embeddings", 16, "--micro-batch-size", 2, "--train-iters", 1, "--lr", "1e-3", "--eval-iters", 0,
        "--device", "cpu", "--mock-data", *flags, "--save", tmp_path / "ckpt")
    assert "no tokenizer" not in run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The cat's CAFÉ, cafe\u0301s on\tmats! 中中 unknown Cat <extra_id_1> [BOS] " + "e" * 150
    ours = list(map(int, subprocess.run([BINARY, "tokenizer", "encode", *map(str, flags)], input=text,
                                        capture_output=True, text=True, check=True).stdout.split()))
    assert loaded.encode(text, add_special_tokens=False) == ours
    assert loaded("the cat", "the dog").token_type_ids == [0] * 4 + [1] * 3
    assert loaded.convert_ids_to_tokens(loaded("the [MASK]").input_ids) == ["[CLS]", "the", "[MASK]", "[SEP]"]
    assert (loaded.pad_token_id, loaded.mask_token_id, len(loaded)) == (0, 4, len(BERT_VOCAB) + 4)


def test_a_wordpiece_vocabulary_of_transformers_is_used(tmp_path):
    bert_vocab(tmp_path / "in")
    config = transformers.GPT2Config(n_embd=48, n_layer=1, n_head=4, vocab_size=len(BERT_VOCAB), n_positions=64,
                                     bos_token_id=None, eos_token_id=None)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "in")
    for i, (settings, kind) in enumerate([({}, "BertWordPieceLowerCase"),
                                          ({"do_lower_case": False}, "BertWordPieceCase"),
                                          ({"do_lower_case": True, "strip_accents": False}, None)]):
        (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings))
        said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / f"ckpt{i}")
        assert (f"--tokenizer-type {kind} " if kind else "--finetune") in said
        # Vocabularies of other rules are not ours: the ids alone are.
        assert kind or f"--tokenizer-type NullTokenizer --vocab-size {len(BERT_VOCAB) - 1}" in said
    transformers.BertTokenizer(str(tmp_path / "in" / "vocab.txt")).save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "vocab.txt").unlink()
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "json")
    assert "HuggingFaceTokenizer" in said
