// What a pickle names and calls: never run, only described.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "teratron/pickle/pickle_stack.h"

namespace teratron {

class PickleCalls {
 public:
  /// Both must outlive it.
  PickleCalls(PickleStream& stream, PickleStack& stack) : stream_(stream), stack_(stack) {}

  /// False: the operation names and calls nothing.
  bool run(unsigned char operation);

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void refuse_global(std::string_view name) const;
  void push_global(const std::string& name);
  void push_call(PickleValue& callee, PickleValue& arguments);
  void push_dict(PickleStack::Items arguments);
  void push_tensor(PickleStack::Items arguments);
  void push_storage(const PickleValue& id);
  void build();
  std::vector<int64_t> sizes(const PickleValue& value) const;

  PickleStream& stream_;
  PickleStack& stack_;
  std::unordered_map<std::string, size_t> storage_of_key_;
};

}  // namespace teratron
