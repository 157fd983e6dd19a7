#include "teratron/tokenizer/jinja/syntax/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace teratron::jinja {

namespace {

constexpr int tree_depth_limit = 150;

std::vector<ExpressionPtr> operands(ExpressionPtr first, ExpressionPtr second = nullptr) {
  std::vector<ExpressionPtr> all;
  if (first) all.push_back(std::move(first));
  if (second) all.push_back(std::move(second));
  return all;
}

}  // namespace

// A chain such as a + b + c + ... is as deep as it is long.
ExpressionPtr ExpressionParser::make(ExpressionType type, std::vector<ExpressionPtr> operands,
                                     std::string text) {
  auto made = std::make_unique<Expression>(Expression{.type = type, .line = stream_.current().line});
  made->text = std::move(text);
  for (const ExpressionPtr& each : operands) {
    if (each) made->depth = std::max(made->depth, each->depth + 1);
  }
  made->operands = std::move(operands);
  if (made->depth > tree_depth_limit) throw stream_.error("an expression is nested too deeply");
  return made;
}

ExpressionPtr ExpressionParser::expression() {
  const TokenStream::Nested nested(stream_);
  ExpressionPtr value = either();
  while (stream_.skip_name("if")) {
    std::vector<ExpressionPtr> parts = operands(std::move(value), either());
    parts.push_back(stream_.skip_name("else") ? expression() : nullptr);
    value = make(ExpressionType::choice, std::move(parts));
  }
  return value;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (stream_.skip_name("or")) left = make(ExpressionType::either, operands(std::move(left), both()));
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (stream_.skip_name("and")) left = make(ExpressionType::both, operands(std::move(left), negation()));
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const TokenStream::Nested nested(stream_);
  if (!stream_.skip_name("not")) return comparison();
  return make(ExpressionType::unary, operands(negation()), "not");
}

