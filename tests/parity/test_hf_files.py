"""Hugging Face weights as torch.save wrote them, against the same weights as safetensors; incomplete files of settings.

TERATRON_BINARY names the program.
"""
import json

import pytest

from test_hf_conversion import CONFIGS, assert_same, check_logits, random_model, run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402


def save_as_bin(model, folder, shards):
    """As transformers 4 did, with torch.save; buffers, and under tied names the same storage twice."""
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    state = model.state_dict()
    # Files hold each expert's tensors; those of Nemotron-H and OLMo hybrids have other names than in memory.
    renamed = model.config.model_type in ("nemotron_h", "olmo_hybrid")
    if renamed or any(name.endswith("experts.gate_up_proj") for name in state):
        published = folder.with_name(folder.name + "-published")
        model.save_pretrained(published)
        state = load_file(published / "model.safetensors")
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    weight_map = {name: f"pytorch_model-{i % shards + 1:05d}-of-{shards:05d}.bin" for i, name in enumerate(state)}
    for file in set(weight_map.values()):
        torch.save({name: tensor for name, tensor in state.items() if weight_map[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def checkpoint_tensors(folder):
    return {name: tensor for file in folder.glob("iter_*/*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("name, shards", [*[(name, 1) for name in CONFIGS], ("gpt2", 3), ("qwen2", 3)])
def test_files_of_torch_save_are_read(name, shards, tmp_path):
    model = random_model(name, torch.bfloat16 if shards == 3 else torch.float32)
    model.save_pretrained(tmp_path / "safe")
    save_as_bin(model, tmp_path / "bin", shards)
    for kind in ("safe", "bin"):
        run("ckpt", "convert", "--from-hf", tmp_path / kind, "--save", tmp_path / f"{kind}-ckpt")
    assert_same(checkpoint_tensors(tmp_path / "safe-ckpt"), checkpoint_tensors(tmp_path / "bin-ckpt"))


def test_a_tensor_with_gaps_and_parameters_are_read(tmp_path):
    model = random_model("llama-gqa")
    model.save_pretrained(tmp_path / "safe")
    save_as_bin(model, tmp_path / "bin", 1)
    state = {name: torch.nn.Parameter(tensor.T.clone().T if tensor.dim() == 2 else tensor)
             for name, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "bin" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    for kind in ("safe", "bin"):
        run("ckpt", "convert", "--from-hf", tmp_path / kind, "--save", tmp_path / f"{kind}-ckpt")
    assert_same(checkpoint_tensors(tmp_path / "safe-ckpt"), checkpoint_tensors(tmp_path / "bin-ckpt"))


def test_queries_keys_and_values_of_different_types_are_promoted(tmp_path):
    """As torch.cat does."""
    model = random_model("llama-gqa")
    types = {"q_proj": torch.float32, "k_proj": torch.bfloat16, "v_proj": torch.float16, "gate_proj": torch.bfloat16, "up_proj": torch.float16}
    model.save_pretrained(tmp_path / "in")
    rounded = {name: tensor.to(types.get(name.split(".")[-2], tensor.dtype)) for name, tensor in load_file(
        tmp_path / "in" / "model.safetensors").items()}
    save_file(rounded, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert_same(again, {name: tensor.float() for name, tensor in rounded.items()})


@pytest.mark.parametrize("name, keys", [("mixtral", ["rope_parameters", "rms_norm_eps"]), ("gpt_neox", ["rope_parameters"])])
def test_keys_left_out_are_those_of_the_class(name, keys, tmp_path):
    """Mixtral's rotary base is 1e6, which changes logits by several units."""
    random_model(name).save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key not in keys}))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in").eval(), tmp_path)


def test_more_experts_for_a_token_than_there_are(tmp_path):
    random_model("mixtral").save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_experts_per_tok": 9}))
    (tmp_path / "ids.txt").write_text("1 2 3\n")
    for command in (["ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt"],
                    ["logits", "--hf", tmp_path / "in", "--input", tmp_path / "ids.txt", "--output", tmp_path / "out.safetensors"]):
        said = run(*command, code=2)
        assert str(file) in said and "'num_experts_per_tok' = 9 is more than 'num_local_experts' = 4" in said


@pytest.mark.parametrize("size, files", [("5GB", 1), ("40KB", 2)])
def test_files_of_torch_save_are_written(size, files, tmp_path):
    """--format bin: transformers and torch.load(weights_only) read the bits that safetensors have."""
    model = random_model("qwen2")
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--load", tmp_path / "ckpt", "--to-hf", tmp_path / "out", "--format", "bin", "--max-shard-size", size)
    written = sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".bin")
    assert not list((tmp_path / "out").glob("*.safetensors")) and (len(written) >= files if files > 1 else written == ["pytorch_model.bin"])
    index = tmp_path / "out" / "pytorch_model.bin.index.json"
    assert index.exists() == (files > 1)
    if files > 1:
        weight_map = json.loads(index.read_text())["weight_map"]
        assert sorted(set(weight_map.values())) == written
    state = {name: tensor for file in written for name, tensor in torch.load(tmp_path / "out" / file, weights_only=True).items()}
    assert_same(state, load_file(tmp_path / "in" / "model.safetensors"))
    assert_same(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict(), model.state_dict())
    run("ckpt", "convert", "--from-hf", tmp_path / "out", "--save", tmp_path / "again")
    assert_same(checkpoint_tensors(tmp_path / "again"), checkpoint_tensors(tmp_path / "ckpt"))
    assert "--format has no effect" in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "x", "--format", "bin")


def test_the_flags_that_a_conversion_prints_make_its_model(tmp_path):
    """Without a tokenizer ids are the text, and the end of a document is one of the rows."""
    random_model("gpt2").save_pretrained(tmp_path / "in")
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    flags = next(line for line in said.splitlines() if "it with --load" in line).partition(" it with ")[2].split()
    assert flags[flags.index("--vocab-size") + 1] == "100"
    out = run("pretrain", "gpt", *flags, "--mock-data", "--seq-length", 16, "--micro-batch-size", 1, "--train-iters", 1, "--lr", 1e-3,
              "--eval-iters", 0, "--device", "cpu")
    assert "padded vocab (size: 101)" in out and "lm loss" in out


def test_the_text_model_of_one_with_pictures(tmp_path):
    """Published as a composite; it comes out as the text model alone."""
    model = random_model("qwen3_5_text")
    model.save_pretrained(tmp_path / "text")
    text = json.loads((tmp_path / "text" / "config.json").read_text())
    (tmp_path / "in").mkdir()
    composite = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text,
                 "vision_config": {"model_type": "qwen3_5", "hidden_size": 8}, "image_token_id": 99, "tie_word_embeddings": True}
    (tmp_path / "in" / "config.json").write_text(json.dumps(composite))
    tensors = {name.replace("model.", "model.language_model.", 1): tensor
               for name, tensor in load_file(tmp_path / "text" / "model.safetensors").items()}
    tensors["model.visual.patch_embed.proj.weight"] = tensors["model.language_model.norm.weight"].clone()
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen3_5_text"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all((again.state_dict()[name] == tensor).all() for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("change, words", [
    ({"layer_types": ["linear_attention", "sparse", "full_attention"]}, "layer_types"), ({"linear_num_value_heads": 5}, "linear_num_value_heads")])
def test_what_no_layer_can_be_is_refused(tmp_path, change, words):
    random_model("qwen3_5_text").save_pretrained(tmp_path / "in")
    path = tmp_path / "in" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert words in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt", code=4)


def test_files_of_older_releases_are_read(tmp_path):
    """A pattern in place of the types, the bare word Infinity, old names of layer types."""
    model = random_model("nemotron_h")
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    text = file.read_text().replace('{\n      "__float__": "Infinity"\n    }', "Infinity")
    assert "__float__" not in text
    types = text[text.index('"layers_block_type"'):]
    types = types[:types.index("]") + 1]
    for number, now in enumerate(['"hybrid_override_pattern": "M-*M"', types.replace("linear_attention", "mamba").replace("full_", "")]):
        file.write_text(text.replace(types, now))
        run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / f"ckpt{number}")
    for number in range(2):
        (tmp_path / "ckpt").unlink(missing_ok=True)
        (tmp_path / "ckpt").symlink_to(tmp_path / f"ckpt{number}")
        check_logits(model, tmp_path)
