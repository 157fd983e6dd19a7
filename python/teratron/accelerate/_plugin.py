"""MegatronLMPlugin: settings by Accelerate's names."""
import os
from dataclasses import dataclass, fields
from typing import Any

# Fields that are settings, by their names here.
_SETTINGS = {
    "tp_degree": "tensor_model_parallel_size",
    "pp_degree": "pipeline_model_parallel_size",
    "gradient_clipping": "clip_grad",
    "sequence_parallelism": "sequence_parallel",
    **{name: name for name in (
        "attention_dropout", "attention_softmax_in_fp32", "calculate_per_token_loss", "context_parallel_size",
        "decoder_last_pipeline_num_layers", "decoder_seq_length", "encoder_seq_length", "end_weight_decay", "eod_mask_loss",
        "eval_interval", "eval_iters", "expert_model_parallel_size", "expert_tensor_parallel_size", "hidden_dropout",
        "lr_decay_iters", "lr_decay_samples", "lr_decay_style", "lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples", "min_lr",
        "no_load_optim", "no_save_optim", "num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_split_rank",
        "recompute_activations", "recompute_granularity", "recompute_method", "recompute_num_layers", "return_logits", "seq_length",
        "start_weight_decay", "tensorboard_dir", "train_iters", "train_samples", "use_distributed_optimizer",
        "use_rotary_position_embeddings", "weight_decay_incr_style")},
}
_NOT_BUILT = ("custom_model_provider_function", "custom_prepare_model_function", "custom_megatron_datasets_provider_function",
              "use_custom_fsdp", "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
_DEFAULTS = {"tp_degree": 1, "pp_degree": 1, "num_micro_batches": 1, "gradient_clipping": 1.0, "recompute_activations": False,
             "sequence_parallelism": False, "use_distributed_optimizer": False}


def _from_environment(name, default):
    text = os.environ.get("MEGATRON_LM_" + name.upper())
    if text is None or text in ("", "None"):
        return default
    return text.lower() in ("1", "true", "yes", "on") if isinstance(default, bool) else type(default)(text)


@dataclass
class MegatronLMPlugin:
    """Settings of a training by Accelerate's names. None: the environment's MEGATRON_LM_NAME, else the default.

    After Accelerator.prepare() it also has micro_batch_size, data_parallel_size and global_batch_size.

    Raises:
        ConfigError: for a field that is not built here (of model providers, FSDP and CPU offload of the optimizer).

    Example:
        plugin = MegatronLMPlugin(tp_degree=2, pp_degree=2, num_micro_batches=2, gradient_clipping=1.0)
    """

    tp_degree: int | None = None
    pp_degree: int | None = None
    num_micro_batches: int | None = None
    gradient_clipping: float | None = None
    sequence_parallelism: bool | None = None
    recompute_activations: bool | None = None
    use_distributed_optimizer: bool | None = None
    pipeline_model_parallel_split_rank: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    is_train_batch_min: bool = True
    train_iters: int | None = None
    train_samples: int | None = None
    weight_decay_incr_style: str = "constant"
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    lr_decay_style: str = "linear"
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    min_lr: float = 0
    consumed_samples: list | None = None
    no_wd_decay_cond: Any = None
    scale_lr_cond: Any = None
    lr_mult: float = 1.0
    megatron_dataset_flag: bool = False
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    tensorboard_dir: str | None = None
    set_all_logging_options: bool = False
    eval_iters: int = 100
    eval_interval: int = 1000
    return_logits: bool = False
    custom_train_step_class: Any = None
    custom_train_step_kwargs: dict | None = None
    custom_get_batch_function: Any = None
    custom_loss_function: Any = None
    custom_model_provider_function: Any = None
    custom_prepare_model_function: Any = None
    custom_megatron_datasets_provider_function: Any = None
    other_megatron_args: dict | None = None
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    context_parallel_size: int | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    attention_softmax_in_fp32: bool | None = None
    calculate_per_token_loss: bool | None = None
    use_rotary_position_embeddings: bool | None = None
    no_load_optim: bool | None = None
    no_save_optim: bool | None = None
    eod_mask_loss: bool | None = None
    decoder_last_pipeline_num_layers: int | None = None
    use_custom_fsdp: bool | None = None
    optimizer_cpu_offload: bool | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    use_precision_aware_optimizer: bool | None = None

    def __post_init__(self):
        from .._errors import ConfigError
        for name, default in _DEFAULTS.items():
            if getattr(self, name) is None:
                setattr(self, name, _from_environment(name, default))
        problems = [(f"{name} is not built", f"MegatronLMPlugin({name}=)", "Leave it out") for name in _NOT_BUILT if getattr(self, name)]
        if problems:
            raise ConfigError("; ".join(f"{where}: {what}. {fix}" for what, where, fix in problems), problems)
        self.consumed_samples = (list(self.consumed_samples or []) + [0, 0, 0])[:3]

    def settings(self):
        """The fields that are settings, by Megatron-LM's names; other_megatron_args goes before all."""
        values = {_SETTINGS[field.name]: getattr(self, field.name) for field in fields(self) if field.name in _SETTINGS}
        if self.set_all_logging_options:
            values.update(log_params_norm=True, log_num_zeros_in_grad=True)
        return {**{name: value for name, value in values.items() if value is not None}, **(self.other_megatron_args or {})}
