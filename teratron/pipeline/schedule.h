// Pipeline schedules: in what order a stage computes, sends and receives. Plain data from pure functions,
// without tensors or communicators; pipeline/executor.h runs it.
//
// A stage holds one chunk of the model, or several (virtual stages, Narayanan et al. 2021). Activations flow
// from stage to stage and, between chunks, from the last stage to the first; gradients flow the other way.
//
// Messages: each pair of neighbours has one link per direction (PipelineLinks in comm/mesh/mesh.h), on which
// messages arrive in the order sent. A receive is posted and does not block; the computation that uses the
// message does. A send blocks only while the receive of the previous message on its link is not posted: a
// link carries one message ahead of its receiver. testing/schedule_verify.h shows that under these rules no
// schedule deadlocks, and so none does with buffered sends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace teratron {

enum class Op : uint8_t { recv_forward, forward, send_forward, recv_backward, backward, send_backward };

struct Action {
  Op op = Op::forward;
  int64_t chunk = 0;
  int64_t microbatch = 0;
  bool operator==(const Action&) const = default;
};

using Actions = std::vector<Action>;

struct ScheduleShape {
  int64_t stages = 1;
  int64_t chunks = 1;  // per stage
  int64_t microbatches = 1;
  int64_t microbatch_group = 0;  // consecutive micro-batches per chunk; 0: `stages`
  bool forward_only = false;     // evaluation
  bool early_receives = true;    // post a receive one computation before it is needed
};

// P stages, V chunks per stage, M micro-batches in groups of G.

/// 1F1B: one forward, one backward (Narayanan et al. 2019), after min(M, P - stage - 1) warm-up forwards.
/// Holds the activations of min(M, P - stage) micro-batches. With one stage: no pipelining.
Actions one_f_one_b(int64_t stage, const ScheduleShape& shape);
/// Interleaved 1F1B with V chunks per stage, after min(M V, 2 (P - stage - 1) + (V - 1) G) warm-up
/// forwards. Holds one activation more than that, each of one chunk, and on the first and the last stage up
/// to G - P + 1 messages that arrived early. The shape must pass interleaving_problem().
Actions interleaved(int64_t stage, const ScheduleShape& shape);
/// Interleaved if the shape has chunks, else 1F1B.
Actions schedule(int64_t stage, const ScheduleShape& shape);
/// The actions of each stage.
std::vector<Actions> schedules(const ScheduleShape& shape);

/// Why this shape cannot be interleaved; empty if it can. As in Megatron-LM: M >= G, and the last group
/// is complete or has at least P micro-batches.
std::string interleaving_problem(const ScheduleShape& shape);

/// Peak number of activations, one per micro-batch and chunk, that a stage holds by the formulas above.
int64_t activations_by_formula(int64_t stage, const ScheduleShape& shape);
/// Counts the peak from the actions: forwards whose backward has not run.
int64_t peak_activations(std::span<const Action> actions);

/// Timeline: one row per stage, one column per time unit (a forward takes 1, a backward 2, messages 0), and
/// the share of idle time.
std::string draw(std::span<const Actions> stages);
std::string draw(const ScheduleShape& shape);

}  // namespace teratron
