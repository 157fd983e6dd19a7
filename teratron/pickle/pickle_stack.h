// What the operations of a pickle work on: the bytes of the program, its stack and memo, and the values made
// so far. Every failure is a UserError(checkpoint) that names the byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/pickle/unpickler.h"

namespace teratron {

/// The program, read from its beginning to its end.
class PickleStream {
 public:
  /// `where` names the file in errors, and must outlive the stream.
  PickleStream(std::string_view stream, const std::string& where) : stream_(stream), where_(where) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw checkpoint_error({.what = what,
                            .where = fmt::format("{}, byte {} of the pickle", where_, at_),
                            .fix = "Use an undamaged checkpoint that torch.save wrote from tensors, numbers, "
                                   "texts, lists and dicts"});
  }
  std::string_view take(size_t bytes) {
    if (bytes > stream_.size() - at_) fail("the pickle is cut off");
    at_ += bytes;
    return stream_.substr(at_ - bytes, bytes);
  }
  /// Little-endian.
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string_view text = take(bytes);
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
    return value;
  }
  std::string_view line() {
    const size_t end = stream_.find('\n', at_);
    if (end == std::string_view::npos) fail("the pickle is cut off");
    const size_t length = end - at_;
    return take(length + 1).substr(0, length);
  }
  size_t at() const { return at_; }
  const std::string& where() const { return where_; }

 private:
  std::string_view stream_;
  const std::string& where_;
  size_t at_ = 0;
};

/// The stack with its marks, the memo, and what they point to.
class PickleStack {
 public:
  using Kind = PickleValue::Kind;

  PickleStack(const PickleStream& stream, const PickleLimits& limits) : stream_(stream), limits_(limits) {}

  /// Counts values, and copies of items or text, which a stream can ask for many times over.
  void charge(size_t units) {
    if (units > limits_.values - used_)
      stream_.fail(fmt::format("the pickle holds more than {} values", limits_.values));
    used_ += units;
  }
  /// A new value.
  PickleValue& push(Kind kind) {
    charge(1);
    PickleValue& value = pickle_.values.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return value;
  }
  void push_integer(int64_t integer) { push(Kind::integer).integer = integer; }
  void push_text(Kind kind, std::string_view text) { push(kind).text = text; }
  void push_again(PickleValue* value) { stack_.push_back(value); }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) stream_.fail("the pickle's stack is empty");
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    PickleValue* const value = pop();
    stack_.push_back(value);
    return *value;
  }

  void mark() { marks_.push_back(stack_.size()); }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) stream_.fail("the pickle lacks a mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleValue*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) stream_.fail(fmt::format("the pickle's memo has no entry {}", index));
    stack_.push_back(found->second);
  }
  void put(uint64_t index) { memo_[index] = &top(); }
  void put_next() { put(memo_.size()); }

  Pickle& pickle() { return pickle_; }

 private:
  const PickleStream& stream_;
  PickleLimits limits_;
  size_t used_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

}  // namespace teratron
