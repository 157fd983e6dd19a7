#include "teratron/train/device/microbatch_graphs.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"

namespace teratron {

namespace {

// Shapes change when documents get more segments (train/data/batch_source.h); a few times only.
constexpr int64_t most_captures = 16;

bool same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
}

bool same_shapes(const MicroBatch& a, const MicroBatch& b) {
  return same_shape(a.sample_ids_B, b.sample_ids_B) &&
         std::all_of(a.tensors.begin(), a.tensors.end(),
                     [&b](const auto& entry) { return same_shape(entry.second, b[entry.first]); });
}

}  // namespace

MicrobatchGraphs::MicrobatchGraphs(ParameterSet& parameters, const Options& options)
    : parameters_(parameters), options_(options), steps_left_(options.warm_up) {}

bool MicrobatchGraphs::begin_step() {
  captured_first_ = false;
  if (steps_left_ == 0) return true;
  steps_left_ -= 1;
  return false;
}

void MicrobatchGraphs::fall_back(const std::string& reason) {
  notice("micro-batches are no longer replayed as CUDA graphs: {}", reason);
  eager_ = true;
  first_ = {};
  next_ = {};
  batch_ = {};
}

bool MicrobatchGraphs::copy_in(const MicroBatch& batch) {
  if (captures_ > 0 && same_shapes(batch, batch_)) {
    if (batch.sample_ids_B.defined()) batch_.sample_ids_B.copy_(batch.sample_ids_B, /*non_blocking=*/true);
    for (const auto& [name, mine] : batch_.tensors) {
      if (mine.defined()) mine.copy_(batch[name], /*non_blocking=*/true);
    }
    return true;
  }
  if (captures_ == most_captures) {
    const std::string reason = fmt::format("the shapes of the micro-batches changed {} times", captures_);
    if (options_.falls_back) {
      fall_back(reason);
      return false;
    }
    throw config_error(
        {.what = reason,
         .where = "--cuda-graph-impl",
         .fix = "Make all micro-batches the same shape (for example by padding), or leave the flag out"});
  }
  captures_ += 1;
  first_ = {};
  next_ = {};
  batch_ = batch;
  if (batch.sample_ids_B.defined()) batch_.sample_ids_B = batch.sample_ids_B.clone();
  for (const auto& [name, tensor] : batch.tensors) {
    if (tensor.defined()) batch_.tensors.set(name, tensor.clone());
  }
  return true;
}

MicrobatchGraphs::Captured MicrobatchGraphs::captured(const Body& body) {
  Captured result;
  for (Parameter& parameter : parameters_.all()) {
    if (parameter.grad_is_stale) result.filled.push_back(&parameter);
  }
  result.graph = capture([this, body] { body(batch_); }, parameters_.options().device, first_.graph.get());
  std::erase_if(result.filled, [](const Parameter* parameter) { return parameter->grad_is_stale; });
  return result;
}

MicrobatchGraphs::Captured MicrobatchGraphs::try_capture(const Body& body) {
  if (!options_.falls_back) return captured(body);
  std::vector<Parameter*> stale;
  for (Parameter& parameter : parameters_.all()) {
    if (parameter.grad_is_stale) stale.push_back(&parameter);
  }
  try {
    return captured(body);
  } catch (const c10::OutOfMemoryError&) {
    // Nothing has run: gradients are as stale as before, and FP8 weights of the capture do not exist.
    for (Parameter* parameter : stale) parameter->grad_is_stale = true;
    if (Fp8Scaling* const fp8 = parameters_.fp8()) fp8->invalidate_weights();
    fall_back("there is too little memory for them");
    return {};
  }
}

void MicrobatchGraphs::run(const MicroBatch& batch, int64_t index, const Body& body) {
  if (eager_ || !copy_in(batch)) return body(batch);
  Captured& mine = index == 0 ? first_ : next_;
  if (!mine.graph) {
    // FP8 weights must come from this graph or the first one, not from tensors of an eager step.
    Fp8Scaling* const fp8 = parameters_.fp8();
    if (fp8 && !captured_first_) fp8->invalidate_weights();
    mine = try_capture(body);
    if (eager_) return body(batch);
    captured_first_ = captured_first_ || index == 0;
  }
  for (Parameter* parameter : mine.filled) parameter->grad_is_stale = false;
  mine.graph->replay();
}

}  // namespace teratron
