"""Supervised finetuning against transformers: loss and gradients of the assistant's tokens, packed and one by one.

A step of SGD leaves the gradient, times the learning rate, as the difference of two Hugging Face folders.
TERATRON_BINARY names the program.
"""
import json
import re
import shutil

import pytest

from test_hf_conversion import CONFIGS, run, small_tokenizer
from test_hf_training import launch, tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CHATML = """{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""
LENGTH, RATE = 192, 64
BARE_STEP = ["--seq-length", LENGTH, "--micro-batch-size", 1, "--optimizer", "sgd", "--sgd-momentum", 0, "--lr", RATE, "--weight-decay", 0,
             "--clip-grad", 0, "--lr-decay-style", "constant", "--calculate-per-token-loss", "--device", "cpu", "--log-interval", 1,
             "--eval-iters", 0, "--split", "1,0,0"]
TEMPLATE = ["--chat-template", "chatml"]
STEP = [*BARE_STEP, *TEMPLATE]


def conversations(count, longest=4):
    generator = torch.Generator().manual_seed(count)
    words = ["the", "cat", "sat", "on", "mat", "and", "dog", "\u00e9t\u00e9"]

    def text():
        picked = torch.randint(len(words), (int(torch.randint(1, longest + 1, (1,), generator=generator)),), generator=generator)
        return " ".join(words[i] for i in picked)

    for i in range(count):
        system = [{"role": "system", "content": text()}] if i % 3 == 0 else []
        turns = [{"role": role, "content": text()} for _ in range(1 + i % 2) for role in ("user", "assistant")]
        yield system + turns


def write_lines(path, chats):
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def model_folder(folder, name="llama-gqa"):
    tokenizer = small_tokenizer(folder.parent / "tokenizer")
    config = CONFIGS[name]()
    config.vocab_size, config.max_position_embeddings = 288, 256
    torch.manual_seed(5)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tokenizer / file).read_bytes())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    model_folder(folder / "in")
    chats = list(conversations(12))
    write_lines(folder / "chats.jsonl", chats)
    return folder, chats


def labelled(tokenizer, chat, learned="answers"):
    """Token ids, and labels of the assistant's contents and what ends them: by characters of the text. Or of all tokens."""
    text, answers = "", []
    for message in chat:
        text += f"<|im_start|>{message['role']}\n"
        begin = len(text)
        text += message["content"] + "<|im_end|>"
        if message["role"] == "assistant":
            answers.append((begin, len(text)))
        text += "\n"
    assert text == transformers.utils.chat_template_utils.render_jinja_template([chat], chat_template=CHATML)[0][0]
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    labels = [token if learned == "all" or any(begin < last and end > first for first, last in answers) else -100
              for token, (begin, end) in zip(encoded.input_ids, encoded.offset_mapping)]
    return torch.tensor([encoded.input_ids]), torch.tensor([labels])


