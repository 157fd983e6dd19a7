// Writes a pickle of protocol 2 value by value, as torch.save does; torch.load(weights_only=True) reads it if
// argparse.Namespace is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

enum class PickledDict : uint8_t { plain, ordered, name_space };  // dict, OrderedDict, argparse.Namespace

class PickleWriter {
 public:
  void none() { text_ += 'N'; }
  void boolean(bool value) { text_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);
  /// The class or function itself: ("torch", "float32").
  void global(std::string_view module, std::string_view name);

  /// Between them: key, value, key, value...
  void begin(PickledDict kind);
  void end(PickledDict kind);
  /// An object of a class, whose attributes are between them: name, value, name, value...
  void begin_object(std::string_view module, std::string_view name);
  void end_object() { text_ += "ub"; }
  /// What a class or function returns for the arguments between them.
  void begin_call(std::string_view module, std::string_view name);
  void end_call() { text_ += "tR"; }
  /// The last value, an object, takes the tuple between them as its state.
  void begin_state() { text_ += '('; }
  void end_state() { text_ += "tb"; }
  /// An object of a class without a state.
  void object(std::string_view module, std::string_view name);
  /// Between them: values.
  void begin_list() { text_ += "]("; }
  void end_list() { text_ += 'e'; }

  /// Between them: values.
  void begin_tuple() { text_ += '('; }
  void end_tuple() { text_ += 't'; }

  /// A tensor in a new storage, whose key is its number.
  void tensor(Dtype dtype, const std::vector<int64_t>& shape);

  /// The finished pickle; nothing may follow.
  std::string finish() { return text_ + '.'; }
  /// Sizes of the storages in bytes.
  const std::vector<int64_t>& storages() const { return storages_; }

 private:
  void tuple(const std::vector<int64_t>& values);

  std::string text_ = "\x80\x02";
  std::vector<int64_t> storages_;
};

}  // namespace teratron
