"""BERTs of Hugging Face in and out of the built program, against `transformers`: weights bitwise, logits in fp32."""
import json
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from test_hf_conversion import BINARY, assert_same, run  # noqa: E402

SIZES = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, vocab_size=101,
             max_position_embeddings=64)
CONFIGS = {
    "megatron-bert": lambda: transformers.MegatronBertConfig(**SIZES),
    "megatron-bert-tanh": lambda: transformers.MegatronBertConfig(**SIZES, hidden_act="gelu_new", layer_norm_eps=1e-5),
    "bert": lambda: transformers.BertConfig(**SIZES),
    "bert-one-layer": lambda: transformers.BertConfig(**{**SIZES, "num_hidden_layers": 1}),
}


def random_model(name):
    torch.manual_seed(len(name))
    model = transformers.AutoModelForPreTraining.from_config(CONFIGS[name]())
    with torch.no_grad():  # norms and biases that start as ones and zeros would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def check_logits(model, folder):
    ids = torch.randint(0, 101, (40,), generator=torch.Generator().manual_seed(2))
    (folder / "ids.txt").write_text(" ".join(map(str, ids.tolist())) + "\n")
    run("logits", "--load", folder / "ckpt", "--input", folder / "ids.txt", "--output", folder / "logits.safetensors")
    with torch.no_grad():
        expected = model(ids[None]).prediction_logits[0]
    actual = load_file(folder / "logits.safetensors")["logits.0"]
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


def outputs(folder, tensors, *flags):
    save_file(tensors, folder / "in.safetensors")
    run("logits", "--load", folder / "ckpt", "--input", folder / "in.safetensors", "--output", folder / "out", *flags)
    return load_file(folder / "out")


def check_close(actual, expected):
    assert actual.shape == expected.shape
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_for_tensors(name, tmp_path):
    """Rows of two segments with padding; without types and mask; masks that no BERT reads."""
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    tokens = torch.randint(0, 101, (3, 40), generator=torch.Generator().manual_seed(4))
    types = (torch.arange(40) > 12).long().expand(3, 40).contiguous()
    mask = (torch.arange(40) < torch.tensor([[40], [25], [1]])).long()
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask, token_type_ids=types)
        plain = model(tokens)
    ours = outputs(tmp_path, {"tokens": tokens, "types": types, "padding_mask": mask})
    assert ours.keys() == {"lm_logits", "binary_logits"}
    check_close(ours["lm_logits"][mask.bool()], expected.prediction_logits[mask.bool()])
    check_close(ours["binary_logits"], expected.seq_relationship_logits)
    found = outputs(tmp_path, {"tokens": tokens, "types": types, "padding_mask": mask}, "--output-bert-embeddings")
    with torch.no_grad():
        hidden = model.base_model(tokens, attention_mask=mask, token_type_ids=types).last_hidden_state
    assert found.keys() == {"embeddings"}
    check_close(found["embeddings"], torch.stack([hidden[0, 1:39].mean(0), hidden[1, 1:24].mean(0), hidden[2, 0] * 0]))
    ours = outputs(tmp_path, {"tokens": tokens})
    check_close(ours["lm_logits"], plain.prediction_logits)
    check_close(ours["binary_logits"], plain.seq_relationship_logits)
    for bad, says in [(mask * 0, "padding alone"), (mask.flip(1).contiguous(), "between tokens"), (mask + 1, "[0, 2)")]:
        save_file({"tokens": tokens, "padding_mask": bad}, tmp_path / "in.safetensors")
        failed = subprocess.run([BINARY, "logits", "--load", tmp_path / "ckpt", "--input", tmp_path / "in.safetensors",
                                 "--output", tmp_path / "out"], capture_output=True, text=True, check=False)
        assert failed.returncode == 3 and says in failed.stderr and "padding_mask" in failed.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_in_and_out(name, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in", max_shard_size="50KB")
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    assert "--no-bias-gelu-fusion" in said
    check_logits(model, tmp_path)
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt", "--max-shard-size", "60KB")
    again = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out", dtype="auto").eval()
    assert type(again) is type(model)
    assert_same(model.state_dict(), again.state_dict())
    ids = torch.arange(2 * 32).reshape(2, 32) * 7 % 101
    mask, types = (torch.arange(32) < torch.tensor([[20], [32]])).long(), ids % 2
    with torch.no_grad():
        one = model(ids, attention_mask=mask, token_type_ids=types)
        other = again(ids, attention_mask=mask, token_type_ids=types)
    assert torch.equal(one.prediction_logits, other.prediction_logits), "config.json says something else"
    assert torch.equal(one.seq_relationship_logits, other.seq_relationship_logits)


def tiny_training(folder, *flags):
    run("pretrain", "bert", "--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
        "--max-position-embeddings", 16, "--micro-batch-size", 2, "--train-iters", 2, "--lr", "1e-2", "--eval-iters", 0,
        "--device", "cpu", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 60, "--save", folder,
        *flags)


def test_two_gelus_are_said_and_other_models_refused(tmp_path):
    tiny_training(tmp_path / "fused")
    said = run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "fused")
    assert "one hidden_act" in said and "--no-bias-gelu-fusion" in said
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "gelu_new"
    transformers.MegatronBertForPreTraining.from_pretrained(tmp_path / "out")
    tiny_training(tmp_path / "headless", "--bert-no-binary-head")
    said = run("ckpt", "convert", "--to-hf", tmp_path / "none", "--load", tmp_path / "headless", code=4)
    assert "bert_binary_head is false" in said and "llama" not in said
    random_model("bert").save_pretrained(tmp_path / "in")
    weights = load_file(tmp_path / "in" / "model.safetensors")
    del weights["cls.seq_relationship.weight"]
    save_file(weights, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt", code=4)
    assert '"cls.seq_relationship.weight" is missing' in said
    said = run("pretrain", "gpt", "--hf-config", tmp_path / "in", "--micro-batch-size", 1, "--train-iters", 1, "--lr",
               1, "--mock-data", code=2)
    assert "pretrain bert" in said


def test_names_of_early_files(tmp_path):
    """LayerNorm.gamma and .beta, as in bert-base-uncased, with the tied output layer and the buffer of positions."""
    model = random_model("bert")
    model.save_pretrained(tmp_path / "in")
    weights = load_file(tmp_path / "in" / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
               for name, tensor in weights.items()}
    renamed["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    renamed["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(renamed, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)


def test_vocabulary_file(tmp_path):
    random_model("bert").save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    said = run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    assert "--tokenizer-type BertWordPieceCase" in said and "in/vocab.txt" in said
