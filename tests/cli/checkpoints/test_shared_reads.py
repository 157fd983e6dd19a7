"""Of many ranks one reads the manifest of a checkpoint: on the others, reading it is an error here."""

import json
import shutil

import pytest
from program import BINARY, MOCK, each, free_port, losses, needs_binary, processes, teratron, train, weights

pytestmark = needs_binary

READS = "ckpt.read_index:throw;ckpt.read_manifest_file:throw"
LAYOUT = ["--train-iters", "4", "--global-batch-size", "4", "--log-interval", "1", "--tp", "2"]
SHORT = [*MOCK[MOCK.index("--micro-batch-size"):], *LAYOUT]  # without the model


@pytest.fixture(name="saved", scope="module")
def fixture_saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    train(*MOCK, "--train-iters", 2, "--save", folder / "plain")
    train(*MOCK, "--train-iters", 4, "--lr", "3e-2", "--init-method-std", "0.3", "--lora-rank", 2, "--save", folder / "lora")
    (folder / "in.jsonl").write_text(json.dumps({"tokens": [5, 6], "top_k": 1, "logprobs": True, "max_new_tokens": 4}) + "\n")
    return folder


def run_ranks(count, arguments, faults=lambda rank: READS if rank else ""):
    """Exit codes and outputs of ranks, of which all but the first must not read manifests."""
    port = free_port()
    variables = [{"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                  "TERATRON_FAULT": faults(rank)} for rank in range(count)]
    lists = arguments if callable(arguments) else lambda rank: arguments
    return processes([[BINARY, *map(str, lists(rank))] for rank in range(count)], variables)


def test_settings_of_a_checkpoint(saved, tmp_path):
    """--use-checkpoint-args: rank 0 reads them when the ranks have met; the losses are those of given settings."""
    plain = ["pretrain", "gpt", "--load", saved / "plain", "--finetune"]
    codes, outputs = run_ranks(4, [*plain, "--use-checkpoint-args", *SHORT, "--save", tmp_path / "run"])
    assert codes == [0] * 4, outputs
    assert outputs[0].count("taken from ") == 1 and "num_layers=2" in outputs[0], outputs[0]
    codes, given = run_ranks(4, [*plain, *MOCK, *LAYOUT])
    assert codes == [0] * 4, given
    assert losses(outputs[3]) == losses(given[3]) and len(losses(given[3])) == 4
    assert weights(tmp_path / "run", 4)


def test_settings_of_a_task(saved, tmp_path):
    """Of --pretrained-checkpoint, without the flag."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": f"{i} {i + 1}", "label": i % 2}) + "\n" for i in range(8)))
    flags = ["finetune", "gpt", "--task", "classification", "--pretrained-checkpoint", saved / "plain", "--train-data", tmp_path / "train.jsonl",
             "--valid-data", tmp_path / "train.jsonl", "--num-classes", 2, "--micro-batch-size", 2, "--global-batch-size", 4, "--train-iters", 2,
             "--lr", "1e-3", "--seq-length", 16, "--device", "cpu", "--num-threads", 1]
    codes, outputs = run_ranks(2, flags)
    assert "num_layers=2" in outputs[0] and codes == [0, 0], outputs


WRONG = {
    "rank 0 cannot read": (lambda rank: [], lambda rank: "" if rank else "ckpt.read_index:throw", 5, "ckpt.read_index"),
    "problems of the whole": (lambda rank: ["--max-position-embeddings", 8], lambda rank: "", 2, "max_position_embeddings"),
    "another flag": (lambda rank: ["--train-iters", 4 + rank], lambda rank: "", 2, "train_iters: rank 0 has 4, rank 1 has 5"),
    "one rank has not asked": (lambda rank: [*MOCK, *LAYOUT] if rank else [], lambda rank: "", 2, "use_checkpoint_args: rank 0 has true, rank 1"),
    "rank 0 has not asked": (lambda rank: [] if rank else [*MOCK, *LAYOUT], lambda rank: "", 2, "rank 1 of 2 rejected the settings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_with_those_of_a_checkpoint(saved, case):
    more, faults, code, says = WRONG[case]

    def arguments(rank):
        own = more(rank)
        asks = [] if "--num-layers" in own else ["--use-checkpoint-args", *SHORT]
        return ["pretrain", "gpt", "--load", saved / "plain", "--finetune", *asks, *own]

    codes, outputs = run_ranks(2, arguments, faults)
    assert codes == [code, code], outputs
    assert says in outputs[0], outputs[0]
    assert "error" not in outputs[1] or code == 5, f"reported once: {outputs[1]}"


def generate(saved, run, folder):
    return ["generate", "--load", saved / run, "--device", "cpu", "--input", saved / "in.jsonl", "--output", folder / "out.jsonl"]


def answer(folder):
    return json.loads((folder / "out.jsonl").read_text())


@pytest.mark.parametrize("run", ["plain", "lora"])
def test_weights_for_inference(saved, tmp_path, run):
    """The manifest is read once, also where the adapters of a checkpoint are merged."""
    teratron(*generate(saved, run, tmp_path))
    expected = answer(tmp_path)
    codes, outputs = run_ranks(2, [*generate(saved, run, tmp_path), "--tp", 2])
    assert codes == [0, 0], outputs
    assert answer(tmp_path)["tokens"] == expected["tokens"]
    assert answer(tmp_path)["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-4)
    # A second read of the index by rank 0 would fail: hits of list_checkpoints() come before.
    codes, outputs = run_ranks(2, [*generate(saved, run, tmp_path), "--tp", 2], lambda rank: READS if rank else "ckpt.read_index@hit=3:throw")
    assert codes == [0, 0], outputs


def damage(checkpoint, how):
    shard = sorted(checkpoint.glob("shard-*"))[0]
    if how == "missing":
        shard.unlink()
    elif how == "short":
        shard.write_bytes(shard.read_bytes()[:-8])
    else:
        (checkpoint / "manifest.json").write_text("{}")


def test_inference_takes_an_older_checkpoint_where_the_newest_is_damaged(tmp_path):
    train(*MOCK, "--train-iters", 2, "--save-interval", 1, "--save", tmp_path / "saved")

    def check(how, folder):
        shutil.copytree(tmp_path / "saved", folder / "run")
        damage(folder / "run/iter_0000002", how)
        shutil.copy(tmp_path / "in.jsonl", folder / "in.jsonl")
        codes, outputs = run_ranks(2, [*generate(folder, "run", folder), "--tp", 2])
        assert codes == [0, 0], outputs
        assert outputs[0].count("iter_0000002 is corrupt and skipped") == 1 and "corrupt" not in outputs[1], outputs
        teratron(*generate(folder, "run", folder), "--ckpt-step", 2, code=4)
        expected = answer(folder)
        teratron(*generate(folder, "run", folder), "--ckpt-step", 1)
        assert answer(folder)["tokens"] == expected["tokens"]

    (tmp_path / "in.jsonl").write_text(json.dumps({"tokens": [5, 6], "top_k": 1, "max_new_tokens": 4}) + "\n")
    each(["missing", "short", "manifest"], check, tmp_path)
