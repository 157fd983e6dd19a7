"""What the configurations of hf_configs.py do not show of decoder families: weights in MXFP4, the text model of a file with pictures, configs
of older releases, long texts under LongRoPE, families that are refused; experts of a layer
in one tensor, as transformers 5 holds them in memory; layers that predict further tokens; FP8 with scales of blocks. Logits against `transformers`."""
import dataclasses
import json
import math
import pickle
import re
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


def test_text_model_of_llama4(tmp_path):
    model = random_model("llama4_text")
    vision = transformers.models.llama4.Llama4VisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                                           image_size=28, patch_size=14, vision_output_dim=16, projector_input_dim=16,
                                                           projector_output_dim=16)
    whole = transformers.Llama4ForConditionalGeneration(transformers.Llama4Config(text_config=model.config, vision_config=vision))
    whole.language_model.load_state_dict(model.state_dict())
    whole.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)


def test_keys_of_published_files(tmp_path):
    """Names that transformers does not write, and forms of before its release 5."""
    published = {"minimax_m2": {"rotary_dim": 8, "use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid",
                                "use_routing_bias": True, "attn_type_list": [1, 1], "rope_theta": 5000000, "use_mtp": True,
                                "num_mtp_modules": 3, "mtp_transformer_layers": 1},
                 "cohere2": {"sliding_window_pattern": 4, "rope_theta": 10000, "use_embedding_sharing": True, "use_parallel_block": True,
                             "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "order_of_interleaved_layers": "local_attn_first"},
                 "ernie4_5_moe": {"moe_layer_end_index": -1, "moe_gate": "topk", "moe_use_aux_free": True, "rope_theta": 500000},
                 "glm4_moe": {"rope_theta": 10000, "partial_rotary_factor": 0.5}}
    for name, keys in published.items():
        (tmp_path / name).mkdir()
        model = random_model(name)
        model.save_pretrained(tmp_path / name / "in")

        def change(config, keys=keys):
            for key in ("rope_parameters", "layer_types", "head_dim" if config["model_type"] == "cohere2" else ""):
                config.pop(key, None)
            config.update(keys)
        edit(tmp_path / name / "in", change)
        convert(tmp_path / name / "in", tmp_path / name)
        check_logits(model, tmp_path / name)


@pytest.mark.parametrize("name, change, what", [
    ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list"), ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias"), ("cohere2", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("llama4_text", {"layer_types": ["full_attention"] * 4}, "layer_types"), ("cohere", {"use_parallel_block": False}, "use_parallel_block"),
    ("glm4_moe", {"topk_method": "greedy"}, "topk_method")])
def test_what_a_family_does_not_have(name, change, what, tmp_path):
    random_model(name).save_pretrained(tmp_path / "in")
    edit(tmp_path / "in", lambda config: config.update(change))
    assert what in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "no", code=4)


def test_long_texts(tmp_path):
    config = CONFIGS["phi3"]()
    config.rope_parameters["original_max_position_embeddings"] = config.original_max_position_embeddings = 16
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    check_logits(model, tmp_path)  # of texts on both sides of the limit


@pytest.mark.parametrize("model_type", ["gemma3n", "gemma4", "deepseek_v32"])
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


LAYERS = 3


def with_mtp(folder):
    """Adds a layer after the last, as published files have it."""
    state = load_file(folder / "model.safetensors")
    assert f"model.layers.{LAYERS}.input_layernorm.weight" not in state
    last = f"model.layers.{LAYERS - 1}."
    torch.manual_seed(4)
    more = {name.replace(last, f"model.layers.{LAYERS}."): torch.randn_like(value) * 0.1
            for name, value in state.items() if name.startswith(last)}
    hidden = state["model.norm.weight"].shape[0]
    for name, shape in (("enorm", [hidden]), ("hnorm", [hidden]), ("eh_proj", [hidden, 2 * hidden]), ("shared_head.norm", [hidden])):
        more[f"model.layers.{LAYERS}.{name}.weight"] = torch.randn(shape) * 0.1
    more[f"model.layers.{LAYERS}.embed_tokens.weight"] = state["model.embed_tokens.weight"].clone()
    more[f"model.layers.{LAYERS}.shared_head.head.weight"] = state["lm_head.weight"].clone()
    save_file(state | more, folder / "model.safetensors")
    return state | more


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_further_tokens_are_kept(name, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    state = with_mtp(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), state)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 1
    said = run("pretrain", "gpt", "--hf", tmp_path / "in", "--mock-data", "--train-iters", 1, "--lr", "1e-3", "--seq-length", 16,
               "--micro-batch-size", 1, "--global-batch-size", 2, "--eval-iters", 0, "--device", "cpu", "--log-interval", 1,
               "--hf-out", tmp_path / "trained")
    assert 3.0 < float(re.search(r"mtp_1 loss: (\S+)", said)[1]) < 8.0
    trained = load_file(tmp_path / "trained" / "model.safetensors")
    assert sorted(trained) == sorted(state)
    assert not torch.equal(trained[f"model.layers.{LAYERS}.eh_proj.weight"], state[f"model.layers.{LAYERS}.eh_proj.weight"])
    changed = state | {f"model.layers.{LAYERS}.embed_tokens.weight": state["model.embed_tokens.weight"] + 1}
    save_file(changed, tmp_path / "in" / "model.safetensors")
    assert "differs from" in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "other", code=4)


