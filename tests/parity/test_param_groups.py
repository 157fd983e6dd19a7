"""Parameter groups by flags and by Accelerate's plugin, against torch.optim with the same groups.

TERATRON_BINARY names the program.
"""
import fnmatch

import pytest

import test_classification as classification
from test_hf_conversion import run
from test_hf_training import launch, tensors
from test_sft import LENGTH, TEMPLATE, conversations, labelled, model_folder, write_lines

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RATE, DECAY, STEPS = 0.5, 0.2, 2
FLAGS = ["--seq-length", LENGTH, "--micro-batch-size", 1, "--global-batch-size", 6, "--optimizer", "sgd", "--sgd-momentum", 0, "--lr", RATE,
         "--weight-decay", DECAY, "--clip-grad", 0, "--lr-decay-style", "constant", "--calculate-per-token-loss", "--device", "cpu",
         "--eval-iters", 0, "--split", "1,0,0", "--sft-packing", "lines", "--train-iters", STEPS, *TEMPLATE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    model_folder(folder / "in", "llama-attention-biases")
    write_lines(folder / "chats.jsonl", list(conversations(6)))
    return folder


def reference(folder, group):
    """fp64: each step has all conversations, so their order does not matter."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "in")
    groups = []
    for name, parameter in model.named_parameters():
        rate, decay = group(name, parameter)
        groups.append({"params": [parameter], "lr": rate * RATE, "weight_decay": decay * DECAY})
    optimizer = torch.optim.SGD(groups)
    for _ in range(STEPS):
        loss, count = 0, 0
        for chat in conversations(6):
            ids, labels = labelled(tokenizer, chat)
            loss = loss + torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], labels[0, 1:], reduction="sum")
            count += int((labels[0, 1:] != -100).sum())
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def check(folder, out, expected):
    before, after = tensors(folder / "in"), tensors(out)
    for name, value in expected.items():
        assert (after[name].double() - value).norm() <= 1e-5 * (value - before[name].double()).norm() + 1e-6, name


def usual_decay(name, parameter):
    return 0.0 if parameter.dim() == 1 or name.endswith(".bias") else 1.0


def by_name(name, parameter):
    rate = 0.1 if "mlp.down_proj" in name else 3.0 if "norm" in name else 0.0 if "embed_tokens" in name else 1.0
    return rate, usual_decay(name, parameter)


LR_MULT = ["--lr-mult", "*.linear_fc2.*=0.1", "--lr-mult", "*norm*=3", "--lr-mult", "embedding.*=0"]


@pytest.mark.parametrize("layout", [[], ["--tp", 2], ["--pp", 2], ["--use-distributed-optimizer"]])
def test_rates_by_name(layout, folder, tmp_path):
    # Names of Megatron-Core: the norms before attention and MLP are layer norms there, too.
    command = ["finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", *FLAGS, *LR_MULT, "--hf-out", tmp_path / "out",
               *layout]
    launch(2, *command) if layout else run(*command)
    check(folder, tmp_path / "out", reference(folder, by_name))


def test_conditions_of_the_plugin(folder, tmp_path):
    (tmp_path / "accelerate.yaml").write_text(
        "megatron_lm_config:\n  megatron_lm_no_wd_decay_cond: ['*.linear_qkv.*', 'output_layer.*']\n"
        "  megatron_lm_scale_lr_cond: '*.self_attention.*'\n  megatron_lm_lr_mult: 0.25\n")
    run("finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", *FLAGS, "--config-file", tmp_path / "accelerate.yaml",
        "--hf-out", tmp_path / "out")

    def group(name, parameter):
        qkv = any(fnmatch.fnmatch(name, f"*.{kind}_proj.*") for kind in "qkv")
        return 0.25 if "self_attn" in name else 1.0, 0.0 if qkv or name == "lm_head.weight" else 1.0

    check(folder, tmp_path / "out", reference(folder, group))


def test_the_head_of_a_finetuning(folder, tmp_path):
    data = classification.write_texts(tmp_path / "train.jsonl", classification.TEXTS)
    command = ["finetune", "gpt", "--task", "classification", "--num-classes", 3, "--hf", folder / "in", "--train-data", data,
               *classification.STEP]
    runs = {}
    for factor in (0, 1, 2):
        run(*command, "--head-lr-mult", factor, "--save", tmp_path / str(factor))
        runs[factor] = classification.saved(tmp_path / str(factor), 1)
    for name in runs[0]:
        steps = [runs[factor][name].double() - runs[0][name].double() for factor in (1, 2)]
        if name.startswith("classification_head"):
            assert steps[0].norm() > 0 and (steps[1] - 2 * steps[0]).norm() <= 1e-5 * steps[0].norm(), name
        else:
            assert steps[0].norm() == steps[1].norm() == 0, name
    assert "no trained parameter is named classification_head" in run("finetune", "gpt", "--hf", folder / "in", "--data-path",
                                                                      folder / "chats.jsonl", *FLAGS, "--head-lr-mult", 2, code=2)


@pytest.mark.parametrize("flags, message", [
    (["--lr-mult", "2"], "names no parameters"), (["--lr-mult", "x=y"], "is not PATTERN=F"), (["--lr-mult", "decoder.x=2"], "decoder.x"),
    (["--scale-lr-cond", "decoder.*"], "needs --lr-mult"), (["--no-weight-decay-cond-type", "all"], "apply_wd_to_qk_layernorm")])
def test_what_is_refused(flags, message, folder):
    assert message in run("finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", *FLAGS, *flags, code=2)
