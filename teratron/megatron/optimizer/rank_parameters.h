// The parameters of a rank as its optimizer has them, which names none: their order, their groups, and what
// data-parallel ranks have of them. These rules hold for reading and for writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// A parameter of a rank. Their order is that of the model's named_parameters().
struct RankParameter {
  std::string path;  // in the file
  std::vector<int64_t> shape;
  bool decoupled = false;  // an embedding or output layer, which --decoupled-lr has in separate groups
  bool expert = false;     // of an expert, which expert-parallel ranks have in separate groups
};
/// By virtual stage.
using StageParameters = std::vector<std::vector<RankParameter>>;

int64_t numel(const RankParameter& parameter);

/// Whether a tensor of a model, named by its path in a file, is an embedding or an output layer.
bool is_embedding_or_output(std::string_view path);

/// Files of Megatron-LM's legacy models have the decoder of a T5 last. Sorted by this number, with the order
/// of the file where it is the same, tensors are in the order of named_parameters().
int place_in_legacy_model(std::string_view path);

struct ParameterPlace {
  size_t stage = 0;  // virtual
  size_t number = 0;
  bool operator==(const ParameterPlace&) const = default;
};
std::vector<ParameterPlace> places_of(const StageParameters& stages);

/// What the parameters of a group have in common.
struct GroupKind {
  bool decayed = true;  // norms and biases have no weight decay
  bool decoupled = false;
  bool expert = false;
  bool operator==(const GroupKind&) const = default;
};

enum class GroupOrder : uint8_t { decayed_first, as_met };  // to 23.06; of Megatron-Core
/// The groups that Megatron-LM divides `parameters` into, without --decoupled-lr.
std::vector<GroupKind> usual_groups(const StageParameters& stages,
                                    const std::vector<ParameterPlace>& parameters, GroupOrder order);

/// `parameters`, in their order, by group. Kinds that no group has (`decoupled`, `expert`) divide nothing.
std::vector<std::vector<ParameterPlace>> divide_into_groups(const std::vector<GroupKind>& groups,
                                                            const std::vector<ParameterPlace>& parameters,
                                                            const StageParameters& stages);

/// What one data-parallel rank of 22.x to 23.06 has of a parameter: elements [begin, end).
struct ParameterShard {
  ParameterPlace place;
  int64_t begin = 0;
  int64_t end = 0;
};
/// Equal parts of flat buffers of all virtual stages, in which the last parameter is the first.
std::vector<ParameterShard> shards_of_rank(const StageParameters& stages, int64_t rank, int64_t ranks);

}  // namespace teratron