def reference(folder, chats, learned="answers"):
    """Mean loss over all learned tokens and its gradients, one conversation at a time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in", dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "in")
    loss, count = 0, 0
    for chat in chats:
        ids, labels = labelled(tokenizer, chat, learned)
        logits = model(ids).logits[0, :-1]
        loss = loss + torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum", ignore_index=-100)
        count += int((labels[0, 1:] != -100).sum())
    (loss / count).backward()
    return (loss / count).item(), {name: p.grad for name, p in model.named_parameters()}


def gradients(folder, out):
    before, after = tensors(folder / "in"), tensors(out)
    return {name: (before[name].double() - after[name].double()) / RATE for name in before}


def rows_of(said):
    return int(re.search(r"conversations in (\d+) rows", said)[1])


def logged_loss(said):
    return float(re.search(r"lm loss: ([0-9.E+-]+)", said)[1])


MINIMISED = "what is minimised is the mean of its micro-batches' means"  # where that is not the loss of the log


def one_step(folder, out, *flags, ranks=1, template=TEMPLATE):
    command = ["finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", *BARE_STEP, *template, "--train-iters", 1, "--hf-out",
               out, *flags]
    return run(*command) if ranks == 1 else launch(ranks, *command)


@pytest.mark.parametrize("learned", ["answers", "all", "found"])
def test_packed_rows_are_the_conversations_one_by_one(data, tmp_path, learned):
    """Megatron-LM's format `default` is the tokenizer's template, of which all tokens are learned. `found`: answers in a
    template that does not mark them."""
    folder, chats = data
    template = TEMPLATE
    if learned != "answers":
        folder, template = shutil.copytree(folder, tmp_path / "data"), ["--sft-tokenizer-prompt-format", "default"] if learned == "all" else []
        (folder / "in" / "chat_template.jinja").write_text(CHATML)
    loss, expected = reference(folder, chats, "all" if learned == "all" else "answers")
    rows = rows_of(one_step(folder, tmp_path / "probe", "--global-batch-size", 1, template=template))
    assert 1 < rows < len(chats)
    runs = {"packed": ["--global-batch-size", rows], "lines": ["--global-batch-size", len(chats), "--sft-packing", "lines"]}
    for name, flags in runs.items():
        said = one_step(folder, tmp_path / name, *flags, template=template)
        assert abs(logged_loss(said) - loss) <= 1e-5 * loss and MINIMISED not in said, name
        for weight, gradient in gradients(folder, tmp_path / name).items():
            scale = expected[weight].norm()
            assert (gradient - expected[weight]).norm() <= 1e-5 * scale + 1e-8, (name, weight)


@pytest.mark.parametrize("layout, ranks", [(["--tp", 2, "--sequence-parallel"], 2), (["--pp", 2], 2), (["--use-distributed-optimizer"], 2),
                                           (["--context-parallel-size", 2], 2)])
def test_layouts(layout, ranks, data, tmp_path):
    folder, chats = data
    loss, expected = reference(folder, chats)
    said = one_step(folder, tmp_path / "out", "--global-batch-size", len(chats), "--sft-packing", "lines", *layout, ranks=ranks)
    assert abs(logged_loss(said) - loss) <= 1e-5 * loss
    for weight, gradient in gradients(folder, tmp_path / "out").items():
        assert (gradient - expected[weight]).norm() <= 1e-5 * expected[weight].norm() + 1e-8, weight


def test_epochs_evaluation_and_resume(data, tmp_path):
    folder, _ = data
    write_lines(tmp_path / "valid.jsonl", list(conversations(7)))
    command = ["--sft", "--hf", folder / "in", "--train-data-path", folder / "chats.jsonl", "--valid-data-path", tmp_path / "valid.jsonl",
               "--seq-length", LENGTH, "--micro-batch-size", 1, "--global-batch-size", 2, "--num-train-epochs", 3, "--lr", "1e-2",
               "--chat-template", "chatml", "--device", "cpu", "--log-interval", 1, "--eval-iters", 1]
    said = run("pretrain", "gpt", *command, "--hf-out", tmp_path / "whole", "--run-dir", tmp_path / "run")
    assert MINIMISED in said
    (started,) = [event for event in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) if event["type"] == "run"]
    assert "minimised: the mean of its micro-batches' means" in started["facts"]["loss"]
    assert "minimised: the mean of its micro-batches' means" in (tmp_path / "run" / "report.html").read_text()
    epochs = re.findall(r"epoch (\d): perplexity: ([0-9.]+) eval_loss: ([0-9.]+)", said)
    assert [epoch for epoch, _, _ in epochs] == ["0", "1", "2"], said
    losses = [float(loss) for _, _, loss in epochs]
    assert losses[2] < losses[0]
    # The last one is that of the model that is written, over every conversation of the split.
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "in")
    total, count = 0.0, 0
    with torch.no_grad():
        for chat in conversations(7):
            ids, labels = labelled(tokenizer, chat)
            total += float(torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], labels[0, 1:], reduction="sum"))
            count += int((labels[0, 1:] != -100).sum())
    assert abs(losses[2] - total / count) <= 1e-5 * losses[2]
    resumable = ["finetune", "gpt", *command[1:], "--save", tmp_path / "run", "--hf-out", tmp_path / "out"]
    run(*resumable, "--exit-interval", 3)
    assert "at iteration 3\n" in run(*resumable)
    whole, again = tensors(tmp_path / "whole"), tensors(tmp_path / "out")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    said = launch(2, "pretrain", "gpt", *command)
    split = [float(loss) for loss in re.findall(r"eval_loss: ([0-9.]+)", said)]
    assert len(split) == 3 and abs(split[2] - losses[2]) <= 1e-3 * losses[2], "two ranks share seven samples"


def test_bad_data(data, tmp_path):
    folder, _ = data
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
                   '{"messages": []}\n{"messages": [{"role": "bot", "content": "b"}]}\n')
    command = ["finetune", "gpt", "--hf", folder / "in", *STEP, "--train-iters", 1, "--global-batch-size", 1]
    said = run(*command, "--data-path", bad, "--save", tmp_path / "run", code=3)
    assert f"{bad}:2: the conversation is empty" in said and f"{bad}:3: unknown role 'bot'" in said
    assert not list((tmp_path / "run").glob("iter_*"))
    long = write_lines(tmp_path / "long.jsonl", [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "the cat " * 200}]])
    said = run(*command, "--data-path", long, code=3)
    assert f"{long}:1: a conversation of" in said and "--sft-overlong truncate" in said
    assert "1 longer ones were truncated" in run(*command, "--data-path", long, "--sft-overlong", "truncate")
    bare = [flag for flag in command if flag not in ("--chat-template", "chatml")]
    said = run(*bare, "--data-path", bad, code=2)
    assert "the tokenizer has no chat template" in said and "using world size" not in said, "before the arguments are listed"
    assert "files of conversations have no weights" in run(*command, "--data-path", 1, bad, code=2)
    assert "bert does not learn conversations" in run("finetune", "bert", code=2)
