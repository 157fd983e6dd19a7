#include "python/module/weights.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/tensor_dtype.h"

namespace teratron::python {

namespace {

// A piece's elements in the whole tensor and in this rank's part of it.
std::pair<at::Tensor, at::Tensor> regions(at::Tensor whole, const Parameter& parameter, const Piece& piece) {
  at::Tensor local = parameter.tensor.detach();
  const auto dimensions = static_cast<int64_t>(piece.global.start.size());
  for (int64_t dim = 0; dim < dimensions; ++dim) {
    const auto d = static_cast<size_t>(dim);
    whole = whole.narrow(dim, piece.global.start[d], piece.global.size[d]);
    if (dim == parameter.shard().dim) local = local.narrow(dim, piece.local_start, piece.global.size[d]);
  }
  return {whole, local};
}

}  // namespace

std::vector<ParameterInfo> whole_parameters(const Trainer& trainer) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Parameter& parameter : trainer.engine().parameters().all())
    mine.push_back(
        {parameter.name, parameter.shard().global_shape, static_cast<int>(parameter.tensor.scalar_type())});
  std::vector<ParameterInfo> infos;
  std::set<std::string> known;
  for (const std::string& rank : trainer.mesh().world().communicator->all_gather_bytes(mine.dump())) {
    for (const nlohmann::json& row : nlohmann::json::parse(rank)) {
      if (known.insert(row[0]).second)
        infos.push_back({row[0], row[1], static_cast<at::ScalarType>(row[2].get<int>())});
    }
  }
  return infos;
}

// Every element is some rank's, and the same on all that have it: the others contribute the least number.
at::Tensor gathered(Trainer& trainer, const ParameterInfo& info) {
  constexpr double least = -std::numeric_limits<double>::infinity();
  trainer.engine().buffers().finish_param_gather();
  const auto options = at::TensorOptions().dtype(info.dtype).device(trainer.device());
  at::Tensor whole = at::full(info.shape, least, options);
  for (const Parameter& parameter : trainer.engine().parameters().all()) {
    if (parameter.name != info.name) continue;
    for (const Piece& piece : parameter.shard().pieces()) {
      const auto [global, local] = regions(whole, parameter, piece);
      global.copy_(local);
    }
  }
  trainer.mesh().world().communicator->all_reduce(whole, ReduceOp::max).wait();
  return whole;
}

std::vector<HfPieces> hf_pieces(const std::vector<ParameterInfo>& infos, const std::string& config) {
  CheckpointInfo checkpoint{.path = "the model", .config = config, .state = "{}"};
  for (const ParameterInfo& info : infos)
    checkpoint.tensors[info.name] = {.dtype = dtype_of(info.dtype).value(), .shape = info.shape};
  std::map<std::string, HfPieces> by_name;
  for (const HfTensor& tensor : hf_tensors(hf_model_of(checkpoint), infos.size()))
    by_name[tensor.name] = {tensor.sources, tensor.slices()};
  std::vector<HfPieces> pieces;
  for (const ParameterInfo& info : infos) {
    const auto found = by_name.find(info.name);
    if (found == by_name.end()) {
      throw checkpoint_error({.what = fmt::format("Hugging Face's model has no place for {}", info.name),
                              .where = "format='hf'",
                              .fix = "Use format='teratron'"});
    }
    pieces.push_back(found->second);
  }
  return pieces;
}

void assign(Trainer& trainer, const std::string& name, const at::Tensor& whole) {
  trainer.engine().buffers().finish_param_gather();
  for (const Parameter& parameter : trainer.engine().parameters().all()) {
    if (parameter.name != name) continue;
    if (whole.sizes() != at::IntArrayRef(parameter.shard().global_shape)) {
      throw data_error(
          {.what = fmt::format("{} has the shape [{}], not [{}]", name, fmt::join(whole.sizes(), ", "),
                               fmt::join(parameter.shard().global_shape, ", ")),
           .where = "load_state_dict()",
           .fix = "Give the tensors of the same model"});
    }
    for (const Piece& piece : parameter.shard().pieces()) {
      const auto [global, local] = regions(whole, parameter, piece);
      local.copy_(global);
    }
  }
}

void finish_assignment(Trainer& trainer) {
  trainer.engine().optimizer().reset_master_weights();
}

}  // namespace teratron::python
