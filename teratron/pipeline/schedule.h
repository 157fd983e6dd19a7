// In what order a pipeline stage computes and what it sends and receives meanwhile: plain data from pure
// functions. Nothing here knows tensors or communicators; pipeline/executor.h obeys.
//
// A stage holds one part of the model, or several ("chunks", virtual stages: Narayanan et al. 2021). Activations
// go from stage to stage and, between chunks, from the last stage round to the first; gradients go the other way.
//
// Messages: each pair of neighbours has a link of its own per direction (comm/mesh.h, PipelineLinks), on which
// messages arrive in the order in which they were sent. A receive asks for a message and does not wait; the
// computation that uses it does. A send waits only while the message before it on the same link has not been
// asked for: a link carries one message ahead of its receiver. verify() proves that under these rules every
// schedule here runs to its end; with buffered sends it then does so all the more.
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
  int64_t group = 0;           // micro-batches that go through a chunk in a row; 0: as many as stages
  bool forward_only = false;   // evaluation
  bool early_receives = true;  // ask for a message one computation before it is needed
};

/// One stage: forward and backward of each micro-batch in turn. Keeps the activations of one.
Actions no_pipeline(const ScheduleShape& shape);
/// One forward, one backward (Narayanan et al. 2019), after min(M, P - stage - 1) forwards of warm-up. Keeps
/// min(M, P - stage) micro-batches.
Actions one_f_one_b(int64_t stage, const ScheduleShape& shape);
/// The same with V chunks per stage, after min(M V, 2 (P - stage - 1) + (V - 1) group) forwards of warm-up. Keeps
/// one more than that, each of a single chunk, and on the first and the last stage up to group - P + 1 messages that came
/// round the ring before their turn. shape must pass interleaving_problem().
Actions interleaved(int64_t stage, const ScheduleShape& shape);
/// The one of these three that fits the shape.
Actions schedule(int64_t stage, const ScheduleShape& shape);
/// Those of all stages.
std::vector<Actions> schedules(const ScheduleShape& shape);

/// Why this number of micro-batches cannot be interleaved in these groups; empty when it can. As Megatron-LM:
/// M >= group, and the last group is whole or holds at least as many as there are stages.
std::string interleaving_problem(const ScheduleShape& shape);

/// Most activations, counted in micro-batches of one chunk, that a stage keeps by the formulas above.
int64_t activations_by_formula(int64_t stage, const ScheduleShape& shape);
/// The same counted from the actions: forwards whose backward has not come yet.
int64_t peak_activations(std::span<const Action> actions);

/// What is wrong with the schedules of all stages together: computations that are missing or come twice, messages
/// that do not meet or overtake each other, stages that wait for each other for ever. Empty: nothing.
std::vector<std::string> verify(std::span<const Actions> stages);
/// The same for the schedules of a shape, and that their activations equal the formula.
std::vector<std::string> verify(const ScheduleShape& shape);

/// A picture: a row per stage, a column per unit of time (a forward takes one, a backward two, messages none), and
/// below it the share of time in which stages have nothing to do.
std::string draw(std::span<const Actions> stages);
std::string draw(const ScheduleShape& shape);

}  // namespace teratron
