#include "teratron/generate/grammar/grammar_states.h"

#include <algorithm>

namespace teratron {

using Kind = GrammarElement::Kind;

GrammarStates::GrammarStates(ByteGrammar grammar, RuleId root) : grammar_(std::move(grammar)) {
  Closure closure;
  enter(root, empty, closure);
  finish(closure);
  state_of(std::move(closure));
}

int32_t GrammarStates::node(const Node& wanted) {
  const auto [known, is_new] = known_nodes_.emplace(wanted, static_cast<int32_t>(nodes_.size()));
  if (is_new) nodes_.push_back(wanted);
  return known->second;
}

// What follows once the element of `place` is done: nothing remains of a sequence at its end.
int32_t GrammarStates::after(const Node& place) {
  const bool ends = place.at + 1 == static_cast<int32_t>(sequence_of(place).size());
  if (ends) return place.below;
  return node({.below = place.below, .rule = place.rule, .sequence = place.sequence, .at = place.at + 1});
}

void GrammarStates::visit(int32_t place, Closure& closure) {
  if (place == empty) {
    closure.may_end = true;
    return;
  }
  if (closure.seen.insert(place).second) closure.todo.push_back(place);
}

void GrammarStates::enter(RuleId rule, int32_t below, Closure& closure) {
  const std::vector<GrammarSequence>& one_of = grammar_.sequences(rule);
  for (size_t i = 0; i < one_of.size(); ++i) {
    if (one_of[i].empty()) {
      visit(below, closure);
    } else {
      visit(node({.below = below, .rule = rule, .sequence = static_cast<int32_t>(i)}), closure);
    }
  }
}

void GrammarStates::finish(Closure& closure) {
  while (!closure.todo.empty()) {
    const int32_t place = closure.todo.back();
    closure.todo.pop_back();
    expand(place, closure);
  }
}

void GrammarStates::expand(int32_t index, Closure& closure) {
  const Node place = nodes_[index];
  const GrammarElement element = sequence_of(place)[place.at];
  if (element.kind == Kind::bytes) {
    closure.tops.push_back(index);
    return;
  }
  if (place.times >= element.least) visit(after(place), closure);
  if (element.most >= 0 && place.times >= element.most) return;
  int32_t below = after(place);
  const bool is_last_time = element.most >= 0 && place.times + 1 == element.most;
  if (!is_last_time) {
    Node again = place;
    // Without a bound only the times that are still missing count.
    again.times = element.most < 0 ? std::min(place.times + 1, element.least) : place.times + 1;
    below = node(again);
  }
  enter(element.index, below, closure);
}

int32_t GrammarStates::state_of(Closure closure) {
  std::vector<int32_t>& tops = closure.tops;
  std::ranges::sort(tops);
  if (tops.size() > most_stacks) tops.resize(most_stacks);
  if (tops.empty() && !closure.may_end) return none;
  const auto [known, is_new] =
      known_states_.emplace(std::pair{tops, closure.may_end}, static_cast<int32_t>(states_.size()));
  if (is_new) states_.push_back({.tops = std::move(tops), .may_end = closure.may_end, .next = {}});
  return known->second;
}

int32_t GrammarStates::next(int32_t state, uint8_t byte) {
  if (states_[state].next.empty()) states_[state].next.assign(256, unknown);
  const int32_t found = states_[state].next[byte];
  if (found != unknown) return found;
  Closure closure;
  const std::vector<int32_t> tops = states_[state].tops;
  for (const int32_t top : tops) {
    const Node place = nodes_[top];
    if (!grammar_.set(sequence_of(place)[place.at]).test(byte)) continue;
    visit(after(place), closure);
  }
  finish(closure);
  const int32_t made = state_of(std::move(closure));
  states_[state].next[byte] = made;
  return made;
}

}  // namespace teratron
