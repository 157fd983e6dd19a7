// GPU time by kernel category, from the names of the kernels.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Categories by priority: time in which several overlap counts for the first of them, so that communication
/// counts only where it is exposed.
enum class KernelCategory : uint8_t {
  gemm,
  attention,
  cross_entropy,
  optimizer,
  memory_bound,
  communication
};
inline constexpr size_t kernel_categories = 6;

/// "matrix products", "attention"...
std::string_view to_string(KernelCategory kind);

/// From the kernel names of cuBLAS, cuDNN, FlashAttention, NCCL and this project; others are memory-bound.
KernelCategory kernel_category(std::string_view name);

struct KernelEvent {
  std::string name;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

struct KernelBreakdown {
  double total_ms = 0.0;                       // from the first kernel's start to the last kernel's end
  std::array<double, kernel_categories> ms{};  // by category; the sum is total_ms - idle_ms
  double idle_ms = 0.0;                        // no kernel ran
  double communication_ms = 0.0;               // exposed or hidden
};

KernelBreakdown break_down(const std::vector<KernelEvent>& events);

/// All launches of one kernel.
struct KernelTotal {
  std::string name;
  double ms = 0.0;
  int64_t calls = 0;
};

/// A kernel's name without "void" and the namespaces of its library.
std::string short_kernel_name(std::string name);

/// Sorted by time, longest first.
std::vector<KernelTotal> kernel_totals(const std::vector<KernelEvent>& events);

}  // namespace teratron
