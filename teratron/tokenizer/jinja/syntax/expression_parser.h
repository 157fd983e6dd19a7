// Expressions of templates, with Jinja's precedence.
#pragma once

#include "teratron/tokenizer/jinja/syntax/syntax.h"
#include "teratron/tokenizer/jinja/syntax/token_stream.h"

namespace teratron::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  ExpressionPtr expression();
  /// Without "x if y else z", as in the head of a for statement.
  ExpressionPtr plain_expression() { return either(); }
  /// Expressions with commas between them are a tuple. `plain`: of plain expressions.
  ExpressionPtr tuple(bool plain = false);
  /// What is assigned to: a name, names with commas between them, or an attribute of a namespace.
  ExpressionPtr target();
  /// Filters of a statement: | name | name(arguments). nullptr: there is none.
  ExpressionPtr filters();
  /// Likewise, beginning with the name.
  ExpressionPtr inline_filters();

 private:
  ExpressionPtr make(ExpressionType type, std::vector<ExpressionPtr> operands, std::string text = "");
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr named_constant();
  ExpressionPtr number();
  ExpressionPtr string();
  ExpressionPtr parenthesis();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr operand);
  ExpressionPtr attribute(ExpressionPtr operand);
  ExpressionPtr item(ExpressionPtr operand);
  ExpressionPtr slice();
  ExpressionPtr call(ExpressionPtr operand);
  ExpressionPtr filter(ExpressionPtr operand);
  ExpressionPtr test(ExpressionPtr operand);
  ExpressionPtr with_filters(ExpressionPtr operand);
  void arguments(Expression& call);
  ExpressionPtr target_item();

  TokenStream& stream_;
};

}  // namespace teratron::jinja
