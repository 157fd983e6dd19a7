#include "teratron/pickle/value.h"

namespace teratron {

std::string_view PickleValue::text() const {
  if (is(Kind::object)) return items_[0]->text();
  const bool has_text = is(Kind::text) || is(Kind::bytes) || is(Kind::global);
  return has_text ? std::string_view(text_, count_) : std::string_view();
}

std::span<PickleValue* const> PickleValue::items() const {
  if (is(Kind::object)) return {items_ + 1, count_ - 1};
  const bool has_items = is(Kind::list) || is(Kind::tuple) || is(Kind::dict);
  return has_items ? std::span<PickleValue* const>(items_, count_) : std::span<PickleValue* const>();
}

const PickleValue* PickleValue::find(std::string_view key) const {
  if (!is(Kind::dict)) return nullptr;
  for (size_t i = count_; i >= 2; i -= 2) {
    const PickleValue& candidate = *items_[i - 2];
    if (candidate.is(Kind::text) && candidate.text() == key) return items_[i - 1];
  }
  return nullptr;
}

}  // namespace teratron
