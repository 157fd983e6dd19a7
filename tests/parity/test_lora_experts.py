"""LoRA adapters of experts against their definition in PyTorch: transformers' model with W + alpha / rank B A in place of
each weight, through which PyTorch differentiates. Files have PEFT's names, of a module for each expert.

TERATRON_BINARY names the program.
"""
import json

import pytest

from test_hf_conversion import run
from test_hf_training import launch
from test_sft import RATE, STEP, conversations, labelled, logged_loss, model_folder, write_lines

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

RANK, ALPHA = 4, 6
MODULES = {"mixtral": ("block_sparse_moe.experts", "w1", "w3", "w2"), "qwen3_moe": ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
           "qwen2_moe": ("mlp.experts", "gate_proj", "up_proj", "down_proj")}
ATTENTION = ["q_proj", "o_proj"]


def linear_shapes(model, name, targets):
    """Of the modules with adapters: as in published files, experts apart."""
    path, gate, up, down = MODULES[name]
    for key, value in model.state_dict().items():
        layer = key.split(".mlp.experts.")[0]
        module = key.removesuffix(".weight")
        if key.endswith("mlp.experts.gate_up_proj"):
            for expert in range(value.shape[0]):
                yield from ((f"{layer}.{path}.{expert}.{end}", (value.shape[1] // 2, value.shape[2])) for end in (gate, up) if end in targets)
        elif key.endswith("mlp.experts.down_proj"):
            yield from ((f"{layer}.{path}.{expert}.{down}", value.shape[1:]) for expert in range(value.shape[0]) if down in targets)
        elif value.dim() == 2 and module.split(".")[-1] in targets and key.endswith(".weight"):
            yield module, value.shape


def write_adapter(folder, model, name, targets):
    torch.manual_seed(13)
    tensors = {}
    for module, (out, inner) in linear_shapes(model, name, targets):
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(RANK, inner) * 0.2
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(out, RANK) * 0.05
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "target_modules": sorted(targets)}))
    return tensors


def adapted_weights(model, name, adapter):
    """The model's weights, to which the products are added."""
    path, gate, up, down = MODULES[name]

    def product(module):
        a, b = (adapter.get(f"base_model.model.{module}.lora_{side}.weight") for side in "AB")
        return 0 if a is None else ALPHA / RANK * b @ a

    weights = {}
    for key, value in model.state_dict().items():
        layer = key.split(".mlp.experts.")[0]
        if key.endswith("mlp.experts.gate_up_proj"):
            half = value.shape[1] // 2
            value = torch.stack([torch.cat([value[e, :half] + product(f"{layer}.{path}.{e}.{gate}"),
                                            value[e, half:] + product(f"{layer}.{path}.{e}.{up}")]) for e in range(value.shape[0])])
        elif key.endswith("mlp.experts.down_proj"):
            value = torch.stack([value[e] + product(f"{layer}.{path}.{e}.{down}") for e in range(value.shape[0])])
        elif key.endswith(".weight"):
            value = value + product(key.removesuffix(".weight"))
        weights[key] = value
    return weights


def logits_of(model, name, adapter, ids):
    return torch.func.functional_call(model, adapted_weights(model, name, adapter), (ids,), {"use_cache": False}).logits[0]


def reference(folder, name, adapter, chats):
    # PyTorch's grouped GEMM has no fp64.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float64, experts_implementation="eager").eval()
    leaves = {key: value.double().requires_grad_() for key, value in adapter.items()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "in")
    loss, count = 0, 0
    for chat in chats:
        ids, labels = labelled(tokenizer, chat)
        loss = loss + torch.nn.functional.cross_entropy(logits_of(model, name, leaves, ids)[:-1], labels[0, 1:], reduction="sum")
        count += int((labels[0, 1:] != -100).sum())
    (loss / count).backward()
    return (loss / count).item(), {key: value.grad for key, value in leaves.items()}


def folder_with_adapter(folder, name, targets):
    model_folder(folder / "in", name)
    write_lines(folder / "chats.jsonl", list(conversations(6)))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float32)
    return model, write_adapter(folder / "adapter", model, name, targets)


def all_of(name):
    return [*ATTENTION, *MODULES[name][1:]]


@pytest.mark.parametrize("name, parts, ranks, layout", [
    ("qwen3_moe", slice(None), 1, []), ("mixtral", slice(None), 1, []), ("qwen2_moe", slice(None), 1, []), ("mixtral", slice(2, 3), 1, []),
    ("qwen3_moe", slice(None), 2, ["--expert-model-parallel-size", 2, "--moe-token-dispatcher-type", "alltoall"]),
    ("mixtral", slice(None), 2, ["--tp", 2]), ("mixtral", slice(3, None), 2, ["--tp", 2, "--sequence-parallel", "--expert-tensor-parallel-size", 2]),
    ("qwen3_moe", slice(None), 4, ["--tp", 2, "--sequence-parallel", "--expert-model-parallel-size", 2, "--expert-tensor-parallel-size", 2,
                                   "--use-distributed-optimizer"]),
    ("qwen2_moe", slice(None), 2, ["--tp", 2, "--sequence-parallel", "--expert-model-parallel-size", 2, "--expert-tensor-parallel-size", 1])])
