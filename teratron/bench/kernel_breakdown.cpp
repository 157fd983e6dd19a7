#include "teratron/bench/kernel_breakdown.h"

#include <algorithm>
#include <map>

namespace teratron {

namespace {

constexpr double ns_per_ms = 1e6;

struct Pattern {
  std::string_view part;  // of the name, in lower case
  KernelKind kind;
};

// The first that fits: cuDNN's attention kernels, for one, carry "sm90" as its GEMMs do.
constexpr Pattern patterns[] = {
    {"nccl", KernelKind::communication},
    {"memcpy ptop", KernelKind::communication},
    {"cross_entropy", KernelKind::cross_entropy},
    {"fmha", KernelKind::attention},
    {"flash", KernelKind::attention},
    {"sdpa", KernelKind::attention},
    {"attention", KernelKind::attention},
    {"dot_do_o", KernelKind::attention},    // cuDNN's, before its backward
    {"convert_dq", KernelKind::attention},  // and after it
    {"softmax", KernelKind::attention},
    {"adam", KernelKind::optimizer},
    {"sgd", KernelKind::optimizer},
    {"sum_of_squares", KernelKind::optimizer},
    {"gemm", KernelKind::gemm},
    {"nvjet", KernelKind::gemm},
    {"cutlass", KernelKind::gemm},
    {"xmma", KernelKind::gemm},
    {"gemv", KernelKind::gemm},
    {"splitk", KernelKind::gemm},
    {"cublas", KernelKind::gemm},
};

// A kernel starts or ends.
struct Edge {
  int64_t ns;
  int change;
  KernelKind kind;
};

std::vector<Edge> edges_of(const std::vector<KernelRun>& runs) {
  std::vector<Edge> edges;
  edges.reserve(2 * runs.size());
  for (const KernelRun& run : runs) {
    const KernelKind kind = kind_of_kernel(run.name);
    edges.push_back({run.start_ns, +1, kind});
    edges.push_back({run.end_ns, -1, kind});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.ns < b.ns; });
  return edges;
}

}  // namespace

std::string_view name_of(KernelKind kind) {
  static constexpr std::string_view names[kernel_kinds] = {
      "matrix products", "attention", "cross entropy", "optimizer", "memory-bound", "exposed communication"};
  return names[static_cast<size_t>(kind)];
}

KernelKind kind_of_kernel(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const Pattern& pattern : patterns) {
    if (lower.find(pattern.part) != std::string::npos) return pattern.kind;
  }
  return KernelKind::memory_bound;
}

KernelBreakdown break_down(const std::vector<KernelRun>& runs) {
  KernelBreakdown result;
  std::array<int, kernel_kinds> running{};
  const std::vector<Edge> edges = edges_of(runs);
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    running[static_cast<size_t>(edges[i].kind)] += edges[i].change;
    const double ms = static_cast<double>(edges[i + 1].ns - edges[i].ns) / ns_per_ms;
    const auto first = std::find_if(running.begin(), running.end(), [](int count) { return count > 0; });
    (first == running.end() ? result.idle_ms : result.ms[static_cast<size_t>(first - running.begin())]) += ms;
    if (running[static_cast<size_t>(KernelKind::communication)] > 0) result.communication_ms += ms;
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

std::vector<KernelTotal> total_by_kernel(const std::vector<KernelRun>& runs) {
  std::map<std::string_view, KernelTotal> totals;
  for (const KernelRun& run : runs) {
    KernelTotal& total = totals[run.name];
    total.name = run.name;
    total.ms += static_cast<double>(run.end_ns - run.start_ns) / ns_per_ms;
    total.calls += 1;
  }
  std::vector<KernelTotal> sorted;
  for (auto& [name, total] : totals) sorted.push_back(std::move(total));
  std::sort(sorted.begin(), sorted.end(),
            [](const KernelTotal& a, const KernelTotal& b) { return a.ms > b.ms; });
  return sorted;
}

}  // namespace teratron
