"""Checkpoints that Megatron-LM wrote: their logits by the program alone, and what is refused."""

import argparse
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from program import each, message, needs_binary, teratron

pytestmark = needs_binary
FIXTURES = Path(__file__).parents[2] / "fixtures/models"


def model(family="gpt", layers=4, hidden=8, heads=2, rows=16, swiglu=False, seed=0):
    """The whole weights under Megatron-Core's names, QKV in the order of version 3."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    ffn, stack = 4 * hidden, "decoder" if family == "gpt" else "encoder"
    tensors = {"embedding.word_embeddings.weight": noise(rows, hidden),
               "embedding.position_embeddings.weight": noise(12, hidden)}
    for layer in range(layers):
        linear = {"self_attention.linear_qkv": (3 * hidden, hidden), "self_attention.linear_proj": (hidden, hidden),
                  "mlp.linear_fc1": ((1 + swiglu) * ffn, hidden), "mlp.linear_fc2": (hidden, ffn)}
        for name, shape in linear.items():
            tensors[f"{stack}.layers.{layer}.{name}.weight"] = noise(*shape)
            tensors[f"{stack}.layers.{layer}.{name}.bias"] = noise(shape[0])
        for name in ("input_layernorm", "pre_mlp_layernorm"):
            tensors[f"{stack}.layers.{layer}.{name}.weight"] = noise(hidden)
            tensors[f"{stack}.layers.{layer}.{name}.bias"] = noise(hidden)
    for part in ("weight", "bias"):
        tensors[f"{stack}.final_layernorm.{part}"] = noise(hidden)
    if family == "bert":
        tensors["embedding.tokentype_embeddings.weight"] = noise(2, hidden)
        tensors["output_layer.bias"] = noise(rows)
        for name, shape in {"lm_head.dense": (hidden, hidden), "lm_head.layer_norm": (hidden,),
                            "pooler.dense": (hidden, hidden), "binary_head": (2, hidden)}.items():
            tensors |= {f"{name}.weight": noise(*shape), f"{name}.bias": noise(shape[0])}
    return tensors


LEGACY = {"self_attention.linear_qkv": "self_attention.query_key_value", "self_attention.linear_proj": "self_attention.dense",
          "mlp.linear_fc1": "mlp.dense_h_to_4h", "mlp.linear_fc2": "mlp.dense_4h_to_h",
          "pre_mlp_layernorm": "post_attention_layernorm"}
ROWS = ("word_embeddings.weight", "output_layer.bias", "linear_qkv.weight", "linear_qkv.bias", "linear_fc1.weight", "linear_fc1.bias")
COLUMNS = ("linear_proj.weight", "linear_fc2.weight")


def part(name, tensor, rank, ranks, version, heads, swiglu):
    """What a tensor rank holds."""
    if name.endswith(COLUMNS):
        return tensor.chunk(ranks, 1)[rank].contiguous()
    if not name.endswith(ROWS):
        return tensor
    if swiglu and "linear_fc1" in name:
        gate, up = tensor.chunk(2)
        return torch.cat([gate.chunk(ranks)[rank], up.chunk(ranks)[rank]])
    own = tensor.chunk(ranks)[rank]
    if "linear_qkv" not in name or version >= 2:
        return own.contiguous()
    split = own.unflatten(0, (heads // ranks, 3, -1))
    order = (1, 0, 2) if version == 0 else (0, 2, 1)
    return split.permute(*order, *range(3, split.dim())).flatten(0, 2).contiguous()


def old_name(name, old):
    for ours, theirs in LEGACY.items():
        name = name.replace(f".{ours}.", f".{theirs}.")
    if old:
        name = name.replace("self_attention", "attention")
    return name


def legacy(tensors, stage, stages, rank, ranks, version, heads, swiglu, virtual=1):
    """The dicts `model`, or `model0`, `model1`... of a rank."""
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    models = []
    for chunk in range(virtual):
        each = layers // (stages * virtual)
        first = (chunk * stages + stage) * each
        stack, embedding, rest = {}, {}, {}
        head = {"lm_head": {}, "binary_head": {}}
        for name, tensor in tensors.items():
            value = part(name, tensor, rank, ranks, version, heads, swiglu)
            if ".layers." in name:
                number = int(name.split(".")[2])
                if first <= number < first + each:
                    tail = name.split(".", 3)[3]
                    stack[old_name(f"layers.{number - first}.{tail}", version < 2)] = value
            elif name.startswith("embedding.") and stage == chunk == 0:
                embedding[name.split(".")[1]] = {"weight": value}
            elif name.startswith("embedding.") or stage != stages - 1 or chunk != virtual - 1:
                continue
            elif "final_layernorm" in name:
                stack[name.split(".", 1)[1]] = value
            elif name == "output_layer.bias":
                head["lm_head"]["bias"] = value
            elif name.startswith("lm_head."):
                head["lm_head"][name[8:].replace("layer_norm", "layernorm")] = value
            elif name.startswith("binary_head."):
                head["binary_head"][name[12:]] = value
            elif name.startswith("pooler."):
                rest["pooler"] = rest.get("pooler", {}) | {name[7:]: value}
        language = {**({"embedding": embedding} if embedding else {}),
                    ("transformer" if version < 2 else "encoder"): stack, **rest}
        found = {"language_model": language, **{key: value for key, value in head.items() if value}}
        if stages > 1 and stage == stages - 1 and chunk == virtual - 1:
            word = part("word_embeddings.weight", tensors["embedding.word_embeddings.weight"], rank, ranks, 3, heads, False)
            found["word_embeddings_for_head"] = {"weight": word}
        models.append(found)
    return {"model": models[0]} if virtual == 1 else {f"model{i}": found for i, found in enumerate(models)}


def save(folder, tensors, version=3.0, ranks=1, stages=1, heads=2, swiglu=False, virtual=1, args=(), name="iter_0000007",
         zipped=True):
    for stage in range(stages):
        for rank in range(ranks):
            state = legacy(tensors, stage, stages, rank, ranks, version, heads, swiglu, virtual)
            if version:
                state["checkpoint_version"] = version
            if args is not None:
                state["args"] = argparse.Namespace(num_attention_heads=heads, seq_length=12, max_position_embeddings=12,
                                                   bias_gelu_fusion=False, layernorm_epsilon=1e-5, swiglu=swiglu, **dict(args))
            path = folder / name / (f"mp_rank_{rank:02}" + (f"_{stage:03}" if stages > 1 else ""))
            path.mkdir(parents=True)
            torch.save(state, path / "model_optim_rng.pt", _use_new_zipfile_serialization=zipped)
    (folder / "latest_checkpointed_iteration.txt").write_text("release" if name == "release" else "7")
    return folder


def convert(source, target, *args, **expected):
    result = teratron("ckpt", "convert", "--from-megatron", source, "--save", target, *args, **expected)
    if expected.get("code"):
        return result
    return {name: tensor for file in sorted(Path(target).glob("iter_*/*.safetensors")) for name, tensor in load_file(file).items()}


def same(got, expected, rows=16):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        whole = "word_embeddings" in name or name.startswith("output_layer")
        assert torch.equal(got[name], tensor[:rows] if whole else tensor), name


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("layout", [{}, {"ranks": 2}, {"ranks": 2, "version": 0}, {"version": 1.0}, {"ranks": 2, "version": 1.0},
                                    {"stages": 2}, {"ranks": 2, "stages": 2, "virtual": 2}, {"zipped": False}])
def test_layouts_and_versions_give_the_same_tensors(tmp_path, family, layout):
    tensors = model(family)
    same(convert(save(tmp_path / "in", tensors, **layout), tmp_path / "out", "--vocab-size", "13"), tensors, 13)


@pytest.mark.parametrize("ranks", [1, 2])
def test_gates_are_joined_apart_from_ups(tmp_path, ranks):
    tensors = model(swiglu=True)
    same(convert(save(tmp_path / "in", tensors, ranks=ranks, swiglu=True), tmp_path / "out"), tensors)


def test_a_model_without_positions_stays_without(tmp_path):
    tensors = model()
    del tensors["embedding.position_embeddings.weight"]
    folder = save(tmp_path / "in", tensors, args={"position_embedding_type": "learned_absolute"})
    same(convert(folder, tmp_path / "out"), tensors)
    assert '"position_embedding_type": "none"' in teratron("ckpt", "inspect", tmp_path / "out").stdout


def t5_model(layers=2, hidden=16, heads=4, buckets=8):
    """Megatron-Core's T5 with relative positions, of one layer more in its decoder."""
    generator = torch.Generator().manual_seed(1)
    tensors, stacks = {}, {"encoder": layers, "decoder": layers + 1}
    for stack, count in stacks.items():
        for layer in range(count):
            modules = {"self_attention.linear_qkv": (3 * hidden, hidden), "self_attention.linear_proj": (hidden, hidden),
                       "mlp.linear_fc1": (32, hidden), "mlp.linear_fc2": (hidden, 32), "input_layernorm": (hidden,),
                       "pre_mlp_layernorm": (hidden,)}
            if stack == "decoder":
                modules |= {"cross_attention.linear_q": (hidden, hidden), "cross_attention.linear_kv": (2 * hidden, hidden),
                            "cross_attention.linear_proj": (hidden, hidden), "pre_cross_attn_layernorm": (hidden,)}
            for name, shape in modules.items():
                tensors[f"{stack}.layers.{layer}.{name}.weight"] = torch.randn(*shape, generator=generator)
                tensors[f"{stack}.layers.{layer}.{name}.bias"] = torch.randn(shape[0], generator=generator)
        for name in ("weight", "bias"):
            tensors[f"{stack}.final_layernorm.{name}"] = torch.randn(hidden, generator=generator)
        tensors[f"{stack}_relative_pos_emb.relative_attention_bias.weight"] = torch.randn(buckets, heads, generator=generator)
    return tensors | {"embedding.word_embeddings.weight": torch.randn(16, hidden, generator=generator),
                      "output_layer.bias": torch.randn(16, generator=generator)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_relative_positions_are_joined_by_heads(tmp_path, ranks):
    tensors, args = t5_model(), argparse.Namespace(num_attention_heads=4, seq_length=12, decoder_seq_length=9,
                                                   position_embedding_type="relative", relative_attention_max_distance=20)
    rows = ROWS + tuple(f"cross_attention.{name}.{part}" for name in ("linear_q", "linear_kv") for part in ("weight", "bias"))
    for rank in range(ranks):
        def own(name, tensor):
            if name.endswith(COLUMNS + ("relative_attention_bias.weight",)):
                return tensor.chunk(ranks, 1)[rank].contiguous()
            return tensor.chunk(ranks)[rank].contiguous() if name.endswith(rows) else tensor
        path = tmp_path / "in/iter_0000007" / f"mp_rank_{rank:02}"
        path.mkdir(parents=True)
        torch.save({"model": {name: own(name, tensor) for name, tensor in tensors.items()}, "args": args,
                    "checkpoint_version": 3.0}, path / "model_optim_rng.pt")
    (tmp_path / "in/latest_checkpointed_iteration.txt").write_text("7")
    same(convert(tmp_path / "in", tmp_path / "out"), tensors)
    shown = teratron("ckpt", "inspect", tmp_path / "out").stdout
    for setting in ('"position_embedding_type": "relative"', '"relative_attention_num_buckets": 8',
                    '"relative_attention_max_distance": 20', '"decoder_num_layers": 3'):
        assert setting in shown


def test_a_zip_without_args_takes_the_heads_from_a_flag(tmp_path):
    tensors = {name: tensor.half() for name, tensor in model("bert").items()}
    folder = save(tmp_path / "in", tensors, version=0, args=None, name="release", zipped=False)
    with zipfile.ZipFile(tmp_path / "ngc.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder))
    message(convert(tmp_path / "ngc.zip", tmp_path / "none", code=2), "--num-attention-heads")
    same(convert(tmp_path / "ngc.zip", tmp_path / "out", "--num-attention-heads", "2"), tensors)
    assert '"model_family": "bert"' in teratron("ckpt", "inspect", tmp_path / "out").stdout


class Hostile:
    def __reduce__(self):
        return __import__("os").system, ("touch harmed",)


def test_what_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors = model()
    folder = save(tmp_path / "hostile", tensors, args={"bad": Hostile()})
    message(convert(folder, tmp_path / "x", code=4), "posix.system", "refused")
    assert not (tmp_path / "harmed").exists()
    folder = save(tmp_path / "in", tensors, ranks=2)
    message(convert(folder, tmp_path / "x", "--vocab-size", "17", code=2), "16 rows")
    message(convert(folder, tmp_path / "x", "--num-layers", "5", code=2), "num_layers is 5")
    message(convert(folder, tmp_path / "x", "--ckpt-step", "8", code=4), "no iteration 8")
    message(convert(folder, tmp_path / "x", "--no-such-flag", code=2), "--no-such-flag")
    file = folder / "iter_0000007/mp_rank_01/model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:-100])
    message(convert(folder, tmp_path / "x", code=4), "zip file")
    file.unlink()
    (folder / "iter_0000007/mp_rank_00").rename(folder / "iter_0000007/mp_rank_02")
    message(convert(folder, tmp_path / "x", code=4), "tensor rank 0")
    message(convert(save(tmp_path / "experts", tensors, args={"num_experts": 4}), tmp_path / "x", code=4), "num_experts")
    for argument, value in {"use_rope_scaling": True, "window_size": (127, 0), "softmax_type": "off-by-one", "qk_l2_norm": True,
                            "position_embedding_type": "yarn", "num_attention_heads": "2"}.items():
        message(convert(with_argument(tmp_path / argument, argument, value), tmp_path / "x", code=4), argument)
    extra = save(tmp_path / "extra", tensors | {"decoder.layers.0.mlp.gate.weight": torch.ones(2)})
    message(convert(extra, tmp_path / "x", code=4), "mlp.gate.weight", "no place")
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").glob("iter_*"))


def with_argument(path, argument, value):
    folder = save(path, model(), args=None)
    file = folder / "iter_0000007/mp_rank_00/model_optim_rng.pt"
    args = argparse.Namespace(**{"num_attention_heads": 2, "seq_length": 12, "max_position_embeddings": 12, argument: value})
    torch.save({**torch.load(file, weights_only=False), "args": args}, file)
    return folder


def test_values_that_no_model_has_are_refused(tmp_path):
    """Those that no flag takes, sizes that the tensors do not show, and forks' settings that are flags here and not in Megatron-LM."""
    values = [("norm_epsilon", -1.0), ("norm_epsilon", "x"), ("rotary_base", 1e30), ("hidden_dropout", 7.5), ("rotary_percent", -3.0),
              ("seq_length", -1), ("make_vocab_size_divisible_by", 0), ("squared_relu", "x"), ("num_layers", 2**63 - 1), ("num_layers", 3),
              ("num_layers", 1e30), ("hidden_size", -8), ("scale_embeddings", True), ("parallel_residual", True), ("softmax_scale", 0.5)]

    def check(case, folder):
        message(convert(with_argument(folder / "in", *case), folder / "out", code=4), case[0])
        assert not (folder / "out").exists() or not list((folder / "out").glob("iter_*"))
    each(values, check, tmp_path)


def test_arguments_that_megatron_has_not_are_named(tmp_path):
    """Those of a fork; not those that are off, those of its flags, and what it adds to them at run time."""
    folder = save(tmp_path / "in", model(), args=None)
    path = folder / "iter_0000007/mp_rank_00/model_optim_rng.pt"
    known = {"num_attention_heads": 2, "seq_length": 12, "max_position_embeddings": 12, "add_position_embedding": True, "rank": 1,
             "params_dtype": torch.float32, "masked_softmax_fusion": True, "use_gloo_process_groups": True, "kv_lora_rank": 32,
             "transformer_impl": "local", "gradient_accumulation_fusion": True, "recompute_granularity": "full"}
    args = argparse.Namespace(**known, fork_logit_cap=30.0, fork_off=False, fork_none=None, fresh=True)
    torch.save({**torch.load(path, weights_only=False), "args": args}, path)
    result = teratron("ckpt", "convert", "--from-megatron", folder, "--save", tmp_path / "out")
    notices = [line for line in result.stderr.splitlines() if "Megatron-LM has not" in line]
    assert len(notices) == 1 and "has not: fork_logit_cap, fresh; if" in notices[0], notices


def test_logits_that_megatron_computed(tmp_path):
    """A zip file as NVIDIA publishes them, and the logits that core_v0.7.0 computed with its weights."""
    expected = load_file(FIXTURES / "gpt_a_v0_ngc.safetensors")
    convert(FIXTURES / "gpt_a_v0_ngc.zip", tmp_path / "out", "--num-attention-heads", "4", "--vocab-size", "67",
            "--no-bias-gelu-fusion")
    (tmp_path / "ids").write_text("\n".join(" ".join(map(str, row)) for row in expected["tokens"].tolist()))
    teratron("logits", "--load", tmp_path / "out", "--input", tmp_path / "ids", "--output", tmp_path / "logits",
             "--device", "cpu")
    got = load_file(tmp_path / "logits")
    torch.testing.assert_close(torch.stack([got["logits.0"], got["logits.1"]]), expected["logits"], atol=1e-5, rtol=1e-5)
