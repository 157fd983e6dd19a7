"""Classifiers in Hugging Face's format: export after finetuning, and logits, against AutoModelForSequenceClassification.

TERATRON_BINARY names the program.
"""
import json

import pytest

from test_classification import STEP, TEXTS, write_texts
from test_hf_conversion import run
from test_sft import model_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

IDS = [[5, 9, 30, 7], [11, 2, 8, 40, 41, 3, 77], [6]]


def logits_of(folder, *source):
    """Of lines of ids, and of padded rows."""
    (folder / "ids.txt").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in IDS))
    run("logits", *source, "--input", folder / "ids.txt", "--output", folder / "lines.safetensors")
    length = max(map(len, IDS))
    rows = {"tokens": torch.tensor([ids + [0] * (length - len(ids)) for ids in IDS]),
            "padding_mask": torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids in IDS])}
    save_file(rows, folder / "rows_in.safetensors")
    run("logits", *source, "--input", folder / "rows_in.safetensors", "--output", folder / "rows.safetensors")
    lines, rows = load_file(folder / "lines.safetensors"), load_file(folder / "rows.safetensors")["logits"]
    for i, row in enumerate(rows):
        assert (row - lines[f"logits.{i}"]).abs().max() <= 1e-5
    return rows


def expected_logits(folder):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        return model, torch.cat([model(torch.tensor([ids])).logits for ids in IDS])


@pytest.mark.parametrize("name, task, cls", [
    ("llama-gqa", "classification", "LlamaForSequenceClassification"), ("llama-gqa", "regression", "LlamaForSequenceClassification"),
    ("gpt2", "classification", "GPT2ForSequenceClassification"), ("qwen3", "classification", "Qwen3ForSequenceClassification")])
def test_a_gpt(name, task, cls, tmp_path):
    folder = model_folder(tmp_path / "in", name)
    data = write_texts(tmp_path / "train.jsonl", TEXTS)
    run("finetune", "gpt", "--task", task, "--num-classes", 3, "--hf", folder, "--train-data", data, *STEP, "--lr", 0.05, "--train-iters", 2,
        "--save", tmp_path / "run", "--hf-out", tmp_path / "out")
    model, expected = expected_logits(tmp_path / "out")
    assert type(model).__name__ == cls and expected.shape == (3, 1 if task == "regression" else 3)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["problem_type"] == ("regression" if task == "regression" else "single_label_classification")
    for source in (("--load", tmp_path / "run"), ("--hf", tmp_path / "out")):
        assert (logits_of(tmp_path, *source) - expected).abs().max() <= 1e-5 * expected.abs().max() + 1e-6
    run("ckpt", "convert", "--load", tmp_path / "run", "--to-hf", tmp_path / "again")
    assert (expected_logits(tmp_path / "again")[1] - expected).abs().max() == 0


@pytest.mark.parametrize("cls", ["BertForSequenceClassification", "MegatronBertForSequenceClassification"])
def test_a_bert(cls, tmp_path):
    """Of transformers, in and out."""
    config = {"BertForSequenceClassification": transformers.BertConfig, "MegatronBertForSequenceClassification": transformers.MegatronBertConfig}[cls](
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=32, num_labels=5,
        hidden_act="gelu", initializer_range=0.2)
    torch.manual_seed(3)
    getattr(transformers, cls)(config).save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(91))]))
    _, expected = expected_logits(tmp_path / "in")
    assert (logits_of(tmp_path, "--hf", tmp_path / "in") - expected).abs().max() <= 1e-5
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "run")
    assert (logits_of(tmp_path, "--load", tmp_path / "run") - expected).abs().max() <= 1e-5
    run("ckpt", "convert", "--load", tmp_path / "run", "--to-hf", tmp_path / "out")
    model, again = expected_logits(tmp_path / "out")
    assert type(model).__name__ == cls and (again - expected).abs().max() <= 1e-6


def test_bad_input(tmp_path):
    folder = model_folder(tmp_path / "in")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=4, problem_type="multi_label_classification")
    model.save_pretrained(tmp_path / "several")
    assert "problem_type" in run("logits", "--hf", tmp_path / "several", "--input", "x", "--output", tmp_path / "o.safetensors", code=2)
    model.config.problem_type = None
    model.save_pretrained(tmp_path / "one")
    said = run("generate", "--hf", tmp_path / "one", "--prompt", "a", code=2)
    assert "do not generate text" in said
    save_file({"tokens": torch.ones(2, 3, dtype=torch.int64), "padding_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}, tmp_path / "bad.safetensors")
    said = run("logits", "--hf", tmp_path / "one", "--input", tmp_path / "bad.safetensors", "--output", tmp_path / "o.safetensors", code=3)
    assert "padding before or between tokens" in said and "padding_mask" in said
    assert not (tmp_path / "o.safetensors").exists()
