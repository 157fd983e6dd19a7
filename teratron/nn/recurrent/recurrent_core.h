// What mixers with a causal convolution and a recurrence compute between their projections: a core, with its
// parameters. recurrent_mixer.h makes a mixer of it.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/kernels/common/state_rows.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// The part of this rank's heads that a context-parallel rank computes for all tokens.
struct HeadPart {
  int64_t index = 0;
  int64_t count = 1;
};
/// Ranges of columns or rows, one after another.
struct Slice {
  int64_t first = 0;
  int64_t count = 0;
};
using Slices = std::vector<Slice>;
/// The part of every segment.
Slices slices_of(const std::vector<int64_t>& segments, const HeadPart& part);
/// A view where the slices follow each other.
at::Tensor take(const at::Tensor& x, int64_t dim, const Slices& slices);
/// A convolution that changes nothing: [C, 1, 2] of C channels.
at::Tensor identity_convolution(const Parameter& weight);
/// The adjoint of take() along dimension 0 of `like`: zeros elsewhere. All rows are in order.
at::Tensor put_back(const at::Tensor& taken, const Slices& slices, const at::Tensor& like);

class RecurrentCore {
 public:
  RecurrentCore() = default;
  RecurrentCore(const RecurrentCore&) = delete;
  RecurrentCore& operator=(const RecurrentCore&) = delete;
  virtual ~RecurrentCore() = default;

  /// What R sequences leave for the tokens after them.
  struct States {
    at::Tensor conv;       // [R, ...]: the last inputs of the convolution
    at::Tensor recurrent;  // [R, ...]
  };
  struct Output {
    at::Tensor y_SB;
    States after;
  };
  /// S tokens of B sequences, undefined `document_SB`: one document in each; see MambaInput.
  struct Input {
    at::Tensor columns_SB;  // [S, B, F] of in_proj, of the part's heads
    at::Tensor document_SB = {};
    HeadPart part = {};
    bool convolved = false;  // the columns passed through the convolution already, which is left out
  };
  /// -> y [S, B, D] for out_proj. `before`: undefined tensors are zeros.
  virtual Output forward(const Input& input, const States& before) const = 0;
  /// One token of each of R sequences, whose states are moved on: [R, F] -> [R, D].
  virtual at::Tensor step(const at::Tensor& columns_R, const StateTables& tables) const = 0;
  /// The recurrence's states at the ends of the tokens, where other ranks have those around them.
  struct Ends {
    at::Tensor before = {};   // undefined: zeros
    at::Tensor dafter = {};   // the gradient of the state after them; undefined: zeros
    bool accumulates = true;  // the parameters' gradients
  };
  struct Backward {
    at::Tensor dcolumns_SB;
    at::Tensor dbefore;
  };
  virtual Backward backward(const at::Tensor& dy_SB, const Input& input, const Ends& ends) const = 0;

  // What ranks with other tokens of the same sequences need of each other (state_passing.h). All heads.
  struct ConvolutionPart {
    Slice columns;
    Parameter* weight;  // [C, 1, W]
    Parameter* bias;    // null: none
  };
  virtual ConvolutionPart convolution() const = 0;
  /// M, if the tokens make M S + S0 of a state S before them; f32 (f64). The columns are convolved.
  virtual at::Tensor transition(const Input& input) const = 0;
  /// M S, or M^T S.
  virtual at::Tensor apply(const at::Tensor& transition, const at::Tensor& state) const = 0;
  virtual at::Tensor apply_transposed(const at::Tensor& transition, const at::Tensor& state) const = 0;

  /// The columns of in_proj that a part of the heads needs.
  virtual Slices columns_of(const HeadPart& part) const = 0;
  /// What remains where parts of the heads came back, y [S, B, D], beside the columns of all of them.
  /// Differentiable.
  virtual at::Tensor finish(const at::Tensor& y_SB, const at::Tensor& /*columns_SB*/) const { return y_SB; }

  virtual std::vector<Parameter*> parameters() const = 0;
  /// Shapes of one sequence's states on this rank.
  virtual std::vector<int64_t> conv_shape() const = 0;
  virtual std::vector<int64_t> recurrent_shape() const = 0;
};

/// A parameter that is trained, if any is.
at::Tensor recurrent_anchor(const RecurrentCore& core);

}  // namespace teratron
