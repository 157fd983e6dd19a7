#include "teratron/train/guards/replica_check.h"

#include <map>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/comm/consensus.h"

namespace teratron {

namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return hash_bytes(host.const_data_ptr(), host.nbytes());
}

struct Replicated {
  std::string name;
  at::Tensor tensor;
};

// The first difference between this rank and the first of the group, which hold these tensors; empty: none.
std::string difference(const std::vector<Replicated>& tensors, const Group& group, const Mesh& mesh) {
  if (group.size == 1) return "";
  std::string mine;
  for (const Replicated& replicated : tensors) mine += hash_to_hex(hash_of(replicated.tensor));
  const std::string first = group.communicator->broadcast_bytes(mine);
  const size_t digits = hash_to_hex(0).size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (mine.substr(i * digits, digits) == first.substr(i * digits, digits)) continue;
    return fmt::format("{} differs between ranks {} and {}", tensors[i].name, group.ranks[0], mesh.rank());
  }
  return "";
}

// By axes along which they are equal.
std::map<AxisSet, std::vector<Replicated>> replicated_tensors(ParameterSet& parameters) {
  std::map<AxisSet, std::vector<Replicated>> all;
  for (const Parameter& parameter : parameters.all()) {
    const Replicated replicated{parameter.name, parameter.tensor};
    const AxisSet replicas = parameter.options.replicated_over;
    all[replicas].push_back(replicated);
    if (parameter.shard().dim < 0)
      all[replicas.contains(Axis::edp) ? Axis::etp : Axis::tp].push_back(replicated);
  }
  for (const Buffer& buffer : parameters.buffers()) {
    all[buffer.shard.dim < 0 ? replica_axes | Axis::tp : replica_axes].push_back(
        {buffer.name, buffer.tensor});
  }
  return all;
}

// Shared rows, by the number of ranks that hold them.
std::map<int64_t, std::vector<Replicated>> shared_rows(ParameterSet& parameters) {
  std::map<int64_t, std::vector<Replicated>> all;
  for (const Parameter& parameter : parameters.all()) {
    const int64_t numel = parameter.shard().shared_numel();
    const at::Tensor flat = parameter.tensor.view(-1);
    if (numel > 0)
      all[parameter.shard().sharers].push_back({parameter.name, flat.narrow(0, flat.numel() - numel, numel)});
  }
  return all;
}

}  // namespace

void check_replicas(ParameterSet& parameters, const Mesh& mesh) {
  std::string found;
  const auto compare = [&](const std::vector<Replicated>& tensors, const Group& group) {
    const std::string here = difference(tensors, group, mesh);
    if (found.empty()) found = here;
  };
  for (const auto& [axes, tensors] : replicated_tensors(parameters)) compare(tensors, mesh.group(axes));
  for (const auto& [sharers, tensors] : shared_rows(parameters))
    compare(tensors, mesh.neighbours(Axis::tp, sharers));
  found = first_nonempty(*mesh.world().communicator, found);
  if (found.empty()) return;
  throw Fault(
      fmt::format(
          "replicas of a weight differ: {}. Restart from the last checkpoint, without the machine of that "
          "rank if it happens again",
          found),
      ExitCode::numerics);
}

}  // namespace teratron
