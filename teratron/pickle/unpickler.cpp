#include "teratron/pickle/unpickler.h"

#include <array>
#include <bit>
#include <charconv>
#include <set>

#include "teratron/base/error.h"
#include "teratron/pickle/pickle_calls.h"
#include "teratron/pickle/pickle_stack.h"

namespace teratron {

namespace {

// Steps of a walk of all values, shared ones each time, and bytes of text that cost as much as a value.
constexpr size_t least_steps = size_t{1} << 16, steps_per_byte = 16, text_per_step = 32;

// A walk of the values as their readers do it, so that these need to be afraid of neither cycles nor depth,
// nor of values that are shared so often that a small pickle takes forever.
class Walk {
 public:
  Walk(const PickleStream& stream, size_t depth)
      : stream_(stream), depth_(depth), left_(least_steps + steps_per_byte * stream.at()) {}

  void check(const PickleValue* root) {
    enter(root);
    while (!path_.empty()) {
      Visit& visit = path_.back();
      const auto items = visit.value->items();
      visit.next < items.size() ? enter(items[visit.next++]) : path_.pop_back();
    }
  }

 private:
  struct Visit {
    const PickleValue* value;
    size_t next = 0;
  };

  void enter(const PickleValue* value) {
    const size_t steps = 1 + value->text().size() / text_per_step;
    if (steps > left_) stream_.fail("the pickle holds more than it says: its values are shared too often");
    left_ -= steps;
    if (value->items().empty()) return;
    path_.push_back({value});
    if (path_.size() <= depth_) return;
    std::set<const PickleValue*> seen;
    for (const Visit& visit : path_) {
      if (!seen.insert(visit.value).second)
        stream_.fail("the pickle holds a list or dict that contains itself");
    }
    stream_.fail(fmt::format("the pickle is nested deeper than {}", depth_));
  }

  const PickleStream& stream_;
  size_t depth_, left_;
  std::vector<Visit> path_;
};

/// One run over a stream.
class PickleMachine {
 public:
  PickleMachine(std::string_view stream, const std::string& where, const PickleOptions& options)
      : stream_(stream, where, options.fix), stack_(stream_, options), depth_(options.depth) {}

  Pickle run() {
    while (!step(static_cast<unsigned char>(stream_.take(1)[0]))) {
    }
    stack_.pickle().bytes = stream_.at();
    return std::move(stack_.pickle());
  }

 private:
  using Kind = PickleValue::Kind;

  bool step(unsigned char operation);
  bool push_scalar(unsigned char operation);
  bool push_string(unsigned char operation);
  bool build_container(unsigned char operation);
  bool use_memo(unsigned char operation);

  void push_long(std::string_view text);
  void push_decimal(std::string_view text);
  void push_tuple(size_t count);
  void extend(PickleStack::Items items, bool pairs);

