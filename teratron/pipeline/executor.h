// Runs a pipeline schedule (pipeline/schedule.h): computes while activations and gradients are exchanged with
// the neighbouring stages.
//
// A receive is posted as early as the schedule says and waited for when its message is used. A send starts as
// soon as its tensor is computed and is waited for at the next send on the same link. Of a forward's output
// only the graph edge where its gradient enters is kept, so its memory is freed once it is sent.
#pragma once

#include <functional>
#include <span>

#include <ATen/ATen.h>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/pipeline/schedule.h"

namespace teratron {

/// A tensor sent between two stages.
struct MessageShape {
  std::vector<int64_t> sizes;
  at::TensorOptions options;
  bool differentiable = true;  // its gradient is sent back
};

/// What a chunk receives from the previous one and sends to the next, in the order of its inputs and outputs.
struct ChunkMessages {
  std::vector<MessageShape> in;   // empty at the start of the model
  std::vector<MessageShape> out;  // empty at its end
};

/// What a stage computes.
struct StageFunctions {
  /// `inputs` are the previous stage's outputs, none at the start of the model. Returns the tensors for the
  /// next stage; at the end of the model, the scalar loss alone.
  std::function<std::vector<at::Tensor>(const Action&, const std::vector<at::Tensor>& inputs)> forward;
  /// Called before each backward; may be empty.
  std::function<void(const Action&)> before_backward;
  /// Messages of the action's chunk and micro-batch, which may have other shapes than the one before.
  std::function<ChunkMessages(const Action&)> messages;
};

/// Sends a token over every link, in an order that fits all stages: communicators that connect on first use
/// would otherwise deadlock. Once, before the first schedule. Collective over the pipeline.
void connect_links(const Mesh& mesh, const at::TensorOptions& options);

/// Runs the actions of this rank's stage. Without backwards in the schedule, forwards run under the caller's
/// grad mode. Collective over the pipeline.
void run_schedule(std::span<const Action> actions, const PipelineLinks& links, const StageFunctions& stage);

}  // namespace teratron
