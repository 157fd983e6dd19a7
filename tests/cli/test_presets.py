"""The architectures known by name have as many parameters as the published models."""

import re

from program import each, needs_binary, teratron

pytestmark = needs_binary

# Rows of the published word embedding, and parameters of the published weights.
PUBLISHED = {
    "gpt2": (50257, 124439808), "gpt2-medium": (50257, 354823168), "gpt2-large": (50257, 774030080),
    "gpt2-xl": (50257, 1557611200), "gpt-345m": (50257, 354823168),
    "llama2-7b": (32000, 6738415616), "llama2-13b": (32000, 13015864320), "llama2-70b": (32000, 68976648192),
    "llama3-8b": (128256, 8030261248), "llama3-70b": (128256, 70553706496),
    "llama3.1-8b": (128256, 8030261248), "llama3.1-70b": (128256, 70553706496),
    "llama3.2-1b": (128256, 1235814400), "llama3.2-3b": (128256, 3212749824), "mistral-7b": (32000, 7241732096),
    "qwen2.5-0.5b": (151936, 494032768), "qwen2.5-1.5b": (151936, 1543714304),
    "qwen2.5-3b": (151936, 3085938688), "qwen2.5-7b": (152064, 7615616512),
    "qwen3-0.6b": (151936, 596049920), "qwen3-1.7b": (151936, 1720574976),
    "qwen3-4b": (151936, 4022468096), "qwen3-8b": (151936, 8190735360),
    "mamba2-1.3b": (50288, 1343757312), "nemotron-nano-4b": (131072, 3973556832), "mixtral-8x7b": (32000, 46702792704), "qwen3-30b-a3b": (151936, 30532122624),
    "qwen3-next-80b-a3b": (151936, 79674391296),
    "gemma2-2b": (256000, 2614341888), "gemma2-9b": (256000, 9241705984), "gemma2-27b": (256000, 27227128320),
    "gemma3-1b": (262144, 999885952), "gemma3-4b": (262208, 3880263168), "gpt-oss-20b": (201088, 20914757184),
    "gpt-oss-120b": (201088, 116829156672), "phi3-mini-4k": (32064, 3821079552), "phi4": (100352, 14659507200),
    "olmoe-1b-7b": (50304, 6919161856),
    # Without the biases of their routers, which training does not count among the parameters.
    "deepseek-v2-lite": (102400, 15706484224), "moonlight-16b-a3b": (163840, 15960108544), "deepseek-v3": (129280, 671026404352),
    "glm-4.5-air": (151552, 106852245504), "glm-4.5": (151552, 352797814784), "minimax-m2": (200064, 228689748992),
    "ernie-4.5-21b-a3b": (103424, 21825436160), "ernie-4.5-300b-a47b": (103424, 299484160000), "command-r": (256000, 34980831232),
    "command-r-plus": (256000, 103810674688), "command-r7b": (256000, 8028033024), "command-a": (256000, 111057580032),
    "nanochat-d20": (65536, 560988160), "nanochat-d32": (65536, 1879048192), "llama4-scout": (202048, 107769861120),
    "llama4-maverick": (202048, 400711848960),
}


def test_presets_have_the_published_size(tmp_path):
    def check(case, _):
        name, (rows, parameters) = case
        family = "mamba" if name.startswith(("mamba", "nemotron")) else "gpt"
        shown = teratron("plan", family, "--world-size", "1", "--model-preset", name, "--seq-length", "128",
                         "--micro-batch-size", "1", "--lr", "1e-4", "--train-iters", "1", "--mock-data",
                         "--tokenizer-type", "NullTokenizer", "--vocab-size", rows - 1, "--padded-vocab-size", rows)
        assert re.search(rf"^ +0 +{parameters} ", shown.stdout, re.M), f"{name}: {shown.stdout[-400:]}"

    known = teratron("plan", "gpt", "--model-preset", "none", code=2).stderr
    assert set(re.search(r"Use one of (.*?)[.]?\n", known).group(1).split(", ")) == set(PUBLISHED)
    each(PUBLISHED.items(), check, tmp_path)