  PickleStream stream_;
  PickleStack stack_;
  PickleCalls calls_{stream_, stack_};
  size_t depth_;
};

// Two's complement, little-endian. What exceeds 64 bits is kept as bytes: no setting or size does.
void PickleMachine::push_long(std::string_view text) {
  if (text.size() > 8) return stack_.push_text(Kind::bytes, text);
  uint64_t value = !text.empty() && (text.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = 0; i < text.size(); ++i) {
    value &= ~(uint64_t{0xff} << (8 * i));
    value |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
  }
  stack_.push_integer(static_cast<int64_t>(value));
}

void PickleMachine::push_decimal(std::string_view text) {
  if (text == "00" || text == "01") {
    stack_.push_boolean(text == "01");
    return;
  }
  if (text.ends_with('L')) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    stream_.fail(fmt::format("'{}' is not a whole number", printable(text)));
  stack_.push_integer(value);
}

bool PickleMachine::push_scalar(unsigned char operation) {
  switch (operation) {
    case 'N':
      stack_.push_none();
      return true;
    case 0x88:
      stack_.push_boolean(true);
      return true;
    case 0x89:
      stack_.push_boolean(false);
      return true;
    case 'J':
      stack_.push_integer(static_cast<int32_t>(stream_.number(4)));
      return true;
    case 'K':
      stack_.push_integer(static_cast<int64_t>(stream_.number(1)));
      return true;
    case 'M':
      stack_.push_integer(static_cast<int64_t>(stream_.number(2)));
      return true;
    case 'I':
    case 'L':
      push_decimal(stream_.line());
      return true;
    case 0x8a:
      push_long(stream_.take(stream_.number(1)));
      return true;
    case 0x8b:
      push_long(stream_.take(stream_.number(4)));
      return true;
    case 'G': {
      uint64_t bits = 0;  // big-endian
      for (const char byte : stream_.take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
      stack_.push_real(std::bit_cast<double>(bits));
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::push_string(unsigned char operation) {
  switch (operation) {
    case 'X':
      stack_.push_text(Kind::text, stream_.take(stream_.number(4)));
      return true;
    case 0x8c:
      stack_.push_text(Kind::text, stream_.take(stream_.number(1)));
      return true;
    case 0x8d:
      stack_.push_text(Kind::text, stream_.take(stream_.number(8)));
      return true;
    case 'T':
      stack_.push_text(Kind::text, stream_.take(stream_.number(4)));
      return true;  // str of Python 2
    case 'U':
      stack_.push_text(Kind::text, stream_.take(stream_.number(1)));
      return true;
    case 'B':
      stack_.push_text(Kind::bytes, stream_.take(stream_.number(4)));
      return true;
    case 'C':
      stack_.push_text(Kind::bytes, stream_.take(stream_.number(1)));
      return true;
    case 0x8e:
    case 0x96:
      stack_.push_text(Kind::bytes, stream_.take(stream_.number(8)));
      return true;
    default:
      return false;
  }
}

void PickleMachine::push_tuple(size_t count) {
  std::array<PickleValue*, 3> items = {};
  for (size_t i = count; i > 0; --i) items[i - 1] = stack_.pop();
  stack_.push_items(Kind::tuple, std::span(items).first(count));
}

// Adds to the list or dict at the top of the stack.
void PickleMachine::extend(PickleStack::Items items, bool pairs) {
  PickleValue& target = stack_.top();
  if (!target.is(pairs ? Kind::dict : Kind::list))
    stream_.fail("the pickle adds items to what does not hold any");
  if (pairs && items.size() % 2 != 0) stream_.fail("the pickle adds a key without a value");
  stack_.append(target, items);
}

bool PickleMachine::build_container(unsigned char operation) {
  switch (operation) {
    case ']':
    case 0x8f:
      stack_.push_items(Kind::list, {});
      return true;
    case '}':
      stack_.push_items(Kind::dict, {});
      return true;
    case ')':
      stack_.push_items(Kind::tuple, {});
      return true;
    case 0x85:
      push_tuple(1);
      return true;
    case 0x86:
      push_tuple(2);
      return true;
    case 0x87:
      push_tuple(3);
      return true;
    case '(':
      stack_.mark();
      return true;
    case 't':
    case 'l':
    case 'd':
    case 0x91: {
      const PickleStack::Items items = stack_.pop_to_mark();
      if (operation == 'd' && items.size() % 2 != 0) stream_.fail("the pickle adds a key without a value");
      stack_.push_items(operation == 't' ? Kind::tuple : operation == 'd' ? Kind::dict : Kind::list, items);
      return true;
    }
    case 'a': {
      PickleValue* const item = stack_.pop();
      extend({&item, 1}, false);
      return true;
    }
    case 's': {
      PickleValue* const value = stack_.pop();
      PickleValue* const pair[] = {stack_.pop(), value};
      extend(pair, true);
      return true;
    }
    case 'e':
    case 0x90:
      extend(stack_.pop_to_mark(), false);
      return true;
    case 'u':
      extend(stack_.pop_to_mark(), true);
      return true;
    default:
      return false;
  }
}

bool PickleMachine::use_memo(unsigned char operation) {
  switch (operation) {
    case 'q':
      stack_.put(stream_.number(1));
      return true;
    case 'r':
      stack_.put(stream_.number(4));
      return true;
    case 0x94:
      stack_.put_next();
      return true;
    case 'h':
      stack_.get(stream_.number(1));
      return true;
    case 'j':
      stack_.get(stream_.number(4));
      return true;
    case '0':
      stack_.pop();
      return true;
    case '1':
      stack_.pop_to_mark();
      return true;
    case '2':
      stack_.push_again(&stack_.top());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step(unsigned char operation) {
  if (operation == '.') {
    stack_.pickle().root = stack_.pop();
    Walk(stream_, depth_).check(stack_.pickle().root);
    return true;
  }
  if (operation == 0x80) {  // protocol
    if (const uint64_t protocol = stream_.number(1); protocol > 5)
      stream_.fail(fmt::format("pickle protocol {}", protocol));
    return false;
  }
  if (operation == 0x95) {  // a frame
    stream_.number(8);
    return false;
  }
  if (push_scalar(operation) || push_string(operation) || build_container(operation) || use_memo(operation) ||
      calls_.run(operation))
    return false;
  stream_.fail(fmt::format("0x{:02x} is not an operation of a pickle that is read here", operation));
}

}  // namespace

Pickle parse_pickle(std::string_view stream, const std::string& where, const PickleOptions& options) {
  return PickleMachine(stream, where, options).run();
}

}  // namespace teratron
