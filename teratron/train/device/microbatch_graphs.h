// Forward and backward of a micro-batch as one launch, for models so small that the GPU waits for the host: a thousand
// kernels of some microseconds each become a CUDA graph (device_graph.h).
//
// There are two graphs: that of a step's first micro-batch writes gradients over those of the step before (and casts
// weights to FP8), that of the others adds to them. Both read the micro-batch from tensors that stay where they are.
#pragma once

#include <functional>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/train/device/device_graph.h"

namespace teratron {

class MicrobatchGraphs {
 public:
  /// Forward and backward of one micro-batch. Whatever else it reads or writes keeps its place and outlives the graphs.
  using Body = std::function<void(const MicroBatch&)>;

  /// After `warm_up` steps as usual, at least one: libraries and FP8 scales begin in the first.
  MicrobatchGraphs(ParameterSet& parameters, int64_t warm_up);

  /// Before each step; whether all its micro-batches come here.
  bool begin_step();
  /// Runs `body`, captured when it comes for the first time; `index` counts the step's micro-batches. Gradients are void
  /// before the first of them (FlatBuffer::start_step()); nothing waits for parameters that are on their way from other
  /// ranks, and nothing is reduced. UserError(config) if the micro-batch has other shapes than those before.
  void run(const MicroBatch& batch, int64_t index, const Body& body);

 private:
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    std::vector<Parameter*> filled;  // their gradients were void before it
  };
  /// Copies the micro-batch to where the graphs read it.
  void take(MicroBatch batch);
  Captured captured(const Body& body, const DeviceGraph* beside);

  ParameterSet& parameters_;
  int64_t steps_left_;
  MicroBatch batch_;
  Captured first_;
  Captured next_;
  bool captured_first_ = false;  // in this step
};

}  // namespace teratron
