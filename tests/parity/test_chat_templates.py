"""Chat templates against transformers, which renders a Jinja text of each."""

import json
import os
import subprocess

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

BINARY = os.environ.get("TERATRON_BINARY")
pytestmark = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")

TURNS = ("{%- if m.role != ['user', 'assistant'][loop.index0 % 2] -%}{{ raise_exception('user and assistant take turns') }}{%- endif -%}\n")
# name: (BOS, EOS, the template)
TEMPLATES = {
    "chatml": ("", "", r"""
{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""),
    "llama2": ("<s>", "</s>", r"""
{%- set system = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' if messages[0].role == 'system' else '' -%}
{%- for m in (messages[1:] if system else messages) -%}
""" + TURNS + r"""
{%- if m.role == 'user' -%}{{ bos_token ~ '[INST] ' ~ ((system if loop.first else '') ~ m.content).strip() ~ ' [/INST]' }}
{%- else -%}{{ ' ' ~ m.content.strip() ~ ' ' ~ eos_token }}{%- endif -%}
{%- endfor -%}"""),
    "llama3": ("<|begin_of_text|>", "<|end_of_text|>", r"""
{{- bos_token -}}
{%- for m in messages -%}
{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content.strip() ~ '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}"""),
    "mistral": ("<s>", "</s>", r"""
{{- bos_token -}}
{%- set system = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' -%}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) -%}
""" + TURNS + r"""
{%- if m.role == 'user' -%}{{ '[INST] ' ~ (system if loop.first else '') ~ m.content ~ ' [/INST]' }}{%- else -%}{{ m.content ~ eos_token }}{%- endif -%}
{%- endfor -%}"""),
    "gemma": ("<bos>", "<eos>", r"""
{{- bos_token -}}
{%- for m in messages -%}
""" + TURNS + r"""
{{ '<start_of_turn>' ~ {'user': 'user', 'assistant': 'model'}[m.role] ~ '\n' ~ m.content.strip() ~ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""),
    "zephyr": ("<s>", "</s>", r"""
{%- for m in messages -%}
{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}"""),
}
CONVERSATIONS = [[("user", "Hello ")], [("user", "a"), ("assistant", " b\n"), ("user", "\n c")], [("system", " Be brief. "), ("user", "a")],
                 [("system", "s"), ("user", "a"), ("assistant", ""), ("user", "é\u4f60 \"x\" <b>")], [("user", ""), ("assistant", "b")],
                 [("user", "a"), ("user", "b")], [("assistant", "a")], [("system", "alone")]]
FREE_TURNS = ("chatml", "llama3", "zephyr")  # these do not check them


def messages(conversation):
    return [{"role": role, "content": content} for role, content in conversation]


def ours(*flags, lines, code=0):
    done = subprocess.run([BINARY, "tokenizer", "chat", *map(str, flags)], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else done.stderr


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_equal_those_of_transformers(name, asks):
    bos, eos, jinja = TEMPLATES[name]
    flags = ["--chat-template", name] + ["--add-generation-prompt"] * asks
    valid, texts = [], []
    for conversation in map(messages, CONVERSATIONS):
        roles = [message["role"] for message in conversation]
        try:
            (expected,), _ = render_jinja_template([conversation], chat_template=jinja, add_generation_prompt=asks, bos_token=bos, eos_token=eos)
        except Exception:
            expected = None
        if expected is None or (name not in FREE_TURNS and roles == ["system"]):
            assert "messages[" in ours(*flags, lines=[conversation], code=3), roles
        else:
            valid.append(conversation)
            texts.append(expected)
    assert ours(*flags, lines=valid) == texts and len(valid) >= 3


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("where", ["tokenizer_config.json", "list", "chat_template.jinja"])
def test_a_tokenizers_template_is_recognized(tmp_path, name, where):
    jinja = TEMPLATES[name][2]
    if where == "chat_template.jinja":
        (tmp_path / where).write_text(jinja)
    else:
        value = jinja if where != "list" else [{"name": "tool_use", "template": "{{ x }}"}, {"name": "default", "template": jinja}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    lines = [messages(CONVERSATIONS[0])]
    assert ours("--tokenizer-model", tmp_path, lines=lines) == ours("--chat-template", name, lines=lines)


def test_other_templates_are_refused_with_the_list(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    error = ours("--tokenizer-model", tmp_path, lines=[], code=2)
    assert all(name in error for name in TEMPLATES) and "--chat-template NAME" in error
    assert "chat_template = 'vicuna' is not a valid choice" in ours("--chat-template", "vicuna", lines=[], code=2)
    assert "no chat template" in ours(lines=[], code=2)
    assert "not a list of messages" in ours("--chat-template", "chatml", lines=[{"role": "user"}], code=3)
