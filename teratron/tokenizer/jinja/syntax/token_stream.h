// The tokens that a parser has not read.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "teratron/tokenizer/jinja/syntax/lexer.h"

namespace teratron::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, std::string name)
      : tokens_(std::move(tokens)), name_(std::move(name)) {}

  const Token& current() const { return tokens_[at_]; }
  /// The token behind it; the last one repeats.
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool is(TokenType type) const { return current().type == type; }
  bool is_symbol(std::string_view text) const { return is(TokenType::symbol) && current().text == text; }
  bool is_name(std::string_view text) const { return is(TokenType::name) && current().text == text; }
  bool skip_symbol(std::string_view text);
  bool skip_name(std::string_view text);
  /// An error for another token.
  Token expect(TokenType type, const char* what);
  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  [[nodiscard]] UserError error(std::string what) const;
  /// "'x' is unexpected"
  [[nodiscard]] UserError unexpected() const;

  /// One level of nested syntax while it lives.
  class Nested {
   public:
    explicit Nested(TokenStream& stream);
    ~Nested() { --stream_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  std::string name_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace teratron::jinja
