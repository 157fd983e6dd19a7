"""Models of Megatron-Core, with experts and without, for Megatron-LM: files, keys, shapes and arguments, read by a reader of this test."""

import argparse
import itertools
import json

import pytest
import torch

from program import VOCABULARY, message, needs_binary, teratron
from test_megatron_experts import EXPERTS, HIDDEN, LAYERS, RUN, convert, weights

pytestmark = needs_binary
FFN, SHARED, DENSE_FFN, SPARSE = 24, 20, 40, [0, 1, 1, 1]
NAMES = {"sequential": "mcore", "grouped": "mcore-te"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    teratron("pretrain", "gpt", *RUN, "--moe-aux-loss-coeff", "1e-2", "--moe-z-loss-coeff", "1e-3", "--moe-router-dtype", "fp32",
             "--moe-expert-capacity-factor", "1.5", "--save", folder, "--no-save-optim")
    return folder


def export(source, target, *args, **expected):
    return teratron("ckpt", "convert", "--load", source, "--to-megatron", target, *args, **expected)


def load(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


def files(folder, stages, ranks, expert_ranks):
    """(tensor rank, stage, expert rank) -> what torch.load gives; the folder has no other files."""
    found, paths = {}, set()
    for rank, stage, expert in itertools.product(range(ranks), range(stages), range(expert_ranks)):
        numbers = [f"{rank:02}"] + [f"{stage:03}"] * (stages > 1) + [f"{expert:03}"] * (expert_ranks > 1)
        path = folder / f"iter_0000002/mp_rank_{'_'.join(numbers)}/model_optim_rng.pt"
        found[rank, stage, expert] = load(path)
        paths.add(path)
    assert {path for path in folder.rglob("*.pt")} == paths
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "2"
    return found


def layer_shapes(experts, grouped, ranks, here):
    """Keys of a layer of the model above, with the shapes on a tensor rank; None: no tensor."""
    fused = "self_attention.linear_qkv.layer_norm_" if grouped else "input_layernorm."
    shapes = {f"{fused}{part}": (HIDDEN,) for part in ("weight", "bias")}
    mlp_norm = "mlp.linear_fc1.layer_norm_" if grouped and not experts else "pre_mlp_layernorm."
    shapes |= {f"{mlp_norm}{part}": (HIDDEN,) for part in ("weight", "bias")}
    linears = {"self_attention.linear_qkv": (3 * HIDDEN // ranks, HIDDEN), "self_attention.linear_proj": (HIDDEN, HIDDEN // ranks)}
    if not experts:
        linears |= {"mlp.linear_fc1": (2 * DENSE_FFN // ranks, HIDDEN), "mlp.linear_fc2": (HIDDEN, DENSE_FFN // ranks)}
    else:
        shapes |= {"mlp.router.weight": (EXPERTS, HIDDEN), "mlp.router.expert_bias": (EXPERTS,), "mlp.shared_experts.gate_weight": (1, HIDDEN)}
        linears |= {"mlp.shared_experts.linear_fc1": (2 * SHARED // ranks, HIDDEN), "mlp.shared_experts.linear_fc2": (HIDDEN, SHARED // ranks)}
        of_expert = {"linear_fc1": (2 * FFN // ranks, HIDDEN), "linear_fc2": (HIDDEN, FFN // ranks)}
        for e, (fc, shape) in itertools.product(range(here), of_expert.items()):
            if grouped:
                shapes |= {f"mlp.experts.{fc}.weight{e}": shape, f"mlp.experts.{fc}._extra_state": None}
            else:
                linears[f"mlp.experts.local_experts.{e}.{fc}"] = shape
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}._extra_state": None}
    return shapes


def join_tensor_ranks(name, parts):
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")) or ".linear_fc2.weight" in name:
        return torch.cat(parts, 1)
    if "linear_fc1.weight" in name:
        return torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts])
    if name.endswith(("linear_qkv.weight", "word_embeddings.weight", "output_layer.weight")):
        return torch.cat(parts)
    assert all(torch.equal(part, parts[0]) for part in parts), name
    return parts[0]


def ours(name, expert_rank, here):
    """Our name of a layer's tensor."""
    name = name.replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.").replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
    if "mlp.experts." not in name:
        return name
    if "local_experts" in name:
        _, _, _, e, fc, part = name.split(".")
    else:
        fc, part = name.split(".")[2:]
        part, e = "weight", part.removeprefix("weight")
    return f"mlp.experts.{expert_rank * here + int(e)}.{fc}.{part}"


def join(found, stages, ranks, expert_ranks):
    """The whole model."""
    tensors, each, here = {}, LAYERS // stages, EXPERTS // expert_ranks
    for stage, expert in itertools.product(range(stages), range(expert_ranks)):
        models = [found[rank, stage, expert]["model"] for rank in range(ranks)]
        for key, value in models[0].items():
            if value is None:
                continue
            name = key
            if ".layers." in key:
                _, _, layer, rest = key.split(".", 3)
                name = f"decoder.layers.{stage * each + int(layer)}.{ours(rest, expert, here)}"
            whole = join_tensor_ranks(key, [model[key] for model in models])
            if name in tensors:
                assert torch.equal(tensors[name], whole), name  # the same on all expert ranks
            tensors[name] = whole
    return tensors


LAYOUTS = {"one": (1, 1, 1), "ep2": (1, 1, 2), "pp2": (2, 1, 1), "tp2-ep2": (1, 2, 2), "pp2-tp2-ep4": (2, 2, 4)}


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_hold_the_model_and_come_back(tmp_path, trained, form, layout):
    stages, ranks, expert_ranks = LAYOUTS[layout]
    expected = weights(trained)
    export(trained, tmp_path / "out", "--megatron-names", NAMES[form], "--target-tensor-parallel-size", ranks,
           "--target-pipeline-parallel-size", stages, "--target-expert-parallel-size", expert_ranks)
    found = files(tmp_path / "out", stages, ranks, expert_ranks)
    for (rank, stage, expert), state in found.items():
        model, grouped, each = state["model"], form == "grouped", LAYERS // stages
        keys = {f"decoder.layers.{i}.{key}": shape for i in range(each)
                for key, shape in layer_shapes(SPARSE[stage * each + i], grouped, ranks, EXPERTS // expert_ranks).items()}
        rows = -(-expected["embedding.word_embeddings.weight"].shape[0] // (128 * ranks)) * 128
        if stage == 0:
            keys |= {"embedding.word_embeddings.weight": (rows, HIDDEN), "embedding.position_embeddings.weight": (16, HIDDEN)}
        if stage == stages - 1:
            keys |= {"decoder.final_layernorm.weight": (HIDDEN,), "decoder.final_layernorm.bias": (HIDDEN,), "output_layer._extra_state": None}
            if stages > 1:
                keys["output_layer.weight"] = (rows, HIDDEN)
        assert {key: None if value is None else tuple(value.shape) for key, value in model.items()} == keys
        check_args(state["args"], form, stages, ranks, expert_ranks)
    tensors = join(found, stages, ranks, expert_ranks)
    head = tensors.pop("output_layer.weight", None)
    assert head is None or torch.equal(head, tensors["embedding.word_embeddings.weight"])
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name][: tensor.shape[0]], tensor), name
    convert(tmp_path / "out", tmp_path / "again")
    again = weights(tmp_path / "again")
    assert again.keys() == expected.keys() and all(torch.equal(again[name], tensor) for name, tensor in expected.items())
    settings, before = (json.loads(next(path.glob("iter_*/manifest.json")).read_text())["config"] for path in (tmp_path / "again", trained))
    of_experts = [name for name in settings if name.startswith(("moe_", "num_experts"))]
    assert len(of_experts) >= 14
    for name in [*of_experts, "num_layers", "hidden_size", "ffn_hidden_size", "swiglu"]:
        assert settings[name] == before[name], name


def check_args(args, form, stages, ranks, expert_ranks):
    expected = {
        "num_layers": LAYERS, "hidden_size": HIDDEN, "ffn_hidden_size": DENSE_FFN, "num_experts": EXPERTS, "moe_router_topk": 3,
        "moe_ffn_hidden_size": FFN, "moe_layer_freq": SPARSE, "moe_router_score_function": "sigmoid", "moe_router_pre_softmax": False,
        "moe_router_topk_scaling_factor": 1.5, "moe_router_num_groups": None, "moe_router_group_topk": None,
        "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.5, "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1e-2, "moe_z_loss_coeff": 1e-3, "moe_input_jitter_eps": None,
        "moe_expert_capacity_factor": 1.5, "moe_token_drop_policy": "probs", "moe_pad_expert_input_to_capacity": False,
        "moe_shared_expert_intermediate_size": SHARED, "moe_shared_expert_gate": True, "moe_grouped_gemm": form == "grouped",
        "transformer_impl": "transformer_engine" if form == "grouped" else "local", "use_mcore_models": True,
        "tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": stages, "expert_model_parallel_size": expert_ranks,
        "expert_tensor_parallel_size": ranks, "world_size": ranks * stages * expert_ranks, "params_dtype": torch.float32}
    for name, value in expected.items():
        assert getattr(args, name) == value and type(getattr(args, name)) is type(value), name


def test_several_losses_and_all_layers_are_lists_and_a_number(tmp_path):
    flags = ["--moe-layer-freq", "1", "--moe-router-load-balancing-type", "aux_loss", "seq_aux_loss", "--moe-aux-loss-coeff", "0.1", "0.2"]
    teratron("pretrain", "gpt", *RUN, *flags, "--bf16", "--save", tmp_path / "run", "--no-save-optim")
    export(tmp_path / "run", tmp_path / "out", "--target-expert-parallel-size", 2)
    found = files(tmp_path / "out", 1, 1, 2)
    args, model = found[0, 0, 1]["args"], found[0, 0, 1]["model"]
    assert args.moe_layer_freq == 1 and args.moe_router_load_balancing_type == ["aux_loss", "seq_aux_loss"]
    assert args.moe_aux_loss_coeff == [0.1, 0.2] and args.params_dtype == torch.bfloat16
    # The default of models with experts; Megatron-LM keeps the biases of the choice in fp32.
    assert model["decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight"].dtype == torch.bfloat16
    assert model["decoder.layers.0.mlp.router.expert_bias"].dtype == torch.float32
    expected, got = weights(tmp_path / "run"), weights(convert(tmp_path / "out", tmp_path / "again") and tmp_path / "again")
    assert got.keys() == expected.keys() and all(torch.equal(got[name], tensor) for name, tensor in expected.items())


DENSE = ["--num-layers", "4", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "16", "--max-position-embeddings", "16",
         "--qk-layernorm", "--normalization", "RMSNorm", "--disable-bias-linear", "--swiglu", *VOCABULARY, "--mock-data", "--micro-batch-size", "1",
         "--global-batch-size", "1", "--lr", "1e-2", "--train-iters", "1", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1"]


@pytest.mark.parametrize("names", ["mcore", "mcore-te"])
@pytest.mark.parametrize("untied", [[], ["--untie-embeddings-and-output-weights"]], ids=["tied", "untied"])
def test_dense_models_of_megatron_core(tmp_path, names, untied):
    """A norm of queries and keys, which the legacy classes lack."""
    teratron("pretrain", "gpt", *DENSE, *untied, "--save", tmp_path / "run", "--no-save-optim")
    message(export(tmp_path / "run", tmp_path / "x", code=4), "qk_layernorm", "--megatron-names mcore")
    export(tmp_path / "run", tmp_path / "out", "--megatron-names", names, "--target-pipeline-parallel-size", 2, "--target-tensor-parallel-size", 2)
    model = load(tmp_path / "out/iter_0000001/mp_rank_01_001/model_optim_rng.pt")["model"]
    norm = "self_attention.linear_qkv.layer_norm_weight" if names == "mcore-te" else "input_layernorm.weight"
    assert model[f"decoder.layers.1.{norm}"].shape == (16,) and model["decoder.layers.1.self_attention.q_layernorm.weight"].shape == (8,)
    expected, got = weights(tmp_path / "run"), weights(convert(tmp_path / "out", tmp_path / "again") and tmp_path / "again")
    assert got.keys() == expected.keys() and all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    message(export(tmp_path / "run", tmp_path / "x", "--megatron-names", names, "--target-expert-parallel-size", 2, code=2), "no experts",
            "--target-expert-parallel-size")


def test_what_is_refused(tmp_path, trained):
    message(export(trained, tmp_path / "x", "--target-expert-parallel-size", 3, code=2), "4 experts", "divisible by 3",
            "--target-expert-parallel-size")
    message(export(trained, tmp_path / "x", "--megatron-names", "v2", code=4), "num_experts = 4", "--megatron-names mcore")
    message(export(trained, tmp_path / "x", "--target-tensor-parallel-size", 16, code=2), "--target-tensor-parallel-size")
    biased = [flag for flag in RUN if flag not in ("--swiglu", "--disable-bias-linear")]
    teratron("pretrain", "gpt", *biased, "--save", tmp_path / "biased", "--no-save-optim")
    message(export(tmp_path / "biased", tmp_path / "x", "--target-tensor-parallel-size", 2, code=2), "biases", "--target-tensor-parallel-size")
    export(tmp_path / "biased", tmp_path / "out", "--megatron-names", "mcore-te", "--target-expert-parallel-size", 2)
    expected, got = weights(tmp_path / "biased"), weights(convert(tmp_path / "out", tmp_path / "again") and tmp_path / "again")
    assert got.keys() == expected.keys() and all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    bert = [flag for flag in DENSE if flag not in ("--qk-layernorm", "--normalization", "RMSNorm", "--disable-bias-linear", "--swiglu")]
    teratron("pretrain", "bert", *bert, "--save", tmp_path / "bert", "--no-save-optim")
    message(export(tmp_path / "bert", tmp_path / "x", "--megatron-names", "mcore", code=2), "only GPT", "--megatron-names")
    assert not (tmp_path / "x").exists()
