// Tokens to the ranks of their experts, and the experts' outputs back (Megatron-Core's token dispatchers).
//
// Ranks of the expert tensor-parallel group compute parts of the same experts' outputs, so each sees the
// tokens of all of them: tokens are gathered over that group and results reduce-scattered. (Where tensor
// parallelism without sequence parallelism has replicated the tokens, they are there already.) Between the
// ranks of the expert-parallel group
//
//   all_gather   every rank gets all tokens and computes those of its experts; results are reduce-scattered
//   all_to_all   a token's row goes to the ranks of its experts, once per choice, and comes back
//
// When text is generated, all ranks of both groups have the same tokens (none): each computes its part of its
// experts' outputs for them, and the parts are summed over both groups. No rank waits for its host.
//
// Sums over experts are in fp32 (fp64). With all_to_all, and on one rank, a token's rows are added in
// ascending order of its experts, with all_gather first those of a rank.
//
// With padding to capacity an expert has as many rows as the micro-batches of its tokens can give it: their
// capacities, or all tokens if these are fewer. all_to_all pads what each rank sends.
#pragma once

#include <functional>

#include "teratron/nn/moe/exchange.h"
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

class TokenDispatcher {
 public:
  TokenDispatcher(const DispatcherOptions& options, const ExpertParallel& parallel)
      : options_(options), parallel_(parallel) {}

  /// The sums over each token's experts, of x [T, H], the same T on all ranks. Differentiable; collective
  /// over both groups. Waits for the device if tokens are dispatched between expert-parallel ranks without
  /// padding.
  at::Tensor forward(const at::Tensor& x_TH, const Routing& routing, const KeptChoices& kept,
                     const LocalExperts& experts) const;

 private:
  struct Tokens {
    at::Tensor x_TH;
    Routing routing;
    at::Tensor kept_TK;
    int64_t capacity = 0;  // of a micro-batch, for padding; 0: none
  };
  // The rows that go to the ranks of their experts, and the expert of each row that comes.
  struct Route {
    Exchange exchange;
    Permutation sent;
    at::Tensor experts_R1;
  };
  Route route(const Tokens& tokens) const;
  at::Tensor all_gather_forward(const Tokens& tokens, const LocalExperts& experts) const;
  at::Tensor all_to_all_forward(const Tokens& tokens, const LocalExperts& experts) const;
  at::Tensor local_forward(const Tokens& tokens, const LocalExperts& experts) const;
  Permutation local_permutation(const Tokens& tokens) const;
  at::ScalarType sum_dtype(const at::Tensor& x) const;

  DispatcherOptions options_;
  ExpertParallel parallel_;
};

}  // namespace teratron
