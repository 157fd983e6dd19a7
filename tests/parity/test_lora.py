"""LoRA adapters against PEFT: logits and gradients, its files in both directions, merged weights.

TERATRON_BINARY names the program.
"""
import json
import os
import pathlib
import re
import subprocess

import pytest

from test_hf_conversion import BINARY, run
from test_hf_training import launch, tensors
from test_sft import LENGTH, RATE, STEP, conversations, labelled, logged_loss, model_folder, write_lines

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from safetensors.torch import load_file, save_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
TARGETS = {"llama-gqa": [ALL, ["q_proj", "v_proj"]], "gpt2": [["c_attn", "c_fc"]]}


def folder_with_adapter(folder, name, targets):
    """A model, and an adapter of PEFT whose B is not zero."""
    model_folder(folder / "in", name)
    write_lines(folder / "chats.jsonl", list(conversations(6)))
    torch.manual_seed(11)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, fan_in_fan_out=name == "gpt2"))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key:
                value.normal_(std=0.05)
    model.save_pretrained(folder / "adapter")
    return folder


def reference(folder, chats):
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float64, experts_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "in")
    loss, count = 0, 0
    for chat in chats:
        ids, labels = labelled(tokenizer, chat)
        loss = loss + torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], labels[0, 1:], reduction="sum")
        count += int((labels[0, 1:] != -100).sum())
    (loss / count).backward()
    return (loss / count).item(), {name.replace(".default", ""): p.grad for name, p in model.named_parameters() if p.requires_grad}


LAYOUTS = [[], ["--tp", 2], ["--tp", 2, "--sequence-parallel"], ["--pp", 2], ["--cp", 2], ["--use-distributed-optimizer"]]


@pytest.mark.parametrize("name, targets, layout", [
    *[("llama-gqa", ALL, layout) for layout in LAYOUTS], ("llama-gqa", ["q_proj", "v_proj"], []), ("gpt2", ["c_attn", "c_fc", "c_proj"], []),
    ("gpt2", ["c_attn", "c_fc", "c_proj"], ["--tp", 2, "--sequence-parallel"]),
    *[("deepseek_v3", LATENT, layout) for layout in ([], ["--tp", 2], ["--tp", 2, "--sequence-parallel"], ["--cp", 2])],
    ("deepseek_v2", ["q_proj", "kv_b_proj", "o_proj"], ["--tp", 2]), ("cohere-qk-norm", ALL, ["--tp", 2, "--sequence-parallel"])])
def test_a_step_is_pefts(name, targets, layout, tmp_path):
    folder = folder_with_adapter(tmp_path, name, targets)
    chats = list(conversations(6))
    loss, expected = reference(folder, chats)
    command = ["finetune", "gpt", "--hf", folder / "in", "--lora", folder / "adapter", "--data-path", folder / "chats.jsonl", *STEP,
               "--train-iters", 1, "--global-batch-size", 6, "--sft-packing", "lines", "--lora-out", tmp_path / "out", *layout,
               *(["--hidden-dropout", 0, "--attention-dropout", 0] if name == "gpt2" else [])]
    said = launch(2, *command) if layout else run(*command)
    assert abs(logged_loss(said) - loss) <= 1e-5 * loss
    before, after = load_file(folder / "adapter" / "adapter_model.safetensors"), load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert sorted(before) == sorted(after)
    for key in before:
        gradient = (before[key].double() - after[key].double()) / RATE
        assert (gradient - expected[key]).norm() <= 1e-5 * expected[key].norm() + 1e-8, key
    # PEFT reads what was written, and computes the same.
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    ids = torch.arange(20)[None] * 7 % 280
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids[0].tolist())) + "\n")
    run("logits", "--hf", folder / "in", "--lora", tmp_path / "out", "--input", tmp_path / "ids.txt", "--output", tmp_path / "l.safetensors")
    with torch.no_grad():
        logits = model(ids).logits[0]
    ours = load_file(tmp_path / "l.safetensors")["logits.0"]
    assert (ours - logits).norm() <= 1e-5 * logits.norm()


