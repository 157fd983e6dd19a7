// Steps that decode one token of each sequence, as CUDA graphs: forward and sampling are one launch. There is
// a graph for each of a few batch sizes and each kind of sampling; smaller batches are padded with rows that
// write to page 0.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "teratron/generate/request.h"
#include "teratron/generate/sampling.h"
#include "teratron/generate/step.h"
#include "teratron/train/device/device_graph.h"

namespace teratron {

/// The pages of the rows of a step on the device, in static memory.
class PageTable {
 public:
  PageTable() = default;
  /// `width`: pages of the longest sequence.
  PageTable(int64_t rows, int64_t width, at::Device device);
  /// Of the first `count` rows; others have page 0. Copied where it changed.
  void set(const std::vector<StepRow>& rows, int64_t count, int64_t padded);
  at::Tensor rows(int64_t count) const { return device_.narrow(0, 0, count); }

 private:
  at::Tensor host_, device_;  // i32 [rows, width]
};

class DecodeGraphs {
 public:
  /// Tokens and positions i64 [R] -> f64 [N, R] as sample_rows(). Everything else it uses must be static.
  using Body = std::function<at::Tensor(const at::Tensor& tokens_R, const at::Tensor& positions_R,
                                        const at::Tensor& parameters_R5, const SamplingNeeds& needs)>;
  DecodeGraphs(int64_t max_rows, at::Device device);
  /// The size of a batch of so many rows.
  int64_t padded_rows(int64_t rows) const;
  /// f64 [N, padded rows] on the host, valid until the next call. Waits for the device.
  at::Tensor run(const StepInput& step, const SamplingNeeds& needs, const Body& body);

 private:
  struct Captured {
    bool warm = false;  // ran eagerly: libraries are initialized
    std::unique_ptr<DeviceGraph> graph;
    int64_t values = 2;  // of a row of the result
  };

  void set_input(const StepInput& step, int64_t padded);

  int64_t max_rows_;
  at::Device device_;
  // For n rows: i64 [n] tokens, i64 [n] positions, f64 [n, 5] sampling parameters. A graph copies the one to
  // the other, so that a step is one launch.
  at::Tensor host_, input_;
  at::Tensor result_;  // f64 on the host
  std::map<std::pair<int64_t, SamplingNeeds>, Captured> graphs_;
};

}  // namespace teratron
