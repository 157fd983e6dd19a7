"""T5 and mT5 of Hugging Face in and out of the built program, against `transformers`: weights bitwise, logits and
gradients."""
import json
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from test_hf_conversion import BINARY, assert_same, run  # noqa: E402
from test_t5_parity import DRIVER  # noqa: E402

SIZES = dict(d_model=32, d_kv=12, d_ff=40, num_heads=4, num_layers=3, vocab_size=101)
WIDE = dict(d_model=24, d_kv=8, d_ff=64, num_heads=6, num_layers=2, num_decoder_layers=4, vocab_size=77,
            relative_attention_num_buckets=8, relative_attention_max_distance=11)


def t5(**options):
    return transformers.T5ForConditionalGeneration, transformers.T5Config(**options)


def mt5(**options):
    return transformers.MT5ForConditionalGeneration, transformers.MT5Config(**options)


CONFIGS = {
    "v1.0": lambda: t5(**SIZES),
    "v1.0-wide": lambda: t5(**WIDE),
    "v1.1": lambda: t5(**SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "v1.1-wide": lambda: t5(**WIDE, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "silu": lambda: t5(**SIZES, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    "gelu": lambda: t5(**WIDE, feed_forward_proj="gelu"),
    "gelu-new": lambda: t5(**WIDE, feed_forward_proj="gelu_new", layer_norm_epsilon=1e-5),
    "mt5": lambda: mt5(**SIZES),
    "mt5-wide": lambda: mt5(**WIDE),
}
UNTIED = ("v1.1", "v1.1-wide", "silu", "mt5", "mt5-wide")


def random_model(name):
    torch.manual_seed(len(name))
    kind, config = CONFIGS[name]()
    model = kind(config)
    with torch.no_grad():  # norms that start as ones would hide mistakes
        if name in UNTIED:
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * 0.3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save(model, folder):
    """As transformers saves it, whose version 5 says that all embeddings are tied."""
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def inputs(vocabulary, source_length=21, target_length=14):
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(0, vocabulary, (3, source_length), generator=generator)
    target = torch.randint(0, vocabulary, (3, target_length), generator=generator)
    lengths = torch.tensor([[source_length], [9], [1]]), torch.tensor([[target_length], [target_length], [6]])
    return source, target, (torch.arange(source_length) < lengths[0]).long(), (torch.arange(target_length) < lengths[1]).long()


def check_logits(model, folder, *lengths):
    source, target, source_mask, target_mask = inputs(model.config.vocab_size, *lengths)
    save_file({"encoder_tokens": source, "decoder_tokens": target, "encoder_mask": source_mask,
               "decoder_mask": target_mask}, folder / "in.safetensors")
    run("logits", "--load", folder / "ckpt", "--input", folder / "in.safetensors", "--output", folder / "out.safetensors")
    with torch.no_grad():
        expected = model(input_ids=source, attention_mask=source_mask, decoder_input_ids=target,
                         decoder_attention_mask=target_mask).logits[target_mask.bool()]
    actual = load_file(folder / "out.safetensors")["lm_logits"][target_mask.bool()]
    assert actual.shape == expected.shape
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", CONFIGS)
def test_in_and_out(name, tmp_path):
    model = random_model(name)
    save(model, tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt", "--max-shard-size", "60KB")
    again = type(model).from_pretrained(tmp_path / "out", dtype="auto").eval()
    assert_same(model.state_dict(), again.state_dict())
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["model_type"] == model.config.model_type and written["architectures"] == [type(model).__name__]
    assert written["tie_word_embeddings"] == (name not in UNTIED)  # what transformers 4 reads
    source, target, source_mask, _ = inputs(model.config.vocab_size)
    with torch.no_grad():
        one, other = (each(input_ids=source, attention_mask=source_mask, decoder_input_ids=target).logits
                      for each in (model, again))
    assert torch.equal(one, other), "config.json says something else"


@pytest.mark.parametrize("name", ["v1.0", "v1.1-wide", "mt5"])
def test_gradients(name, tmp_path):
    """Those of transformers, brought under our names by the same conversion."""
    model = random_model(name)
    save(model, tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    source, target, source_mask, target_mask = inputs(model.config.vocab_size)
    labels = target.roll(1, 0)
    logits = model(input_ids=source, attention_mask=source_mask, decoder_input_ids=target).logits
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    ((losses * target_mask).sum() / target_mask.sum()).backward()
    tied = name not in UNTIED
    gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
    (tmp_path / "gradients").mkdir()
    (tmp_path / "gradients" / "config.json").write_text((tmp_path / "in" / "config.json").read_text())
    save_file(gradients, tmp_path / "gradients" / "model.safetensors", {"format": "pt"})
    run("ckpt", "convert", "--from-hf", tmp_path / "gradients", "--save", tmp_path / "expected")

    def tensors(folder):
        return {key: value for file in sorted(folder.glob("iter_*/*.safetensors")) for key, value in load_file(file).items()}
    expected = tensors(tmp_path / "expected")
    assert ("output_layer.weight" in expected) != tied
    save_file({f"weight.{key}": value for key, value in tensors(tmp_path / "ckpt").items()}, tmp_path / "w.safetensors")

    def index(rows):
        return torch.arange(rows)[:, None].expand(rows, 3)
    batch = {"encoder_tokens": source.T, "encoder_index": index(21), "encoder_length": source_mask.sum(1, keepdim=True),
             "decoder_tokens": target.T, "decoder_index": index(14), "labels": labels.T, "loss_mask": target_mask.T.float()}
    save_file({f"0.{key}": value.contiguous().clone() for key, value in batch.items()}, tmp_path / "b.safetensors")
    flags = ["--hf-config", str(tmp_path / "in"), "--encoder-seq-length", "21", "--decoder-seq-length", "14",
             "--micro-batch-size", "3", "--train-iters", "1", "--lr", "1e-3", "--tokenizer-type", "NullTokenizer",
             "--vocab-size", str(model.config.vocab_size - 1), "--make-vocab-size-divisible-by", "1", "--hidden-dropout",
             "0", "--attention-dropout", "0"] + ([] if tied else ["--untie-embeddings-and-output-weights"])
    request = {"family": "t5", "name": "a", "flags": flags, "dtype": "fp32", "steps": 0, "vocabulary": model.config.vocab_size,
               "weights": str(tmp_path / "w.safetensors"), "batches": str(tmp_path / "b.safetensors")}
    (tmp_path / "cases.json").write_text(json.dumps([request]))
    done = subprocess.run([DRIVER, tmp_path / "cases.json", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = load_file(tmp_path / "a.safetensors")
    found = {key.removeprefix("gradient."): value for key, value in ours.items() if key.startswith("gradient.")}
    assert found.keys() == expected.keys()
    largest = max(value.norm() for value in expected.values())
    for key, value in expected.items():
        assert (found[key] - value).norm() <= 1e-4 * max(value.norm(), 1e-3 * largest), key


def rewrite(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["v1.0", "v1.1"])
def test_files_of_transformers_4(name, tmp_path):
    """Their config.json alone says whether logits are scaled; copies of the embeddings; a table that no layer reads."""
    model = random_model(name)
    save(model, tmp_path / "in")

    def early(config):
        config.pop("scale_decoder_outputs", None)
        config["tie_word_embeddings"] = name not in UNTIED
    rewrite(tmp_path / "in", early)
    weights = load_file(tmp_path / "in" / "model.safetensors")
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.embed_tokens.weight"] = weights["shared.weight"].clone()
    weights.setdefault("lm_head.weight", weights["shared.weight"].clone())
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.randn(32, 4)
    save_file(weights, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path)


def test_sequences_longer_than_n_positions(tmp_path):
    model = random_model("v1.0-wide")
    config = save(model, tmp_path / "in")
    config["n_positions"] = 32
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(model, tmp_path, 100, 70)


WORDS = "the a cat dog bird sat ran flew on under over mat tree".split()


def test_transformers_generates_from_an_exported_folder(tmp_path):
    """config.json says what the decoder starts with."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    run("pretrain", "t5", "--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 2, "--encoder-seq-length", 16,
        "--decoder-seq-length", 8, "--micro-batch-size", 2, "--train-iters", 4, "--lr", "1e-1", "--eval-iters", 0, "--device", "cpu",
        "--mock-data", "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", tmp_path / "vocab.txt", "--vocab-extra-ids", 10,
        "--make-vocab-size-divisible-by", 1, *PUBLISHED, "--no-lm-head-bias", "--save", tmp_path / "ckpt", "--hf-out", tmp_path / "out")
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert model.generation_config.decoder_start_token_id == model.config.decoder_start_token_id
    source = torch.tensor([[5, 6, 7, 8, 9, 10]])
    expected = model.generate(source, max_new_tokens=6, do_sample=False, eos_token_id=-1)[0].tolist()
    assert expected[0] == model.config.decoder_start_token_id and len(expected) == 7
    (tmp_path / "in.jsonl").write_text(json.dumps({"encoder_tokens": source[0].tolist(), "tokens": expected[:1], "top_k": 1,
                                                   "max_new_tokens": 6}) + "\n")
    run("generate", "--load", tmp_path / "ckpt", "--device", "cpu", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    tokens = json.loads((tmp_path / "out.jsonl").read_text())["tokens"]
    assert tokens and tokens == expected[1:1 + len(tokens)], "ours ends with the tokenizer's end"


def test_every_element_is_accounted_for(tmp_path):
    save(random_model("v1.0"), tmp_path / "in")
    weights = load_file(tmp_path / "in" / "model.safetensors")
    missing, extra = dict(weights), dict(weights)
    del missing["decoder.block.1.layer.1.EncDecAttention.k.weight"]
    extra["encoder.block.0.layer.1.DenseReluDense.wi_1.weight"] = torch.zeros(40, 32)
    for changed, says in ((missing, "EncDecAttention.k.weight\" is missing"), (extra, "wi_1.weight\" is not in the model")):
        save_file(changed, tmp_path / "in" / "model.safetensors", {"format": "pt"})
        assert says in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt", code=4)
    for change, says in (({"dense_act_fn": "gelu"}, "dense_act_fn"), ({"is_gated_act": True}, "is_gated_act"),
                         ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj")):
        rewrite(tmp_path / "in", lambda config: config.update(change))
        assert says in run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt", code=4)


def tiny_training(folder, *flags):
    run("pretrain", "t5", "--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 2, "--encoder-seq-length", 16,
        "--decoder-seq-length", 8, "--micro-batch-size", 2, "--train-iters", 2, "--lr", "1e-2", "--eval-iters", 0,
        "--device", "cpu", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 60, "--save", folder, *flags)


PUBLISHED = ["--position-embedding-type", "relative", "--softmax-scale", "1", "--normalization", "RMSNorm",
             "--disable-bias-linear", "--relu", "--scale-decoder-outputs"]


def test_what_transformers_has_not_is_refused(tmp_path):
    tiny_training(tmp_path / "learned")
    said = run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "learned", code=4)
    assert "position_embedding_type" in said and "t5" in said
    tiny_training(tmp_path / "biased", *PUBLISHED)
    said = run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "biased", code=4)
    assert "lm_head_bias is true" in said
    tiny_training(tmp_path / "published", *PUBLISHED, "--no-lm-head-bias")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "published")
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert model.config.scale_decoder_outputs and model.config.num_decoder_layers == 2


@pytest.mark.parametrize("name", ["v1.0", "v1.1-wide", "mt5"])
def test_training_on_a_folder(name, tmp_path):
    """--hf: what transformers 5 says of tied embeddings in config.json does not count, but the weights."""
    model = random_model(name)
    save(model, tmp_path / "in")
    run("pretrain", "t5", "--hf", tmp_path / "in", "--encoder-seq-length", 24, "--decoder-seq-length", 12, "--lr", 0,
        "--micro-batch-size", 2, "--train-iters", 1, "--eval-iters", 0, "--mock-data", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", model.config.vocab_size - 1, "--make-vocab-size-divisible-by", 1, "--device", "cpu", "--hf-out",
        tmp_path / "out")
    assert_same(model.state_dict(), type(model).from_pretrained(tmp_path / "out").state_dict())


def test_finetuning_the_weights(tmp_path):
    """The commands of a user: convert, train on, convert back."""
    save(random_model("v1.0"), tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "t5")
    run("pretrain", "t5", "--load", tmp_path / "t5", "--finetune", "--use-checkpoint-args", "--encoder-seq-length", 24,
        "--decoder-seq-length", 12, "--micro-batch-size", 2, "--train-iters", 3, "--lr", "1e-3", "--eval-iters", 0,
        "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 100, "--make-vocab-size-divisible-by", 1,
        "--save", tmp_path / "t5-run", "--device", "cpu")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "t5-run")
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert again.config.d_kv == 12 and again.config.num_layers == 3
