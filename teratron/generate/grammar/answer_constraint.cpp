#include "teratron/generate/grammar/answer_constraint.h"

#include <nlohmann/json.hpp>

namespace teratron {

AnswerConstraint::AnswerConstraint(AnswerGrammar grammar, const TokenBytes& tokens)
    : grammar_(std::move(grammar)), tokens_(tokens) {
  reset();
}

void AnswerConstraint::reset() {
  states_.emplace(grammar_.grammar, grammar_.root);
  epoch_ += 1;
  masks_.clear();
}

// States that were forgotten are found again by the text.
void AnswerConstraint::find(Place& place) {
  if (place.epoch_ == epoch_) return;
  place.epoch_ = epoch_;
  place.state_ = walk(states_->start(), place.text_);
}

int32_t AnswerConstraint::walk(int32_t state, std::string_view bytes) {
  for (const char byte : bytes) {
    if (state == GrammarStates::none) break;
    state = states_->next(state, static_cast<uint8_t>(byte));
  }
  return state;
}

TokenMask AnswerConstraint::mask_of(int32_t state) {
  TokenMask mask(static_cast<size_t>(tokens_.vocabulary()), 0);
  std::vector<int32_t> path = {state};  // the state after each byte of the last entry, as far as there is one
  for (const TokenBytes::Entry& entry : tokens_.entries()) {
    if (path.size() > entry.common + 1) path.resize(entry.common + 1);
    // What it shares with the entry before it cannot follow.
    if (path.size() <= entry.common) continue;
    while (path.size() <= entry.bytes.size()) {
      const int32_t next = states_->next(path.back(), static_cast<uint8_t>(entry.bytes[path.size() - 1]));
      if (next == GrammarStates::none) break;
      path.push_back(next);
    }
    mask[entry.id] = path.size() > entry.bytes.size() ? 1 : 0;
  }
  return mask;
}

std::shared_ptr<const TokenMask> AnswerConstraint::allowed(Place& place, const std::vector<int32_t>& ends) {
  if (states_->size() > most_states) reset();
  find(place);
  if (masks_.size() > most_masks) masks_.clear();
  const bool may_end = states_->may_end(place.state_);
  const auto [known, is_new] =
      masks_.try_emplace({place.state_, may_end ? ends : std::vector<int32_t>()}, nullptr);
  if (!is_new) return known->second;
  TokenMask mask = mask_of(place.state_);
  for (const int32_t end : may_end ? ends : std::vector<int32_t>()) {
    if (end >= 0 && end < tokens_.vocabulary()) mask[end] = 1;
  }
  return known->second = std::make_shared<const TokenMask>(std::move(mask));
}

void AnswerConstraint::advance(Place& place, int32_t token) {
  find(place);
  const std::string_view bytes = tokens_.of(token);
  const int32_t next = walk(place.state_, bytes);
  if (next == GrammarStates::none) return;
  place.state_ = next;
  place.text_ += bytes;
}

bool AnswerConstraint::is_complete(Place& place) {
  find(place);
  return states_->must_end(place.state_);
}

const TokenBytes& AnswerConstraints::tokens() const {
  std::call_once(once_, [&] { tokens_.emplace(*tokenizer_, vocabulary_); });
  return *tokens_;
}

std::vector<Problem> AnswerConstraints::problems(const AnswerForm& form) const {
  const char* const fix = "Ask for text and read it yourself";
  if (form.empty()) return {};
  if (tokenizer_ == nullptr)
    return {{.what = "answers in JSON need a tokenizer", .where = "response_format", .fix = fix}};
  ByteSet missing = byte_range(0x20, 0x7E) | answer_grammar(form).grammar.text_bytes();
  missing &= ~tokens().single();
  if (missing.none()) return {};
  std::string bytes;
  for (size_t byte = 0; byte < missing.size(); ++byte) {
    if (missing.test(byte)) bytes += static_cast<char>(byte);
  }
  return {
      {.what = fmt::format("the tokenizer cannot write JSON: no token is just '{}'", printable(bytes, 40)),
       .where = "response_format",
       .fix = fix}};
}

std::shared_ptr<AnswerConstraint> AnswerConstraints::of(const AnswerForm& form) {
  if (form.empty()) return nullptr;
  std::erase_if(known_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<AnswerConstraint>& known = known_[to_json(form).dump()];
  if (auto used = known.lock()) return used;
  auto made = std::make_shared<AnswerConstraint>(answer_grammar(form), tokens());
  known = made;
  return made;
}

}  // namespace teratron
