// The states of a grammar while it reads bytes: a deterministic automaton that is made as far as it is used.
//
// A state is a set of stacks of what must follow, each with one set of bytes on top or empty: a pushdown
// automaton (Aho and Ullman), all of whose runs are followed at once. Stacks share their lower parts.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

class GrammarStates {
 public:
  static constexpr int32_t none = -1;
  /// Stacks of a state; of ambiguous grammars with more, some texts are not accepted.
  static constexpr size_t most_stacks = 512;

  /// `grammar` without endless rules (ByteGrammar::keep_finite).
  GrammarStates(ByteGrammar grammar, RuleId root);

  int32_t start() const { return 0; }
  /// The state after a byte; none: the byte cannot follow.
  int32_t next(int32_t state, uint8_t byte);
  /// Whether the text is complete.
  bool may_end(int32_t state) const { return states_[state].may_end; }
  /// Whether it is complete and nothing can follow.
  bool must_end(int32_t state) const { return states_[state].may_end && states_[state].tops.empty(); }
  /// States so far.
  size_t size() const { return states_.size(); }

 private:
  static constexpr int32_t unknown = -2, empty = -1;

  // A place in a sequence whose elements from `at` on must follow, before what is below.
  struct Node {
    int32_t below = empty;
    RuleId rule = 0;
    int32_t sequence = 0, at = 0;
    int32_t times = 0;  // that the element was repeated already
    auto operator<=>(const Node&) const = default;
  };
  struct State {
    std::vector<int32_t> tops;  // nodes whose element is a set of bytes
    bool may_end = false;
    std::vector<int32_t> next;  // by byte, once one is asked for
  };
  struct Closure {
    std::vector<int32_t> tops, todo;
    std::unordered_set<int32_t> seen;
    bool may_end = false;
  };

  int32_t node(const Node& wanted);
  const GrammarSequence& sequence_of(const Node& place) const {
    return grammar_.sequences(place.rule)[place.sequence];
  }
  void visit(int32_t place, Closure& closure);
  void expand(int32_t place, Closure& closure);
  void enter(RuleId rule, int32_t below, Closure& closure);
  void finish(Closure& closure);
  int32_t after(const Node& place);
  int32_t state_of(Closure closure);

  ByteGrammar grammar_;
  std::vector<Node> nodes_;
  std::map<Node, int32_t> known_nodes_;
  std::vector<State> states_;
  std::map<std::pair<std::vector<int32_t>, bool>, int32_t> known_states_;
};

}  // namespace teratron
