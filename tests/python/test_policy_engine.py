"""examples/policy_engine.py: a worker of a framework, with rollouts on the weights that it trains."""
import importlib.util
from pathlib import Path

import pytest
import teratron
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("policy_engine", ROOT / "examples/policy_engine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rollouts_are_of_the_weights_that_train(example, capsys):
    assert len((ROOT / "examples/policy_engine.py").read_text().splitlines()) <= 500
    config = example.config_of(tp=2, pp=2, world_size=4)
    ranks = teratron.run_ranks(4, lambda world: example.train(config, 20, world)[0])
    assert [step[1] is None for step in (rank[0] for rank in ranks)] == [True, True, False, False]
    history = ranks[2]
    assert len(history) == 20
    for reward, mean, most in history:
        assert mean <= 1e-6 and most <= 1e-5, history
    first, last = (sum(step[0] for step in part) / 5 for part in (history[:5], history[-5:]))
    assert last > first + 0.1, history
    assert capsys.readouterr().out.count("reward") == 20


def test_the_phases_are_apart(example, tmp_path):
    """Data-parallel ranks, the halves of a step, evaluation, off- and reload, checkpoints, weights by name."""
    def work(world):
        config = example.config_of(world_size=2, micro_batch_size=2, global_batch_size=8)
        engine = example.PolicyEngine(config, world)
        engine.initialize()
        assert (engine.get_data_parallel_rank(), engine.get_data_parallel_size()) == (world.rank, 2) and engine.is_mp_src_rank_with_outputs()
        data = example.with_advantages(engine.rollout([[1, 2], [3]], answers=4, max_new_tokens=6, seed=1), group=4)
        mine = engine.mine(data)
        assert len(data) == 8 and len(mine) == 4 and data.ids[0][:2] == [1, 2] and data.prompt_lengths[-1] == 1
        looked = engine.infer_batch(mine)["log_probs"]
        with engine.train_mode():
            output = engine.forward_backward_batch(mine, example.policy_loss)
            assert len(output["metrics"]["loss"]) == 2 and engine.trainer.iteration == 0
            assert engine.optimizer_step() > 0 and engine.lr_scheduler_step() == pytest.approx(3e-3)
        for one, other, sampled in zip(looked, output["log_probs"], mine.values["sampled"]):
            torch.testing.assert_close(one, other)
            torch.testing.assert_close(one.double(), sampled, atol=1e-5, rtol=0)
        after = engine.infer_batch(mine)["log_probs"]
        assert any((one - other).abs().max() > 1e-4 for one, other in zip(looked, after))
        weights = {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()}
        assert "transformer.h.0.attn.c_attn.weight" in weights and len(weights) == 28
        engine.to("cpu")
        engine.to("device")
        again = engine.infer_batch(mine)["log_probs"]
        assert all(torch.equal(one, other) for one, other in zip(after, again)) and engine.trainer.iteration == 1
        engine.save_checkpoint(str(tmp_path))
        engine.train_batch(mine, example.policy_loss)
        engine.load_checkpoint(str(tmp_path))
        assert all(torch.equal(one, other) for one, other in zip(after, engine.infer_batch(mine)["log_probs"]))
        with pytest.raises(ValueError, match="rows"):
            engine.infer_batch(data)
        with pytest.raises(FileNotFoundError):
            engine.load_checkpoint(str(tmp_path / "none"))
        with engine.eval_mode():
            engine.forward_backward_batch(mine, example.policy_loss)
        with pytest.raises(RuntimeError, match="gradients"):
            engine.optimizer_step()

    teratron.run_ranks(2, work)
    with pytest.raises(KeyError, match="teratron"):
        example.EngineRegistry.new("language_model", "other")
