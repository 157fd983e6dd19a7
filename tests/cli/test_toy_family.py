"""A family that is one folder (tests/toy_family) and one line: every command knows it."""
import json
from pathlib import Path

import pytest
from program import BINARY, TINY, needs_binary, teratron
from safetensors.torch import load_file

pytestmark = needs_binary
PROGRAM = Path(BINARY).resolve().parents[2] / "tests" / "toy_teratron" if BINARY else Path()
VOCABULARY = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "20"]
FLAGS = [*TINY, *VOCABULARY, "--mock-data", "--train-iters", "150", "--micro-batch-size", "4", "--global-batch-size", "8", "--lr", "2e-2",
         "--lr-decay-style", "constant", "--hidden-dropout", "0", "--attention-dropout", "0", "--log-interval", "50"]


def toy(*arguments, code=0):
    done = teratron(*arguments, code=code, timeout=300, binary=PROGRAM)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    output = toy("pretrain", "toy", *FLAGS, "--save", folder / "run")
    losses = [float(line.split(" lm loss: ")[1].split()[0]) for line in output.splitlines() if " lm loss: " in line]
    assert losses[-1] < 0.1, "it learns to count"
    return folder


def answer(folder, *source):
    (folder / "in.jsonl").write_text(json.dumps({"tokens": [3, 4, 5], "top_k": 1, "max_new_tokens": 5}) + "\n")
    toy("generate", *source, "--device", "cpu", "--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    return json.loads((folder / "out.jsonl").read_text())["tokens"]


def test_generates(run):
    assert answer(run, "--load", run / "run") == [6, 7, 8, 9, 10]


def test_is_planned():
    planned = toy("plan", "toy", *FLAGS, "--world-size", "4", "--tp", "2", "--pp", "2")
    stages = planned[planned.index("Memory in GiB"):].splitlines()[2:4]
    assert [line.split()[0] for line in stages] == ["0", "1"] and stages[0].endswith("embedding 0-0")


def test_resumes_in_another_layout(run):
    output = toy("launch", "--nproc-per-node", "4", "--backend", "threads", "--log-dir", run / "logs", "--", "pretrain", "toy",
                 *FLAGS, "--train-iters", "152", "--override-opt-param-scheduler", "--load", run / "run", "--tp", "2", "--pp", "2",
                 "--log-interval", "1")
    assert "iteration      152/" in output


def test_goes_to_hugging_face_and_back(run):
    toy("ckpt", "convert", "--load", run / "run", "--to-hf", run / "hf")
    config = json.loads((run / "hf" / "config.json").read_text())
    assert config["architectures"] == ["ToyForCounting"]
    assert config["text_config"] == {"sizes": {"layers": 2, "width": 16}, "heads": 2, "mlp": 64}
    tensors = load_file(run / "hf" / "model.safetensors")
    assert {"toy.words.weight", "toy.layers.0.even_up.weight", "toy.layers.1.odd_up.bias"} <= set(tensors)
    assert "toy.layers.0.odd_up.weight" not in tensors
    toy("ckpt", "convert", "--from-hf", run / "hf", "--save", run / "back")
    toy("ckpt", "convert", "--load", run / "back", "--to-hf", run / "again")
    again = load_file(run / "again" / "model.safetensors")
    assert set(again) == set(tensors) and all((again[name] == tensors[name]).all() for name in tensors)


def test_has_no_forms_that_it_does_not_describe(run):
    assert "has no classification head" in toy("finetune", "toy", "--task", "classification", code=2)
    assert "does not learn conversations" in toy("finetune", "toy", code=2)
    assert "Megatron-LM has no model family 'toy'" in toy("ckpt", "convert", "--load", run / "run", "--to-megatron",
                                                         run / "megatron", code=4)
