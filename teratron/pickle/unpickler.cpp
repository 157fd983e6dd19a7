#include "teratron/pickle/unpickler.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <unordered_map>

#include "teratron/base/error.h"
#include "teratron/pickle/pickle_machine.h"

namespace teratron {

// Two's complement, little-endian. What exceeds 64 bits is kept as bytes: no setting or size does.
void PickleMachine::push_long(std::string_view text) {
  if (text.size() > 8) return push_text(Kind::bytes, text);
  uint64_t value = !text.empty() && (text.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = 0; i < text.size(); ++i) {
    value &= ~(uint64_t{0xff} << (8 * i));
    value |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
  }
  push_integer(static_cast<int64_t>(value));
}

void PickleMachine::push_decimal(std::string_view text) {
  if (text == "00" || text == "01") {
    push(Kind::boolean).integer = text == "01";
    return;
  }
  if (text.ends_with('L')) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(fmt::format("'{}' is not a whole number", printable(text)));
  push_integer(value);
}

bool PickleMachine::push_scalar(unsigned char operation) {
  switch (operation) {
    case 'N':
      push(Kind::none);
      return true;
    case 0x88:
      push(Kind::boolean).integer = 1;
      return true;
    case 0x89:
      push(Kind::boolean);
      return true;
    case 'J':
      push_integer(static_cast<int32_t>(number(4)));
      return true;
    case 'K':
      push_integer(static_cast<int64_t>(number(1)));
      return true;
    case 'M':
      push_integer(static_cast<int64_t>(number(2)));
      return true;
    case 'I':
    case 'L':
      push_decimal(line());
      return true;
    case 0x8a:
      push_long(take(number(1)));
      return true;
    case 0x8b:
      push_long(take(number(4)));
      return true;
    case 'G': {
      uint64_t bits = 0;  // big-endian
      for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
      push(Kind::real).real = std::bit_cast<double>(bits);
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::push_string(unsigned char operation) {
  switch (operation) {
    case 'X':
      push_text(Kind::text, take(number(4)));
      return true;
    case 0x8c:
      push_text(Kind::text, take(number(1)));
      return true;
    case 0x8d:
      push_text(Kind::text, take(number(8)));
      return true;
    case 'T':
      push_text(Kind::text, take(number(4)));
      return true;  // str of Python 2
    case 'U':
      push_text(Kind::text, take(number(1)));
      return true;
    case 'B':
      push_text(Kind::bytes, take(number(4)));
      return true;
    case 'C':
      push_text(Kind::bytes, take(number(1)));
      return true;
    case 0x8e:
    case 0x96:
      push_text(Kind::bytes, take(number(8)));
      return true;
    default:
      return false;
  }
}

void PickleMachine::push_tuple(size_t count) {
  std::vector<PickleValue*> items(count);
  for (size_t i = count; i > 0; --i) items[i - 1] = pop();
  push(Kind::tuple).items = std::move(items);
}

// Adds to the list or dict at the top of the stack.
void PickleMachine::extend(std::vector<PickleValue*> items, bool pairs) {
  PickleValue& target = top();
  if (!target.is(pairs ? Kind::dict : Kind::list)) fail("the pickle adds items to what does not hold any");
  if (pairs && items.size() % 2 != 0) fail("the pickle adds a key without a value");
  target.items.insert(target.items.end(), items.begin(), items.end());
}

bool PickleMachine::build_container(unsigned char operation) {
  switch (operation) {
    case ']':
    case 0x8f:
      push(Kind::list);
      return true;
    case '}':
      push(Kind::dict);
      return true;
    case ')':
      push(Kind::tuple);
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
      marks_.push_back(stack_.size());
      return true;
    case 't':
    case 'l':
    case 'd':
    case 0x91: {
      std::vector<PickleValue*> items = pop_to_mark();
      if (operation == 'd' && items.size() % 2 != 0) fail("the pickle adds a key without a value");
      push(operation == 't'   ? Kind::tuple
           : operation == 'd' ? Kind::dict
                              : Kind::list)
          .items = std::move(items);
      return true;
    }
    case 'a': {
      PickleValue* const item = pop();
      extend({item}, false);
      return true;
    }
    case 's': {
      PickleValue* const value = pop();
      PickleValue* const key = pop();
      extend({key, value}, true);
      return true;
    }
    case 'e':
    case 0x90:
      extend(pop_to_mark(), false);
      return true;
    case 'u':
      extend(pop_to_mark(), true);
      return true;
    default:
      return false;
  }
}

bool PickleMachine::use_memo(unsigned char operation) {
  switch (operation) {
    case 'q':
      put(number(1));
      return true;
    case 'r':
      put(number(4));
      return true;
    case 0x94:
      put(memo_.size());
      return true;
    case 'h':
      get(number(1));
      return true;
    case 'j':
      get(number(4));
      return true;
    case '0':
      pop();
      return true;
    case '1':
      pop_to_mark();
      return true;
    case '2':
      stack_.push_back(&top());
      return true;
    default:
      return false;
  }
}

// Refuses cycles and deep nesting, so that those who walk the values need not.
void PickleMachine::finish() {
  struct Visit {
    const PickleValue* value;
    size_t next;
  };
  std::unordered_map<const PickleValue*, size_t> heights;  // of what is done; 0: on the path
  std::vector<Visit> path = {{pickle_.root, 0}};
  heights[pickle_.root] = 0;
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next < visit.value->items.size()) {
      const PickleValue* const item = visit.value->items[visit.next++];
      if (item->items.empty()) continue;
      const auto [found, added] = heights.emplace(item, 0);
      if (!added && found->second == 0) fail("the pickle holds a list or dict that contains itself");
      if (added) path.push_back({item, 0});
      if (path.size() > limits_.depth)
        fail(fmt::format("the pickle is nested deeper than {}", limits_.depth));
      continue;
    }
    size_t height = 1;
    for (const PickleValue* item : visit.value->items)
      height = std::max(height, item->items.empty() ? 2 : heights.at(item) + 1);
    if (height > limits_.depth) fail(fmt::format("the pickle is nested deeper than {}", limits_.depth));
    heights[visit.value] = height;
    path.pop_back();
  }
}

bool PickleMachine::step(unsigned char operation) {
  if (operation == '.') {
    pickle_.root = pop();
    finish();
    return true;
  }
  if (operation == 0x80) {  // protocol
    if (const uint64_t protocol = number(1); protocol > 5) fail(fmt::format("pickle protocol {}", protocol));
    return false;
  }
  if (operation == 0x95) {  // a frame
    number(8);
    return false;
  }
  if (push_scalar(operation) || push_string(operation) || build_container(operation) || use_memo(operation) ||
      call(operation))
    return false;
  fail(fmt::format("0x{:02x} is not an operation of a pickle that is read here", operation));
}

Pickle parse_pickle(std::string_view stream, const std::string& where, const PickleLimits& limits) {
  return PickleMachine(stream, where, limits).run();
}

}  // namespace teratron
