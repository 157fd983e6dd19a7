#include "teratron/bench/kernel_breakdown.h"

#include <algorithm>
#include <map>

namespace teratron {

namespace {

constexpr double ns_per_ms = 1e6;

struct Pattern {
  std::string_view substring;  // of the lower-case name
  KernelCategory category;
};

// The first match counts.
constexpr Pattern patterns[] = {
    {"nccl", KernelCategory::communication},
    {"memcpy ptop", KernelCategory::communication},
    {"cross_entropy", KernelCategory::cross_entropy},
    {"fmha", KernelCategory::attention},
    {"flash", KernelCategory::attention},
    {"sdpa", KernelCategory::attention},
    {"attention", KernelCategory::attention},
    {"dot_do_o", KernelCategory::attention},    // cuDNN, before its backward
    {"convert_dq", KernelCategory::attention},  // cuDNN, after its backward
    {"softmax", KernelCategory::attention},
    {"optimizer", KernelCategory::optimizer},  // the namespace of its kernels
    {"sum_of_squares", KernelCategory::optimizer},
    {"gemm", KernelCategory::gemm},
    {"nvjet", KernelCategory::gemm},
    {"cutlass", KernelCategory::gemm},
    {"xmma", KernelCategory::gemm},
    {"gemv", KernelCategory::gemm},
    {"splitk", KernelCategory::gemm},
    {"cublas", KernelCategory::gemm},
};

// A kernel starts or ends.
struct Edge {
  int64_t ns;
  int change;
  KernelCategory category;
};

std::vector<Edge> edges_of(const std::vector<KernelEvent>& events) {
  std::vector<Edge> edges;
  edges.reserve(2 * events.size());
  for (const KernelEvent& event : events) {
    const KernelCategory category = kernel_category(event.name);
    edges.push_back({event.start_ns, +1, category});
    edges.push_back({event.end_ns, -1, category});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.ns < b.ns; });
  return edges;
}

}  // namespace

std::string_view to_string(KernelCategory category) {
  static constexpr std::string_view names[kernel_categories] = {
      "matrix products", "attention", "cross entropy", "optimizer", "memory-bound", "exposed communication"};
  return names[static_cast<size_t>(category)];
}

KernelCategory kernel_category(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const Pattern& pattern : patterns) {
    if (lower.find(pattern.substring) != std::string::npos) return pattern.category;
  }
  return KernelCategory::memory_bound;
}

KernelBreakdown break_down(const std::vector<KernelEvent>& events) {
  KernelBreakdown result;
  std::array<int, kernel_categories> running{};
  const std::vector<Edge> edges = edges_of(events);
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    running[static_cast<size_t>(edges[i].category)] += edges[i].change;
    const double ms = static_cast<double>(edges[i + 1].ns - edges[i].ns) / ns_per_ms;
    const auto first = std::find_if(running.begin(), running.end(), [](int count) { return count > 0; });
    (first == running.end() ? result.idle_ms : result.ms[static_cast<size_t>(first - running.begin())]) += ms;
    if (running[static_cast<size_t>(KernelCategory::communication)] > 0) result.communication_ms += ms;
    result.total_ms += ms;
  }
  return result;
}

std::string short_kernel_name(std::string name) {
  if (name.starts_with("void ")) name.erase(0, 5);
  for (const std::string_view part :
       {"teratron::cuda::", "at::native::", "cudnn::fusion::", "(anonymous namespace)::"}) {
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part, at))
      name.erase(at, part.size());
  }
  return name;
}

std::vector<KernelTotal> kernel_totals(const std::vector<KernelEvent>& events) {
  std::map<std::string_view, KernelTotal> totals;
  for (const KernelEvent& event : events) {
    KernelTotal& total = totals[event.name];
    total.name = event.name;
    total.ms += static_cast<double>(event.end_ns - event.start_ns) / ns_per_ms;
    total.calls += 1;
  }
  std::vector<KernelTotal> sorted;
  for (auto& [name, total] : totals) sorted.push_back(std::move(total));
  std::sort(sorted.begin(), sorted.end(),
            [](const KernelTotal& a, const KernelTotal& b) { return a.ms > b.ms; });
  return sorted;
}

}  // namespace teratron
