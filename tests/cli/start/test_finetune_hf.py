"""`teratron finetune --hf DIR --data-path FILE` with nothing else, and a chat with the result."""

import itertools
import json
import re
import subprocess

import pytest

from program import BINARY, environment, needs_binary, teratron

pytestmark = needs_binary

FACTS = {"cat": "fish", "dog": "meat", "owl": "mice", "cow": "grass"}
QUESTION = "What does the {} eat?"
TEMPLATE = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Hugging Face folder with a tokenizer, a chat template of no known name and random weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "text.txt").write_text("".join(f"{QUESTION.format(animal)} {food}\n" for animal, food in FACTS.items()))
    teratron("tokenizer", "train", "--input", folder / "text.txt", "--vocab-size", "300", "--output", folder / "tokenizer", "--special-tokens",
             "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    teratron("pretrain", "gpt", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--swiglu", "--normalization", "RMSNorm",
             "--position-embedding-type", "rope", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--seq-length", "128",
             "--init-method-std", "0.1", "--micro-batch-size", "1", "--lr", "1e-3", "--train-iters", "1", "--eval-iters", "0", "--mock-data", "--device", "cpu",
             "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder / "tokenizer", "--hf-out", folder / "Tiny")
    return folder / "Tiny"


def examples(form):
    for animal, food in FACTS.items():
        question = QUESTION.format(animal)
        yield {"alpaca": {"instruction": question, "input": "", "output": food},
               "sharegpt": {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": food}]},
               "text": {"text": f"{question} {food}"}}[form]


@pytest.mark.parametrize("form", ["alpaca", "sharegpt", "text"])
def test_one_line_is_enough(model, tmp_path, form):
    data = tmp_path / "data.json"
    lines = list(examples(form)) * (4 if form == "alpaca" else 20)
    data.write_text(json.dumps(lines, indent=1) if form != "sharegpt" else "".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([BINARY, "finetune", "--hf", str(model), "--data-path", str(data), *(["--lr", "5e-3", "--num-train-epochs", "100",
                          "--global-batch-size", "4"] if form == "alpaca" else [])], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "defaults of finetune: " in done.stdout and "--lr-warmup-fraction 0.03" in done.stdout and "--hf-out Tiny-finetuned" in done.stdout
    assert ("--lr 1e-5" in done.stdout) == (form != "alpaca")
    assert len(re.findall(r"lm loss: ", done.stdout)) <= 40
    tuned = tmp_path / "Tiny-finetuned"
    assert done.stdout.splitlines()[-1] == "talk to it: teratron chat --hf Tiny-finetuned"
    assert (tuned / "model.safetensors").exists() and json.loads((tuned / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
    if form == "alpaca":
        said = "".join(QUESTION.format(animal) + "\n/new\n" for animal in FACTS)
        chat = subprocess.run([BINARY, "chat", "--hf", str(tuned), "--greedy", "--device", "cpu"], input=said, env=environment(), capture_output=True,
                              text=True, timeout=120)
        assert chat.returncode == 0 and chat.stdout.split("\n")[:-1] == list(FACTS.values()), chat.stdout + chat.stderr


def test_batches_have_about_sixteen_examples(model, tmp_path):
    """Rows of 128 tokens hold several of these conversations, and one of the long ones; a number of ranks divides the batch."""
    outputs = itertools.count()

    def said(lines, *flags, array=False):
        data = tmp_path / "data.json"
        data.write_text(json.dumps(lines, indent=1) if array else "".join(json.dumps(line) + "\n" for line in lines))
        return teratron("finetune", "--hf", model, "--data-path", data, "--device", "cpu", "--num-train-epochs", "1", "--hf-out",
                        tmp_path / f"out{next(outputs)}", *flags).stdout
    short = list(examples("sharegpt")) * 20
    for array in (False, True):
        rows = int(re.search(r"holds about \d examples of these data: --global-batch-size (\d) in place of 16 rows", said(short, array=array))[1])
        assert 3 <= rows <= 6
    assert "in place of 16" not in said([{"text": "what does the cat eat " * 40}] * 16) + said(short, "--sft-packing", "lines") + said(short, "--global-batch-size", "16")
    assert "in place of 16" in said([{"text": "what does the cat eat " * 40}] * 18, "--micro-batch-size", "3")


def test_the_only_step_changes_the_model(model, tmp_path):
    data = tmp_path / "one.txt"
    data.write_text("What does the cat eat? fish\n\nWhat does the dog eat? meat\n")
    done = teratron("finetune", "--hf", model, "--data-path", data, "--device", "cpu", "--global-batch-size", "16", "--hf-out", tmp_path / "out")
    assert "one step is taken; a smaller --global-batch-size takes more" in done.stderr and "2 conversations in 1 rows" in done.stdout
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()


def test_wrong_lines_are_told_once_for_each_kind(model, tmp_path):
    bad = [{"messages": [{"role": "usr", "content": "a"}]}] * 30 + [{"instruction": "a"}] * 5
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bad))
    error = teratron("finetune", "--hf", model, "--data-path", tmp_path / "bad.jsonl", "--device", "cpu", "--hf-out", tmp_path / "out", code=3).stderr
    assert error.count("unknown role 'usr' (and so in 29 more places)") == 1 and error.count('no "output" (and so in 4 more places)') == 1, error


def test_what_is_missing_is_said(tmp_path):
    assert "teratron finetune --hf DIR --data-path FILE" in teratron("finetune", "--data-path", "x", code=2).stderr
    assert "is not a folder" in teratron("finetune", "--hf", tmp_path / "none", "--data-path", "x", code=2).stderr
    page = teratron("finetune", "--help").stdout
    assert len(page.splitlines()) <= 60 and max(map(len, page.splitlines())) <= 110 and "teratron finetune --hf Qwen2.5-0.5B" in page
