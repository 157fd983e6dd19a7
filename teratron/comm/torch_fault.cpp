#include "teratron/comm/torch_fault.h"

#include <cstdlib>
#include <new>

#include <c10/util/Exception.h>

namespace teratron {
namespace {

// libtorch's message names its source file; only the size is useful to users.
std::string host_memory_message(const std::string& message) {
  constexpr std::string_view before = "tried to allocate ";
  const size_t at = message.find(before);
  if (at == message.npos) return "out of host memory";
  const double bytes = std::strtod(message.c_str() + at + before.size(), nullptr);
  return fmt::format("out of host memory: {:.2f} GiB more cannot be allocated", bytes / double(1U << 30));
}

}  // namespace

Fault to_fault(const std::exception& error) {
  if (const auto* fault = dynamic_cast<const Fault*>(&error)) return *fault;
  if (const auto* user = dynamic_cast<const UserError*>(&error))
    return Fault(user->what(), user->exit_code());
  if (dynamic_cast<const std::bad_alloc*>(&error))
    return Fault("out of host memory", ExitCode::out_of_memory);
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (!torch) return Fault(error.what());
  const std::string message = torch->what_without_backtrace();
  if (message.find("DefaultCPUAllocator") != message.npos) {
    return Fault(host_memory_message(message), ExitCode::out_of_memory);
  }
  if (dynamic_cast<const c10::OutOfMemoryError*>(torch)) return Fault(message, ExitCode::out_of_memory);
  return Fault(message);
}

}  // namespace teratron
