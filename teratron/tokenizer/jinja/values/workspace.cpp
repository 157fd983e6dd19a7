#include "teratron/tokenizer/jinja/values/workspace.h"

#include <algorithm>
#include <cstring>

namespace teratron::jinja {

void Workspace::work(size_t amount) {
  work_ += std::min(amount, kWorkLimit);
  if (work_ > kWorkLimit)
    throw error("the template needs too much time or memory", "Check its loops, or shorten the conversation");
}

UserError Workspace::error(std::string what, std::string fix) const {
  return data_error(
      {.what = std::move(what), .where = fmt::format("{}:{}", name_, line_), .fix = std::move(fix)});
}

std::string_view Workspace::keep(std::string_view text) {
  const std::span<char> kept = array<char>(text.size());
  if (!text.empty()) std::memcpy(kept.data(), text.data(), text.size());
  return {kept.data(), kept.size()};
}

std::span<const Value> Workspace::keep(std::span<const Value> values) {
  const std::span<Value> kept = array<Value>(values.size());
  std::copy(values.begin(), values.end(), kept.begin());
  return kept;
}

Value Workspace::list(std::span<const Value> values, ListKind kind) {
  return static_cast<const List*>(make(List{keep(values), kind}));
}

Value Workspace::dict(std::span<const std::pair<Value, Value>> members) {
  const auto kept = array<std::pair<Value, Value>>(members.size());
  size_t size = 0;
  for (const auto& [key, value] : members) {
    const Value* const found = find_member(*this, Dict{kept.first(size)}, key);
    if (found != nullptr) {
      *const_cast<Value*>(found) = value;  // of `kept`, which is still being filled
    } else {
      kept[size++] = {key, value};
    }
  }
  return static_cast<const Dict*>(make(Dict{kept.first(size)}));
}

Workspace::Nested::Nested(Workspace& workspace) : workspace_(workspace) {
  if (++workspace_.nesting_ <= kNestingLimit) return;
  --workspace_.nesting_;
  throw workspace_.error("the template is nested or calls itself too deeply");
}

void TextBuilder::repeat(std::string_view text, int64_t times) {
  if (times <= 0 || text.empty()) return;
  const auto count = static_cast<size_t>(times);
  workspace_.work(count > kWorkLimit ? kWorkLimit + 1 : count * text.size());
  for (size_t i = 0; i < count; ++i) text_ += text;
}

Arguments::Bound Arguments::bind(Workspace& workspace, std::initializer_list<std::string_view> names) const {
  Bound bound;
  if (positional.size() > names.size()) {
    throw workspace.error(fmt::format("{}() takes at most {} arguments and was given {}", function,
                                      names.size(), positional.size()));
  }
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = positional[i];
  for (const auto& [name, value] : named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw workspace.error(fmt::format("{}() has no argument '{}'", function, printable(name, 40)));
    bound[static_cast<size_t>(found - names.begin())] = value;
  }
  return bound;
}

int64_t integer_argument(Workspace& workspace, const std::optional<Value>& value, int64_t otherwise) {
  if (!value || value->is_none()) return otherwise;
  if (const auto integer = value->integer()) return *integer;
  throw workspace.error(fmt::format("an integer is expected, not '{}'", type_name(*value)));
}

std::string_view text_argument(Workspace& workspace, const std::optional<Value>& value) {
  if (value && value->is_text()) return value->text();
  throw workspace.error(
      fmt::format("a text is expected, not '{}'", value ? type_name(*value) : "no argument"));
}

}  // namespace teratron::jinja
