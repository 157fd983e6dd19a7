#include "teratron/megatron/export/dist_export.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/megatron/dist_names.h"
#include "teratron/megatron/export/dist_layout.h"
#include "teratron/megatron/export/optimizer_file.h"
#include "teratron/megatron/export/part_writer.h"
#include "teratron/megatron/train_state.h"
#include "teratron/pickle/dist_metadata.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

void write_nothing(size_t, const AppendBytes&) {}

class DistExport {
 public:
  DistExport(const ExportPlan& plan, fs::path folder)
      : plan_(plan), folder_(std::move(folder)), tensors_(stacked_tensors(plan)), writer_(plan, bytes()) {}

  void write() {
    make_directories(folder_, ExitCode::checkpoint);
    for (const StackedTensor& tensor : tensors_) describe(tensor);
    for (int64_t rank = 0; rank < plan_.args.tensor_ranks; ++rank) write_rank(rank);
    write_common();
    write_text(folder_ / ".metadata", write_dist_metadata(metadata_), ExitCode::checkpoint);
    const nlohmann::ordered_json about = {{"sharded_backend", "torch_dist"},
                                          {"sharded_backend_version", 1},
                                          {"common_backend", "torch"},
                                          {"common_backend_version", 1}};
    write_text(folder_ / "metadata.json", about.dump(), ExitCode::checkpoint);
    sync_directory(folder_, ExitCode::checkpoint);
  }

 private:
  // Each weight in what is written: prefix of its key, and name of the state. Buffers have no states.
  std::vector<std::pair<std::string, std::string>> kinds_of(const StackedTensor& tensor) const {
    std::vector<std::pair<std::string, std::string>> kinds = {{"", ""}};
    if (!plan_.optimizer || is_buffer(tensor.weights[0])) return kinds;
    for (const auto& [prefix, state] : dist_state_kinds()) {
      if (state != "param" || plan_.has_masters()) kinds.emplace_back(prefix, state);
    }
    return kinds;
  }

  WrittenPart part_of(const std::string& weight, const std::string& state, int64_t rank) const {
    return state.empty() ? weight_part(plan_, weight, rank) : state_part(plan_, weight, state, rank);
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const StackedTensor& tensor : tensors_) {
      for (const std::string& weight : tensor.weights) {
        int64_t elements = 1;
        for (const int64_t size : shape_of(tensor, weight)) elements *= size;
        for (const auto& [prefix, state] : kinds_of(tensor))
          sum += elements * size_of(part_of(weight, state, 0).dtype);
      }
    }
    return sum;
  }

  std::vector<int64_t> shape_of(const StackedTensor& tensor, const std::string& weight) const {
    std::vector<int64_t> shape = padded_shape(plan_, weight);
    if (tensor.segment >= 0) shape[0] = segment_rows(plan_, weight, tensor.segment);
    return shape;
  }

  void describe(const StackedTensor& tensor) {
    for (const auto& [prefix, state] : kinds_of(tensor)) {
      DistTensor described{
          .dtype = part_of(tensor.weights[0], state, 0).dtype, .shape = tensor.leading, .chunks = {}};
      for (const int64_t size : shape_of(tensor, tensor.weights[0])) described.shape.push_back(size);
      metadata_.tensors[prefix + tensor.key] = std::move(described);
      metadata_.order.push_back(prefix + tensor.key);
    }
  }

  void write_rank(int64_t rank) {
    const std::string name = fmt::format("__{}_0.distcp", rank);
    TorchFileSequence file(folder_ / name);
    for (const StackedTensor& tensor : tensors_) {
      if (rank == 0 && tensor.linear && tensor.segment <= 0) write_extra_states(tensor, name, file);
      for (size_t i = 0; i < tensor.weights.size(); ++i) {
        for (const auto& [prefix, state] : kinds_of(tensor)) {
          DistTensor& described = metadata_.tensors.at(prefix + tensor.key);
          for (const WeightCut& cut : cuts_of(plan_, tensor, i, rank)) {
            DistChunk chunk = chunk_of(tensor, i, cut);
            WrittenPart part = part_of(tensor.weights[i], state, rank);
            part.begin = cut.begin;
            part.end = cut.end;
            chunk.item = write_part(std::move(part), chunk.sizes, name, file);
            described.chunks.push_back(std::move(chunk));
          }
        }
      }
    }
    file.finish();
  }

  // The position of a weight along the leading dimensions.
  static std::vector<int64_t> position(const StackedTensor& tensor, size_t number) {
    std::vector<int64_t> at(tensor.leading.size());
    auto left = static_cast<int64_t>(number);
    for (size_t i = at.size(); i-- > 0; left /= tensor.leading[i]) at[i] = left % tensor.leading[i];
    return at;
  }

  static DistChunk chunk_of(const StackedTensor& tensor, size_t number, const WeightCut& cut) {
    DistChunk chunk{.offsets = position(tensor, number),
                    .sizes = std::vector<int64_t>(tensor.leading.size(), 1),
                    .item = {}};
    chunk.offsets.insert(chunk.offsets.end(), cut.offsets.begin(), cut.offsets.end());
    chunk.sizes.insert(chunk.sizes.end(), cut.sizes.begin(), cut.sizes.end());
    return chunk;
  }

  DistItem write_part(WrittenPart part, const std::vector<int64_t>& shape, const std::string& name,
                      TorchFileSequence& file) {
    TensorFile item;
    item.add(std::move(part), shape);
    const auto place = file.add(
        item.pickle, [&](size_t, const AppendBytes& append) { writer_.write(item.parts[0], append); });
    return {.file = name, .offset = place.offset, .bytes = place.bytes};
  }

  // Without FP8 they are None: "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2" of layer 0 of 2.
  void write_extra_states(const StackedTensor& tensor, const std::string& name, TorchFileSequence& file) {
    std::string_view key = tensor.key;
    if (tensor.segment >= 0) key.remove_suffix(key.size() - key.rfind('.'));
    const size_t end = key.rfind('.') + 1;
    for (size_t i = 0; i < tensor.weights.size(); ++i) {
      const std::vector<int64_t> at = position(tensor, i);
      const std::string shard =
          at.empty() ? "0_1" : fmt::format("{}_{}", fmt::join(at, "."), fmt::join(tensor.leading, "."));
      const std::string item = fmt::format("{}_extra_state/shard_{}", key.substr(0, end), shard);
      if (metadata_.items.contains(item)) continue;  // of the weight, and of the bias
      PickleWriter pickle;
      pickle.begin_list();
      pickle.none();
      pickle.end_list();
      const auto place = file.add(pickle, write_nothing);
      metadata_.items[item] = {.file = name, .offset = place.offset, .bytes = place.bytes};
    }
  }

  void write_common() {
    TensorFile common;
    PickleWriter& pickle = common.pickle;
    pickle.begin(PickledDict::plain);
    add_counters(plan_.args, pickle);
    if (plan_.optimizer) {
      pickle.text("optimizer");
      add_common_optimizer(plan_, common);
      pickle.text("opt_param_scheduler");
      write_scheduler(plan_.args.state, pickle);
    }
    pickle.end(PickledDict::plain);
    write_torch_file(folder_ / "common.pt", pickle, [&](size_t tensor, const AppendBytes& append) {
      writer_.write(common.parts[tensor], append);
    });
  }

  const ExportPlan& plan_;
  fs::path folder_;
  std::vector<StackedTensor> tensors_;
  PartWriter writer_;
  DistMetadata metadata_;
};

}  // namespace

void write_dist_checkpoint(const ExportPlan& plan, const fs::path& folder) {
  DistExport(plan, folder).write();
}

}  // namespace teratron
