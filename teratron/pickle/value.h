// What a pickle holds, as data. Nothing in it is ever run or imported: classes are names.
#pragma once

#include <cstdint>
#include <deque>
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

struct PickleValue {
  enum class Kind : uint8_t {
    none,
    boolean,  // integer
    integer,
    real,
    text,
    bytes,    // text
    list,     // items; a set, too
    tuple,    // items
    dict,     // items: key, value, key, value...; a Namespace, too
    global,   // text: "module.name"
    object,   // of a known class: text: its name; items: arguments, then state
    storage,  // integer: index in Pickle::storages
    tensor,
  };

  Kind kind = Kind::none;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<PickleValue*> items;
  PickledTensor tensor;

  bool is(Kind other) const { return kind == other; }
  /// The value of a text key of a dict (the last one given); nullptr if this is none, or lacks the key.
  const PickleValue* find(std::string_view key) const;
};

/// Owns all values, which form no cycle and are nested to at most Unpickler's limit.
struct Pickle {
  std::deque<PickleValue> values;
  std::vector<PickledStorage> storages;
  const PickleValue* root = nullptr;
  size_t bytes = 0;  // of the stream, up to and with its STOP
};

}  // namespace teratron
