// The text of a template's statements.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "teratron/tokenizer/jinja/evaluator.h"

namespace teratron::jinja {

struct Rendered {
  std::string text;
  /// Bytes [begin, end) of the text that {% generation %} wrote.
  std::vector<std::pair<size_t, size_t>> generated;
};

class Renderer {
 public:
  explicit Renderer(Workspace& workspace) : workspace_(workspace), evaluator_(workspace), main_(workspace) {}

  Rendered render(const Body& body, const Value& variables);

 private:
  enum class Flow : uint8_t { normal, break_loop, continue_loop };
  struct Macro;
  struct LoopCall;

  Flow run(const Body& body, Scope& scope, TextBuilder& out);
  Flow run(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow condition(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow loop(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow loop_over(const Statement& statement, const Value& iterable, Scope& scope, TextBuilder& out);
  std::span<const Value> chosen(const Statement& statement, const Value& iterable, Scope& scope);
  Flow generation(const Statement& statement, Scope& scope, TextBuilder& out);
  std::string_view text_of(const Body& body, Scope& scope);
  void assign(const Expression& target, const Value& value, Scope& scope);
  void assign_body(const Statement& statement, Scope& scope);
  Value macro(const Statement& statement, Scope& scope);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  void bind_parameters(const Macro& macro, const Arguments& arguments, Scope& scope);

  Workspace& workspace_;
  Evaluator evaluator_;
  TextBuilder main_;
  std::vector<std::pair<size_t, size_t>> generated_;
  int64_t loop_depth_ = 0;
};

}  // namespace teratron::jinja
