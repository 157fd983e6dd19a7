// The memory, the budget and the place of one rendering. Templates come from strangers: every step and every
// byte that is read or made counts, so that any template ends after a few seconds and a quarter of a GiB.
#pragma once

#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/tokenizer/jinja/values/value.h"

namespace teratron::jinja {

inline constexpr size_t kWorkLimit = size_t{1} << 28;
inline constexpr size_t kStepWork = 128;
inline constexpr int kNestingLimit = 600;

class Workspace {
 public:
  /// `name`: of the template, in errors.
  explicit Workspace(std::string name) : name_(std::move(name)) {}

  /// UserError(data) once the limit is passed.
  void work(size_t amount);
  [[nodiscard]] UserError error(std::string what, std::string fix = "Change the template") const;
  void at_line(uint32_t line) { line_ = line; }

  std::string_view keep(std::string_view text);
  std::span<const Value> keep(std::span<const Value> values);
  Value list(std::span<const Value> values, ListKind kind = ListKind::list);
  Value dict(std::span<const std::pair<Value, Value>> members);
  /// Its destructor never runs.
  template <typename T>
  T* make(T value) {
    static_assert(std::is_trivially_destructible_v<T>);
    work(sizeof(T));
    return new (memory_.allocate(sizeof(T), alignof(T))) T(std::move(value));
  }
  template <typename T>
  std::span<T> array(size_t size) {
    static_assert(std::is_trivially_destructible_v<T>);
    work(size > kWorkLimit ? kWorkLimit : size * sizeof(T));
    T* const data = static_cast<T*>(memory_.allocate(size * sizeof(T), alignof(T)));
    std::uninitialized_default_construct_n(data, size);
    return {data, size};
  }

  /// One level of nested statements, expressions or values while it lives.
  class Nested {
   public:
    explicit Nested(Workspace& workspace);
    ~Nested() { --workspace_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Workspace& workspace_;
  };

 private:
  std::string name_;
  uint32_t line_ = 1;
  int nesting_ = 0;
  size_t work_ = 0;
  std::pmr::monotonic_buffer_resource memory_;
};

/// A text that grows; its bytes count as work before they are there.
class TextBuilder {
 public:
  explicit TextBuilder(Workspace& workspace) : workspace_(workspace) {}
  TextBuilder& operator<<(std::string_view text) {
    workspace_.work(text.size());
    text_ += text;
    return *this;
  }
  void repeat(std::string_view text, int64_t times);
  size_t size() const { return text_.size(); }
  std::string_view view() const { return text_; }
  std::string take() { return std::move(text_); }
  std::string_view keep() { return workspace_.keep(text_); }

 private:
  Workspace& workspace_;
  std::string text_;
};

/// Arguments of a call.
struct Arguments {
  std::string_view function;
  std::span<const Value> positional = {};
  std::span<const std::pair<std::string_view, Value>> named = {};

  static constexpr size_t most = 6;
  using Bound = std::array<std::optional<Value>, most>;
  /// The arguments in the order of `names`; an error for others.
  Bound bind(Workspace& workspace, std::initializer_list<std::string_view> names) const;
};

/// The argument as an integer or a text; an error for other values.
int64_t integer_argument(Workspace& workspace, const std::optional<Value>& value, int64_t otherwise);
std::string_view text_argument(Workspace& workspace, const std::optional<Value>& value);

}  // namespace teratron::jinja
