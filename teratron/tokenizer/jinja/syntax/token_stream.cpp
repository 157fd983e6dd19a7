#include "teratron/tokenizer/jinja/syntax/token_stream.h"

#include <algorithm>

namespace teratron::jinja {

namespace {

constexpr int nesting_limit = 500;

}  // namespace

Token TokenStream::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::skip_symbol(std::string_view text) {
  if (!is_symbol(text)) return false;
  next();
  return true;
}

bool TokenStream::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}

Token TokenStream::expect(TokenType type, const char* what) {
  if (!is(type)) throw error(fmt::format("{} is expected", what));
  return next();
}

void TokenStream::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) throw error(fmt::format("'{}' is expected", text));
}

void TokenStream::expect_name(std::string_view text) {
  if (!skip_name(text)) throw error(fmt::format("'{}' is expected", text));
}

UserError TokenStream::error(std::string what) const {
  return syntax_error(name_, current().line, std::move(what));
}

UserError TokenStream::unexpected() const {
  switch (current().type) {
    case TokenType::end:
      return error("its end is unexpected");
    case TokenType::block_end:
    case TokenType::variable_end:
      return error("the end of the tag is unexpected");
    default:
      return error(fmt::format("'{}' is unexpected", printable(current().text, 40)));
  }
}

TokenStream::Nested::Nested(TokenStream& stream) : stream_(stream) {
  if (++stream_.nesting_ <= nesting_limit) return;
  --stream_.nesting_;
  throw stream_.error("it is nested too deeply");
}

}  // namespace teratron::jinja
