// What a pickle holds, as data. Nothing in it is ever run or imported: classes are names.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

/// Elements [offset, ...) of a storage, in steps of `strides`.
struct PickledTensor {
  size_t storage = 0;  // index in Pickle::storages
  int64_t offset = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

struct PickledStorage {
  Dtype dtype = Dtype::f32;
  std::string key;
  int64_t numel = 0;
};

/// 16 bytes, as each byte of a pickle can ask for a value. PickleStack makes them.
class PickleValue {
 public:
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    bytes,
    list,  // a set, too
    tuple,
    dict,    // a Namespace, too
    global,  // text: "module.name"
    object,  // of a known class
    storage,
    tensor,
  };

  bool is(Kind other) const { return kind_ == other; }
  /// A boolean is 0 or 1, a storage its index in Pickle::storages; 0 for values without.
  int64_t integer() const {
    return is(Kind::boolean) || is(Kind::integer) || is(Kind::storage) ? integer_ : 0;
  }
  double real() const { return is(Kind::real) ? real_ : 0; }
  /// Text, bytes, a name, or the name of an object's class; empty for values without.
  std::string_view text() const;
  /// A dict has key, value, key, value...; an object its arguments, then its state.
  std::span<PickleValue* const> items() const;
  const PickledTensor& tensor() const { return *tensor_; }

  /// The value of a text key of a dict (the last one given); nullptr if this is none, or lacks the key.
  const PickleValue* find(std::string_view key) const;

 private:
  friend class PickleStack;

  Kind kind_ = Kind::none;
  uint32_t count_ = 0;  // bytes of the text, or items; an object's first item is its class
  union {
    int64_t integer_ = 0;
    double real_;
    const char* text_;
    PickleValue** items_;
    const PickledTensor* tensor_;
  };
};

/// Owns all values, which form no cycle and are nested to at most the limit of unpickler.h. Their texts lie
/// in the stream that they were read from.
struct Pickle {
  std::deque<PickleValue> values;
  std::vector<std::unique_ptr<PickleValue*[]>> arrays;
  std::deque<PickledTensor> tensors;
  std::deque<std::string> names;  // of globals
  std::vector<PickledStorage> storages;
  const PickleValue* root = nullptr;
  size_t bytes = 0;  // of the stream, up to and with its STOP
};

}  // namespace teratron
