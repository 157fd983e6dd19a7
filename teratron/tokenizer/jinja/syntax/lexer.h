// The tokens of a Jinja template, with trim_blocks and lstrip_blocks as transformers sets them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"

namespace teratron::jinja {

enum class TokenType : uint8_t {
  data,  // text between the tags
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  real,
  symbol,  // operators and brackets
  end,
};

struct Token {
  TokenType type;
  std::string text;  // of a string: its value
  uint32_t line;
};

/// UserError(data) with "name:line" for what is not a template.
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

[[nodiscard]] UserError syntax_error(const std::string& name, uint32_t line, std::string what);

}  // namespace teratron::jinja
