#include "teratron/tokenizer/jinja/syntax/template_parser.h"

#include <algorithm>
#include <initializer_list>

#include "teratron/tokenizer/jinja/syntax/expression_parser.h"

namespace teratron::jinja {

namespace {

using Names = std::initializer_list<std::string_view>;
using StatementPtr = std::unique_ptr<Statement>;

class TemplateParser {
 public:
  explicit TemplateParser(TokenStream stream) : stream_(std::move(stream)), expressions_(stream_) {}

  Body run() {
    Body body = statements({});
    if (!stream_.is(TokenType::end)) throw stream_.unexpected();
    return body;
  }

 private:
  StatementPtr make(StatementType type) {
    return std::make_unique<Statement>(Statement{.type = type, .line = stream_.current().line});
  }

  bool is_one_of(Names names) const {
    return stream_.is(TokenType::name) &&
           std::find(names.begin(), names.end(), stream_.current().text) != names.end();
  }

  // Up to a block that begins with one of the names, or the end of the template.
  Body statements(Names ends) {
    const TokenStream::Nested nested(stream_);
    Body body;
    while (!stream_.is(TokenType::end)) {
      if (stream_.is(TokenType::data)) {
        body.push_back(make(StatementType::text));
        body.back()->text = stream_.next().text;
      } else if (stream_.is(TokenType::variable_begin)) {
        stream_.next();
        body.push_back(make(StatementType::output));
        body.back()->expressions.push_back(expressions_.tuple());
        stream_.expect(TokenType::variable_end, "'}}'");
      } else {
        stream_.expect(TokenType::block_begin, "a tag");
        if (is_one_of(ends)) return body;
        body.push_back(statement());
        stream_.expect(TokenType::block_end, "'%}'");
      }
    }
    if (ends.size() > 0)
      throw stream_.error(fmt::format("its end is unexpected; '{}' is missing", *(ends.end() - 1)));
    return body;
  }

  // A body behind the head of a tag; the last name ends it.
  Body block(Names ends) {
    stream_.expect(TokenType::block_end, "'%}'");
    return statements(ends);
  }

  Body whole_block(std::string_view end) {
    Body body = block({end});
    stream_.next();
    return body;
  }

  StatementPtr statement() {
    const std::string name = stream_.expect(TokenType::name, "the name of a tag").text;
    if (name == "if") return condition();
    if (name == "for") return loop();
    if (name == "set") return assignment();
    if (name == "macro") return macro();
    if (name == "call") return call();
    if (name == "filter") return filter();
    if (name == "with") return with();
    if (name == "generation") {
      StatementPtr made = make(StatementType::generation);
      made->bodies.push_back(whole_block("endgeneration"));
      return made;
    }
    if (name == "break" || name == "continue")
      return make(name == "break" ? StatementType::break_loop : StatementType::continue_loop);
    throw stream_.error(fmt::format("the tag '{}' is not known here", printable(name, 40)));
  }

  StatementPtr condition() {
    StatementPtr made = make(StatementType::condition);
    while (true) {
      made->expressions.push_back(expressions_.tuple(/*plain=*/true));
      made->bodies.push_back(block({"elif", "else", "endif"}));
      const std::string name = stream_.next().text;
      if (name == "elif") continue;
      if (name == "else") made->bodies.push_back(whole_block("endif"));
      return made;
    }
  }

  StatementPtr loop() {
    StatementPtr made = make(StatementType::loop);
    made->expressions.push_back(expressions_.target());
    stream_.expect_name("in");
    made->expressions.push_back(expressions_.tuple(/*plain=*/true));
    made->expressions.push_back(stream_.skip_name("if") ? expressions_.expression() : nullptr);
    made->recursive = stream_.skip_name("recursive");
    made->bodies.push_back(block({"else", "endfor"}));
    if (stream_.next().text == "else") made->bodies.push_back(whole_block("endfor"));
    return made;
  }

  StatementPtr assignment() {
    StatementPtr made = make(StatementType::assign);
    made->expressions.push_back(expressions_.target());
    if (stream_.skip_symbol("=")) {
      made->expressions.push_back(expressions_.tuple());
      return made;
    }
    made->type = StatementType::assign_body;
    made->expressions.push_back(expressions_.filters());
    made->bodies.push_back(whole_block("endset"));
    return made;
  }

  void parameters(Statement& macro) {
    stream_.expect_symbol("(");
    bool has_default = false;
    while (!stream_.is_symbol(")")) {
      macro.parameters.push_back(stream_.expect(TokenType::name, "the name of a parameter").text);
      if (stream_.skip_symbol("=")) {
        macro.expressions.push_back(expressions_.expression());
        has_default = true;
      } else if (has_default) {
        throw stream_.error("a parameter without default follows one with a default");
      }
      if (!stream_.skip_symbol(",")) break;
    }
    stream_.expect_symbol(")");
  }

  StatementPtr macro() {
    StatementPtr made = make(StatementType::macro);
    made->text = stream_.expect(TokenType::name, "the name of a macro").text;
    parameters(*made);
    made->bodies.push_back(whole_block("endmacro"));
    return made;
  }

  StatementPtr call() {
    StatementPtr made = make(StatementType::call);
    made->text = "caller";
    if (stream_.is_symbol("(")) parameters(*made);
    ExpressionPtr called = expressions_.expression();
    if (called->type != ExpressionType::call) throw stream_.error("a call is expected");
    made->expressions.insert(made->expressions.begin(), std::move(called));
    made->bodies.push_back(whole_block("endcall"));
    return made;
  }

  StatementPtr filter() {
    StatementPtr made = make(StatementType::filter);
    made->expressions.push_back(expressions_.inline_filters());
    made->bodies.push_back(whole_block("endfilter"));
    return made;
  }

  StatementPtr with() {
    StatementPtr made = make(StatementType::with);
    while (!stream_.is(TokenType::block_end)) {
      made->expressions.push_back(expressions_.target());
      stream_.expect_symbol("=");
      made->expressions.push_back(expressions_.expression());
      if (!stream_.skip_symbol(",")) break;
    }
    made->bodies.push_back(whole_block("endwith"));
    return made;
  }

  TokenStream stream_;
  ExpressionParser expressions_;
};

}  // namespace

Body parse_template(std::string_view source, const std::string& name) {
  return TemplateParser(TokenStream(tokens_of(source, name), name)).run();
}

}  // namespace teratron::jinja
