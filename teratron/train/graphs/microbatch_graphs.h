// Forward and backward of a micro-batch as one launch, for models so small that the GPU waits for the host: a
// thousand kernels of a few microseconds each become a CUDA graph (device/device_graph.h).
//
// There are two graphs: the one of a step's first micro-batch overwrites the gradients of the previous step
// (and casts weights to FP8), the one of the others accumulates. Both read the micro-batch from the same
// static tensors. Micro-batches with other columns (segments, which rows without padding lack) have their own
// two.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "teratron/device/device_graph.h"
#include "teratron/models/model.h"

namespace teratron {

class MicrobatchGraphs {
 public:
  /// Forward and backward of one micro-batch. Other tensors that it uses must be static and outlive the
  /// graphs.
  using Body = std::function<void(const MicroBatch&)>;

  struct Options {
    /// Steps for which begin_step() returns false.
    int64_t warm_up = 1;
    /// Where micro-batches cannot be captured, because memory is short or their shapes keep changing, they
    /// run eagerly, with one notice, instead of ending the run.
    bool falls_back = false;
  };
  MicrobatchGraphs(ParameterSet& parameters, const Options& options);

  /// Whether all micro-batches run eagerly from now on (Options::falls_back).
  bool fell_back() const { return eager_; }
  /// Called before each step; returns whether its micro-batches go through run().
  bool begin_step();
  /// To be called in eager steps, of which there must be one before run(): libraries and FP8 scales are
  /// initialized in it. Micro-batches with columns that none had run eagerly for one more step.
  void runs_eagerly(const MicroBatch& batch) { graphs_.try_emplace(columns_of(batch)); }
  /// Captures `body` at its first call and replays it; `index` counts the step's micro-batches. Requires
  /// ParamAndGradBuffer::zero_grad() before the first and a finished parameter gather; gradients are not
  /// reduced. Other shapes are captured anew; UserError(config) if they keep changing, unless it falls back.
  void run(const MicroBatch& batch, int64_t index, const Body& body);

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    std::vector<Parameter*> filled;  // stale gradients that the graph overwrites
  };
  /// The graphs of micro-batches with the same columns.
  struct Graphs {
    MicroBatch batch;  // static tensors; none before the first capture
    Captured first;
    Captured next;
    bool waits = false;  // until the next step
  };
  using Columns = std::vector<std::string>;
  static Columns columns_of(const MicroBatch& batch);
  Graphs& graphs_of(const MicroBatch& batch);
  /// Copies the micro-batch to the tensors that the graphs read; false: it must run eagerly.
  bool copy_in(Graphs& graphs, const MicroBatch& batch);
  Captured captured(const Graphs& graphs, const Body& body);
  /// As captured(), but without a graph if it falls back.
  Captured try_capture(const Graphs& graphs, const Body& body);
  void fall_back(const std::string& reason);

  ParameterSet& parameters_;
  Options options_;
  int64_t steps_left_;
  bool eager_ = false;  // fell back
  std::map<Columns, Graphs> graphs_;
  int64_t captures_ = 0;
  bool captured_first_ = false;  // in this step
};

}  // namespace teratron
