#include "teratron/tokenizer/chat/built_in_templates.h"

#include <fmt/format.h>

namespace teratron {

namespace {

constexpr std::string_view chatml = R"({%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\n' }}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ m.content ~ '<|im_end|>' }}{%- endgeneration -%}
{%- else -%}{{ m.content ~ '<|im_end|>' }}{%- endif -%}
{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%})";

// Refuses messages with other roles than those of the list `roles`.
constexpr std::string_view check_roles = R"({%- for m in messages -%}
{%- if m.role not in roles -%}
{{ raise_exception("messages[" ~ loop.index0 ~ "]: the chat template has no role '" ~ m.role ~ "'; use "
   ~ roles | join(', ')) }}
{%- endif -%}
{%- endfor -%})";

// `turns` are the messages behind the system's: user, assistant, user, ...
constexpr std::string_view check_turns =
    R"({%- set has_system = messages[0].role == 'system' if messages else false -%}
{%- set turns = messages[1:] if has_system else messages -%}
{%- if not turns -%}
{{ raise_exception('messages[' ~ messages | length ~ ']: there is no message of a user') }}
{%- endif -%}
{%- for m in turns -%}
{%- set next = ['user', 'assistant'][loop.index0 % 2] -%}
{%- if m.role != next -%}
{{ raise_exception("messages[" ~ (loop.index0 + has_system) ~ "]: the role is '" ~ m.role ~ "', but '" ~ next
   ~ "' is next; user and assistant take turns, beginning with user") }}
{%- endif -%}
{%- endfor -%})";

constexpr std::string_view llama2 = R"({%- for m in turns -%}
{%- set content = m.content -%}
{%- if loop.first and has_system -%}
{%- set content = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' ~ content -%}
{%- endif -%}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ ' ' ~ content.strip() ~ ' ' ~ eos_token }}{%- endgeneration -%}
{%- else -%}{{ bos_token ~ '[INST] ' ~ content.strip() ~ ' [/INST]' }}{%- endif -%}
{%- endfor -%})";

constexpr std::string_view llama3 = R"({{- bos_token if messages else '' -}}
{%- for m in messages -%}
{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' }}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ m.content.strip() ~ '<|eot_id|>' }}{%- endgeneration -%}
{%- else -%}{{ m.content.strip() ~ '<|eot_id|>' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%})";

constexpr std::string_view mistral = R"({{- bos_token -}}
{%- for m in turns -%}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ m.content ~ eos_token }}{%- endgeneration -%}
{%- else -%}
{{ '[INST] ' ~ (messages[0].content ~ '\n\n' if loop.first and has_system else '') ~ m.content ~ ' [/INST]' }}
{%- endif -%}
{%- endfor -%})";

constexpr std::string_view gemma = R"({{- bos_token -}}
{%- for m in turns -%}
{%- if m.role == 'assistant' -%}
{{ '<start_of_turn>model\n' }}
{%- generation -%}{{ m.content.strip() ~ '<end_of_turn>' }}{%- endgeneration -%}{{ '\n' }}
{%- else -%}{{ '<start_of_turn>user\n' ~ m.content.strip() ~ '<end_of_turn>\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%})";

constexpr std::string_view zephyr = R"({%- for m in messages -%}
{{ '<|' ~ m.role ~ '|>\n' }}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ m.content ~ eos_token }}{%- endgeneration -%}
{%- else -%}{{ m.content ~ eos_token }}{%- endif -%}
{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%})";

// Megatron-LM's prompt formats. The first writes the beginning of an answer after the question.
constexpr std::string_view nemotron_h = R"({%- for m in messages -%}
{%- set line = m.content.strip(' \t\n\r\f\v') ~ '\n' -%}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ line }}{%- endgeneration -%}
{%- elif m.role == 'system' -%}{{ '<SPECIAL_10>System\n' ~ line }}
{%- else -%}{{ '<SPECIAL_11>User\n' ~ line ~ '<SPECIAL_11>Assistant\n' }}{%- endif -%}
{%- endfor -%})";

constexpr std::string_view nemotron_nano = R"({%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{ '<SPECIAL_11>Assistant\n' }}
{%- generation -%}{{ m.content.strip(' \t\n\r\f\v') ~ '\n<SPECIAL_12>\n' }}{%- endgeneration -%}
{%- else -%}
{%- set content = m.content.replace('/think', '').replace('/no_think', '').strip(' \t\n\r\f\v') -%}
{{ ('<SPECIAL_10>System\n' if m.role == 'system' else '<SPECIAL_11>User\n') ~ content ~ '\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<SPECIAL_11>Assistant\n' }}{%- endif -%})";

constexpr std::string_view vicuna = R"({%- set usual = "A chat between a curious user and an artificial " ~
   "intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's questions." -%}
{{ bos_token ~ (messages[0].content if has_system else usual) ~ ' ' }}
{%- for m in turns -%}
{%- if m.role == 'user' -%}{{ 'USER: ' ~ m.content ~ ' ASSISTANT:' }}
{%- else -%}{%- generation -%}{{ ' ' ~ m.content ~ eos_token }}{%- endgeneration -%}{%- endif -%}
{%- endfor -%})";

constexpr std::string_view identity = R"({%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- generation -%}{{ m.content }}{%- endgeneration -%}
{%- else -%}{{ m.content }}{%- endif -%}
{%- endfor -%})";

std::string with_roles(std::string_view body, std::string_view roles = "'system', 'user', 'assistant'") {
  return fmt::format("{{%- set roles = [{}] -%}}{}{}", roles, check_roles, body);
}

std::string with_turns(std::string_view body, std::string_view roles = "'system', 'user', 'assistant'") {
  return with_roles(std::string(check_turns).append(body), roles);
}

}  // namespace

const std::vector<BuiltInTemplate>& built_in_templates() {
  static const std::vector<BuiltInTemplate> all = {
      {"chatml", "", "<|im_end|>", "<|im_end|>", "", std::string(chatml)},
      {"llama2", "<s>", "</s>", "", "", with_turns(llama2)},
      {"llama3", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "", std::string(llama3)},
      {"mistral", "<s>", "</s>", "", "", with_turns(mistral)},
      {"gemma", "<bos>", "<eos>", "<end_of_turn>", "", with_turns(gemma, "'user', 'assistant'")},
      {"zephyr", "<s>", "</s>", "", "", with_roles(zephyr)},
      {"vicuna", "<s>", "</s>", "", "", with_turns(vicuna)},
      {"nemotron-h-aligned", "", "", "<SPECIAL_11>", "<SPECIAL_233>", with_roles(nemotron_h)},
      {"nemotron-nano-v2", "", "", "<SPECIAL_12>", "<unk>", with_roles(nemotron_nano)},
      {"identity", "", "", "", "<unk>", std::string(identity)},
  };
  return all;
}

}  // namespace teratron
