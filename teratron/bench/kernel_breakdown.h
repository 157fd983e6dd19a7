// Where a GPU's time goes, by the names of the kernels that ran.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Kinds of work, most specific first: a moment in which several run counts for the first of them, so that
/// communication counts only where it is exposed.
enum class KernelKind : uint8_t { gemm, attention, cross_entropy, optimizer, memory_bound, communication };
inline constexpr size_t kernel_kinds = 6;

/// "matrix products", "attention"...
std::string_view name_of(KernelKind kind);

/// By what cuBLAS, cuDNN, FlashAttention, NCCL and we call kernels; what is none of theirs is memory-bound.
KernelKind kind_of_kernel(std::string_view name);

struct KernelRun {
  std::string name;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

struct KernelBreakdown {
  double total_ms = 0.0;                  // from the first kernel's start to the last one's end
  std::array<double, kernel_kinds> ms{};  // adds up to total_ms - idle_ms
  double idle_ms = 0.0;                   // no kernel ran
  double communication_ms = 0.0;          // exposed or hidden
};

KernelBreakdown break_down(const std::vector<KernelRun>& runs);

/// All runs of one kernel.
struct KernelTotal {
  std::string name;
  double ms = 0.0;
  int64_t calls = 0;
};

/// What of a kernel's name tells it from others: without the namespaces that all of a library's share.
std::string short_kernel_name(std::string name);

/// By time, longest first.
std::vector<KernelTotal> total_by_kernel(const std::vector<KernelRun>& runs);

}  // namespace teratron