ExpressionPtr ExpressionParser::comparison() {
  std::vector<ExpressionPtr> parts = operands(sum());
  std::vector<std::string> operators;
  while (true) {
    std::string name;
    for (const char* const each : {"==", "!=", "<", "<=", ">", ">="}) {
      if (stream_.is_symbol(each)) name = each;
    }
    if (stream_.is_name("in")) name = "in";
    if (stream_.is_name("not") && stream_.ahead().type == TokenType::name && stream_.ahead().text == "in") {
      name = "not in";
      stream_.next();
    }
    if (name.empty()) break;
    stream_.next();
    operators.push_back(std::move(name));
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts.front());
  ExpressionPtr made = make(ExpressionType::compare, std::move(parts));
  made->operators = std::move(operators);
  return made;
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (stream_.is_symbol("+") || stream_.is_symbol("-")) {
    std::string name = stream_.next().text;
    left = make(ExpressionType::binary, operands(std::move(left), concatenation()), std::move(name));
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  std::vector<ExpressionPtr> parts = operands(product());
  while (stream_.skip_symbol("~")) parts.push_back(product());
  return parts.size() == 1 ? std::move(parts.front()) : make(ExpressionType::concatenate, std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (stream_.is_symbol("*") || stream_.is_symbol("/") || stream_.is_symbol("//") ||
         stream_.is_symbol("%")) {
    std::string name = stream_.next().text;
    left = make(ExpressionType::binary, operands(std::move(left), power()), std::move(name));
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (stream_.skip_symbol("**"))
    left = make(ExpressionType::binary, operands(std::move(left), unary(true)), "**");
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const TokenStream::Nested nested(stream_);
  ExpressionPtr value;
  if (stream_.is_symbol("-") || stream_.is_symbol("+")) {
    std::string name = stream_.next().text;
    value = make(ExpressionType::unary, operands(unary(false)), std::move(name));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? this->with_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  if (stream_.is(TokenType::name)) return named_constant();
  if (stream_.is(TokenType::string)) return string();
  if (stream_.is(TokenType::integer) || stream_.is(TokenType::real)) return number();
  if (stream_.is_symbol("(")) return parenthesis();
  if (stream_.is_symbol("[")) return list();
  if (stream_.is_symbol("{")) return dict();
  throw stream_.unexpected();
}

ExpressionPtr ExpressionParser::named_constant() {
  ExpressionPtr made = make(ExpressionType::constant, {});
  std::string name = stream_.next().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    made->value = name[0] == 't' || name[0] == 'T';
  } else if (name == "none" || name == "None") {
    made->value = None{};
  } else {
    made->type = ExpressionType::name;
    made->text = std::move(name);
  }
  return made;
}

ExpressionPtr ExpressionParser::number() {
  ExpressionPtr made = make(ExpressionType::constant, {});
  const std::string& text = stream_.current().text;
  if (stream_.is(TokenType::real)) {
    made->value = std::strtod(text.c_str(), nullptr);
  } else {
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
      throw stream_.error(fmt::format("the integer {} has more than 64 bits", printable(text, 40)));
    made->value = value;
  }
  stream_.next();
  return made;
}

ExpressionPtr ExpressionParser::string() {
  ExpressionPtr made = make(ExpressionType::constant, {});
  while (stream_.is(TokenType::string)) made->text += stream_.next().text;
  made->value = std::string_view(made->text);
  return made;
}

ExpressionPtr ExpressionParser::parenthesis() {
  const TokenStream::Nested nested(stream_);
  stream_.expect_symbol("(");
  ExpressionPtr made = stream_.is_symbol(")") ? make(ExpressionType::tuple, {}) : tuple();
  stream_.expect_symbol(")");
  return made;
}

ExpressionPtr ExpressionParser::tuple(bool plain) {
  const TokenStream::Nested nested(stream_);
  std::vector<ExpressionPtr> items;
  bool has_comma = false;
  do {
    const bool ends = stream_.is(TokenType::block_end) || stream_.is(TokenType::variable_end) ||
                      stream_.is_symbol(")") || stream_.is_name("recursive");
    if (ends && has_comma) break;
    items.push_back(plain ? either() : expression());
    has_comma = has_comma || stream_.is_symbol(",");
  } while (stream_.skip_symbol(","));
  return has_comma ? make(ExpressionType::tuple, std::move(items)) : std::move(items.front());
}

ExpressionPtr ExpressionParser::list() {
  const TokenStream::Nested nested(stream_);
  stream_.expect_symbol("[");
  std::vector<ExpressionPtr> items;
  while (!stream_.is_symbol("]")) {
    items.push_back(expression());
    if (!stream_.skip_symbol(",")) break;
  }
  stream_.expect_symbol("]");
  return make(ExpressionType::list, std::move(items));
}

ExpressionPtr ExpressionParser::dict() {
  const TokenStream::Nested nested(stream_);
  stream_.expect_symbol("{");
  std::vector<ExpressionPtr> members;
  while (!stream_.is_symbol("}")) {
    members.push_back(expression());
    stream_.expect_symbol(":");
    members.push_back(expression());
    if (!stream_.skip_symbol(",")) break;
  }
  stream_.expect_symbol("}");
  return make(ExpressionType::dict, std::move(members));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr operand) {
  while (true) {
    if (stream_.is_symbol(".")) {
      operand = attribute(std::move(operand));
    } else if (stream_.is_symbol("[")) {
      operand = item(std::move(operand));
    } else if (stream_.is_symbol("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr operand) {
  stream_.expect_symbol(".");
  if (stream_.is(TokenType::integer))
    return make(ExpressionType::item, operands(std::move(operand), number()));
  std::string name = stream_.expect(TokenType::name, "the name of an attribute").text;
  return make(ExpressionType::attribute, operands(std::move(operand)), std::move(name));
}

ExpressionPtr ExpressionParser::item(ExpressionPtr operand) {
  stream_.expect_symbol("[");
  ExpressionPtr index = slice();
  stream_.expect_symbol("]");
  return make(ExpressionType::item, operands(std::move(operand), std::move(index)));
}

ExpressionPtr ExpressionParser::slice() {
  std::vector<ExpressionPtr> parts(3);
  if (!stream_.is_symbol(":")) {
    ExpressionPtr index = expression();
    if (!stream_.is_symbol(":")) return index;
    parts[0] = std::move(index);
  }
  stream_.expect_symbol(":");
  if (!stream_.is_symbol(":") && !stream_.is_symbol("]")) parts[1] = expression();
  if (stream_.skip_symbol(":") && !stream_.is_symbol("]")) parts[2] = expression();
  return make(ExpressionType::slice, std::move(parts));
}

void ExpressionParser::arguments(Expression& call) {
  const TokenStream::Nested nested(stream_);
  stream_.expect_symbol("(");
  bool has_unpacked = false;
  while (!stream_.is_symbol(")")) {
    const bool has_dict = !call.argument_names.empty() && call.argument_names.back() == "**";
    const bool is_named = stream_.is(TokenType::name) && stream_.ahead().type == TokenType::symbol &&
                          stream_.ahead().text == "=";
    if (has_dict || (stream_.is_symbol("*") && has_unpacked))
      throw stream_.error("no argument of this kind may follow * or **");
    auto place = call.operands.end();
    const bool unpacks = stream_.skip_symbol("*");
    if (is_named || stream_.is_symbol("**")) {
      call.argument_names.push_back(stream_.next().text);
      if (is_named) stream_.next();
    } else if (unpacks) {
      has_unpacked = true;
      place -= std::ssize(call.argument_names);
    } else if (!call.argument_names.empty() || has_unpacked) {
      throw stream_.error("an argument without name follows one with a name or *");
    }
    ExpressionPtr value = expression();
    if (unpacks) value = make(ExpressionType::unpack, operands(std::move(value)));
    call.depth = std::max(call.depth, value->depth + 1);
    call.operands.insert(place, std::move(value));
    if (!stream_.skip_symbol(",")) break;
  }
  stream_.expect_symbol(")");
}

ExpressionPtr ExpressionParser::call(ExpressionPtr operand) {
  ExpressionPtr made = make(ExpressionType::call, operands(std::move(operand)));
  arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr operand) {
  std::string name = stream_.expect(TokenType::name, "the name of a filter").text;
  const int depth = operand ? operand->depth + 1 : 1;
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(operand));
  ExpressionPtr made = make(ExpressionType::filter, std::move(parts), std::move(name));
  made->depth = depth;
  if (stream_.is_symbol("(")) arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr operand) {
  const bool negated = stream_.skip_name("not");
  std::string name = stream_.expect(TokenType::name, "the name of a test").text;
  ExpressionPtr made = make(ExpressionType::test, operands(std::move(operand)), std::move(name));
  const bool has_operand = stream_.is(TokenType::string) || stream_.is(TokenType::integer) ||
                           stream_.is(TokenType::real) || stream_.is_symbol("[") || stream_.is_symbol("{") ||
                           (stream_.is(TokenType::name) && !stream_.is_name("else") &&
                            !stream_.is_name("or") && !stream_.is_name("and"));
  if (stream_.is_symbol("(")) {
    arguments(*made);
  } else if (has_operand) {
    if (stream_.is_name("is")) throw stream_.error("tests with is do not follow each other");
    made->operands.push_back(postfix(primary()));
    made->depth = std::max(made->depth, made->operands.back()->depth + 1);
  }
  return negated ? make(ExpressionType::unary, operands(std::move(made)), "not") : std::move(made);
}

ExpressionPtr ExpressionParser::with_filters(ExpressionPtr operand) {
  while (true) {
    if (stream_.skip_symbol("|")) {
      operand = filter(std::move(operand));
    } else if (stream_.skip_name("is")) {
      operand = test(std::move(operand));
    } else if (stream_.is_symbol("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::filters() {
  ExpressionPtr all;
  while (stream_.skip_symbol("|")) all = filter(std::move(all));
  return all;
}

ExpressionPtr ExpressionParser::inline_filters() {
  ExpressionPtr all = filter(nullptr);
  while (stream_.skip_symbol("|")) all = filter(std::move(all));
  return all;
}

ExpressionPtr ExpressionParser::target_item() {
  if (stream_.skip_symbol("(")) {
    ExpressionPtr inner = target();
    stream_.expect_symbol(")");
    return inner;
  }
  ExpressionPtr name = primary();
  if (name->type != ExpressionType::name) throw stream_.error("a value cannot be assigned to this");
  return stream_.is_symbol(".") ? attribute(std::move(name)) : std::move(name);
}

ExpressionPtr ExpressionParser::target() {
  const TokenStream::Nested nested(stream_);
  std::vector<ExpressionPtr> items = operands(target_item());
  bool has_comma = false;
  while (stream_.skip_symbol(",")) {
    has_comma = true;
    if (stream_.is_symbol("=") || stream_.is_name("in") || stream_.is_symbol(")")) break;
    items.push_back(target_item());
  }
  return has_comma ? make(ExpressionType::tuple, std::move(items)) : std::move(items.front());
}

}  // namespace teratron::jinja
