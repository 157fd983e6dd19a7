"""Fewer key/value heads than tensor-parallel ranks (multi-query attention), against `transformers`, and as Megatron-Core's files.

TERATRON_BINARY names the program.
"""
import pytest

import test_param_groups as groups
from test_hf_conversion import assert_same, run
from test_hf_training import TRAIN, launch, tensors
from test_sft import conversations, small_tokenizer, write_lines

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402


@pytest.fixture(scope="module", params=[1, 2], ids=["one group", "two groups"])
def folder(request, tmp_path_factory):
    """Eight query heads, with biases of queries, keys and values."""
    folder = tmp_path_factory.mktemp("groups")
    small_tokenizer(folder / "tokenizer")
    config = transformers.Qwen2Config(hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=8,
                                      num_key_value_heads=request.param, vocab_size=288, max_position_embeddings=256,
                                      tie_word_embeddings=False)
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder / "in")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "in" / file).write_bytes((folder / "tokenizer" / file).read_bytes())
    write_lines(folder / "chats.jsonl", list(conversations(6)))
    return folder


@pytest.mark.parametrize("layout", [["--tp", 4], ["--tp", 4, "--sequence-parallel"], ["--tp", 2, "--use-distributed-optimizer"],
                                    ["--tp", 2, "--pp", 2]])
def test_two_steps_are_torchs(layout, folder, tmp_path):
    launch(4, "finetune", "gpt", "--hf", folder / "in", "--data-path", folder / "chats.jsonl", *groups.FLAGS, "--hf-out", tmp_path / "out", *layout)
    groups.check(folder, tmp_path / "out", groups.reference(folder, lambda name, p: (1.0, groups.usual_decay(name, p))))


def test_logits_and_texts_on_several_ranks(folder, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in").eval()
    ids = torch.arange(17) * 7 % 280
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids.tolist())) + "\n")
    launch(4, "logits", "--hf", folder / "in", "--input", tmp_path / "ids.txt", "--output", tmp_path / "o.safetensors")
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    assert (load_file(tmp_path / "o.safetensors")["logits.0"] - expected).norm() <= 1e-5 * expected.norm()
    flags = ["generate", "--hf", folder / "in", "--prompt", "the cat sat", "--max-new-tokens", 12, "--greedy", "--device", "cpu"]
    answer = lambda said: said.split("the cat sat", 1)[1].splitlines()[0]  # noqa: E731
    assert answer(launch(4, *flags)) == answer(launch(2, *flags)) == answer(run(*flags))


def test_checkpoints_have_one_copy(folder, tmp_path):
    command = ["pretrain", "gpt", "--hf", folder / "in", "--mock-data", "--lr", "1e-3", "--lr-decay-style",
               "constant", *TRAIN, "--save", tmp_path / "run", "--train-iters"]
    launch(4, *command, 2, "--tp", 4, "--use-distributed-optimizer")
    run("ckpt", "verify", tmp_path / "run")
    run("ckpt", "convert", "--load", tmp_path / "run", "--to-hf", tmp_path / "hf")
    assert {name: tensor.shape for name, tensor in tensors(tmp_path / "hf").items()} == {
        name: tensor.shape for name, tensor in tensors(folder / "in").items()}
    # Megatron-Core divides all rows of QKV evenly over its ranks.
    megatron = ["ckpt", "convert", "--load", tmp_path / "run", "--to-megatron", tmp_path / "megatron", "--target-tensor-parallel-size", 4]
    assert "Megatron-Core" in run(*megatron, code=2)
    run(*megatron, "--megatron-names", "mcore")
    run("ckpt", "convert", "--from-megatron", tmp_path / "megatron", "--save", tmp_path / "back")
    run("ckpt", "convert", "--load", tmp_path / "back", "--to-hf", tmp_path / "again")
    assert_same(tensors(tmp_path / "hf"), tensors(tmp_path / "again"))
    # Other numbers of ranks go on.
    for ranks, steps in ((2, 3), (1, 4)):
        said = launch(ranks, *command, steps, "--tp", ranks) if ranks > 1 else run(*command, steps)
        assert f"iteration        {steps}/" in said


def test_groups_and_ranks_divide_each_other(folder):
    said = run("plan", "gpt", "--num-layers", 2, "--hidden-size", 96, "--num-attention-heads", 12, "--group-query-attention", "--num-query-groups",
               3, "--seq-length", 16, "--vocab-size", 64, "--micro-batch-size", 1, "--world-size", 2, "--tp", 2, code=2)
    assert "num_query_groups = 3 is not divisible by tensor_model_parallel_size = 2" in said
