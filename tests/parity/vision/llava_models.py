"""Random LLaVAs of transformers, and their tensors under the program's names."""

import torch
import transformers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, MistralConfig, Qwen2Config, SiglipVisionConfig

VOCABULARY, IMAGE, SIZE, PATCH = 101, 100, 30, 7  # 4 x 4 patches: what is left of an image is not read

CLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=SIZE, patch_size=PATCH)
SIGLIP = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3, image_size=28, patch_size=7)
TEXT = dict(hidden_size=40, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCABULARY, max_position_embeddings=96, bos_token_id=1, eos_token_id=2)


def clip(**options):
    return CLIPVisionConfig(**{**CLIP, **options})


def siglip(**options):
    return SiglipVisionConfig(**{**SIGLIP, **options})


# name: vision_config, text_config, keys of the whole
CASES = {
    "clip-llama": lambda: (clip(), LlamaConfig(**TEXT), {}),
    "clip-qwen2": lambda: (clip(hidden_act="gelu", layer_norm_eps=1e-4), Qwen2Config(**TEXT),
                           dict(vision_feature_layer=[-2, 1], multimodal_projector_bias=False)),
    "clip-mistral": lambda: (clip(num_hidden_layers=2), MistralConfig(**TEXT, sliding_window=20),
                             dict(vision_feature_select_strategy="full", vision_feature_layer=-1)),
    "clip-first": lambda: (clip(), LlamaConfig(**{**TEXT, "num_key_value_heads": 4}, head_dim=12),
                           dict(vision_feature_layer=1, projector_hidden_act="gelu_pytorch_tanh")),
    "siglip-qwen2": lambda: (siglip(), Qwen2Config(**TEXT, tie_word_embeddings=True),
                             dict(vision_feature_layer=-1, vision_feature_select_strategy="full")),
    "siglip-llama": lambda: (siglip(vision_use_head=False, hidden_act="quick_gelu"),
                             LlamaConfig(**TEXT, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4}),
                             dict(vision_feature_layer=[0, 2, 3], vision_feature_select_strategy="full")),
    "siglip-default": lambda: (siglip(), LlamaConfig(**TEXT), {}),
}


def random_model(name, seed=0):
    vision, text, whole = CASES[name]()
    torch.manual_seed(seed + len(name))
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **whole)
    model = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():  # norms and biases that start as ones and zeros would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def rows_of(config):
    """Of an image, in the text."""
    vision = config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model")
    return patches - (config.vision_feature_select_strategy == "default")


def random_inputs(config, images, seed=0, padding=0):
    """Rows of text with so many images each, and pixel values; every row is as long as the longest."""
    generator = torch.Generator().manual_seed(seed)
    rows, lines = rows_of(config), []
    for count in images:
        parts = [torch.randint(0, IMAGE, (int(torch.randint(1, 6, (), generator=generator)),), generator=generator)]
        for _ in range(count):
            parts += [torch.full((rows,), IMAGE), torch.randint(0, IMAGE, (3,), generator=generator)]
        lines.append(torch.cat(parts))
    length = max(map(len, lines)) + padding
    tokens = torch.stack([torch.nn.functional.pad(line, (0, length - len(line)), value=3) for line in lines])
    mask = torch.stack([(torch.arange(length) < len(line)).long() for line in lines])
    side = config.vision_config.image_size
    return {"tokens": tokens, "attention_mask": mask,
            "pixel_values": torch.randn(sum(images), 3, side, side, generator=generator)}


def with_groups(q, k, v, groups):
    """Queries, keys and values of each group, one group after another."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in (q, k, v)], 1).flatten(0, 1)


def renamed(tensors, config):
    """Tensors of LlavaForConditionalGeneration, weights or gradients, as the program names and arranges them."""
    own = {}

    def take(theirs, ours):
        for end in ("weight", "bias"):
            if f"{theirs}.{end}" in tensors:
                own[f"{ours}.{end}"] = tensors[f"{theirs}.{end}"]

    def take_qkv(theirs, ours, groups):
        for end in ("weight", "bias"):
            if f"{theirs}.q_proj.{end}" in tensors:
                own[f"{ours}.linear_qkv.{end}"] = with_groups(*(tensors[f"{theirs}.{one}_proj.{end}"] for one in "qkv"), groups)

    tower, vision, text = "model.vision_tower", config.vision_config, config.text_config
    if f"{tower}.embeddings.class_embedding" in tensors:
        own["vision_model.class_token"] = tensors[f"{tower}.embeddings.class_embedding"]
    take(f"{tower}.embeddings.patch_embedding", "vision_model.conv1")
    take(f"{tower}.embeddings.position_embedding", "vision_model.position_embeddings")
    take(f"{tower}.pre_layrnorm", "vision_model.ln_pre")
    take(f"{tower}.post_layernorm", "vision_model.ln_post")
    for name, tensor in tensors.items():
        if name.startswith(f"{tower}.head."):
            own["vision_model." + name.removeprefix(f"{tower}.")] = tensor
    for layer in range(vision.num_hidden_layers):
        theirs, ours = f"{tower}.encoder.layers.{layer}", f"vision_model.decoder.layers.{layer}"
        take(f"{theirs}.layer_norm1", f"{ours}.input_layernorm")
        take_qkv(f"{theirs}.self_attn", f"{ours}.self_attention", vision.num_attention_heads)
        take(f"{theirs}.self_attn.out_proj", f"{ours}.self_attention.linear_proj")
        take(f"{theirs}.layer_norm2", f"{ours}.pre_mlp_layernorm")
        take(f"{theirs}.mlp.fc1", f"{ours}.mlp.linear_fc1")
        take(f"{theirs}.mlp.fc2", f"{ours}.mlp.linear_fc2")
    for number in (1, 2):
        take(f"model.multi_modal_projector.linear_{number}", f"vision_projection.encoder.linear_fc{number}")
    take("model.language_model.embed_tokens", "language_model.embedding.word_embeddings")
    for layer in range(text.num_hidden_layers):
        theirs, ours = f"model.language_model.layers.{layer}", f"language_model.decoder.layers.{layer}"
        take(f"{theirs}.input_layernorm", f"{ours}.input_layernorm")
        take_qkv(f"{theirs}.self_attn", f"{ours}.self_attention", text.num_key_value_heads)
        take(f"{theirs}.self_attn.o_proj", f"{ours}.self_attention.linear_proj")
        take(f"{theirs}.post_attention_layernorm", f"{ours}.pre_mlp_layernorm")
        if f"{theirs}.mlp.gate_proj.weight" in tensors:
            own[f"{ours}.mlp.linear_fc1.weight"] = torch.cat([tensors[f"{theirs}.mlp.{one}_proj.weight"] for one in ("gate", "up")])
        take(f"{theirs}.mlp.down_proj", f"{ours}.mlp.linear_fc2")
    take("model.language_model.norm", "language_model.decoder.final_layernorm")
    if not config.tie_word_embeddings:
        take("lm_head", "language_model.output_layer")
    return own
