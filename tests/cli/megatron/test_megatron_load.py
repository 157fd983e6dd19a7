"""Commands read Megatron-LM's checkpoints where they take ours: folders, zip files as NVIDIA publishes them, and .pt files."""

import math
import zipfile

import pytest
import torch
from safetensors.torch import load_file

from megatron_files import FIXTURES
from program import kept, losses, message, needs_binary, teratron, train
from test_megatron_checkpoints import Hostile, convert, model, save
from test_megatron_optimizer import STEPS, write
from test_tasks import FILLERS, NUMBERS, SPECIAL, small_mnli

pytestmark = needs_binary
ZIP = FIXTURES / "gpt_a_v0_ngc.zip"
# What the arguments say in other checkpoints, in the spelling of Megatron-LM's scripts.
MODEL = ["--num-layers", 2, "--hidden-size", 16, "--num-attention-heads", 4, "--max-position-embeddings", 16, "--no-bias-gelu-fusion"]
TOKENIZER = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 66]
CPU = ["--device", "cpu", "--num-threads", 1]
FORMS = ["zip", "folder", "release", "file"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngc")
    with zipfile.ZipFile(ZIP) as archive:
        archive.extractall(folder)
    return folder


def source(unpacked, form):
    return {"zip": ZIP, "folder": unpacked, "release": unpacked / "release", "file": unpacked / "release/mp_rank_00/model_optim_rng.pt"}[form]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The model as a run of ours, which knows its tokenizer; a rate of zero keeps the weights."""
    folder = tmp_path_factory.mktemp("converted")
    convert(ZIP, folder / "weights", "--num-attention-heads", 4, "--vocab-size", 67, "--no-bias-gelu-fusion")
    train(*MODEL, *TOKENIZER, "--mock-data", "--seq-length", 12, "--micro-batch-size", 1, "--lr", 0, "--eval-iters", 0, "--train-iters", 1, *CPU,
          "--load", folder / "weights", "--finetune", "--save", folder / "run")
    return folder / "run"


def notices(result):
    return [line for line in result.stderr.splitlines() if "is a checkpoint of Megatron-LM" in line]


@pytest.mark.parametrize("form", FORMS)
def test_logits_that_megatron_computed(unpacked, tmp_path, form):
    expected = load_file(FIXTURES / "gpt_a_v0_ngc.safetensors")
    (tmp_path / "ids").write_text("\n".join(" ".join(map(str, row)) for row in expected["tokens"].tolist()))
    done = teratron("logits", "--load", source(unpacked, form), *MODEL, *TOKENIZER, "--input", tmp_path / "ids", "--output", tmp_path / "logits",
                    "--device", "cpu")
    got = load_file(tmp_path / "logits")
    torch.testing.assert_close(torch.stack([got["logits.0"], got["logits.1"]]), expected["logits"], atol=1e-5, rtol=1e-5)
    assert len(notices(done)) == 1 and "torch, version 0" in done.stderr


def test_generation_and_evaluation_are_those_of_the_converted_model(converted, tmp_path):
    (tmp_path / "data.jsonl").write_text('{"context": "1 2 3", "continuation": " 4"}\n{"context": "5", "choices": [" 6", " 7"], "answer": 1}\n')
    (tmp_path / "wiki.txt").write_text(" ".join(str(number % 60 + 1) for number in range(70)))
    calls = {"generate": ["--prompt", "1 2 3", "--greedy", "--max-new-tokens", 5],
             "eval": ["--data", tmp_path / "data.jsonl", "--predictions", tmp_path / "eval.out"],
             "tasks": ["--task", "WIKITEXT103", "--valid-data", tmp_path / "wiki.txt", "--seq-length", 16, "--json", tmp_path / "tasks.out"]}
    for command, flags in calls.items():
        results = []
        for load in (ZIP, converted):
            done = teratron(command, "--load", load, *MODEL, *TOKENIZER, *flags, *CPU)
            out = tmp_path / f"{command}.out"
            results.append(out.read_text() if out.exists() else done.stdout)
            assert len(notices(done)) == (load == ZIP), command
        assert results[0] == results[1] and results[0].strip(), command


def test_several_ranks_generate_the_same(converted):
    flags = [*MODEL, *TOKENIZER, "--prompt", "1 2 3", "--greedy", "--max-new-tokens", 5, *CPU]
    alone = teratron("generate", "--load", converted, *flags).stdout
    done = teratron("launch", "--nproc-per-node", 2, "--", "generate", "--load", ZIP, "--tensor-model-parallel-size", 2, *flags)
    assert done.stdout == alone and len(notices(done)) == 1


def test_a_training_starts_from_a_release(converted, tmp_path):
    flags = [*MODEL, *TOKENIZER, "--mock-data", "--seq-length", 12, "--micro-batch-size", 2, "--lr", "1e-3", "--eval-iters", 0, "--train-iters", 2,
             "--log-interval", 1, *CPU]
    expected = losses(train(*flags, "--load", converted, "--finetune").stdout)
    assert len(expected) == 2
    for how in (["--load", ZIP, "--finetune"], ["--pretrained-checkpoint", ZIP], ["--load", ZIP]):
        done = train(*flags, *how, "--save", tmp_path / how[0][2:] / str(len(how)))
        assert losses(done.stdout) == expected and len(notices(done)) == 1, how
    assert "release without training state" in done.stderr
    message(train(*flags, "--load", ZIP, "--num-layers", 3, code=4), "num_layers")
    # --finetune of `teratron finetune`, and the settings of the checkpoint.
    done = teratron("pretrain", "gpt", *flags[flags.index("--mock-data"):], *TOKENIZER, "--num-attention-heads", 4, "--no-bias-gelu-fusion",
                    "--use-checkpoint-args", "--load", ZIP, "--finetune")
    assert losses(done.stdout) == expected and "hidden_size=16" in done.stderr


@pytest.mark.parametrize("name", ["nofile.zip", "release/model_optim_rng.pt"])
def test_a_name_of_nothing_is_said(tmp_path, name):
    flags = [*TOKENIZER, "--mock-data", "--seq-length", 12, "--micro-batch-size", 2, "--lr", "1e-3", "--train-iters", 2, *CPU]
    for source in ("--load", "--pretrained-checkpoint"):
        done = teratron("pretrain", "gpt", *flags, "--use-checkpoint-args", source, tmp_path / name, code=4)
        message(done, "there is no such file", name)
    message(teratron("pretrain", "gpt", *flags, "--use-checkpoint-args", "--pretrained-checkpoint", tmp_path / "none", code=4),
            "no checkpoint found", "--pretrained-checkpoint")


@pytest.fixture(scope="module", params=["zip", "folder"])
def bert(tmp_path_factory, request):
    """A BERT in the form of NVIDIA's files, and its vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    words = SPECIAL + NUMBERS + FILLERS
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tensors = {name: (tensor * 0.2).half() for name, tensor in model("bert", rows=64).items()}
    release = save(folder / "in", tensors, version=0, args=None, name="release", zipped=False)
    if request.param == "folder":
        return release, folder / "vocab.txt", tensors
    with zipfile.ZipFile(folder / "bert.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in release.rglob("*"):
            archive.write(file, file.relative_to(release))
    return folder / "bert.zip", folder / "vocab.txt", tensors


def test_tasks_and_trainings_of_a_bert(bert, tmp_path):
    path, vocabulary, tensors = bert
    tokenizer = ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", vocabulary]
    data = small_mnli(tmp_path)
    small = ["--seq-length", 12, "--micro-batch-size", 2, "--eval-iters", 0, *CPU]
    done = teratron("tasks", "--task", "MNLI", "--pretrained-checkpoint", path, *tokenizer, "--num-attention-heads", 2, *data, "--epochs", 1,
                    "--lr", "1e-4", *small, "--save", tmp_path / "mnli")
    assert "could not find classification_head in the checkpoint" in done.stdout and len(notices(done)) == 1
    assert "hidden_size=8" in done.stderr and "|epoch: 0| overall" in done.stdout
    # A rate of zero leaves the weights as they were.
    teratron("pretrain", "bert", "--num-layers", 4, "--hidden-size", 8, "--num-attention-heads", 2, "--max-position-embeddings", 12, *tokenizer,
             "--mock-data", "--lr", 0, "--train-iters", 1, *small, "--pretrained-checkpoint", path, "--save", tmp_path / "run")
    got = {name: tensor for file in (tmp_path / "run").glob("iter_*/*.safetensors") for name, tensor in load_file(file).items()}
    assert len(got["embedding.word_embeddings.weight"]) >= len(SPECIAL + NUMBERS + FILLERS)
    for name in ("embedding.word_embeddings.weight", "encoder.layers.3.mlp.linear_fc2.weight", "binary_head.weight"):
        wanted = tensors[name].float()
        assert torch.equal(got[name], wanted[:len(got[name])]), name


def published_345m():
    """The tensors of a GPT of 24 layers of width 1024, which share their storage, so that the file is small."""
    storage = torch.zeros(4096 * 1024, dtype=torch.half)

    def zeros(*shape):
        return storage[:math.prod(shape)].view(shape)

    shapes = {"input_layernorm": (1024,), "attention.query_key_value": (3072, 1024), "attention.dense": (1024, 1024),
              "post_attention_layernorm": (1024,), "mlp.dense_h_to_4h": (4096, 1024), "mlp.dense_4h_to_h": (1024, 4096)}
    layers = {f"layers.{layer}.{name}": shape for layer in range(24) for name, shape in shapes.items()} | {"final_layernorm": (1024,)}
    embedding = {"word_embeddings": {"weight": zeros(16, 1024)}, "position_embeddings": {"weight": zeros(1024, 1024)}}
    transformer = {f"{name}.{part}": zeros(*(shape if part == "weight" else shape[:1])) for name, shape in layers.items() for part in ("weight", "bias")}
    return {"model": {"language_model": {"embedding": embedding, "transformer": transformer}}}


def test_heads_of_nvidias_models(tmp_path):
    torch.save(published_345m(), tmp_path / "345m.pt", _use_new_zipfile_serialization=False)
    assert (tmp_path / "345m.pt").stat().st_size < 10 << 20
    done = teratron("plan", "gpt", "--use-checkpoint-args", "--load", tmp_path / "345m.pt", "--tokenizer-type", "NullTokenizer", "--vocab-size", 15,
                    "--micro-batch-size", 1, "--lr", "1e-4", "--train-iters", 1, "--mock-data")
    assert "with 16 attention heads" in done.stderr and "num_attention_heads=16" in done.stderr and "num_layers=24" in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, losses(train(*kept(folder, 6, 3), "--log-interval", "1").stdout)


@pytest.mark.parametrize("form, stages", [("whole", 2), ("23.04", 1)])
def test_megatrons_training_goes_on_at_once(tmp_path, run, form, stages):
    """--load of its folder, with the optimizer, to the bit; --save is another folder, from which the next start goes on."""
    folder, expected = run
    theirs = write(tmp_path / "theirs", folder, form, stages)
    flags = [*kept(tmp_path / "ours", 6, 6), "--log-interval", "1"]
    flags[flags.index("--load") + 1] = theirs
    done = train(*flags, "--exit-interval", 5)
    assert losses(done.stdout) == expected[STEPS:5] and len(notices(done)) == 1
    again = train(*flags)
    assert losses(again.stdout) == expected[5:] and not notices(again)
    message(train(*kept(theirs, 6, 3), code=4), "--save")  # its folder is not ours to write to


def test_what_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = save(tmp_path / "hostile", model(), args={"bad": Hostile()})
    message(teratron("generate", "--load", hostile, "--prompt", "1", *CPU, code=4), "posix.system", "refused")
    assert not (tmp_path / "harmed").exists()
    (tmp_path / "text.pt").write_text("no checkpoint")
    message(teratron("generate", "--load", tmp_path / "text.pt", "--prompt", "1", *CPU, code=4), "text.pt")
    # Heads do not show in the shapes, and saved ones go before those of the command.
    small = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 15, "--prompt", "1", *CPU]
    message(teratron("generate", "--load", save(tmp_path / "in", model()), "--num-attention-heads", 4, *small, code=2), "num_attention_heads is 4")
    message(teratron("generate", "--load", tmp_path / "in", *TOKENIZER, "--prompt", "1", *CPU, code=2), "67 tokens", "16 rows")
