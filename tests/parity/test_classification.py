"""`finetune bert|gpt --task classification|regression` against transformers' ForSequenceClassification.

TERATRON_BINARY names the program.
"""
import json
import random
import re

import pytest

from test_hf_conversion import run
from test_hf_training import launch
from test_sft import model_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

STEP = ["--seq-length", 48, "--micro-batch-size", 2, "--global-batch-size", 8, "--train-iters", 1, "--optimizer", "sgd", "--sgd-momentum", 0,
        "--lr", 1, "--lr-decay-style", "constant", "--weight-decay", 0, "--clip-grad", 0, "--eval-iters", 0, "--device", "cpu", "--log-interval", 1]
TEXTS = [{"text": "the cat sat", "label": 0}, {"text": "on the mat and the dog", "text_b": "the cat", "label": 2}, {"text": "dog", "label": 1},
         {"text": "the mat sat on the mat", "label": 0}, {"text": "a", "text_b": "cat and dog", "label": 1}, {"text": "sat sat", "label": 2},
         {"text": "mat", "label": 2}, {"text": "and and the", "label": 1}]


def write_texts(path, texts):
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


def saved(folder, iteration):
    return {name: value for file in (folder / f"iter_{iteration:07d}").glob("*.safetensors") for name, value in load_file(file).items()}


def loss_of(said):
    return float(re.search(r"\| loss: ([0-9.E+-]+)", said)[1])


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("layout", [[], ["--tp", 2, "--sequence-parallel"], ["--pp", 2], ["--use-distributed-optimizer"]])
def test_a_gpt(task, layout, tmp_path):
    folder = model_folder(tmp_path / "in")
    data = write_texts(tmp_path / "train.jsonl", TEXTS)
    flags = ["finetune", "gpt", "--task", task, "--num-classes", 3, "--hf", folder, "--train-data", data, *STEP, *layout]
    one = run if not layout else lambda *args: launch(2, *args)
    one(*flags, "--lr", 0, "--save", tmp_path / "before")
    said = one(*flags, "--save", tmp_path / "after")
    before, after = saved(tmp_path / "before", 1), saved(tmp_path / "after", 1)
    head = before["classification_head.weight"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    weight = head.double().requires_grad_()
    losses = []
    for text in TEXTS:
        ids = tokenizer(text["text"] + ("\n" + text["text_b"] if "text_b" in text else "")).input_ids
        ids += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        logits = model.model(torch.tensor([ids])).last_hidden_state[:, -1] @ weight.T
        if task == "regression":
            losses.append((logits[0, 0] - text["label"]).square())
        else:
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor([text["label"]])))
    loss = torch.stack(losses).mean()
    loss.backward()
    assert abs(loss_of(said) - float(loss)) <= 1e-5 * float(loss)
    gradient = before["classification_head.weight"].double() - after["classification_head.weight"].double()
    assert (gradient - weight.grad).norm() <= 1e-5 * weight.grad.norm()
    norm = dict(model.named_parameters())["model.norm.weight"].grad
    gradient = before["decoder.final_layernorm.weight"].double() - after["decoder.final_layernorm.weight"].double()
    assert (gradient - norm).norm() <= 1e-4 * norm.norm()


def test_a_bert_learns_a_rule(tmp_path):
    """Two texts agree if they name the same animal: no word alone tells."""
    words = ["cat", "dog", "cow", "hen"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "the", "a", "red", "old"]))
    generator = random.Random(3)

    def texts(count):
        for _ in range(count):
            first, second = generator.choice(words), generator.choice(words)
            if generator.random() < 0.5:
                second = first
            yield {"text": f"the {generator.choice(['red', 'old'])} {first}", "text_b": f"a {second}", "label": int(first == second)}

    train, valid = write_texts(tmp_path / "t.jsonl", texts(600)), write_texts(tmp_path / "v.jsonl", texts(64))
    said = run("finetune", "bert", "--task", "classification", "--train-data", train, "--valid-data", valid, "--vocab-file", vocabulary,
               "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16, "--max-position-embeddings", 16,
               "--micro-batch-size", 16, "--global-batch-size", 16, "--num-train-epochs", 4, "--lr", "3e-3", "--init-method-std", 0.2, "--hidden-dropout", 0,
               "--attention-dropout", 0, "--eval-iters", 1, "--log-interval", 10, "--device", "cpu", "--tokenizer-type", "BertWordPieceLowerCase")
    assert " > train split: 600 texts" in said
    losses = [float(loss) for loss in re.findall(r"epoch \d: perplexity: [0-9.]+ eval_loss: ([0-9.]+)", said)]
    assert len(losses) == 4 and losses[-1] < 0.1 < losses[0], losses


def test_bad_texts(tmp_path):
    folder = model_folder(tmp_path / "in")
    data = tmp_path / "bad.jsonl"
    data.write_text('{"text": "a", "label": 3}\n{"text": "a"}\n{"label": 1}\n{"text": 1, "label": 1}\n{"text": "a", "label": "x"}\n[]\n')
    flags = ["finetune", "gpt", "--task", "classification", "--num-classes", 3, "--hf", folder, *STEP]
    said = run(*flags, "--train-data", data, "--save", tmp_path / "run", code=3)
    for message in ("1: the label 3 is not a class from 0 to 2", '2: the line has no "label"', '3: the line has no "text"',
                    '4: "text" is not a text', "5: the label 'x' is not a number", "6: the line is not a JSON object"):
        assert f"{data}:{message}" in said, message
    assert not list((tmp_path / "run").glob("iter_*"))
    assert "no texts to train on" in run(*flags, code=2)
    assert "one class leaves nothing to learn" in run(*flags, "--train-data", data, "--num-classes", 1, code=2)
    said = run(*flags, "--train-data", data, "--context-parallel-size", 2, "--calculate-per-token-loss", code=2)
    assert "the head needs whole texts on a rank" in said and "the loss is one of texts, not of tokens" in said
    assert "t5 has no classification head" in run("finetune", "t5", "--task", "classification", code=2)
    assert "`teratron tasks`" in run("finetune", "bert", "--task", "RACE", code=2)
