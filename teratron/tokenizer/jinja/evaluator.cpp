#include "teratron/tokenizer/jinja/evaluator.h"

#include "teratron/tokenizer/jinja/filters.h"
#include "teratron/tokenizer/jinja/globals.h"
#include "teratron/tokenizer/jinja/operations.h"

namespace teratron::jinja {

Scope* inner_scope(Workspace& workspace, Scope* outer) {
  return workspace.make(Scope{.outer = outer, .names = workspace.make(Namespace{})});
}

Value Evaluator::evaluate(const Expression& expression, Scope& scope) {
  const Workspace::Nested nested(workspace_);
  workspace_.work(kStepWork);
  workspace_.at_line(expression.line);
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i], scope); };
  switch (expression.type) {
    case ExpressionType::constant:
      return expression.value;
    case ExpressionType::name:
      return name(expression, scope);
    case ExpressionType::list:
      return workspace_.list(all(expression, scope));
    case ExpressionType::tuple:
      return workspace_.list(all(expression, scope), ListKind::tuple);
    case ExpressionType::dict:
      return made_dict(expression, scope);
    case ExpressionType::attribute:
      return attribute_of(workspace_, operand(0), expression.text);
    case ExpressionType::item:
      return item(expression, scope);
    case ExpressionType::slice:
    case ExpressionType::unpack:
      throw workspace_.error("a slice or * stands alone");
    case ExpressionType::call:
      return call(expression, scope);
    case ExpressionType::filter:
      return filtered(expression, Undefined{}, scope);
    case ExpressionType::test: {
      const Value tested = operand(0);
      return apply_test(workspace_, expression.text, tested,
                        arguments(expression, scope).arguments(expression.text));
    }
    case ExpressionType::unary:
      return expression.text == "not" ? Value(!is_true(operand(0)))
                                      : signed_value(workspace_, expression.text, operand(0));
    case ExpressionType::binary: {
      const Value left = operand(0);
      return binary_operation(workspace_, expression.text, left, operand(1));
    }
    case ExpressionType::compare:
      return compared(expression, scope);
    case ExpressionType::concatenate:
      return concatenated(expression, scope);
    case ExpressionType::both: {
      const Value left = operand(0);
      return is_true(left) ? operand(1) : left;
    }
    case ExpressionType::either: {
      const Value left = operand(0);
      return is_true(left) ? left : operand(1);
    }
    case ExpressionType::choice:
      return choice(expression, scope);
  }
  return Undefined{};
}

Value Evaluator::name(const Expression& expression, Scope& scope) {
  for (const Scope* each = &scope; each != nullptr; each = each->outer) {
    workspace_.work(8 * each->names->size + 8);
    if (const Value* const found = each->names->find(expression.text)) return *found;
  }
  if (const auto global = find_global(expression.text)) return *global;
  return Undefined{workspace_.keep(fmt::format("'{}' is undefined", printable(expression.text, 60)))};
}

std::vector<Value> Evaluator::all(const Expression& expression, Scope& scope) {
  std::vector<Value> values;
  for (const ExpressionPtr& each : expression.operands) values.push_back(evaluate(*each, scope));
  return values;
}

Value Evaluator::made_dict(const Expression& expression, Scope& scope) {
  const std::vector<Value> values = all(expression, scope);
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i < values.size(); i += 2) {
    const auto* const list = values[i].get_if<const List*>();
    if (values[i].is<const Dict*>() || (list != nullptr && (*list)->kind == ListKind::list))
      throw workspace_.error(fmt::format("'{}' cannot be a key", type_name(values[i])));
    members.emplace_back(values[i], values[i + 1]);
  }
  return workspace_.dict(members);
}

Value Evaluator::compared(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.operands[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    const Value right = evaluate(*expression.operands[i + 1], scope);
    if (!comparison(workspace_, expression.operators[i], left, right)) return false;
    left = right;
  }
  return true;
}

Value Evaluator::choice(const Expression& expression, Scope& scope) {
  if (is_true(evaluate(*expression.operands[1], scope))) return evaluate(*expression.operands[0], scope);
  if (expression.operands[2]) return evaluate(*expression.operands[2], scope);
  return Undefined{"the condition is false, and there is no else"};
}

Value Evaluator::item(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.operands[0], scope);
  const Expression& index = *expression.operands[1];
  if (index.type != ExpressionType::slice) return item_of(workspace_, value, evaluate(index, scope));
  const auto part = [&](size_t i) {
    return index.operands[i] ? evaluate(*index.operands[i], scope) : Value(None{});
  };
  const Value start = part(0), stop = part(1);
  return slice_of(workspace_, value, {start, stop, part(2)});
}

Value Evaluator::concatenated(const Expression& expression, Scope& scope) {
  TextBuilder out(workspace_);
  for (const ExpressionPtr& each : expression.operands) out << to_text(workspace_, evaluate(*each, scope));
  return out.keep();
}

void Evaluator::add_members(const Value& value, Evaluated& to) {
  const auto* const dict = value.get_if<const Dict*>();
  if (dict == nullptr) throw workspace_.error(fmt::format("'{}' does not follow **", type_name(value)));
  for (const auto& [name, member] : (*dict)->members)
    to.named.emplace_back(text_argument(workspace_, name), member);
}

Evaluator::Evaluated Evaluator::arguments(const Expression& expression, Scope& scope) {
  Evaluated all;
  const size_t first_named = expression.operands.size() - expression.argument_names.size();
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    const Expression& operand = *expression.operands[i];
    const bool is_unpacked = operand.type == ExpressionType::unpack;
    const Value value = evaluate(is_unpacked ? *operand.operands[0] : operand, scope);
    if (is_unpacked) {
      const auto values = elements(workspace_, value);
      all.positional.insert(all.positional.end(), values.begin(), values.end());
    } else if (i < first_named) {
      all.positional.push_back(value);
    } else if (expression.argument_names[i - first_named] == "**") {
      add_members(value, all);
    } else {
      all.named.emplace_back(expression.argument_names[i - first_named], value);
    }
  }
  return all;
}

Value Evaluator::filtered(const Expression& filters, const Value& body, Scope& scope) {
  const Expression* const operand = filters.operands[0].get();
  const bool is_chained = operand != nullptr && operand->type == ExpressionType::filter;
  const Value value = is_chained ? filtered(*operand, body, scope)
                      : operand  ? evaluate(*operand, scope)
                                 : body;
  const Evaluated given = arguments(filters, scope);
  workspace_.at_line(filters.line);
  workspace_.work(kStepWork);
  return apply_filter(workspace_, filters.text, value, given.arguments(filters.text));
}

Value Evaluator::call(const Expression& expression, Scope& scope) {
  const Value callee = evaluate(*expression.operands[0], scope);
  const Evaluated given = arguments(expression, scope);
  workspace_.at_line(expression.line);
  return call_value(workspace_, callee, given.arguments(""));
}

Value Evaluator::called_with(const Expression& call, std::string_view name, const Value& value,
                             Scope& scope) {
  const Value callee = evaluate(*call.operands[0], scope);
  Evaluated given = arguments(call, scope);
  given.named.emplace_back(name, value);
  return call_value(workspace_, callee, given.arguments(""));
}

}  // namespace teratron::jinja
