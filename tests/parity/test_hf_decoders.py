"""What the configurations of hf_configs.py do not show of decoder families: weights in MXFP4, the text model of a file with pictures, configs
of older releases, long texts under LongRoPE, families that are refused; experts of a layer
in one tensor, as transformers 5 holds them in memory. Logits against `transformers`."""
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402
from test_hf_conversion import CONFIGS, assert_same, check_logits, random_model, run  # noqa: E402

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])


def convert(folder, tmp_path):
    shutil.rmtree(tmp_path / "ckpt", ignore_errors=True)
    run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / "ckpt")


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def quantized(weight):
    """Random blocks and scales for a weight [experts, in, out], and what they stand for."""
    experts, columns, rows = weight.shape
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
    scales = torch.randint(120, 126, (experts, rows, columns // 32), dtype=torch.uint8)
    nibbles = torch.stack([blocks & 15, blocks >> 4], -1).long()
    values = torch.where(nibbles > 7, -1.0, 1.0) * E2M1[nibbles & 7]
    values = values.flatten(-2) * torch.exp2(scales.float() - 127).unsqueeze(-1)
    return blocks, scales, values.reshape(experts, rows, columns).transpose(1, 2).contiguous()


def test_mxfp4(tmp_path):
    torch.manual_seed(3)
    config = CONFIGS["gpt_oss"]()
    config.hidden_size, config.intermediate_size, config.num_attention_heads = 64, 32, 4  # down projections are square where they are equal
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "in")
    weights = load_file(tmp_path / "in/model.safetensors")
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales, values = quantized(weights.pop(name))
        weights |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        model.get_parameter(name).data.copy_(values)
    save_file(weights, tmp_path / "in/model.safetensors", metadata={"format": "pt"})
    edit(tmp_path / "in", lambda config: config.update(quantization_config={"quant_method": "mxfp4"}))
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)
    edit(tmp_path / "in", lambda config: config.update(quantization_config={"quant_method": "awq"}))
    assert "quantized by 'awq'" in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "no", code=4)


def old_rope(config):
    rope = config.pop("rope_parameters")
    sliding = rope.pop("sliding_attention", None)
    rope = rope.get("full_attention", rope)
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = rope
    if sliding and config["model_type"] == "gemma3_text":
        config["rope_local_base_freq"] = sliding["rope_theta"]


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt_oss", "olmo3", "phi3"])
def test_configs_of_older_releases(tmp_path, name):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", old_rope)
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)


def test_text_model_of_gemma3(tmp_path):
    model = random_model("gemma3")
    vision = transformers.SiglipVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                                             patch_size=14)
    whole = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=model.config, vision_config=vision, mm_tokens_per_image=4))
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)


def test_long_texts(tmp_path):
    config = CONFIGS["phi3"]()
    config.rope_parameters["original_max_position_embeddings"] = config.original_max_position_embeddings = 16
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)  # of texts on both sides of the limit


@pytest.mark.parametrize("model_type", ["gemma3n", "gemma4", "deepseek_v32", "llama4_text"])
def test_refused_families(tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert "is not supported: " in run("ckpt", "convert", "--from-hf", tmp_path, "--save", tmp_path / "no", code=4)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_experts_as_transformers_holds_them(name, tmp_path):
    """Files of a state dict: one tensor for all experts of a layer."""
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    state = model.state_dict()
    fused = [key for key in state if key.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert fused and all(state[key].dim() == 3 for key in fused), list(state)
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "apart")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "in" / "model.safetensors")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    assert_same(*(load_file(tmp_path / folder / "iter_0000000" / "shard-00000.safetensors") for folder in ("apart", "ckpt")))
    check_logits(model, tmp_path)
