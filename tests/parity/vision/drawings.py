"""Drawings of a shape in a colour, what they are called, and a small LLaVA with a tokenizer and a processor."""

import json

import torch
from llava_models import random_model
from PIL import Image, ImageDraw
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

COLOURS = {"red": (220, 30, 30), "green": (30, 170, 40), "blue": (40, 60, 220), "yellow": (230, 210, 40)}
SHAPES = ("ring", "square", "bar")
SIZE = 32


def draw(path, number):
    """Number `number` of an endless series; returns its name."""
    generator = torch.Generator().manual_seed(number)

    def pick(count):
        return int(torch.randint(count, (), generator=generator))
    colour, shape = list(COLOURS)[pick(len(COLOURS))], SHAPES[pick(len(SHAPES))]
    shade = pick(60)
    image = Image.new("RGB", (SIZE + pick(9), SIZE + pick(9)), (shade, shade, shade))
    x, y, side = 2 + pick(6), 2 + pick(6), 18 + pick(6)
    brush, fill = ImageDraw.Draw(image), COLOURS[colour]
    if shape == "ring":
        brush.ellipse((x, y, x + side, y + side), outline=fill, width=4)
    elif shape == "square":
        brush.rectangle((x, y, x + side, y + side), fill=fill)
    else:
        brush.rectangle((x, y + side // 3, x + side, y + side // 2), fill=fill)
    image.save(path)
    return f"{colour} {shape}"


def tokenizer(folder):
    """Bytes, with tokens for begin, end, padding and image."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<pad>", "<image>")])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}))
    return made


PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "do_resize": True, "size": {"shortest_edge": SIZE}, "do_center_crop": True,
             "crop_size": {"height": SIZE, "width": SIZE}, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True,
             "resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}


def model_folder(folder):
    made = tokenizer(folder)
    torch.manual_seed(3)
    vision = CLIPVisionConfig(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, image_size=SIZE, patch_size=8)
    text = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       vocab_size=264, max_position_embeddings=128, bos_token_id=256, eos_token_id=257, pad_token_id=258)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=made.token_to_id("<image>"))
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def conversation(name):
    return [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": name}]


def write_lines(path, folder, numbers, text_every=0):
    """Lines in LLaVA's form; every so many one without an image."""
    lines = []
    for i, number in enumerate(numbers):
        if text_every and i % text_every == 0:
            lines.append({"conversations": [{"from": "human", "value": "Say a colour."}, {"from": "gpt", "value": f"red {number % 7}"}]})
            continue
        name = draw(folder / f"{number}.png", number)
        lines.append({"id": str(number), "image": f"{number}.png", "conversations": conversation(name)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


__all__ = ["draw", "model_folder", "random_model", "tokenizer", "write_lines"]
