"""What a new user types: a run with nothing but a model, habits from other programs, and mistakes."""

import re

import pytest
from program import MOCK, losses, message, needs_binary, teratron, train

pytestmark = needs_binary

SMALL = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2"]


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_mock_data_needs_only_a_model(family):
    result = teratron("pretrain", family, *SMALL, "--max-position-embeddings", "32", "--mock-data", "--train-iters", "12",
                      "--log-interval", "4", "--eval-iters", "1", "--device", "cpu")
    assert "notice: defaults of --mock-data: tokenizer_type = NullTokenizer, vocab_size = 50256, seq_length = 32, " \
           "micro_batch_size = 1, lr = 0.0003\n" in result.stderr
    assert len(losses(result.stdout)) >= 3


def test_three_flags_are_a_training():
    """Planned, not run: it has the parameters of GPT-2."""
    result = teratron("plan", "gpt", "--model-preset", "gpt2", "--mock-data")
    assert "training also requires" not in result.stderr
    for line in ("train_iters = 100  (default of --mock-data)", "lr = 0.0003  (default of --mock-data)",
                 "vocab_size = 50256  (--model-preset gpt2)", "micro_batch_size = 1  (default of --mock-data)"):
        assert line in result.stdout, result.stdout
    assert re.search(r"^ +0 +124475904 ", result.stdout, re.MULTILINE), result.stdout


def test_a_missing_model_is_one_message():
    assert message(train("--mock-data", code=2), "no model is given", "--model-preset").count("\n") == 0


@pytest.mark.parametrize("command, says", [
    ("pretrain_blip.py", "'blip' is not a known model. Use one of: gpt"),
    ("train.py", "Use `teratron pretrain gpt FLAGS...`"),
    ("torchrun", "Use `teratron launch --nproc-per-node N -- pretrain gpt FLAGS...`"),
    ("pretain", "Did you mean pretrain?"),
])
def test_commands_of_other_programs(command, says):
    message(teratron(command, "--num-layers", "2", code=2), says)


def test_flags_of_other_programs():
    message(train(*MOCK, "--train-iters", "2", "--learning-rate", "1e-3", "--zero-stage", "1", code=2),
            "unknown flag --learning-rate. Teratron's is --lr", "Use --use-distributed-optimizer")


@pytest.mark.parametrize("words", [["pretrain", "gpt3"], ["pretrain", "--mock-data"], ["pretrain"], ["plan", "llama"]])
def test_an_unknown_model_lists_the_families(words):
    message(teratron(*words, code=2), "Use one of: gpt, bert")


def test_an_unreadable_config_file_is_the_only_error(tmp_path):
    text = message(train("--config-file", tmp_path / "none.yaml", "--lr", "much", code=2), "none.yaml")
    assert text.count("\n") == 0, text


def test_too_few_ranks_name_the_launcher():
    message(train(*MOCK, "--train-iters", "2", "--tensor-model-parallel-size", "2", code=2),
            "needs a multiple of 2 ranks, and there is 1", "teratron launch --nproc-per-node 2 -- ")


def test_text_in_place_of_a_dataset_says_what_to_run(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "1 2 3"}\n')
    data = [flag for flag in MOCK if flag != "--mock-data"]
    for flags in (["--data-path", corpus], ["--train-data-path", corpus]):
        message(train(*data, *flags, "--train-iters", "2", code=3), corpus, f"teratron preprocess --input {corpus}",
                "corpus_text_document")
    message(teratron("data", "inspect", corpus, code=3), "teratron preprocess")


def test_an_absurd_size_is_named():
    message(train(*MOCK, "--train-iters", "2", "--max-position-embeddings", "80000000000", code=7),
            "max_position_embeddings = 80000000000 is far above")
