#include "teratron/train/device/microbatch_graphs.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr at::Tensor MicroBatch::* all_tensors[] = {&MicroBatch::tokens_SB,        &MicroBatch::positions_SB,
                                                    &MicroBatch::labels_SB,        &MicroBatch::loss_mask_SB,
                                                    &MicroBatch::segment_start_BS, &MicroBatch::sample_ids_B};

std::vector<int64_t> shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>{};
}

void check_shape(const at::Tensor& tensor, const at::Tensor& captured) {
  if (tensor.defined() == captured.defined() && shape_of(tensor) == shape_of(captured)) return;
  throw config_error(
      {.what = fmt::format("a micro-batch has a tensor of shape [{}] where the CUDA graph was "
                           "captured with one of [{}]",
                           fmt::join(shape_of(tensor), ", "), fmt::join(shape_of(captured), ", ")),
       .where = "--cuda-graph-impl",
       .fix = "Make all micro-batches the same shape (for example by padding), or leave the flag out"});
}

}  // namespace

MicrobatchGraphs::MicrobatchGraphs(ParameterSet& parameters, int64_t warm_up)
    : parameters_(parameters), steps_left_(warm_up) {
  TERATRON_ASSERT(warm_up >= 1);
}

bool MicrobatchGraphs::begin_step() {
  captured_first_ = false;
  if (steps_left_ == 0) return true;
  steps_left_ -= 1;
  return false;
}

void MicrobatchGraphs::copy_in(MicroBatch batch) {
  batch.sample_ids_B = sample_ids(batch);
  const bool is_first = !batch_.tokens_SB.defined();
  if (is_first) batch_ = batch;
  for (const auto tensor : all_tensors) {
    at::Tensor& mine = batch_.*tensor;
    check_shape(batch.*tensor, mine);
    if (!mine.defined()) continue;
    if (is_first) {
      mine = mine.clone();
    } else {
      mine.copy_(batch.*tensor, /*non_blocking=*/true);
    }
  }
}

MicrobatchGraphs::Captured MicrobatchGraphs::captured(const Body& body) {
  Captured result;
  for (Parameter& parameter : parameters_.all()) {
    if (parameter.grad_is_stale) result.filled.push_back(&parameter);
  }
  result.graph = capture([this, body] { body(batch_); }, batch_.tokens_SB.device(), first_.graph.get());
  std::erase_if(result.filled, [](const Parameter* parameter) { return parameter->grad_is_stale; });
  return result;
}

void MicrobatchGraphs::run(const MicroBatch& batch, int64_t index, const Body& body) {
  copy_in(batch);
  Captured& mine = index == 0 ? first_ : next_;
  if (!mine.graph) {
    // FP8 weights must come from this graph or the first one, not from tensors of an eager step.
    Fp8Scaling* const fp8 = parameters_.fp8();
    if (fp8 && !captured_first_) fp8->invalidate_weights();
    mine = captured(body);
    captured_first_ = captured_first_ || index == 0;
  }
  for (Parameter* parameter : mine.filled) parameter->grad_is_stale = false;
  mine.graph->replay();
}

}  // namespace teratron
