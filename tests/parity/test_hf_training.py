"""Training and inference straight from Hugging Face folders (--hf), and back into one (--hf-out), against `transformers`.

TERATRON_BINARY names the program; TERATRON_LONG_TESTS adds layouts and families to the gradients of decoders.
"""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from test_hf_conversion import BINARY, assert_same, random_model, run, small_tokenizer
from test_hf_files import save_as_bin

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

TRAIN = ["--seq-length", 16, "--micro-batch-size", 1, "--global-batch-size", 4, "--eval-iters", 0, "--device", "cpu",
         "--log-interval", 1]
ALONG = {"generation_config.json": '{"temperature": 0.7}', "chat_template.jinja": "{{ messages }}"}


def launch(ranks, *args, code=0):
    return run("launch", "--nproc-per-node", ranks, "--", BINARY, *args, code=code)


def tensors(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A folder like Qwen2.5's, with 20 rows beyond its 280 tokens, and texts preprocessed with its tokenizer."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = small_tokenizer(folder / "tokenizer")
    config = transformers.Qwen2Config(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
                                      num_key_value_heads=2, vocab_size=300, max_position_embeddings=64,
                                      tie_word_embeddings=True)
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder / "in")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "in" / name).write_bytes((tokenizer / name).read_bytes())
    for name, text in ALONG.items():
        (folder / "in" / name).write_text(text)
    (folder / "my.jsonl").write_text(json.dumps({"text": "the dog sat on the mat and the cat sat on the dog"}) * 1 + "\n"
                                     + json.dumps({"text": "the cat sat on the cat " * 40}) + "\n")
    run("preprocess", "--input", folder / "my.jsonl", "--output-prefix", folder / "my", "--tokenizer-type",
        "HuggingFaceTokenizer", "--tokenizer-model", folder / "in" / "tokenizer.json", "--append-eod")
    return folder


def test_the_command_of_a_finetuning(qwen, tmp_path):
    """Tokenizer, rows, architecture and weights from the folder; everything comes out again, trained."""
    command = ["pretrain", "gpt", "--hf", qwen / "in", "--data-path", qwen / "my_text_document", "--train-iters", 3, "--lr",
               "1e-3", *TRAIN]
    run(*command, "--hf-out", tmp_path / "tuned")
    before, after = tensors(qwen / "in"), tensors(tmp_path / "tuned")
    assert sorted(before) == sorted(after)
    assert all(before[name].shape == after[name].shape for name in before), "rows beyond the tokenizer's are lost"
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before), "nothing was trained"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert model.config.model_type == "qwen2" and model.config.vocab_size == 300
    assert all((tmp_path / "tuned" / name).read_text() == text for name, text in ALONG.items())
    text = "the cat sat on a dog"
    assert (transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")(text).input_ids
            == transformers.AutoTokenizer.from_pretrained(qwen / "in")(text).input_ids)
    # Converting first gives equal weights, when they are written in the folder's type.
    run("ckpt", "convert", "--from-hf", qwen / "in", "--save", tmp_path / "ckpt")
    run("pretrain", "gpt", "--hf-config", qwen / "in", "--load", tmp_path / "ckpt", "--finetune", "--tokenizer-type",
        "HuggingFaceTokenizer", "--tokenizer-model", qwen / "in" / "tokenizer.json", *command[4:], "--save",
        tmp_path / "converted")
    run("ckpt", "convert", "--load", tmp_path / "converted", "--to-hf", tmp_path / "out", "--target-params-dtype", "bf16")
    assert_same(after, tensors(tmp_path / "out"))


ALL_AXES = ["--tp", 2, "--pp", 2, "--sequence-parallel"]


@pytest.mark.parametrize("name, layout", [
    *[(name, ALL_AXES) for name in ("gpt2", "llama-gqa", "qwen2", "gpt_neox")], ("bloom", ["--tp", 2]), ("olmo2", ["--pp", 2])])