def test_a_training_of_adapters(tmp_path):
    """Frozen weights keep their values, adapters are saved, resumed bitwise, merged and generated with."""
    folder = folder_with_adapter(tmp_path, "llama-gqa", ALL)
    command = ["finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", "--seq-length", LENGTH,
               "--micro-batch-size", 1, "--global-batch-size", 2, "--train-iters", 6, "--lr", "1e-2", "--device", "cpu", "--eval-iters", 0,
               "--split", "1,0,0", "--chat-template", "chatml", "--lora-rank", 4, "--lora-dropout", 0.25, "--log-interval", 1]
    run(*command, "--lora-out", tmp_path / "lora", "--hf-out", tmp_path / "merged")
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["r"] == 4 and sorted(config["target_modules"]) == sorted(ALL)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, tmp_path / "lora").merge_and_unload().state_dict()
    merged = tensors(tmp_path / "merged")
    before = tensors(folder / "in")
    for key, value in merged.items():
        assert (value - expected[key]).norm() <= 1e-5 * expected[key].norm(), key
        assert torch.equal(value, before[key]) == (not key.endswith("proj.weight")), key
    # The same in two parts, and over two ranks: dropout does not depend on the layout.
    resumable = ["pretrain", "gpt", "--sft", *command[2:], "--save", tmp_path / "run", "--load", tmp_path / "run"]
    run(*resumable, "--exit-interval", 3)
    run(*resumable, "--lora-out", tmp_path / "again")
    adapters = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert all(torch.equal(adapters[key], again[key]) for key in adapters)
    launch(2, *command, "--tp", 2, "--sequence-parallel", "--lora-out", tmp_path / "two")
    two = load_file(tmp_path / "two" / "adapter_model.safetensors")
    assert all((adapters[key] - two[key]).norm() <= 1e-3 * adapters[key].norm() for key in adapters)
    run("ckpt", "merge-lora", "--from-hf", folder / "in", "--lora", tmp_path / "lora", "--to-hf", tmp_path / "merged2")
    run("ckpt", "merge-lora", "--load", tmp_path / "run", "--save", tmp_path / "merged3")
    run("ckpt", "convert", "--load", tmp_path / "merged3", "--to-hf", tmp_path / "merged4")
    for other in ("merged2", "merged4"):
        assert all(torch.equal(value, tensors(tmp_path / other)[key]) for key, value in merged.items()), other
    answers = [run("generate", *source, "--prompt", "the cat", "--max-new-tokens", 5, "--greedy", "--device", "cpu")
               for source in (["--hf", folder / "in", "--lora", tmp_path / "lora"], ["--hf", tmp_path / "merged"],
                              ["--load", tmp_path / "run"])]
    assert len({answer.split("the cat", 1)[1].splitlines()[0] for answer in answers}) == 1


def test_the_example(tmp_path):
    folder = folder_with_adapter(tmp_path, "llama-gqa", ALL)
    write_lines(folder / "many.jsonl", list(conversations(40)))
    done = subprocess.run([ROOT / "examples" / "finetune_lora.sh", folder / "in", folder / "many.jsonl", tmp_path / "out", "--chat-template",
                           "chatml", "--device", "cpu", "--global-batch-size", "2"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TERATRON": BINARY, "SEQ_LENGTH": str(LENGTH)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 1: perplexity: " in done.stdout
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged")
    peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(folder / "in"), tmp_path / "out" / "adapter")


def test_adapters_of_another_model(tmp_path):
    folder = folder_with_adapter(tmp_path, "llama-gqa", ALL)
    command = ["finetune", "gpt", "--hf", folder / "in", "--lora", folder / "adapter", "--data-path", folder / "chats.jsonl", *STEP,
               "--train-iters", 1, "--global-batch-size", 1]
    assert "lora_rank is given" in run(*command, "--lora-rank", 3, code=2)
    file = folder / "adapter" / "adapter_model.safetensors"
    kept = load_file(file)
    first = sorted(kept)[0]
    save_file({**kept, first: kept[first][:, :-1].contiguous()}, file)
    said = run(*command, "--lora-out", tmp_path / "out", code=4)
    assert first in said and "Use the model that the adapter was trained for" in said and not (tmp_path / "out").exists()
    save_file({key: value for key, value in kept.items() if key != first}, file)
    assert "is missing" in run(*command, code=4)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    assert "use_dora" in run(*command, code=4)
    assert "'q_prj' is not a linear layer" in run(*command[:4], *command[6:], "--lora-rank", 2, "--lora-targets", "q_prj", code=2)


TINY = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--max-position-embeddings", 32,
        "--micro-batch-size", 2, "--global-batch-size", 4, "--mock-data", "--train-iters", 4, "--lr", "1e-2", "--eval-iters", 0, "--device",
        "cpu", "--log-interval", 1, "--lora-rank", 2, "--lora-alpha", 4, "--lora-dropout", 0.2]


