"""Small configurations of transformers' causal language models, by the name that tests have for them."""

import transformers

LLAMA = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             vocab_size=101, max_position_embeddings=64, tie_word_embeddings=False)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 16}
NEOX = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=101,
            max_position_embeddings=64)
MAMBA2 = dict(hidden_size=48, num_heads=12, head_dim=8, n_groups=3, state_size=16, num_hidden_layers=2, vocab_size=101, chunk_size=16)
NEMOTRON_H = dict(hidden_size=48, vocab_size=101, mamba_num_heads=6, mamba_head_dim=8, n_groups=2, ssm_state_size=16, chunk_size=16,
                  num_attention_heads=6, num_key_value_heads=2, head_dim=16, intermediate_size=80, max_position_embeddings=64)
NEMOTRON_MOE = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40,
                    routed_scaling_factor=2.5)
DELTA = dict(vocab_size=101, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=64, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=12)
FALCON_H1 = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, vocab_size=101,
                 mamba_d_ssm=64, mamba_n_heads=8, mamba_d_state=16, mamba_n_groups=2, mamba_chunk_size=16, max_position_embeddings=64,
                 pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
FALCON_FACTORS = dict(embedding_multiplier=5.6, lm_head_multiplier=0.04, key_multiplier=0.4, attention_in_multiplier=0.9,
                      attention_out_multiplier=0.7, ssm_in_multiplier=1.25, ssm_out_multiplier=0.35,
                      ssm_multipliers=[0.35, 0.25, 0.17, 0.5, 0.36], mlp_multipliers=[0.88, 0.6])
GRANITE = dict(hidden_size=48, intermediate_size=24, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, vocab_size=101,
               mamba_n_heads=12, mamba_d_state=16, mamba_n_groups=3, mamba_chunk_size=16, max_position_embeddings=64,
               shared_intermediate_size=40, layer_types=["linear_attention", "full_attention", "linear_attention"],
               embedding_multiplier=12, logits_scaling=6, residual_multiplier=0.22, attention_multiplier=0.15)
OLMO_HYBRID = dict(vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                   max_position_embeddings=64, pad_token_id=None, eos_token_id=None)
LATENT = dict(vocab_size=101, hidden_size=48, intermediate_size=80, moe_intermediate_size=20, num_hidden_layers=3, num_attention_heads=6,
              num_key_value_heads=6, n_routed_experts=8, num_experts_per_tok=3, kv_lora_rank=14, qk_nope_head_dim=10, qk_rope_head_dim=6,
              v_head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-2, pad_token_id=None, eos_token_id=None)
LATENT_YARN = {**YARN, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.1, "beta_fast": 3.0, "beta_slow": 0.5}
GLM_EXPERTS = dict(moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1,
                   pad_token_id=None, eos_token_id=None)
