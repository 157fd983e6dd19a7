"""Settings."""
import pickle

import pytest
import teratron
from small import SIZES, C


def test_settings_are_attributes():
    config = C(swiglu=True, mock_data=False)
    assert config.hidden_size == 64 and config.swiglu is True and config.mock_data is False
    assert config.ffn_hidden_size == 256 or config.ffn_hidden_size > 0
    assert config.world_size == 1 and config.program == "gpt" and config.data_parallel_size == 1
    assert config.to_dict()["lr"] == 1e-3 and "--swiglu" in config.flags() and "--mock-data" not in config.flags()
    assert config.replace(hidden_size=128).hidden_size == 128
    with pytest.raises(AttributeError, match="hidden_sise"):
        config.hidden_sise


def test_values_keep_their_digits_and_lists_are_several():
    config = C(lr=1 / 3 * 1e-3, split="90,5,5", adam_beta1=0.85, data_path=["1", "a", "2", "b"], mock_data=False)
    assert config.lr == 1 / 3 * 1e-3 and config.adam_beta1 == 0.85 and config.data_path == ["1", "a", "2", "b"]
    assert C(add_bias_linear=False).add_bias_linear is False


def test_a_file_and_fields_over_it(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in SIZES.items() if name != "mock_data"))
    config = teratron.Config.from_yaml(file, hidden_size=128)
    assert (config.num_layers, config.hidden_size) == (2, 128)


def test_every_problem_is_named():
    with pytest.raises(teratron.ConfigError) as caught:
        teratron.Config(num_layers=2, hidden_size=64, num_attention_heads=5, hidden_dropout=7, mock_data=True)
    error = caught.value
    assert isinstance(error, teratron.Error) and error.exit_code == 2
    assert len(error.problems) == 2 and all(len(problem) == 3 for problem in error.problems)
    for name in ("num_attention_heads = 5", "hidden_dropout = 7"):
        assert name in str(error) and any(name in what for what, where, fix in error.problems)
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_a_misspelled_setting_names_the_right_one():
    with pytest.raises(teratron.ConfigError, match="^num_layer: .*num_layers"):
        teratron.Config(num_layer=2)


def test_data_are_asked_for_by_the_trainer():
    config = C(mock_data=False)
    with pytest.raises(teratron.ConfigError, match="no dataset is given"):
        teratron.Trainer(config)
    sizes = {name: value for name, value in SIZES.items() if name not in ("lr", "mock_data")}
    with pytest.raises(teratron.ConfigError, match="lr is not set"):
        teratron.Trainer(teratron.Config(**sizes), dataset={"train": [{}]})


def test_the_world_must_have_the_ranks():
    with pytest.raises(teratron.ConfigError, match="2 ranks, and the world has 1"):
        teratron.Trainer(C(world_size=2, tensor_model_parallel_size=2))
    with pytest.raises(TypeError, match="Config"):
        teratron.Trainer(SIZES)


def test_plan_is_what_a_training_holds():
    stages = teratron.plan(C(world_size=2, pipeline_model_parallel_size=2), gpu_memory=80)
    assert [stage["stage"] for stage in stages] == [0, 1] and all(stage["fits"] for stage in stages)
    with teratron.Trainer(C()) as trainer:
        held = sum(tensor.numel() for _, tensor in trainer.parameters())
    assert teratron.plan(C())[0]["parameters"] == held
    with pytest.raises(teratron.ConfigError, match="micro_batch_size"):
        teratron.plan(teratron.Config(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=64,
                                      max_position_embeddings=64, tokenizer_type="NullTokenizer", vocab_size=200))