def test_every_layout_gets_its_shards(name, layout, tmp_path):
    model = random_model(name)
    save_as_bin(model, tmp_path / "in", 3)
    said = launch(4, "pretrain", "gpt", "--hf", tmp_path / "in", "--mock-data", "--train-iters", 1, "--lr", 0,
                  "--weight-decay", 0, *TRAIN, *layout, "--use-distributed-optimizer", "--hf-out", tmp_path / "out")
    assert "no tokenizer" in said
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_same(model.state_dict(), again.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("name, ranks, layout", [
    *[(name, ranks, []) for name in ("gpt2", "llama3-rope", "qwen2", "gemma") for ranks in (1, 2)],
    ("gpt2", 2, ["--pp", 2]), ("qwen2", 4, ["--pp", 2, "--tp", 2]), ("llama3-rope", 4, ["--pp", 2, "--cp", 2])])
def test_logits_straight_from_a_folder(name, ranks, layout, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in", max_shard_size="50KB")
    ids = torch.arange(17) * 7 % 101
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids.tolist())) + "\n")
    flags = ["logits", "--hf", tmp_path / "in", "--input", tmp_path / "ids.txt", "--output", tmp_path / "o.safetensors", *layout]
    run(*flags) if ranks == 1 else launch(ranks, *flags)
    got = load_file(tmp_path / "o.safetensors")["logits.0"]
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    assert (got - expected).norm() <= 1e-5 * expected.norm()


def test_generation_straight_from_a_folder(qwen, tmp_path):
    flags = ["--prompt", "the cat", "--max-new-tokens", 5, "--greedy", "--device", "cpu"]
    run("ckpt", "convert", "--from-hf", qwen / "in", "--save", tmp_path / "ckpt")
    answers = [run("generate", *source, *flags).split("the cat", 1)[1].splitlines()[0]
               for source in (["--hf", qwen / "in"], ["--load", tmp_path / "ckpt"])]
    assert answers[0] == answers[1] != ""
    said = run("generate", "--hf", qwen / "in", "--load", tmp_path / "ckpt", *flags, code=2)
    assert "load and hf are both set" in said
    assert "no model is given" in run("generate", *flags, code=2)


def test_a_saved_run_goes_before_the_folder(qwen, tmp_path):
    command = ["pretrain", "gpt", "--hf", qwen / "in", "--data-path", qwen / "my_text_document", "--train-iters", 4, "--lr",
               "1e-3", *TRAIN]
    run(*command, "--hf-out", tmp_path / "unbroken")
    resumable = [*command, "--save", tmp_path / "run", "--load", tmp_path / "run", "--hf-out", tmp_path / "out"]
    said = run(*resumable, "--exit-interval", 2)
    assert "no checkpoint in" not in said and "loading the weights of" in said
    assert "is not written, since training stopped at iteration 2 of 4" in said and not (tmp_path / "out").exists()
    said = run(*resumable)
    assert "goes before --hf" in said and "loading the weights of" not in said
    assert_same(tensors(tmp_path / "unbroken"), tensors(tmp_path / "out"))
    assert "already finished" in run(*resumable)
    (tmp_path / "out").rename(tmp_path / "moved")
    said = run(*resumable)
    assert "already finished" in said
    assert_same(tensors(tmp_path / "moved"), tensors(tmp_path / "out"))
    said = run(*resumable, "--fresh", code=2)
    assert "the folder is not empty" in said


def test_flags_that_contradict_the_folder_are_listed(qwen, tmp_path):
    command = ["pretrain", "gpt", "--hf", qwen / "in", "--mock-data", "--train-iters", 1, "--lr", 0, *TRAIN]
    said = run(*command, "--num-layers", 3, "--hidden-size", 48, "--no-rope-fusion", "--qk-layernorm", "--hf-out",
               tmp_path / "out", code=2)
    assert "num_layers is 3, but 2 in the folder" in said and "qk_layernorm is true, but false" in said
    assert "hidden_size" not in said and "--hf-config" in said
    run(*command, "--num-layers", 2, "--swiglu", "--max-position-embeddings", 128, "--hf-out", tmp_path / "out")
    for flags, message in [(["--hf-config", qwen / "in"], "hf_config and hf are both set"),
                           (["--pretrained-checkpoint", "x"], "pretrained"),
                           (["--hf", tmp_path / "none"], "is not a folder"), (["--hf", qwen], "config.json")]:
        assert message in run(*command, *flags, code=2)
    small = ["--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--max-position-embeddings", 16]
    for job in ([*command[:2], "--load", qwen / "in", *small, *command[4:]],
                ["generate", "--load", qwen / "in", "--prompt", "a"]):
        assert "Name it with --hf" in run(*job, code=2)
    said = run("pretrain", "bert", *command[2:], code=2)
    assert "teratron pretrain gpt" in said


def test_what_transformers_cannot_hold_is_told_before_training(tmp_path):
    said = run("pretrain", "gpt", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--squared-relu",
               "--max-position-embeddings", 16, "--mock-data", "--train-iters", 1, "--lr", 0, *TRAIN, "--hf-out",
               tmp_path / "out", code=4)
    assert "no Hugging Face model has these settings" in said and " iteration " not in said
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("")
    said = run("pretrain", "gpt", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2,
               "--max-position-embeddings", 16, "--mock-data", "--train-iters", 1, "--lr", 0, *TRAIN, "--hf-out",
               tmp_path / "out", code=2)
    assert "the folder is not empty" in said


