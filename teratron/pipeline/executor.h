// Obeys a schedule (pipeline/schedule.h): computes, and exchanges activations and gradients with the neighbouring
// stages meanwhile.
//
// A receive is posted as early as the schedule says and waited for where its message is used; a send goes out as
// soon as its tensor is computed, and is waited for when the next one goes the same way. Of a forward's output only
// the place in the graph where its gradient enters is kept: the memory is free as soon as it is sent.
#pragma once

#include <functional>
#include <span>

#include <ATen/ATen.h>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/pipeline/schedule.h"

namespace teratron {

/// What a stage computes.
struct StageFunctions {
  /// `input`: what the stage before has sent; undefined where the model begins. Returns what the next stage gets;
  /// where the model ends, the scalar that is differentiated.
  std::function<at::Tensor(const Action&, const at::Tensor& input)> forward;
  /// Called before each backward; may be empty.
  std::function<void(const Action&)> before_backward;
};

/// The tensor that goes from stage to stage, the same for all of them.
struct MessageShape {
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

/// Sends a token over every link, in an order that fits all stages: communicators that connect at their first message
/// would otherwise wait for a stage that waits for this one. Once, before the first schedule. Collective over the
/// pipeline.
void open_links(const Mesh& mesh, const at::TensorOptions& options);

/// Runs the actions of this rank's stage. Gradients flow if the schedule holds backwards; without them, forwards run
/// under the caller's gradient mode. Collective over the pipeline.
void run_schedule(std::span<const Action> actions, const PipelineLinks& links, const StageFunctions& stage,
                  const MessageShape& message);

}  // namespace teratron
