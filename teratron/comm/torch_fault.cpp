#include "teratron/comm/torch_fault.h"

#include <cstdlib>

namespace teratron {

namespace {

// libtorch's sentence names its own source file; what a user wants of it is the size.
std::string host_memory_message(const std::string& message) {
  constexpr std::string_view before = "tried to allocate ";
  const size_t at = message.find(before);
  if (at == message.npos) return "out of host memory";
  const double bytes = std::strtod(message.c_str() + at + before.size(), nullptr);
  return fmt::format("out of host memory: {:.2f} GiB more cannot be allocated", bytes / double(1U << 30));
}

}  // namespace

Fault to_fault(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  if (message.find("DefaultCPUAllocator") != message.npos) {
    return Fault(host_memory_message(message), ExitCode::out_of_memory);
  }
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return Fault(message, ExitCode::out_of_memory);
  return Fault(message);
}

}  // namespace teratron
