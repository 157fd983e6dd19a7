// Templates that are known by name, for tokenizers without one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

struct BuiltInTemplate {
  std::string_view name;
  std::string_view bos, eos;  // usual marks
  std::string_view end;       // of an answer; empty: the last token
  std::string_view pad;       // empty: the tokenizer's
  std::string jinja;
};

const std::vector<BuiltInTemplate>& built_in_templates();

}  // namespace teratron
