// Values of templates, with Python's semantics: texts are UTF-8 counted in code points, lists and dicts never
// change, and all of them live in the workspace of one rendering.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace teratron::jinja {

class Value;
class Workspace;
struct Arguments;
struct Function;
struct Loop;
struct Namespace;

/// What has no value: an unknown name, a missing attribute. Most uses of it are errors.
struct Undefined {
  std::string_view why = {};  // "'x' is undefined"
};
struct None {};

enum class ListKind : uint8_t { list, tuple, view, generator };

struct List {
  std::span<const Value> items;
  ListKind kind = ListKind::list;
};

struct Dict {
  std::span<const std::pair<Value, Value>> members;  // in order of insertion
};

using AnyValue = std::variant<Undefined, None, bool, int64_t, double, std::string_view, const List*,
                              const Dict*, Namespace*, const Loop*, const Function*>;

/// Copied freely: 24 bytes that refer to the workspace.
class Value {
 public:
  Value() = default;
  template <typename T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Value>)
  Value(T&& value) : any_(std::forward<T>(value)) {}
  Value(int value) : any_(int64_t{value}) {}
  Value(size_t value) : any_(static_cast<int64_t>(value)) {}
  Value(const char* text) : any_(std::string_view(text)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(any_);
  }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&any_);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(any_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<std::string_view>(); }
  std::string_view text() const { return as<std::string_view>(); }
  /// An integer or a bool.
  std::optional<int64_t> integer() const;
  /// An integer, a bool or a float.
  std::optional<double> number() const;

 private:
  AnyValue any_;
};

struct Namespace {
  std::span<std::pair<std::string_view, Value>> members;  // grown by set()
  size_t size = 0;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, const Value& value, Workspace& workspace);
};

/// Something that a template can call. `call` knows what `self` and `data` are.
struct Function {
  std::string_view name;
  Value (*call)(Workspace& workspace, const Function& function, const Arguments& arguments);
  Value self = {};
  const void* data = nullptr;
  const void* scope = nullptr;
};

/// What `loop` is in the body of a for statement.
struct Loop {
  std::span<const Value> items;
  size_t index = 0;  // from 0
  int64_t depth = 1;
  Value* changed = nullptr;         // arguments of the last loop.changed()
  const Function* again = nullptr;  // loop(...) of a recursive loop
};

/// Python's names: "str", "int", "dict".
std::string_view type_name(const Value& value);
bool is_true(const Value& value);
/// ==; never an error.
bool equal(Workspace& workspace, const Value& a, const Value& b);
/// <0, 0, >0; an error for values without order.
int compare(Workspace& workspace, const Value& a, const Value& b);
/// Elements of lists, keys of dicts, characters of texts; an error for what cannot be iterated.
std::span<const Value> elements(Workspace& workspace, const Value& value);
int64_t length(Workspace& workspace, const Value& value);
bool contains(Workspace& workspace, const Value& container, const Value& value);
/// nullptr: the dict has no such key.
const Value* find_member(Workspace& workspace, const Dict& dict, const Value& key);
/// str(value)
std::string_view to_text(Workspace& workspace, const Value& value);
/// Python's text of a float: the shortest that reads back, 1e+16, inf.
std::string float_text(double value);

}  // namespace teratron::jinja
