// The machine that a pickle is a program of, for unpickler.cpp alone.
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

/// One run over a stream: a stack, a memo and the values made so far.
class PickleMachine {
 public:
  PickleMachine(std::string_view stream, const std::string& where, const PickleLimits& limits)
      : stream_(stream), where_(where), limits_(limits) {}

  Pickle run() {
    while (!step(static_cast<unsigned char>(take(1)[0]))) {
    }
    pickle_.bytes = at_;
    return std::move(pickle_);
  }

  using Kind = PickleValue::Kind;

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw checkpoint_error({.what = what,
                            .where = fmt::format("{}, byte {} of the pickle", where_, at_),
                            .fix = "Use an undamaged checkpoint that torch.save wrote from tensors, numbers, "
                                   "texts, lists and dicts"});
  }

  // ---- The stream ----

  std::string_view take(size_t bytes) {
    if (bytes > stream_.size() - at_) fail("the pickle is cut off");
    at_ += bytes;
    return stream_.substr(at_ - bytes, bytes);
  }
  // Little-endian.
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

  // ---- Stack and memo ----

  PickleValue& add(Kind kind) {
    charge(1);
    PickleValue& value = pickle_.values.emplace_back();
    value.kind = kind;
    return value;
  }
  // Values and copies of items or text, which a stream can ask for many times over.
  void charge(size_t units) {
    if (units > limits_.values - used_)
      fail(fmt::format("the pickle holds more than {} values", limits_.values));
    used_ += units;
  }
  PickleValue& push(Kind kind) {
    PickleValue& value = add(kind);
    stack_.push_back(&value);
    return value;
  }
  void push_integer(int64_t integer) { push(Kind::integer).integer = integer; }
  void push_text(Kind kind, std::string_view text) { push(kind).text = text; }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("the pickle's stack is empty");
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    PickleValue* const value = pop();
    stack_.push_back(value);
    return *value;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) fail("the pickle lacks a mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleValue*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(fmt::format("the pickle's memo has no entry {}", index));
    stack_.push_back(found->second);
  }
  void put(uint64_t index) { memo_[index] = &top(); }

  // ---- Operations ----

  bool step(unsigned char operation);
  bool push_scalar(unsigned char operation);
  bool push_string(unsigned char operation);
  bool build_container(unsigned char operation);
  bool use_memo(unsigned char operation);
  bool call(unsigned char operation);

  void push_long(std::string_view text);
  void push_decimal(std::string_view text);
  void push_tuple(size_t count);
  void extend(std::vector<PickleValue*> items, bool pairs);
  [[noreturn]] void refuse_global(const std::string& name) const;
  void push_global(std::string name);
  void push_call(const PickleValue& callee, PickleValue& arguments);
  void push_tensor(const std::vector<PickleValue*>& arguments);
  void push_storage(const PickleValue& id);
  void build();
  void finish();
  std::vector<int64_t> sizes(const PickleValue& value) const;

  std::string_view stream_;
  const std::string& where_;
  PickleLimits limits_;
  size_t at_ = 0;
  size_t used_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
  std::unordered_map<std::string, size_t> storage_of_key_;
};

}  // namespace teratron
