#include "teratron/train/guards/replicas.h"

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/comm/consensus.h"

namespace teratron {

namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return hash_bytes(host.const_data_ptr(), host.nbytes());
}

// The first difference among the ranks of `group`, which all hold these parameters; empty: none.
std::string difference(const std::vector<const Parameter*>& parameters, const Group& group,
                       const char* kind) {
  if (group.size == 1) return "";
  std::string mine;
  for (const Parameter* parameter : parameters) mine += hash_to_hex(hash_of(parameter->tensor));
  const std::vector<std::string> all = group.communicator->all_gather_bytes(mine);
  const size_t digits = hash_to_hex(0).size();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (all[rank].substr(i * digits, digits) == all[0].substr(i * digits, digits)) continue;
      return fmt::format("{} differs between {} ranks 0 and {}", parameters[i]->name, kind, rank);
    }
  }
  return "";
}

}  // namespace

void check_replicas(const ParameterSet& parameters, const Mesh& mesh) {
  std::vector<const Parameter*> all;
  std::vector<const Parameter*> unsharded;
  for (const Parameter& parameter : parameters.all()) {
    all.push_back(&parameter);
    if (parameter.shard().dim < 0) unsharded.push_back(&parameter);
  }
  std::string found = difference(all, mesh.group(Axis::dp), "data-parallel");
  const std::string also = difference(unsharded, mesh.group(Axis::tp), "tensor-parallel");
  if (found.empty()) found = also;
  if (!found.empty()) found = fmt::format("{} (seen by rank {})", found, mesh.rank());
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
