// Values of expressions.
#pragma once

#include <string_view>

#include "teratron/tokenizer/jinja/syntax/syntax.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

/// Names and values of a body; those of the bodies around it are seen through it.
struct Scope {
  Scope* outer = nullptr;
  Namespace* names = nullptr;
};
Scope* inner_scope(Workspace& workspace, Scope* outer);

class Evaluator {
 public:
  explicit Evaluator(Workspace& workspace) : workspace_(workspace) {}

  Value evaluate(const Expression& expression, Scope& scope);
  /// A filter statement's filters of its body.
  Value filtered(const Expression& filters, const Value& body, Scope& scope);
  /// A call with one more named argument.
  Value called_with(const Expression& call, std::string_view name, const Value& value, Scope& scope);

 private:
  struct Evaluated {
    std::vector<Value> positional;
    std::vector<std::pair<std::string_view, Value>> named;
    Arguments arguments(std::string_view function) const { return {function, positional, named}; }
  };

  Value name(const Expression& expression, Scope& scope);
  Value compared(const Expression& expression, Scope& scope);
  Value choice(const Expression& expression, Scope& scope);
  Value item(const Expression& expression, Scope& scope);
  Value concatenated(const Expression& expression, Scope& scope);
  Value made_dict(const Expression& expression, Scope& scope);
  Value call(const Expression& expression, Scope& scope);
  void add_members(const Value& value, Evaluated& to);
  Evaluated arguments(const Expression& expression, Scope& scope);
  std::vector<Value> all(const Expression& expression, Scope& scope);

  Workspace& workspace_;
};

}  // namespace teratron::jinja
