// Tokens to the ranks of their experts, and the experts' outputs back (Megatron-Core's token dispatchers).
//
// Ranks of the expert tensor-parallel group compute parts of the same experts' outputs, so each sees the
// tokens of all of them: tokens are gathered over that group and results reduce-scattered. (Where tensor
// parallelism without sequence parallelism has replicated the tokens, they are there already.) Between the
// ranks of the expert-parallel group
//
//   all_gather   every rank gets all tokens and computes those of its experts; results are reduce-scattered
//   all_to_all   a token's row goes to the ranks of its experts, once to each, and their sums come back
//
// Copy engines do the transfers where GPUs reach each other.
//
// When text is generated, all ranks of both groups have the same tokens (none): each computes its part of its
// experts' outputs for them, and the parts are summed over both groups. The host never waits for the device.
//
// Sums over experts are in fp32 (fp64): a token's rows are added in ascending order of its experts, first
// those of a rank.
//
// With padding to capacity an expert has as many rows as the micro-batches of its tokens can give it: their
// capacities, or all tokens if these are fewer. all_to_all then sends a row per choice and pads what each
// rank sends.
#pragma once

#include <functional>

#include "teratron/nn/moe/expert_route.h"
#include "teratron/nn/moe/experts.h"
#include "teratron/nn/moe/routing.h"

namespace teratron {

enum class TokenDispatch : uint8_t { all_gather, all_to_all, none };

struct DispatcherOptions {
  int64_t experts = 0;  // of all ranks
  TokenDispatch kind = TokenDispatch::all_gather;
  bool replicated = false;  // over the expert tensor-parallel group
  // Micro-batches to which the tokens of the expert tensor-parallel group belong, and those of both groups.
  int64_t tensor_microbatches = 1;
  int64_t microbatches = 1;
};

/// Rows sorted by local expert, and their probabilities, to this rank's part of the outputs.
using LocalExperts = std::function<at::Tensor(const at::Tensor& x_RH, const at::Tensor& probs_R,
                                              const Permutation& permutation)>;

/// What the dispatcher runs on this rank, once each.
struct LocalWork {
  LocalExperts experts;
  /// Needs no dispatched tokens: queued while they are on their way. May be null.
  std::function<void()> beside = {};
};

class TokenDispatcher {
 public:
  TokenDispatcher(const DispatcherOptions& options, const ExpertParallel& parallel)
      : options_(options), parallel_(parallel) {}

  /// The sums over each token's experts, of x [T, H], the same T on all ranks. Differentiable; collective
  /// over both groups. If tokens are dispatched between expert-parallel ranks without padding, the host waits
  /// for their number.
  at::Tensor forward(const at::Tensor& x_TH, const Routing& routing, const KeptChoices& kept,
                     const LocalWork& local) const;

 private:
  struct Tokens {
    at::Tensor x_TH;
    Routing routing;
    at::Tensor kept_TK;
    int64_t capacity = 0;  // of a micro-batch, for padding; 0: none
  };
  // Tokens of all ranks, on their way to this one.
  struct Arrival {
    ExpertRoutePtr route;
    at::Tensor x_TH;  // of this rank
    AsyncTensor arriving;
    at::Tensor probs_UK;  // of what arrives
    Permutation permutation;
  };
  Arrival gather_tokens(const Tokens& tokens, const LocalWork& local) const;
  Arrival exchange_tokens(const Tokens& tokens, const LocalWork& local) const;
  Arrival exchange_padded(const Tokens& tokens, const LocalWork& local) const;
  at::Tensor dispatched_forward(const Tokens& tokens, const LocalWork& local) const;
  at::Tensor local_forward(const Tokens& tokens, const LocalWork& local) const;
  Permutation padded_permutation(const Tokens& tokens) const;
  ExpertRange own_experts() const { return parallel_.local(options_.experts); }
  at::ScalarType sum_dtype(const at::Tensor& x) const;

  DispatcherOptions options_;
  ExpertParallel parallel_;
};

}  // namespace teratron