@pytest.mark.parametrize("saves", [False, True])
def test_a_signal(saves, qwen, tmp_path):
    command = ["pretrain", "gpt", "--hf", qwen / "in", "--data-path", qwen / "my_text_document", "--train-iters", 100000,
               "--lr", "1e-3", *TRAIN, "--hf-out", tmp_path / "out", *(["--save", tmp_path / "run"] if saves else [])]
    process = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    deadline = time.time() + 60
    while not re.search(r"iteration +2/", said) and time.time() < deadline:
        said += process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    said += process.communicate(timeout=60)[0]
    assert process.returncode == 75, said
    assert (tmp_path / "out").exists() != saves
    expected = "is not written, since training stopped" if saves else "only the weights were kept, in --hf-out"
    assert expected in said
    if not saves:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")


# Gradients of decoders in several layouts: the change by a step of SGD, over its rate.
RATE, LENGTH, VOCABULARY = 256, 24, 101
SGD = ["--tokenizer-type", "NullTokenizer", "--vocab-size", VOCABULARY - 1, "--split", "100,0,0", "--seq-length", LENGTH,
        "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--eval-iters", 0, "--optimizer", "sgd", "--sgd-momentum", 0,
        "--lr", RATE, "--min-lr", RATE, "--weight-decay", 0, "--clip-grad", 0, "--moe-router-bias-update-rate", 0, "--device", "cpu",
        "--log-interval", 1, "--hidden-dropout", 0, "--attention-dropout", 0]
TP, SP = ["--tp", 2], ["--tp", 2, "--sequence-parallel"]
RANKS = {"one": [], "tp": TP, "sp": SP, "cp": ["--context-parallel-size", 2],
           "ep": ["--ep", 2, "--tp", 2, "--sequence-parallel", "--expert-tensor-parallel-size", 1]}
EXPERTS = {"glm4_moe", "minimax_m2", "ernie4_5_moe", "llama4_text", "granitemoe"}
DECODERS = ["glm4_moe", "minimax_m2", "ernie4_5_moe", "cohere-qk-norm", "cohere2", "nanochat", "llama4_text"]
MORE = ["glm4_moe-plain", "minimax_m2-one", "cohere", "llama4_text-two", "granitemoe", "phi3", "starcoder2", "glm4", "smollm3", "seed_oss"]
CASES = [(name, "ep" if name in EXPERTS else "sp") for name in DECODERS] + [("llama4_text", "cp"), ("cohere2", "cp"), ("granitemoe", "ep")]
if os.environ.get("TERATRON_LONG_TESTS"):
    CASES = [(name, layout) for name in DECODERS + MORE for layout in RANKS if layout != "ep" or name in EXPERTS]


def one_document(folder):
    torch.manual_seed(5)
    tokens = torch.randint(5, VOCABULARY - 1, (LENGTH + 1,))
    (folder / "text.jsonl").write_text(json.dumps({"text": " ".join(map(str, tokens.tolist()))}) + "\n")
    run("preprocess", "--input", folder / "text.jsonl", "--output-prefix", folder / "data", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", VOCABULARY - 1)
    return tokens, folder / "data_text_document"


@pytest.mark.parametrize("name, layout", CASES)
def test_gradients_of_a_step(name, layout, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    tokens, path = one_document(tmp_path)
    start = [] if layout == "one" else ["launch", "--backend", "threads", "--nproc-per-node", 2, "--"]
    said = run(*start, "pretrain", "gpt", "--hf", tmp_path / "in", "--data-path", path, *SGD, *RANKS[layout], "--hf-out", tmp_path / "out")
    loss = torch.nn.functional.cross_entropy(model(tokens[None, :-1]).logits[0], tokens[1:])
    loss.backward()
    assert abs(float(re.search(r"lm loss: (\S+)", said)[1]) - loss.item()) <= 2e-5 * loss.item()
    norm = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None).sqrt().item()
    assert abs(float(re.search(r"grad norm: (\S+)", said)[1]) - norm) <= 2e-3 * norm
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(tmp_path / "gradients")
    before, after, expected = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out", "gradients"))
    assert sorted(before) == sorted(after) == sorted(expected)
    largest = max(value.norm() for value in expected.values())
    for key, value in expected.items():
        if key.endswith("e_score_correction_bias"):
            continue
        actual = (before[key] - after[key]) / RATE
        assert (actual - value).norm() <= 1e-3 * max(value.norm(), 1e-3 * largest), key
