"""Checkpoints, weights by name, and texts."""
import subprocess

import pytest
import teratron
import torch
from small import C, GRID, PROGRAM, SIZES, losses

FC1 = "decoder.layers.1.mlp.linear_fc1.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint after 3 steps, its weights, and the losses of the next 3 steps."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    with teratron.Trainer(C(save=folder)) as trainer:
        assert trainer.load() is False
        losses(trainer, 3)
        assert trainer.save() == str(folder)
        weights = {name: tensor.clone() for name, tensor in trainer.parameters()}
        return folder, weights, losses(trainer, 3)


def test_a_training_goes_on(saved):
    folder, _, expected = saved
    with teratron.Trainer(C(load=folder)) as trainer:
        assert trainer.load() is True and trainer.iteration == 3
        assert losses(trainer, 3) == expected
        with pytest.raises(teratron.ConfigError, match="save"):
            trainer.save()


def test_other_folders_than_the_runs(saved, tmp_path):
    folder, _, expected = saved
    with teratron.Trainer(C()) as trainer:
        assert trainer.load(tmp_path) is False and trainer.load(folder) is True
        assert trainer.save(tmp_path / "other") == str(tmp_path / "other")
        assert losses(trainer, 3) == expected
        assert trainer.load(tmp_path / "other") and trainer.iteration == 3
        assert losses(trainer, 3) == expected


def test_a_checkpoint_is_whole_tensors(saved):
    folder, weights, _ = saved
    checkpoint = teratron.Checkpoint(folder)
    assert checkpoint.iteration == 3 and checkpoint.config["hidden_size"] == 64
    assert FC1 in checkpoint.keys() and FC1 in checkpoint and checkpoint.shape(FC1) == (256, 64)
    assert len(checkpoint) == len(list(checkpoint)) > len(weights)
    assert torch.equal(checkpoint[FC1], weights[FC1])
    assert checkpoint.verify() > 0
    for wrong in (checkpoint.shape, checkpoint.__getitem__):
        with pytest.raises(KeyError):
            wrong("decoder")
    with pytest.raises(teratron.CheckpointError):
        teratron.Checkpoint(folder / "nothing")


def test_ranks_give_the_same_whole_weights(saved):
    folder, weights, _ = saved

    def work(world):
        with teratron.Trainer(C(load=folder, world_size=4, **GRID), world=world) as trainer:
            trainer.load()
            return dict(trainer.state_dict("teratron"))

    for whole in teratron.run_ranks(4, work):
        assert whole.keys() == weights.keys()
        for name, tensor in whole.items():
            assert torch.equal(tensor, weights[name][:tensor.shape[0]]), name


def test_weights_by_hugging_faces_names_are_those_of_an_export(saved, tmp_path):
    folder, _, _ = saved
    teratron.convert(folder, tmp_path / "hf", to="hf")  # which other tests compare with transformers
    from safetensors.torch import load_file
    exported = load_file(tmp_path / "hf/model.safetensors")

    def work(world):
        with teratron.Trainer(C(load=folder, world_size=4, **GRID), world=world) as trainer:
            trainer.load()
            return dict(trainer.state_dict())

    for state in teratron.run_ranks(4, work):
        assert state.keys() == exported.keys() and len(state) == 28
        assert all(torch.equal(state[name], tensor) for name, tensor in exported.items())
    with teratron.Trainer(C(bf16=True)) as fresh:
        fresh.load_state_dict(exported)
        for name, tensor in fresh.state_dict():
            assert torch.equal(tensor, exported[name].bfloat16())
        with pytest.raises(KeyError, match="missing"):
            fresh.load_state_dict({})
        with pytest.raises(KeyError, match="no parameter x"):
            fresh.load_state_dict({"x": torch.ones(1)}, "teratron")
        with pytest.raises(teratron.DataError, match="shape"):
            fresh.load_state_dict({name: tensor[:1] for name, tensor in exported.items()})


def test_texts_are_the_commands(saved, tmp_path):
    folder, _, _ = saved
    texts = teratron.generate(folder, ["1 2 3", "7"], max_new_tokens=5, greedy=True, device="cpu")
    file = tmp_path / "texts"
    subprocess.run([PROGRAM, "generate", "--load", folder, "--prompt", "1 2 3", "7", "--max-new-tokens", "5", "--greedy",
                    "--device", "cpu", "--sample-output-file", file], check=True, capture_output=True)
    assert [line for line in file.read_text().splitlines() if line] == texts
    model = teratron.LanguageModel(folder, device="cpu")
    assert model.generate(["1 2 3"], max_new_tokens=5, greedy=True) == texts[:1] and model.generate([]) == []
    assert len(model.generate(["1"], num_return_sequences=2, seed=3, max_new_tokens=2)) == 2
    logits = model.logits(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3, 201)
    assert texts[0].split()[3] == str(int(logits[0, -1].argmax()))
    with pytest.raises(teratron.DataError, match="vocabulary"):
        model.logits(torch.tensor([[500]]))
    with pytest.raises(teratron.ConfigError, match="max"):
        model.generate(["1"], max_new_token=5)


def test_conversions(saved, tmp_path):
    folder, weights, _ = saved
    teratron.convert(folder, tmp_path / "hf", to="hf")
    teratron.convert(tmp_path / "hf", tmp_path / "back", to="teratron")
    assert torch.equal(teratron.Checkpoint(tmp_path / "back")[FC1], weights[FC1])
    with pytest.raises(ValueError, match="onnx"):
        teratron.convert(folder, tmp_path / "x", to="onnx")
    with pytest.raises(teratron.CheckpointError):
        teratron.convert(tmp_path / "absent", tmp_path / "x", to="hf", source_format="teratron")


def test_parameters_are_views():
    with teratron.Trainer(C()) as trainer:
        before = trainer.evaluate(iters=1).loss
        for name, tensor in trainer.parameters():
            if name == FC1:
                tensor.zero_()
        assert trainer.evaluate(iters=1).loss != before
        assert dict(trainer.state_dict("teratron"))[FC1].count_nonzero() == 0