def test_a_step_equals_pytorchs(name, parts, ranks, layout, tmp_path):
    targets = all_of(name)[parts]
    _, adapter = folder_with_adapter(tmp_path, name, targets)
    chats = list(conversations(6))
    loss, expected = reference(tmp_path, name, adapter, chats)
    command = ["finetune", "gpt", "--hf", tmp_path / "in", "--lora", tmp_path / "adapter", "--data-path", tmp_path / "chats.jsonl", *STEP,
               "--train-iters", 1, "--global-batch-size", 6, "--sft-packing", "lines", "--lora-out", tmp_path / "out", "--moe-aux-loss-coeff", 0,
               *layout]
    said = launch(ranks, *command) if ranks > 1 else run(*command)
    assert abs(logged_loss(said) - loss) <= 1e-5 * loss
    after = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert sorted(adapter) == sorted(after)
    for key, before in adapter.items():
        gradient = (before.double() - after[key].double()) / RATE
        assert (gradient - expected[key]).norm() <= 2e-5 * expected[key].norm() + 2e-8, key
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (RANK, ALPHA, "CAUSAL_LM")


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_adapters_are_merged(name, tmp_path):
    """When logits are computed, also by ranks that share experts, and by merge-lora."""
    model, adapter = folder_with_adapter(tmp_path, name, all_of(name))
    ids = torch.arange(20)[None] * 7 % 280
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids[0].tolist())) + "\n")
    with torch.no_grad():
        expected = logits_of(model.eval(), name, adapter, ids)
        assert (expected - model(ids).logits[0]).norm() > 1e-2 * expected.norm()
    run("ckpt", "merge-lora", "--from-hf", tmp_path / "in", "--lora", tmp_path / "adapter", "--to-hf", tmp_path / "merged")
    ask = ["--input", tmp_path / "ids.txt", "--output", tmp_path / "l.safetensors"]
    adapted = ["logits", "--hf", tmp_path / "in", "--lora", tmp_path / "adapter", *ask]
    for call in (lambda: run(*adapted), lambda: launch(2, *adapted, "--expert-model-parallel-size", 2),
                 lambda: run("logits", "--hf", tmp_path / "merged", *ask)):
        call()
        ours = load_file(tmp_path / "l.safetensors")["logits.0"]
        assert (ours - expected).norm() <= 1e-5 * expected.norm()


def test_a_training_resumes_with_other_ranks(tmp_path):
    """Adapters are saved and loaded with the experts' layout; frozen weights keep their values."""
    model, _ = folder_with_adapter(tmp_path, "qwen3_moe", all_of("qwen3_moe"))
    targets = ["--lora-rank", 2, "--lora-targets", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]
    command = ["finetune", "gpt", "--hf", tmp_path / "in", "--data-path", tmp_path / "chats.jsonl", *STEP, "--lr", 1, "--global-batch-size", 6,
               "--train-iters", 2, "--sgd-momentum", 0.5, "--sft-packing", "lines", "--moe-aux-loss-coeff", 0, *targets]
    experts = ["--expert-model-parallel-size", 2]
    resumable = ["pretrain", "gpt", "--sft", *command[2:], "--save", tmp_path / "run", "--load", tmp_path / "run"]
    run(*command, "--lora-out", tmp_path / "one")
    launch(2, *resumable, *experts, "--exit-interval", 1)
    run(*resumable, "--lora-out", tmp_path / "two")
    one, two = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("one", "two"))
    modules = [module for module, _ in linear_shapes(model, "qwen3_moe", MODULES["qwen3_moe"][1:])]
    assert sorted(one) == sorted(two) == sorted(f"base_model.model.{module}.lora_{side}.weight" for module in modules for side in "AB")
    assert sum(".experts." in module for module in modules) >= 3 * 8
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-4, atol=1e-6)
    assert any(value.abs().max() > 1e-4 for key, value in one.items() if "lora_B" in key), "nothing was learned"


def test_adapters_of_experts_drop_no_inputs(tmp_path):
    model_folder(tmp_path / "in", "mixtral")
    write_lines(tmp_path / "chats.jsonl", list(conversations(2)))
    said = run("finetune", "gpt", "--hf", tmp_path / "in", "--data-path", tmp_path / "chats.jsonl", *STEP, "--train-iters", 1, "--global-batch-size", 2,
               "--lora-rank", 2, "--lora-targets", "w1", "--lora-dropout", 0.1, code=2)
    assert "linear_fc1_gate is a layer of experts" in said and "--lora-dropout" in said
