#include "teratron/generate/grammar/number_ranges.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace teratron {

namespace {

constexpr size_t most_whole = 16, most_fraction = 15;

// A bound of magnitudes: digits before and behind the point, without zeros that mean nothing.
struct Edge {
  std::string whole = "0", fraction = {};
  bool is_included = true;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};
struct Decimal {
  Edge magnitude;
  bool is_negative = false;
};

Decimal decimal_of(const NumberBound& bound) {
  Decimal found;
  std::string_view text = bound.number;
  found.is_negative = text.starts_with('-');
  if (found.is_negative) text.remove_prefix(1);
  const size_t e = std::min(text.find_first_of("eE"), text.size()), point = std::min(text.find('.'), e);
  const int exponent = e < text.size() ? std::stoi(std::string(text.substr(e + 1))) : 0;
  std::string whole(text.substr(0, point)), fraction(point < e ? text.substr(point + 1, e - point - 1) : "");
  for (int i = 0; i < exponent; ++i) {
    whole += fraction.empty() ? '0' : fraction.front();
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (int i = 0; i < -exponent; ++i) {
    fraction.insert(0, 1, whole.back());
    whole.pop_back();
    if (whole.empty()) whole = "0";
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (fraction.size() > most_fraction) throw std::invalid_argument("more than 15 digits behind the point");
  found.magnitude = {.whole = whole, .fraction = fraction, .is_included = bound.is_included};
  if (found.magnitude.is_zero()) found.is_negative = false;
  return found;
}

// Numbers without a sign, digit by digit: a bound binds as long as all digits so far are its digits.
class Magnitudes {
 public:
  Magnitudes(ByteGrammar& grammar, Edge low, std::optional<Edge> high, bool is_integer)
      : grammar_(grammar), low_(std::move(low)), high_(std::move(high)), is_integer_(is_integer) {
    if (high_ && high_->whole.size() > most_whole) high_.reset();
    if (!is_integer_) return;
    // To the integers within.
    const bool is_whole = low_.fraction.empty() && low_.is_included;
    if (!is_whole && low_.whole.size() < most_whole + 1)
      low_ = {.whole = std::to_string(std::stoll(low_.whole) + 1)};
    if (!high_) return;
    const bool is_above = high_->fraction.empty() && !high_->is_included;
    if (is_above && high_->is_zero()) is_empty_ = true;
    if (!is_empty_) high_ = Edge{.whole = std::to_string(std::stoll(high_->whole) - (is_above ? 1 : 0))};
  }

  RuleId rule() {
    std::vector<GrammarSequence> one_of;
    const size_t longest = high_ ? high_->whole.size() : most_whole;
    for (size_t length = low_.whole.size(); length <= longest && !is_empty_; ++length) {
      length_ = length;
      one_of.push_back({ByteGrammar::rule(
          digits(0, {length == low_.whole.size(), high_ && length == high_->whole.size()}))});
    }
    return grammar_.add(std::move(one_of));
  }

 private:
  struct Binds {
    bool low = false, high = false;
    bool any() const { return low || high; }
  };

  // The next digit, one of [first, last], where bounds that bind have `low` and `high`; then `rest` of it.
  template <typename Rest>
  std::vector<GrammarSequence> next(Binds binds, std::pair<char, char> range, const Rest& rest) {
    std::vector<GrammarSequence> one_of;
    const auto add = [&](char first, char last, Binds after) {
      if (first > last) return;
      const ByteSet set = byte_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
      one_of.push_back({grammar_.bytes(set), ByteGrammar::rule(rest(after))});
    };
    auto [first, last] = range;
    if (binds.low && binds.high && first == last) {
      add(first, last, binds);
      return one_of;
    }
    if (first > last) return one_of;
    if (binds.low) add(first, first, {.low = true});
    if (binds.high) add(last, last, {.high = true});
    add(static_cast<char>(first + (binds.low ? 1 : 0)), static_cast<char>(last - (binds.high ? 1 : 0)), {});
    return one_of;
  }

  RuleId digits(size_t at, Binds binds) {
    if (at == length_) return fraction(0, binds);
    const char zero = at == 0 && length_ > 1 ? '1' : '0';
    const std::pair range = {binds.low ? low_.whole[at] : zero, binds.high ? high_->whole[at] : '9'};
    return grammar_.add(next(binds, range, [&](Binds after) { return digits(at + 1, after); }));
  }

  // What follows `at` digits behind the point, which is written with the first.
  RuleId fraction(size_t at, Binds binds) {
    const auto digit = [at](const Edge& edge) { return at < edge.fraction.size() ? edge.fraction[at] : '0'; };
    if (binds.low && at >= low_.fraction.size() && low_.is_included) binds.low = false;
    const bool is_most = binds.high && at >= high_->fraction.size();
    if (is_most && !high_->is_included) return grammar_.add({});
    std::vector<GrammarSequence> one_of;
    if (at < most_fraction && !is_integer_) {
      const std::pair range = {binds.low ? digit(low_) : '0', binds.high ? digit(*high_) : '9'};
      one_of = next(binds, range, [&](Binds after) { return fraction(at + 1, after); });
    }
    if (at == 0) {
      for (GrammarSequence& each : one_of) each.insert(each.begin(), grammar_.byte('.'));
    }
    if (!binds.low) one_of.emplace_back();  // else it is below, or at a bound that is left out
    return grammar_.add(std::move(one_of));
  }

  ByteGrammar& grammar_;
  Edge low_;
  std::optional<Edge> high_;
  bool is_integer_, is_empty_ = false;
  size_t length_ = 0;  // of the digits before the point
};

}  // namespace

RuleId number_between(ByteGrammar& grammar, const NumberRange& range) {
  std::optional<Decimal> least, most;
  if (range.least) least = decimal_of(*range.least);
  if (range.most) most = decimal_of(*range.most);
  const auto magnitudes = [&](const Edge& low, std::optional<Edge> high) {
    return ByteGrammar::rule(Magnitudes(grammar, low, std::move(high), range.is_integer).rule());
  };
  const auto edge = [](const std::optional<Decimal>& bound) {
    return bound ? std::optional(bound->magnitude) : std::nullopt;
  };
  std::vector<GrammarSequence> one_of;
  if (!most || !most->is_negative)
    one_of.push_back({magnitudes(least && !least->is_negative ? least->magnitude : Edge{}, edge(most))});
  if (!least || least->is_negative) {
    // "-0" is a number, but no integer.
    const bool has_zero =
        !range.is_integer && (!most || !most->magnitude.is_zero() || most->magnitude.is_included);
    const Edge low = most && most->is_negative ? most->magnitude : Edge{.is_included = has_zero};
    one_of.push_back({grammar.byte('-'), magnitudes(low, edge(least))});
  }
  return grammar.add(std::move(one_of));
}

}  // namespace teratron
