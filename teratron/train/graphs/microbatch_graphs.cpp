#include "teratron/train/graphs/microbatch_graphs.h"

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

MicroBatch cloned(MicroBatch batch) {
  if (batch.sample_ids_B.defined()) batch.sample_ids_B = batch.sample_ids_B.clone();
  const NamedTensors tensors = batch.tensors;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) batch.tensors.set(name, tensor.clone());
  }
  return batch;
}

}  // namespace

MicrobatchGraphs::MicrobatchGraphs(ParameterSet& parameters, const Options& options)
    : parameters_(parameters), options_(options), steps_left_(options.warm_up) {}

bool MicrobatchGraphs::begin_step() {
  captured_first_ = false;
  for (auto& [columns, graphs] : graphs_) graphs.waits = false;
  if (steps_left_ == 0) return true;
  steps_left_ -= 1;
  return false;
}

void MicrobatchGraphs::fall_back(const std::string& reason) {
  notice("micro-batches are no longer replayed as CUDA graphs: {}", reason);
  eager_ = true;
  for (auto& [columns, graphs] : graphs_) graphs = {};
}

MicrobatchGraphs::Columns MicrobatchGraphs::columns_of(const MicroBatch& batch) {
  Columns columns;
  if (batch.sample_ids_B.defined()) columns.emplace_back();  // no column has this name
  for (const auto& [name, tensor] : batch.tensors) {
    if (tensor.defined()) columns.push_back(name);
  }
  return columns;
}

MicrobatchGraphs::Graphs& MicrobatchGraphs::graphs_of(const MicroBatch& batch) {
  const auto [found, is_new] = graphs_.try_emplace(columns_of(batch));
  if (!is_new) return found->second;
  found->second.waits = true;
  // FP8 weights of a step may now come from another graph than the one whose weights these graphs read.
  if (parameters_.fp8()) {
    for (auto& [columns, graphs] : graphs_) graphs.next = {};
  }
  return found->second;
}

bool MicrobatchGraphs::copy_in(Graphs& graphs, const MicroBatch& batch) {
  MicroBatch& mine = graphs.batch;
  if (graphs.first.graph || graphs.next.graph) {
    if (same_shapes(batch, mine)) {
      if (batch.sample_ids_B.defined()) mine.sample_ids_B.copy_(batch.sample_ids_B, /*non_blocking=*/true);
      for (const auto& [name, tensor] : mine.tensors) {
        if (tensor.defined()) tensor.copy_(batch[name], /*non_blocking=*/true);
      }
      return true;
    }
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
  graphs = {.batch = cloned(batch)};
  return true;
}

MicrobatchGraphs::Captured MicrobatchGraphs::captured(const Graphs& graphs, const Body& body) {
  Captured result;
  for (Parameter& parameter : parameters_.all()) {
    if (parameter.grad_is_stale) result.filled.push_back(&parameter);
  }
  const DeviceGraph* pool_of = nullptr;
  for (const auto& [columns, others] : graphs_) {
    for (const Captured* const other : {&others.next, &others.first}) {
      if (other->graph) pool_of = other->graph.get();
    }
  }
  const MicroBatch& batch = graphs.batch;
  result.graph = capture([&batch, body] { body(batch); }, parameters_.options().device, pool_of);
  std::erase_if(result.filled, [](const Parameter* parameter) { return parameter->grad_is_stale; });
  return result;
}

MicrobatchGraphs::Captured MicrobatchGraphs::try_capture(const Graphs& graphs, const Body& body) {
  if (!options_.falls_back) return captured(graphs, body);
  std::vector<Parameter*> stale;
  for (Parameter& parameter : parameters_.all()) {
    if (parameter.grad_is_stale) stale.push_back(&parameter);
  }
  try {
    return captured(graphs, body);
  } catch (const c10::OutOfMemoryError&) {
    // Nothing has run: gradients are as stale as before, and FP8 weights of the capture do not exist.
    for (Parameter* parameter : stale) parameter->grad_is_stale = true;
    if (Fp8Scaling* const fp8 = parameters_.fp8()) fp8->invalidate_weights();
    fall_back("there is too little memory for them");
    return {};
  }
}

void MicrobatchGraphs::run(const MicroBatch& batch, int64_t index, const Body& body) {
  if (eager_) return body(batch);
  Graphs& graphs = graphs_of(batch);
  if (graphs.waits || !copy_in(graphs, batch)) return body(batch);
  Captured& mine = index == 0 ? graphs.first : graphs.next;
  if (!mine.graph) {
    // FP8 weights must come from this graph or from the first one, if that runs in every step, not from
    // tensors of an eager step.
    Fp8Scaling* const fp8 = parameters_.fp8();
    if (fp8 && !(captured_first_ && graphs_.size() == 1)) fp8->invalidate_weights();
    mine = try_capture(graphs, body);
    if (eager_) return body(batch);
    captured_first_ = captured_first_ || index == 0;
  }
  for (Parameter* parameter : mine.filled) parameter->grad_is_stale = false;
  mine.graph->replay();
}

}  // namespace teratron
