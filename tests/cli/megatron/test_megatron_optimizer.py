"""A training of ours as Megatron-LM would have saved it, with its optimizer, goes on where it was."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from program import assert_bitwise, kept, losses, message, needs_binary, train
from test_megatron_checkpoints import convert, legacy

pytestmark = needs_binary
RANKS, ROWS, STEPS = 2, 62, 3


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def run(tmp_path_factory, request):
    """The folder, its flags and the losses of six steps; saved after three."""
    folder = tmp_path_factory.mktemp("run")
    flags = ["--log-interval", "1", "--attention-dropout", "0", "--hidden-dropout", "0"]
    flags += ["--bf16"] if request.param == "bf16" else []
    found = losses(train(*kept(folder, 6, 3), *flags).stdout)
    assert len(found) == 6
    return folder, flags, found


def saved(folder):
    step = next(Path(folder).glob(f"iter_{STEPS:07}"))
    tensors = {name: tensor for file in sorted(step.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    manifest = json.loads((step / "manifest.json").read_text())
    state = manifest["state"]
    return tensors, state if isinstance(state, dict) else json.loads(state)


def padded(name, tensor):
    if not name.endswith("word_embeddings.weight"):
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(ROWS - tensor.shape[0], -1)])


def flat(tree, path=""):
    if torch.is_tensor(tree):
        return {path: tree}
    return {key: value for name in tree for key, value in flat(tree[name], f"{path}.{name}" if path else name).items()}


def in_order(model):
    """As named_parameters() has them: the copy of the embedding before the heads."""
    order = ["language_model.embedding", "language_model.encoder", "word_embeddings_for_head"]
    return dict(sorted(flat(model).items(), key=lambda item: next(i for i, part in enumerate(order) if item[0].startswith(part))))


def kinds(tensors):
    prefixes = {"weight": "", "exp_avg": "optimizer.exp_avg.", "exp_avg_sq": "optimizer.exp_avg_sq.", "param": "optimizer.param."}
    for kind, prefix in prefixes.items():
        found = {name[len(prefix):]: padded(name, tensor) for name, tensor in tensors.items()
                 if name.startswith(prefix) and (prefix or not name.startswith("optimizer."))}
        if found:
            yield kind, found


def is_decayed(name, tensor):
    return tensor.dim() > 1 and not name.endswith("bias")


def groups_of(parameters):
    """Numbered group by group; the group of the first parameter is the first."""
    first = is_decayed(*next(iter(parameters.items())))
    return [[name for name, tensor in parameters.items() if is_decayed(name, tensor) == decayed] for decayed in (first, not first)]


def adam(parts, steps, key="fp32_from_fp16_params", flatten=False):
    parameters = parts["weight"]
    shape = (lambda tensor: tensor.flatten().clone()) if flatten else (lambda tensor: tensor)
    state, groups, number = {}, [], 0
    for names in groups_of(parameters):
        for name in names:
            state[number] = {kind: shape(parts[kind][name]) for kind in ("exp_avg", "exp_avg_sq")}
            number += 1
        groups.append({"params": list(range(number - len(names), number)), "lr": 1e-3, "step": steps,
                       "wd_mult": float(is_decayed(names[0], parameters[names[0]])), "lr_mult": 1.0})
    result = {"optimizer": {"state": state, "param_groups": groups}}
    if "param" in parts:
        result[key] = [[shape(parts["param"][name]) for name in names] for names in groups_of(parameters)]
    return result


def backwards(parts, kind, align):
    """The flat buffer: the last parameter first."""
    pieces = []
    for name in reversed(parts["weight"]):
        pieces.append(parts.get(kind, parts["weight"])[name].float().flatten())
        if align:
            pieces.append(torch.zeros(-pieces[-1].numel() % 64))
    if align:
        pieces.pop()
    return torch.cat(pieces)


def shards(parts, rank, ranks):
    """What a data-parallel rank of 23.04 has."""
    sizes = {name: tensor.numel() for name, tensor in parts["weight"].items()}
    total, own = sum(sizes.values()), {}
    each, end = -(-total // ranks), total
    for name, size in sizes.items():
        begin = end - size
        low, high = (min(max(edge - begin, 0), size) for edge in (rank * each, (rank + 1) * each))
        if low < high:
            own[name] = (low, high)
        end = begin
    decayed = {name: is_decayed(name, parts["weight"][name]) for name in own}
    state, groups, masters, number = {}, [], [], 0
    for kind in (True, False):
        names = [name for name in own if decayed[name] == kind]
        if not names:
            continue
        for name in names:
            state[number] = {what: parts[what][name].flatten()[slice(*own[name])].clone() for what in ("exp_avg", "exp_avg_sq")}
            number += 1
        groups.append({"params": list(range(number - len(names), number)), "wd_mult": float(kind), "step": STEPS})
        masters.append([parts["param"][name].flatten()[slice(*own[name])].clone() for name in names] if "param" in parts else [])
    return {"optimizer": {"optimizer": {"state": state, "param_groups": groups}, "shard_fp32_from_float16_groups": masters}}


def write(folder, run_folder, form, stages=1):
    tensors, state = saved(run_folder)
    whole = dict(kinds(tensors))
    args = argparse.Namespace(num_attention_heads=2, seq_length=16, max_position_embeddings=16, add_position_embedding=True,
                              bias_gelu_fusion=True, norm_epsilon=1e-5, tensor_model_parallel_size=RANKS, weight_decay=0.01,
                              consumed_train_samples=state["consumed_train_samples"],
                              consumed_valid_samples=state["consumed_valid_samples"])
    common = {"args": args, "checkpoint_version": 3.0, "iteration": state["iteration"]}
    scheduler = {"opt_param_scheduler": state["opt_param_scheduler"]}
    for stage in range(stages):
        for rank in range(RANKS):
            models = {kind: legacy(full, stage, stages, rank, RANKS, 3.0, 2, False)["model"] for kind, full in whole.items()}
            parts = {kind: in_order(model) for kind, model in models.items()}
            name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if stages > 1 else "")
            path = folder / f"iter_{STEPS:07}" / name
            path.mkdir(parents=True)
            model = {"model": models["weight"]}
            if form == "23.04":
                torch.save({**common, **model}, path / "model_rng.pt")
                for data in range(3):
                    (path.parent / f"{name}_{data:03}").mkdir()
                    torch.save({**shards(parts, data, 3), **scheduler}, path.parent / f"{name}_{data:03}" / "optim.pt")
                continue
            optimizer = adam(parts, state["optimizer_steps"])
            if form != "whole":
                flat_state = {kind: backwards(parts, kind, form == "aligned") for kind in ("param", "exp_avg", "exp_avg_sq")}
                if form == "buckets":
                    cut = sum(tensor.numel() for tensor in list(parts["weight"].values())[4:])
                    flat_state = {kind: [value[:cut], value[cut:]] for kind, value in flat_state.items()}
                torch.save({0: {(torch.bfloat16, torch.float32): flat_state}}, path / "distrib_optim.pt")
                optimizer["optimizer"]["state"] = {}
            torch.save({**common, **model, **scheduler, "optimizer": optimizer}, path / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS))
    return folder


@pytest.mark.parametrize("form, stages", [("whole", 1), ("whole", 2), ("flat", 2), ("aligned", 1), ("buckets", 1), ("23.04", 1)])
def test_training_goes_on_where_it_was(tmp_path, run, form, stages):
    source, flags, expected = run
    # Not the same layout as before: tensor and pipeline ranks of Megatron-LM.
    got = convert(write(tmp_path / "in", source, form, stages), tmp_path / "out", "--vocab-size", saved(source)[0]["embedding.word_embeddings.weight"].shape[0])
    assert_bitwise(got, saved(source)[0])
    ours, theirs = saved(tmp_path / "out")[1], saved(source)[1]
    assert {key: ours[key] for key in ("iteration", "consumed_train_samples", "optimizer_steps", "opt_param_scheduler")} == {
        key: theirs[key] for key in ("iteration", "consumed_train_samples", "optimizer_steps", "opt_param_scheduler")}
    if form == "whole" and stages == 2:
        assert losses(train(*kept(tmp_path / "out", 6, 3), *flags).stdout) == expected[STEPS:]


def test_states_of_other_parameters_are_refused(tmp_path, run):
    source = write(tmp_path / "in", run[0], "whole")
    file = source / f"iter_{STEPS:07}/mp_rank_01/model_optim_rng.pt"
    state = torch.load(file, weights_only=False)
    states = state["optimizer"]["optimizer"]["state"]
    states[0], states[1] = states[1], states[0]
    torch.save(state, file)
    message(convert(source, tmp_path / "out", code=4), "another shape", "--no-load-optim")
    del states[0]
    torch.save(state, file)
    message(convert(source, tmp_path / "out", code=4), "parameters", "--no-load-optim")
    assert not [name for name in convert(source, tmp_path / "out", "--no-load-optim") if name.startswith("optimizer.")]
