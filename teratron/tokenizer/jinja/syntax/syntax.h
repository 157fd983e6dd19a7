// The syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "teratron/tokenizer/jinja/values/value.h"

namespace teratron::jinja {

enum class ExpressionType : uint8_t {
  constant,
  name,
  list,
  tuple,
  dict,       // keys and values in turn
  attribute,  // operand . text
  item,       // operand [ operand ]
  slice,      // start : stop : step, each may be missing
  call,       // operand ( arguments )
  filter,     // operand | text ( arguments ); no operand: the body of a filter statement
  test,       // operand is text ( arguments )
  unary,      // text: "-", "+", "not"
  binary,     // text: the operator
  compare,    // operand operator operand operator operand ...; `operators`
  concatenate,
  both,    // and
  either,  // or
  choice,  // value, condition, otherwise (may be missing)
  unpack,  // * operand, the last positional argument of a call
};

struct Expression {
  ExpressionType type;
  uint32_t line = 0;
  int depth = 1;  // of the tree
  std::string text = {};
  Value value = {};  // of a constant; refers to `text`
  std::vector<std::unique_ptr<Expression>> operands = {};
  std::vector<std::string> operators = {};
  // In call, filter and test, operands behind the first are positional arguments, then named ones. The name
  // "**" stands for those of a dict.
  std::vector<std::string> argument_names = {};
};
using ExpressionPtr = std::unique_ptr<Expression>;

enum class StatementType : uint8_t {
  text,
  output,
  condition,    // expressions: of the branches; bodies: one each, and one more for else
  loop,         // expressions: target, iterable, filter (may be missing); bodies: each item, none
  assign,       // expressions: target, value
  assign_body,  // expressions: target, filter (may be missing)
  macro,        // text: its name; expressions: defaults of the last parameters
  call,         // expressions: the call, then as macro
  filter,       // expressions: the filter
  with,         // expressions: targets and values in turn
  generation,
  break_loop,
  continue_loop,
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  StatementType type;
  uint32_t line = 0;
  std::string text = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Body> bodies = {};
  std::vector<std::string> parameters = {};
  bool recursive = false;
};

}  // namespace teratron::jinja
