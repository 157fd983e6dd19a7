#include "teratron/models/weights.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/ckpt/checkpoint.h"

namespace teratron {

namespace {

at::ScalarType floating_type(Dtype dtype, const std::string& name) {
  const std::optional<at::ScalarType> type = scalar_type_of(dtype);
  if (type && at::isFloatingType(*type)) return *type;
  throw checkpoint_error({.what = fmt::format("weights of type {} cannot be loaded", name_of(dtype)),
                          .where = name,
                          .fix = "Convert the checkpoint to F32, BF16 or F16 first"});
}

StateTensor whole(const std::string& name, const Shard& shard, const at::Tensor& tensor) {
  return {name, shard, {0, tensor.numel()}, tensor.view(-1)};
}

bool no_weight(const std::string&) {
  return false;
}

// Beginnings of names of what training alone has. Logits need no layers that predict further tokens.
std::vector<std::string> of_training() {
  return {"optimizer.", "mtp."};
}

}  // namespace

std::vector<StateTensor> parameter_tensors(ParameterSet& parameters) {
  std::vector<StateTensor> all;
  for (const Parameter& parameter : parameters.all()) {
    all.push_back(whole(parameter.name, parameter.shard(), parameter.tensor.detach()));
  }
  return all;
}

std::vector<StateTensor> buffer_tensors(ParameterSet& parameters, Buffer::Kind kind) {
  std::vector<StateTensor> all;
  for (const Buffer& buffer : parameters.buffers()) {
    const std::string prefix = kind == Buffer::Kind::training ? "optimizer." : "";
    if (buffer.kind == kind) all.push_back(whole(prefix + buffer.name, buffer.shard, buffer.tensor));
  }
  return all;
}

std::vector<StateTensor> weight_tensors(ParameterSet& parameters) {
  std::vector<StateTensor> all = parameter_tensors(parameters);
  const std::vector<StateTensor> others = buffer_tensors(parameters, Buffer::Kind::model);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

LocalTensor local_tensor(const StateTensor& state, at::ScalarType type) {
  return {.name = state.name,
          .dtype = dtype_of(type).value(),
          .shard = state.shard,
          .flat_begin = state.local.begin,
          .flat_end = state.local.end};
}

void HostTensors::add(const StateTensor& state, at::ScalarType type) {
  const at::Tensor& values = state.values;
  const bool in_place =
      values.is_cpu() && values.is_contiguous() && values.scalar_type() == type && !state.remainder.defined();
  const at::Tensor host = in_place ? values : at::zeros(values.sizes(), at::TensorOptions().dtype(type));
  places_.push_back({state, host});
  list_.push_back(local_tensor(state, type));
  list_.back().data = host.mutable_data_ptr();
}

// Splitting fp32 values takes scarce device memory: in pieces of 64 MiB.
void HostTensors::copy_from_host() const {
  constexpr int64_t piece = 1 << 24;
  for (const auto& [state, host] : places_) {
    if (state.values.is_same(host)) continue;
    const int64_t size = host.numel(), step = state.remainder.defined() ? piece : size;
    for (int64_t begin = 0; begin < size; begin += step) {
      const int64_t end = std::min(size, begin + step);
      state.part(begin, end).write(host.slice(0, begin, end));
    }
  }
}

void add_weights(ParameterSet& parameters, const CheckpointInfo& info, HostTensors& tensors,
                 const std::function<bool(const std::string&)>& may_lack) {
  bool converted = false;
  for (const StateTensor& state : weight_tensors(parameters)) {
    const auto saved = info.tensors.find(state.name);
    if (saved == info.tensors.end() && may_lack(state.name)) continue;
    const bool same = saved == info.tensors.end() || saved->second.dtype == dtype_of(state.type());
    tensors.add(state, same ? state.type() : floating_type(saved->second.dtype, state.name));
    converted = converted || !same;
  }
  if (converted) {
    notice("weights of {} are converted to {}", info.path.string(), spelling_of(parameters.options().dtype));
  }
}

std::vector<LocalTensor> weight_parts(ParameterSet& parameters) {
  std::vector<LocalTensor> parts;
  for (const StateTensor& state : weight_tensors(parameters))
    parts.push_back(local_tensor(state, state.type()));
  return parts;
}

void load_weights(ParameterSet& parameters, const SharedManifest& checkpoint, HostGroup& peers) {
  HostTensors tensors;
  add_weights(parameters, checkpoint.info(), tensors, no_weight);
  load_tensors(checkpoint, tensors.list(), of_training(), peers);
  tensors.copy_from_host();
}

void load_weights(ParameterSet& parameters, const CheckpointSource& source, HostGroup& peers) {
  HostTensors tensors;
  add_weights(parameters, source.info(), tensors, no_weight);
  load_tensors(source, tensors.list(), of_training(), peers);
  tensors.copy_from_host();
}

}  // namespace teratron