def test_fp8_with_scales_of_blocks(tmp_path):
    """Read as bf16, each value times the scale of its block; files quantized otherwise are refused."""
    model = random_model("deepseek_v3-yarn", torch.bfloat16)
    model.save_pretrained(tmp_path / "in")
    state = load_file(tmp_path / "in" / "model.safetensors")
    expected = dict(state)
    for name in [name for name in state if name.endswith("_proj.weight")]:
        rows, columns = state[name].shape
        scales = torch.rand(math.ceil(rows / 128), math.ceil(columns / 128)) * 0.01
        values = state[name].float().mul(8).to(torch.float8_e4m3fn)
        wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        state[name], state[name + "_scale_inv"] = values, scales
        expected[name] = (values.float() * wide).to(torch.bfloat16)
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    save_file(state, tmp_path / "in" / "model.safetensors")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), expected)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    assert "gptq" in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "no", code=4)


@pytest.mark.parametrize("names, ranks", [("mcore", 2), ("mcore-te", 1)])
def test_latents_in_megatrons_checkpoints(names, ranks, tmp_path):
    """Out and in again, with the argument of YaRN there, where norms of latents have the epsilon of the others, and scores of groups are of
    as many experts as a token uses of each."""
    model = random_model("deepseek_v3")
    model.config.rms_norm_eps = 1e-6
    model.config.num_experts_per_tok = 4
    model.config.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096,
                                    "mscale": 0.8, "mscale_all_dim": 0.6}
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    ours = load_file(tmp_path / "ckpt" / "iter_0000000" / "shard-00000.safetensors")
    prefix = "decoder.layers.0.self_attention."
    assert {name.removeprefix(prefix) for name in ours if name.startswith(prefix)} == {
        f"{name}.weight" for name in ("linear_q_down_proj", "q_layernorm", "linear_q_up_proj", "linear_kv_down_proj", "kv_layernorm",
                                      "linear_kv_up_proj", "linear_proj")}
    run("ckpt", "convert", "--load", tmp_path / "ckpt", "--to-megatron", tmp_path / "there", "--megatron-names", names,
        "--target-tensor-parallel-size", ranks)
    run("ckpt", "convert", "--from-megatron", tmp_path / "there", "--save", tmp_path / "again")
    run("ckpt", "convert", "--load", tmp_path / "again", "--to-hf", tmp_path / "out")
    assert_same(load_file(tmp_path / "in" / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors"))
    before, after = (json.loads((tmp_path / folder / "config.json").read_text())["rope_parameters"] for folder in ("in", "out"))
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("flags, what", [
    (["--kv-channels", 8, "--group-query-attention", "--num-query-groups", 2], "--group-query-attention"),
    (["--position-embedding-type", "alibi"], "--position-embedding-type"), (["--qk-pos-emb-head-dim", 5], "pairs"),
    (["--rotary-percent", 0.5], "rotary_percent"), (["--softmax-type", "learnable", "--attention-dropout", 0], "--softmax-type"),
    (["--attn-logit-softcapping", 5], "--attn-logit-softcapping")])
def test_what_latents_exclude(flags, what):
    base = {"--position-embedding-type": ["rope"]}
    args = ["--multi-latent-attention", "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16]
    for name, values in base.items():
        if name not in flags:
            args += [name, *values]
    said = run("pretrain", "gpt", "--mock-data", "--train-iters", 1, "--lr", "1e-3", "--micro-batch-size", 1, "--device", "cpu",
               *args, *flags, code=2)
    assert what in said, said


@pytest.mark.parametrize("kind", ["learnable", "off-by-one"])
@pytest.mark.parametrize("flags, what", [
    (["--position-embedding-type", "alibi", "--attention-dropout", 0], "Sinks are not among scores with biases"),
    (["--position-embedding-type", "rope", "--attention-dropout", 0.1], "Sinks are not among scores with dropout"),
    (["--position-embedding-type", "rope", "--attention-dropout", 0, "--attn-logit-softcapping", 5], "Sinks are not among capped scores")])
def test_what_sinks_exclude(kind, flags, what):
    said = run("plan", "gpt", "--world-size", 1, "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16,
               "--mock-data", "--train-iters", 1, "--lr", "1e-3", "--micro-batch-size", 1, "--softmax-type", kind, *flags, code=2)
    assert what in said and "--softmax-type" in said, said


@pytest.mark.parametrize("layout", [[], ["--use-distributed-optimizer"], ["--context-parallel-size", 2], ["--tp", 2, "--sequence-parallel"]])
def test_losses_of_further_tokens_per_token(layout, tmp_path):
    """Sums over the step's tokens by the step's counts: micro-batches of any size and layouts give the same gradients."""
    random_model("deepseek_v3").save_pretrained(tmp_path / "in")
    state = with_mtp(tmp_path / "in")
    torch.manual_seed(6)
    lines = [" ".join(map(str, torch.randint(5, 100, (length,)).tolist())) for length in (3, 5, 40, 2, 2, 2, 9, 25, 4, 30)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    null = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 100]
    run("preprocess", "--input", tmp_path / "text.jsonl", "--output-prefix", tmp_path / "data", *null, "--append-eod")
    command = ["pretrain", "gpt", "--hf", tmp_path / "in", "--data-path", tmp_path / "data_text_document", *null, "--split", "100,0,0",
               "--seq-length", 16, "--global-batch-size", 4, "--train-iters", 1, "--eval-iters", 0, "--optimizer", "sgd", "--sgd-momentum", 0,
               "--lr", 64, "--min-lr", 64, "--weight-decay", 0, "--clip-grad", 0, "--moe-router-bias-update-rate", 0, "--device", "cpu",
               "--calculate-per-token-loss", "--eod-mask-loss", "--mtp-loss-scaling-factor", 0.6]
    run(*command, "--micro-batch-size", 4, "--hf-out", tmp_path / "one")
    start = ["launch", "--backend", "threads", "--nproc-per-node", 2, "--"] if layout else []
    run(*start, *command, "--micro-batch-size", 1, *layout, "--hf-out", tmp_path / "many")
    one, many = (load_file(tmp_path / folder / "model.safetensors") for folder in ("one", "many"))
    largest = max((one[name] - state[name]).norm() for name in state)
    for name, before in state.items():
        change, other = one[name] - before, many[name] - before
        assert (change - other).norm() <= 1e-4 * max(change.norm(), 1e-3 * largest), name
    assert (one[f"model.layers.{LAYERS}.eh_proj.weight"] - state[f"model.layers.{LAYERS}.eh_proj.weight"]).norm() > 0


@pytest.mark.parametrize("names, ranks, stages", [("mcore", 2, 1), ("mcore-te", 1, 1), ("mcore", 2, 3)])
def test_further_tokens_in_megatrons_checkpoints(names, ranks, stages, tmp_path):
    """Out and in again, also under the layer's name of core 0.12 to 0.15."""
    model = random_model("deepseek_v3")
    model.config.rms_norm_eps, model.config.num_experts_per_tok = 1e-6, 4
    model.save_pretrained(tmp_path / "in")
    state = with_mtp(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    run("ckpt", "convert", "--load", tmp_path / "ckpt", "--to-megatron", tmp_path / "there", "--megatron-names", names,
        "--target-tensor-parallel-size", ranks, "--target-pipeline-parallel-size", stages)
    for turn in range(2):
        run("ckpt", "convert", "--from-megatron", tmp_path / "there", "--save", tmp_path / f"again{turn}")
        run("ckpt", "convert", "--load", tmp_path / f"again{turn}", "--to-hf", tmp_path / f"out{turn}")
        assert_same(load_file(tmp_path / f"out{turn}" / "model.safetensors"), state)
        for file in (tmp_path / "there").rglob("model_optim_rng.pt"):
            saved = torch.load(file, weights_only=False)
            theirs = {key: value for key, value in saved["model"].items() if key.startswith("mtp.")}
            if stages == 1 or "_002" in file.parent.name:
                assert "mtp.layers.0.eh_proj.weight" in theirs and any("mtp_model_layer." in key for key in theirs) == (turn == 0)
                assert len(theirs["mtp.layers.0.eh_proj.weight"]) == 48 // ranks
            saved["model"] = type(saved["model"])((key.replace("mtp_model_layer.", "transformer_layer."), value)
                                                  for key, value in saved["model"].items())
            torch.save(saved, file)


@pytest.mark.parametrize("ranks", [1, 2])
def test_further_tokens_in_distributed_checkpoints(ranks, tmp_path):
    """Their layers have their numbers in their names; core 0.14's name of the layer is read, too."""
    model = random_model("deepseek_v3")
    model.config.rms_norm_eps, model.config.num_experts_per_tok = 1e-6, 4
    model.save_pretrained(tmp_path / "in")
    state = with_mtp(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    run("ckpt", "convert", "--load", tmp_path / "ckpt", "--to-megatron", tmp_path / "there", "--megatron-format", "torch_dist",
        "--target-tensor-parallel-size", ranks)
    [file] = (tmp_path / "there").rglob(".metadata")
    metadata = pickle.loads(file.read_bytes())
    experts = "mtp.layers.0.mtp_model_layer.mlp.experts.experts.linear_fc1.weight"
    assert len(metadata.state_dict_metadata[experts].size) == 3 and "mtp.layers.0.eh_proj.weight" in metadata.state_dict_metadata
    for turn in range(2):
        run("ckpt", "convert", "--from-megatron", tmp_path / "there", "--save", tmp_path / f"again{turn}")
        run("ckpt", "convert", "--load", tmp_path / f"again{turn}", "--to-hf", tmp_path / f"out{turn}")
        assert_same(load_file(tmp_path / f"out{turn}" / "model.safetensors"), state)

        def old(name):
            return name.replace("mtp_model_layer.", "transformer_layer.")
        metadata.state_dict_metadata = {old(name): value for name, value in metadata.state_dict_metadata.items()}
        metadata.storage_data = {dataclasses.replace(index, fqn=old(index.fqn)): value for index, value in metadata.storage_data.items()}
        file.write_bytes(pickle.dumps(metadata))


def test_yarn_of_early_latents(tmp_path):
    """Core 0.10 to 0.12 multiply scores by the square of mscale's factor, whatever mscale_all_dim is."""
    model = random_model("deepseek_v3")
    model.config.rms_norm_eps, model.config.num_experts_per_tok = 1e-6, 4
    model.config.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096,
                                    "mscale": 0.8, "mscale_all_dim": 0.6}
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path)
    run("ckpt", "convert", "--load", tmp_path / "ckpt", "--to-megatron", tmp_path / "there", "--megatron-names", "mcore")
    for absent, scales in ((("no_rope_freq",), (0.8, 0.6)), (("no_rope_freq", "mscale", "mscale_all_dim"), (0.707, 0.707))):
        for file in (tmp_path / "there").rglob("model_optim_rng.pt"):
            saved = torch.load(file, weights_only=False)
            for name in absent:
                if hasattr(saved["args"], name):
                    delattr(saved["args"], name)
            torch.save(saved, file)
        folder = tmp_path / f"without{len(absent)}"
        run("ckpt", "convert", "--from-megatron", tmp_path / "there", "--save", folder / "ckpt")
        run("ckpt", "convert", "--load", folder / "ckpt", "--to-hf", folder / "out")
        rope = json.loads((folder / "out" / "config.json").read_text())["rope_parameters"]

        def magnitude(scale):
            return 0.1 * scale * math.log(4.0) + 1
        mscale, all_dim = scales
        assert magnitude(rope["mscale_all_dim"]) == pytest.approx(magnitude(mscale))
        assert magnitude(rope["mscale"]) / magnitude(rope["mscale_all_dim"]) == pytest.approx(magnitude(mscale) / magnitude(all_dim))