def test_adapters_beside_experts_are_the_attentions(tmp_path):
    """Unless --lora-targets names those of experts (test_lora_experts.py)."""
    moe = [*TINY, "--num-experts", 4, "--moe-router-topk", 2, "--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"]
    run("pretrain", "gpt", *moe, "--save", tmp_path / "run")
    saved = {name: value for file in (tmp_path / "run" / "iter_0000004").glob("*.safetensors") for name, value in load_file(file).items()}
    names = {name for name in saved if ".lora_" in name}
    biases = [value for name, value in saved.items() if name.endswith("router.expert_bias")]
    assert len(biases) == 2 and not any(bias.any() for bias in biases), "a frozen router's bias stays as it is, here 0"
    assert {name.split("layers.0.")[1] for name in names if "layers.0." in name} == {
        f"self_attention.linear_{layer}.lora_{side}" for layer in ("qkv", "proj") for side in "AB"}


@pytest.mark.parametrize("family, flags", [("bert", []), ("t5", ["--decoder-seq-length", 16]), ("t5", [
    "--decoder-seq-length", 16, "--position-embedding-type", "relative", "--normalization", "RMSNorm", "--geglu", "--disable-bias-linear"])])
def test_other_families(family, flags, tmp_path):
    """One rank and two of each kind train the same adapters, with the same inputs dropped, and nothing else."""
    def losses(said):
        return [float(loss) for loss in re.findall(r"lm loss: ([0-9.E+-]+)", said)]

    command = ["pretrain", family, *TINY, *flags]
    said = run(*command, "--save", tmp_path / "one")
    alone = losses(said)
    assert len(alone) == 4 and len(set(alone)) == 4
    said = run("ckpt", "inspect", tmp_path / "one", "--tensors")
    assert "lora_A" in said and not [line for line in said.splitlines() if "optimizer." in line and "lora" not in line and "optimizer  " not in line]
    for layout in (["--tp", 2], ["--tp", 2, "--sequence-parallel"], [], *([["--pp", 2]] if family == "bert" else [])):
        for one, other in zip(alone, losses(launch(2, *command, *layout))):
            assert abs(one - other) <= 1e-5 * one, layout


@pytest.mark.parametrize("name, family", [("deepseek_v3", "gpt"), ("deepseek_v2", "gpt"), ("glm4_moe", "gpt"), ("cohere2", "gpt"),
                                          ("qwen3_next", "gpt"), ("qwen3_5_text", "gpt"), ("olmo_hybrid", "gpt"), ("mamba2", "mamba"),
                                          ("nemotron_h", "mamba"), ("falcon_h1", "mamba"), ("granitemoehybrid-dense", "mamba")])
def test_adapters_of_recurrences(name, family, tmp_path):
    """Of gated attention, delta nets and Mamba-2, as they are trained by default: PEFT reads them, and so does the program."""
    model_folder(tmp_path / "in", name)
    if name == "mamba2":  # has no positions, of which the folder's maker writes a number
        keys = json.loads((tmp_path / "in" / "config.json").read_text())
        keys.pop("max_position_embeddings")
        (tmp_path / "in" / "config.json").write_text(json.dumps(keys))
    write_lines(tmp_path / "chats.jsonl", list(conversations(6)))
    run("finetune", family, "--hf", tmp_path / "in", "--lora-rank", 2, "--data-path", tmp_path / "chats.jsonl", "--seq-length", LENGTH, "--micro-batch-size", 1,
        "--global-batch-size", 2, "--train-iters", 2, "--lr", "5e-2", "--device", "cpu", "--eval-iters", 0, "--split", "1,0,0", "--chat-template", "chatml",
        "--lora-out", tmp_path / "out", *(["--lora-targets", "in_proj", "linear_qkv", "linear_fc1"] if name.startswith("granite") else []))
    ids = torch.arange(20)[None] * 7 % 280
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32).eval()
    plain = base(ids).logits[0]
    expected = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()(ids).logits[0]
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids[0].tolist())) + "\n")
    run("logits", "--hf", tmp_path / "in", "--lora", tmp_path / "out", "--input", tmp_path / "ids.txt", "--output", tmp_path / "l.safetensors")
    got = load_file(tmp_path / "l.safetensors")["logits.0"]
    assert (got - expected).norm() <= 1e-4 * expected.norm() and (plain - expected).norm() > 1e-3 * expected.norm()