LLAMA4 = dict(head_dim=16, intermediate_size_mlp=56, num_local_experts=4, attention_chunk_size=7, floor_scale=5, attn_scale=0.4,
              bos_token_id=None, eos_token_id=None)
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=101, n_positions=64),
    "gpt2-untied": lambda: transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, n_inner=100, vocab_size=101,
                                                   n_positions=64, tie_word_embeddings=False),
    "llama2": lambda: transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": 6}),
    "llama-gqa": lambda: transformers.LlamaConfig(**LLAMA, rope_theta=500000.0),
    "llama-biases": lambda: transformers.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
    "llama-attention-biases": lambda: transformers.LlamaConfig(**LLAMA, attention_bias=True),
    "qwen3-attention-biases": lambda: transformers.Qwen3Config(**LLAMA, head_dim=16, attention_bias=True),
    "llama3-rope": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA3_ROPE),
    "linear-rope": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "yarn": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters={**YARN, "factor": 4.0}),
    "yarn-mscale": lambda: transformers.Qwen3Config(**LLAMA, head_dim=16, rope_parameters={
        **YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 3.0, "beta_slow": 0.5}),
    "yarn-attention-factor": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters={
        **YARN, "factor": 2.5, "attention_factor": 1.3, "truncate": False}),
    "yarn-partial": lambda: transformers.GPTNeoXConfig(**NEOX, rope_parameters={
        **YARN, "factor": 4.0, "partial_rotary_factor": 0.5}),
    "mistral": lambda: transformers.MistralConfig(**LLAMA, sliding_window=None, head_dim=8),
    "mistral-window": lambda: transformers.MistralConfig(**LLAMA, sliding_window=9),
    "qwen2": lambda: transformers.Qwen2Config(**{**LLAMA, "tie_word_embeddings": True}),
    "qwen2.5-window": lambda: transformers.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=5,
                                                       max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA, head_dim=16),
    "gemma": lambda: transformers.GemmaConfig(**{**LLAMA, "tie_word_embeddings": True}, head_dim=16),
    "olmo2": lambda: transformers.Olmo2Config(**LLAMA),
    "llama3-positions": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters={
        **LLAMA3_ROPE, "original_max_position_embeddings": 32}),
    "bloom": lambda: transformers.BloomConfig(hidden_size=48, n_layer=2, n_head=6, vocab_size=101),
    "bloom-post-norm-residual": lambda: transformers.BloomConfig(
        hidden_size=48, n_layer=2, n_head=4, vocab_size=101, apply_residual_connection_post_layernorm=True),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**NEOX),
    "gpt_neox-sequential": lambda: transformers.GPTNeoXConfig(
        **NEOX, use_parallel_residual=False, hidden_act="gelu_new", rope_parameters={
            "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}),
    "opt": lambda: transformers.OPTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, ffn_dim=100,
                                          vocab_size=101, max_position_embeddings=64),
    "mixtral": lambda: transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **{**LLAMA, "num_hidden_layers": 3}, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, norm_topk_prob=False, mlp_only_layers=[1]),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **{**LLAMA, "num_hidden_layers": 4}, head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24,
        norm_topk_prob=True, decoder_sparse_step=2),
    "mamba2": lambda: transformers.Mamba2Config(**MAMBA2),
    "mamba2-limits": lambda: transformers.Mamba2Config(**MAMBA2, time_step_limit=(0.1, 0.8), use_conv_bias=False, use_bias=True,
                                                       tie_word_embeddings=True, layer_norm_epsilon=1e-3),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **NEMOTRON_H, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]),
    "nemotron_h-moe": lambda: transformers.NemotronHConfig(
        **NEMOTRON_H, **NEMOTRON_MOE, n_group=4, topk_group=2, layers_block_type=["linear_attention", "moe", "full_attention", "moe", "mlp"]),
    "bamba": lambda: transformers.BambaConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, vocab_size=101,
        mamba_n_heads=12, mamba_d_state=16, mamba_n_groups=3, mamba_chunk_size=16, attn_layer_indices=[1], max_position_embeddings=64,
        time_step_limit=(0.05, 0.9)),
    "nemotron_h-latent": lambda: transformers.NemotronHConfig(
        **NEMOTRON_H, **NEMOTRON_MOE, moe_latent_size=20, layers_block_type=["full_attention", "moe", "linear_attention"]),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **DELTA, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=40, intermediate_size=80,
        layer_types=["linear_attention", "full_attention", "linear_attention"], mlp_only_layers=[1], rms_norm_eps=1e-5),
    "qwen3_5_text": lambda: transformers.Qwen3_5TextConfig(
        **DELTA, intermediate_size=80, tie_word_embeddings=True, layer_types=["linear_attention"] * 2 + ["full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}),
    "falcon_h1": lambda: transformers.FalconH1Config(**FALCON_H1, **FALCON_FACTORS),
    "falcon_h1-norm": lambda: transformers.FalconH1Config(
        **{**FALCON_H1, "mamba_d_ssm": None}, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True, projectors_bias=True,
        attention_bias=True, time_step_limit=(0.05, 0.9), tie_word_embeddings=True),
    "falcon_h1-after": lambda: transformers.FalconH1Config(**FALCON_H1, **FALCON_FACTORS, mamba_rms_norm=True, mamba_conv_bias=False,
                                                           attention_bias=True, mlp_bias=True),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(**GRANITE, num_local_experts=4, num_experts_per_tok=2),
    "granitemoehybrid-dense": lambda: transformers.GraniteMoeHybridConfig(
        **GRANITE, num_local_experts=0, position_embedding_type="rope", tie_word_embeddings=True, attention_bias=True),
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(**OLMO_HYBRID, rope_parameters={"rope_type": "default", "rope_theta": None}),
    "olmo_hybrid-rope": lambda: transformers.OlmoHybridConfig(
        **OLMO_HYBRID, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
        linear_allow_neg_eigval=False, layer_types=["full_attention"] + ["linear_attention"] * 3),
    "gemma2": lambda: transformers.Gemma2Config(
        **{**LLAMA, "tie_word_embeddings": True}, head_dim=12, query_pre_attn_scalar=20, sliding_window=5, attn_logit_softcapping=2.0,
        final_logit_softcapping=1.5),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**LLAMA, "tie_word_embeddings": True, "num_hidden_layers": 3}, head_dim=16, query_pre_attn_scalar=24, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **LLAMA, head_dim=16, sliding_window=5, num_local_experts=6, num_experts_per_tok=2, swiglu_limit=0.7, swiglu_alpha=1.3,
        rope_parameters={**YARN, "factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}),
    "phi3": lambda: transformers.Phi3Config(
        **LLAMA, sliding_window=7, pad_token_id=0, original_max_position_embeddings=64, rope_parameters={
            "rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.5]}),
    "olmoe": lambda: transformers.OlmoeConfig(**LLAMA, num_experts=6, num_experts_per_tok=3),
    "olmo3": lambda: transformers.Olmo3Config(
        **{**LLAMA, "num_hidden_layers": 4}, sliding_window=5, rope_parameters={
            "full_attention": {**YARN, "factor": 4.0, "beta_fast": 8.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "granite": lambda: transformers.GraniteConfig(**LLAMA, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6,
                                                  logits_scaling=4.0),
    "granitemoe": lambda: transformers.GraniteMoeConfig(**LLAMA, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6,
                                                        logits_scaling=4.0, num_local_experts=6, num_experts_per_tok=3),
    "smollm3": lambda: transformers.SmolLM3Config(**LLAMA, no_rope_layer_interval=2, pad_token_id=0),
    "seed_oss": lambda: transformers.SeedOssConfig(**LLAMA, head_dim=16),
    "glm4": lambda: transformers.Glm4Config(**LLAMA, head_dim=16, pad_token_id=0),
    "starcoder2": lambda: transformers.Starcoder2Config(**LLAMA, sliding_window=5),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **LATENT, q_lora_rank=18, n_group=4, topk_group=2, first_k_dense_replace=1, n_shared_experts=2, num_mtp_layers=0),
    "deepseek_v3-yarn": lambda: transformers.DeepseekV3Config(
        **LATENT, q_lora_rank=None, n_group=1, topk_group=1, first_k_dense_replace=2, n_shared_experts=1, num_mtp_layers=0,
        rope_interleave=False, norm_topk_prob=False, attention_bias=True, rope_parameters=LATENT_YARN),
    "deepseek_v2": lambda: transformers.DeepseekV2Config(
        **LATENT, q_lora_rank=None, n_shared_experts=1, routed_scaling_factor=1.5,
        rope_parameters={**LATENT_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
    "deepseek_v2-groups": lambda: transformers.DeepseekV2Config(
        **LATENT, q_lora_rank=18, n_shared_experts=2, routed_scaling_factor=3.0, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        first_k_dense_replace=1),
    "glm4_moe_lite": lambda: transformers.Glm4MoeLiteConfig(
        **LATENT, q_lora_rank=18, n_shared_experts=1, mlp_layer_types=["sparse", "dense", "sparse"]),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **{**LLAMA, "num_hidden_layers": 3}, **GLM_EXPERTS, head_dim=16, attention_bias=True, use_qk_norm=True, n_group=4, topk_group=2,
        routed_scaling_factor=1.7, num_mtp_layers=0),
    "glm4_moe-plain": lambda: transformers.Glm4MoeConfig(
        **{**LLAMA, "num_hidden_layers": 2}, **{**GLM_EXPERTS, "num_experts_per_tok": 1}, num_mtp_layers=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.25}),
    "minimax_m2": lambda: transformers.MiniMaxM2Config(
        **LLAMA, head_dim=16, num_local_experts=8, num_experts_per_tok=3, rotary_dim=8, pad_token_id=None, bos_token_id=None, eos_token_id=None),
    "minimax_m2-one": lambda: transformers.MiniMaxM2Config(
        **LLAMA, head_dim=16, num_local_experts=4, num_experts_per_tok=1, bos_token_id=None, eos_token_id=None),
    "ernie4_5_moe": lambda: transformers.Ernie4_5_MoeConfig(
        **{**LLAMA, "num_hidden_layers": 4, "tie_word_embeddings": True}, moe_intermediate_size=24, moe_k=3, moe_num_experts=8,
        moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=2, moe_norm_min=0.3, pad_token_id=None),
    "ernie4_5_moe-alone": lambda: transformers.Ernie4_5_MoeConfig(
        **{**LLAMA, "num_hidden_layers": 3}, moe_intermediate_size=24, moe_k=2, moe_num_experts=4, moe_num_shared_experts=0,
        moe_layer_start_index=1, moe_layer_end_index=1, pad_token_id=None),
    "cohere": lambda: transformers.CohereConfig(**{**LLAMA, "tie_word_embeddings": True}, logit_scale=0.3, layer_norm_eps=1e-3, pad_token_id=None,
                                                bos_token_id=None, eos_token_id=None),
    "cohere-qk-norm": lambda: transformers.CohereConfig(**{**LLAMA, "tie_word_embeddings": False}, use_qk_norm=True, attention_bias=True,
                                                        pad_token_id=None, bos_token_id=None, eos_token_id=None),
    "cohere2": lambda: transformers.Cohere2Config(**{**LLAMA, "tie_word_embeddings": True, "num_hidden_layers": 5}, sliding_window=5,
                                                  logit_scale=0.4, pad_token_id=None, bos_token_id=None, eos_token_id=None),
    "nanochat": lambda: transformers.NanoChatConfig(**LLAMA, final_logit_softcapping=1.5, rms_norm_eps=1e-3, pad_token_id=None,
                                                    bos_token_id=None, eos_token_id=None),
    "llama4_text": lambda: transformers.Llama4TextConfig(
        **{**LLAMA, "num_hidden_layers": 4}, **LLAMA4, num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=3),
    "llama4_text-two": lambda: transformers.Llama4TextConfig(
        **{**LLAMA, "num_hidden_layers": 3}, **LLAMA4, num_experts_per_tok=2, use_qk_norm=False, attention_bias=True,
        no_rope_layers=[1, 0, 1], rope_parameters={"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
                                                   "high_freq_factor": 1.0, "original_max_position_embeddings": 16}),
    "gpt2-erf": lambda: transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=101, n_positions=64,
                                                activation_function="gelu"),
}
