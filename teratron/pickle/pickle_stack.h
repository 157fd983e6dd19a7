// What the operations of a pickle work on: the bytes of the program, its stack and memo, and the values made
// so far. Every failure is a UserError(checkpoint) that names the byte.
#pragma once

#include <array>
#include <cstdint>
#include <span>
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
  /// `where` names the file in errors, and must outlive the stream, as `fix`, their advice.
  PickleStream(std::string_view stream, const std::string& where, std::string_view fix)
      : stream_(stream), where_(where), fix_(fix) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw checkpoint_error({.what = what,
                            .where = fmt::format("{}, byte {} of the pickle", where_, at_),
                            .fix = std::string(fix_)});
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
  size_t size() const { return stream_.size(); }
  const std::string& where() const { return where_; }

 private:
  std::string_view stream_;
  const std::string& where_;
  std::string_view fix_;
  size_t at_ = 0;
};

/// The stack with its marks, the memo, and what they point to.
class PickleStack {
 public:
  using Kind = PickleValue::Kind;
  using Items = std::span<PickleValue* const>;

  PickleStack(const PickleStream& stream, const PickleOptions& options)
      : stream_(stream), limit_(options.most_bytes + stream.size()) {}

  /// Counts memory before it is allocated.
  void charge(size_t bytes) {
    if (bytes > limit_ - used_)
      stream_.fail(fmt::format("the values of the pickle take more than {} MiB", limit_ >> 20));
    used_ += bytes;
  }

  void push_none() { push_shared(none_, Kind::none, 0); }
  void push_boolean(bool value) { push_shared(booleans_[value ? 1 : 0], Kind::boolean, value ? 1 : 0); }
  void push_integer(int64_t integer);
  void push_real(double real) { make(Kind::real).real_ = real; }
  /// The text lies in the stream.
  void push_text(Kind kind, std::string_view text);
  /// A list, tuple or dict. `items` may lie on the stack below.
  void push_items(Kind kind, Items items);
  /// "module.name"; equal ones are one value.
  void push_global(const std::string& name);
  void push_object(PickleValue& named, PickleValue& arguments);
  void push_storage(size_t index) { make(Kind::storage).integer_ = static_cast<int64_t>(index); }
  void push_tensor(PickledTensor tensor);
  void push_again(PickleValue* value);

  /// Adds to a list or dict, or an object's state to it.
  void append(PickleValue& target, Items items);

  PickleValue& top() {
    if (height_ <= (marks_.empty() ? 0 : marks_.back())) stream_.fail("the pickle's stack is empty");
    return *stack_[height_ - 1];
  }
  PickleValue* pop() {
    PickleValue* const value = &top();
    --height_;
    return value;
  }

  void mark();
  /// What is above the last mark, which goes away; valid until something is pushed.
  Items pop_to_mark();

  void get(uint64_t index);
  void put(uint64_t index);
  void put_next() { put(memo_.size() + far_memo_.size()); }

  Pickle& pickle() { return pickle_; }

 private:
  PickleValue& make(Kind kind);
  void push_shared(PickleValue*& shared, Kind kind, int64_t integer);
  PickleValue** allocate(size_t count);

  const PickleStream& stream_;
  size_t limit_;
  size_t used_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;  // what lies above `height_` was popped
  size_t height_ = 0;
  std::vector<size_t> marks_;
  size_t most_marks_ = 0;
  std::vector<PickleValue*> memo_;  // of the first numbers, without gaps
  std::unordered_map<uint64_t, PickleValue*> far_memo_;
  std::unordered_map<std::string_view, PickleValue*> globals_;
  PickleValue* none_ = nullptr;
  std::array<PickleValue*, 2> booleans_ = {};
  std::array<PickleValue*, 256> integers_ = {};
  PickleValue** free_ = nullptr;  // of the last array
  size_t free_count_ = 0;
};

}  // namespace teratron
