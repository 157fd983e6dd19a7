#include "teratron/tokenizer/jinja/renderer.h"

#include <algorithm>

#include "teratron/tokenizer/jinja/operations.h"

namespace teratron::jinja {

struct Renderer::Macro {
  Renderer* renderer;
  const Statement* statement;
  Scope* scope;          // in which it was defined
  size_t first_default;  // of the statement's expressions
};

struct Renderer::LoopCall {
  Renderer* renderer;
  const Statement* statement;
  Scope* scope;
};

Rendered Renderer::render(const Body& body, const Value& variables) {
  Scope& scope = *inner_scope(workspace_, nullptr);
  for (const auto& [name, value] : variables.as<const Dict*>()->members)
    scope.names->set(name.text(), value, workspace_);
  if (run(body, scope, main_) != Flow::normal) throw workspace_.error("break or continue outside of a loop");
  return {.text = main_.take(), .generated = std::move(generated_)};
}

Renderer::Flow Renderer::run(const Body& body, Scope& scope, TextBuilder& out) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement, scope, out);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::run(const Statement& statement, Scope& scope, TextBuilder& out) {
  const Workspace::Nested nested(workspace_);
  workspace_.work(kStepWork);
  workspace_.at_line(statement.line);
  const auto value = [&](size_t i) { return evaluator_.evaluate(*statement.expressions[i], scope); };
  switch (statement.type) {
    case StatementType::text:
      out << statement.text;
      break;
    case StatementType::output:
      out << to_text(workspace_, value(0));
      break;
    case StatementType::condition:
      return condition(statement, scope, out);
    case StatementType::loop:
      return loop(statement, scope, out);
    case StatementType::assign:
      assign(*statement.expressions[0], value(1), scope);
      break;
    case StatementType::assign_body:
      assign_body(statement, scope);
      break;
    case StatementType::macro:
      scope.names->set(statement.text, macro(statement, scope), workspace_);
      break;
    case StatementType::call:
      out << to_text(workspace_, evaluator_.called_with(*statement.expressions[0], "caller",
                                                        macro(statement, scope), scope));
      break;
    case StatementType::filter: {
      const Value body = text_of(statement.bodies[0], scope);
      out << to_text(workspace_, evaluator_.filtered(*statement.expressions[0], body, scope));
      break;
    }
    case StatementType::with: {
      Scope& inner = *inner_scope(workspace_, &scope);
      for (size_t i = 0; i < statement.expressions.size(); i += 2)
        assign(*statement.expressions[i], value(i + 1), inner);
      return run(statement.bodies[0], inner, out);
    }
    case StatementType::generation:
      return generation(statement, scope, out);
    case StatementType::break_loop:
      return Flow::break_loop;
    case StatementType::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::condition(const Statement& statement, Scope& scope, TextBuilder& out) {
  for (size_t i = 0; i < statement.expressions.size(); ++i) {
    if (is_true(evaluator_.evaluate(*statement.expressions[i], scope)))
      return run(statement.bodies[i], scope, out);
  }
  const bool has_else = statement.bodies.size() > statement.expressions.size();
  return has_else ? run(statement.bodies.back(), scope, out) : Flow::normal;
}

Renderer::Flow Renderer::loop(const Statement& statement, Scope& scope, TextBuilder& out) {
  return loop_over(statement, evaluator_.evaluate(*statement.expressions[1], scope), scope, out);
}

// The items that pass the loop's condition.
std::span<const Value> Renderer::chosen(const Statement& statement, const Value& iterable, Scope& scope) {
  const std::span<const Value> items = elements(workspace_, iterable);
  if (!statement.expressions[2]) return items;
  std::vector<Value> kept;
  for (const Value& each : items) {
    Scope& inner = *inner_scope(workspace_, &scope);
    assign(*statement.expressions[0], each, inner);
    if (is_true(evaluator_.evaluate(*statement.expressions[2], inner))) kept.push_back(each);
  }
  return workspace_.keep(kept);
}

Renderer::Flow Renderer::loop_over(const Statement& statement, const Value& iterable, Scope& scope,
                                   TextBuilder& out) {
  const std::span<const Value> items = chosen(statement, iterable, scope);
  if (items.empty()) return statement.bodies.size() > 1 ? run(statement.bodies[1], scope, out) : Flow::normal;
  Loop& loop =
      *workspace_.make(Loop{.items = items, .depth = ++loop_depth_, .changed = workspace_.make(Value())});
  if (statement.recursive) {
    const auto again = [](Workspace& workspace, const Function& function, const Arguments& arguments) {
      const auto& call = *static_cast<const LoopCall*>(function.data);
      const auto given = arguments.bind(workspace, {"iterable"});
      TextBuilder inner(workspace);
      call.renderer->loop_over(*call.statement, given[0].value_or(Undefined{}), *call.scope, inner);
      return Value(inner.keep());
    };
    loop.again = workspace_.make(
        Function{.name = "loop", .call = again, .data = workspace_.make(LoopCall{this, &statement, &scope})});
  }
  Flow flow = Flow::normal;
  for (; loop.index < items.size() && flow != Flow::break_loop; ++loop.index) {
    workspace_.work(kStepWork);
    Scope& inner = *inner_scope(workspace_, &scope);
    inner.names->set("loop", static_cast<const Loop*>(&loop), workspace_);
    assign(*statement.expressions[0], items[loop.index], inner);
    flow = run(statement.bodies[0], inner, out);
  }
  --loop_depth_;
  return Flow::normal;
}

Renderer::Flow Renderer::generation(const Statement& statement, Scope& scope, TextBuilder& out) {
  const size_t begin = out.size();
  Scope& inner = *inner_scope(workspace_, &scope);
  const Flow flow = run(statement.bodies[0], inner, out);
  if (&out == &main_) generated_.emplace_back(begin, out.size());
  return flow;
}

std::string_view Renderer::text_of(const Body& body, Scope& scope) {
  TextBuilder out(workspace_);
  Scope& inner = *inner_scope(workspace_, &scope);
  if (run(body, inner, out) != Flow::normal) throw workspace_.error("break or continue outside of a loop");
  return out.keep();
}

void Renderer::assign(const Expression& target, const Value& value, Scope& scope) {
  if (target.type == ExpressionType::name) return scope.names->set(target.text, value, workspace_);
  if (target.type == ExpressionType::attribute) {
    const Value space = evaluator_.evaluate(*target.operands[0], scope);
    if (!space.is<Namespace*>())
      throw workspace_.error("an attribute can only be set of a namespace", "Use {% set ns = namespace() %}");
    return space.as<Namespace*>()->set(target.text, value, workspace_);
  }
  const auto items = elements(workspace_, value);
  if (items.size() != target.operands.size()) {
    throw workspace_.error(
        fmt::format("{} values are assigned to {} names", items.size(), target.operands.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i], scope);
}

void Renderer::assign_body(const Statement& statement, Scope& scope) {
  Value value = text_of(statement.bodies[0], scope);
  if (statement.expressions[1]) value = evaluator_.filtered(*statement.expressions[1], value, scope);
  assign(*statement.expressions[0], value, scope);
}

Value Renderer::macro(const Statement& statement, Scope& scope) {
  const size_t first_default = statement.type == StatementType::call ? 1 : 0;
  const auto call = [](Workspace& /*workspace*/, const Function& function, const Arguments& arguments) {
    const auto& macro = *static_cast<const Macro*>(function.data);
    return macro.renderer->call_macro(macro, arguments);
  };
  return static_cast<const Function*>(
      workspace_.make(Function{.name = statement.text,
                               .call = call,
                               .data = workspace_.make(Macro{this, &statement, &scope, first_default})}));
}

void Renderer::bind_parameters(const Macro& macro, const Arguments& arguments, Scope& scope) {
  const std::vector<std::string>& names = macro.statement->parameters;
  if (arguments.positional.size() > names.size())
    throw workspace_.error(fmt::format("the macro '{}' takes {} arguments and was given {}",
                                       macro.statement->text, names.size(), arguments.positional.size()));
  for (const auto& [name, value] : arguments.named) {
    if (name != "caller" && std::find(names.begin(), names.end(), name) == names.end())
      throw workspace_.error(
          fmt::format("the macro '{}' has no argument '{}'", macro.statement->text, printable(name, 40)));
    scope.names->set(name, value, workspace_);
  }
  const size_t defaults = macro.statement->expressions.size() - macro.first_default;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i < arguments.positional.size()) {
      scope.names->set(names[i], arguments.positional[i], workspace_);
    } else if (scope.names->find(names[i]) == nullptr) {
      const bool has_default = i + defaults >= names.size();
      const size_t at = macro.first_default + i + defaults - names.size();
      const std::string why = fmt::format("parameter '{}' was not provided", names[i]);
      scope.names->set(names[i],
                       has_default ? evaluator_.evaluate(*macro.statement->expressions[at], scope)
                                   : Value(Undefined{workspace_.keep(why)}),
                       workspace_);
    }
  }
}

Value Renderer::call_macro(const Macro& macro, const Arguments& arguments) {
  Scope& scope = *inner_scope(workspace_, macro.scope);
  bind_parameters(macro, arguments, scope);
  return text_of(macro.statement->bodies[0], scope);
}

}  // namespace teratron::jinja
