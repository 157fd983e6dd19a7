#include "teratron/megatron/legacy_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/legacy_chunk.h"
#include "teratron/megatron/merge/merge.h"
#include "teratron/megatron/rows/row_segments.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/megatron/structure.h"
#include "teratron/megatron/train_state.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

constexpr size_t most_virtual_stages = 1024;

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw checkpoint_error({.what = what, .where = where, .fix = whole_models_only()});
}

// Reads the tensors of a dict of dicts.
class ChunkReader {
 public:
  explicit ChunkReader(std::shared_ptr<const TorchFile> file) : file_(std::move(file)) {}

  LegacyChunk read(const PickleValue& model) {
    left_ = 1'000'000;
    found_.clear();
    flatten(model, "");
    const bool legacy = std::ranges::any_of(
        found_, [](const auto& entry) { return entry.first.starts_with("language_model."); });
    if (legacy)
      std::ranges::stable_sort(found_, {},
                               [](const auto& entry) { return place_in_legacy_model(entry.first); });
    LegacyChunk chunk;
    std::set<std::pair<size_t, int64_t>> tied;
    for (const auto& [path, tensor] : found_) {
      // Weights of an output layer under two names are one parameter.
      const std::pair place(tensor->storage, tensor->offset);
      if (path.find("output_layer.") != std::string::npos && tied.contains(place)) continue;
      tied.insert(place);
      if (!chunk.by_path.contains(path)) chunk.add(path, tensor_of_file(file_, *tensor));
    }
    return chunk;
  }

 private:
  // The keys of outer dicts are part of all paths, so that these could be far longer than the file.
  void flatten(const PickleValue& value, const std::string& path) {
    left_ -= 1 + static_cast<int64_t>(path.size()) / 16;
    if (left_ < 0) fail("the model is nested too deeply", printable(path.substr(0, 100)));
    if (value.is(Kind::tensor) && !path.ends_with("_extra_state")) found_.emplace_back(path, &value.tensor());
    if (!value.is(Kind::dict)) return;
    for (size_t i = 0; i + 1 < value.items().size(); i += 2) {
      const PickleValue& key = *value.items()[i];
      if (key.is(Kind::text))
        flatten(*value.items()[i + 1], fmt::format("{}{}{}", path, path.empty() ? "" : ".", key.text()));
    }
  }

  std::shared_ptr<const TorchFile> file_;
  std::vector<std::pair<std::string, const PickledTensor*>> found_;
  int64_t left_ = 0;
};

std::vector<LegacyChunk> chunks_of(const std::shared_ptr<const TorchFile>& file, const std::string& where) {
  std::vector<LegacyChunk> chunks;
  ChunkReader reader(file);
  const PickleValue& root = file->root();
  if (const PickleValue* const model = root.find("model")) {
    chunks.push_back(reader.read(*model));
  } else if (root.find("language_model") != nullptr) {
    chunks.push_back(reader.read(root));
  }
  while (chunks.size() < most_virtual_stages) {
    const PickleValue* const model = root.find(fmt::format("model{}", chunks.size()));
    if (model == nullptr) break;
    chunks.push_back(reader.read(*model));
  }
  if (chunks.empty()) fail("the file holds no 'model'", where);
  return chunks;
}

// Adds the states of a file's parameters to its chunks, unless it has none of them all. Buffers have none.
RankOptimizer read_states(const MegatronRankFiles& files, std::vector<LegacyChunk>& chunks) {
  std::vector<std::vector<SavedParameter>> parameters;
  for (const LegacyChunk& chunk : chunks) {
    auto& trained = parameters.emplace_back(chunk.parameters);
    std::erase_if(trained, [](const SavedParameter& parameter) { return is_buffer(parameter.path); });
  }
  RankOptimizer optimizer = read_rank_optimizer(files, parameters);
  for (size_t i = 0; i < optimizer.states.size(); ++i) {
    auto state = optimizer.states[i].begin();
    for (const SavedParameter& parameter : chunks[i].parameters)
      chunks[i].states.push_back(is_buffer(parameter.path) ? ParameterState() : std::move(*state++));
  }
  optimizer.states.clear();
  return optimizer;
}

// What a tensor rank has, with the experts of all its expert ranks.
struct RankModel {
  std::vector<LegacyChunk> chunks;
  RankOptimizer optimizer;  // of the first expert rank, without its states
  bool skipped = false;     // there are states that are not read
};

RankModel model_of(MegatronRankFiles files) {
  const auto ranks = static_cast<int64_t>(files.experts.size()) + 1;
  RankModel result{.chunks = chunks_of(files.model, files.where)};
  // Its buffers have dense parameters and experts apart.
  if (ranks > 1 && (files.distributed || !files.data_parallel.empty()))
    result.skipped = std::exchange(files.with_optimizer, false);
  result.optimizer = read_states(files, result.chunks);
  for (LegacyChunk& chunk : result.chunks) chunk = with_single_experts(std::move(chunk), ranks, files.where);
  for (int64_t rank = 1; rank < ranks; ++rank) {
    files.model = files.experts[static_cast<size_t>(rank) - 1];
    std::vector<LegacyChunk> more = chunks_of(files.model, files.where);
    if (more.size() != result.chunks.size())
      fail("expert ranks have different numbers of virtual stages", files.where);
    read_states(files, more);
    for (size_t i = 0; i < more.size(); ++i)
      add_experts(with_single_experts(std::move(more[i]), ranks, files.where), rank, files.where,
                  result.chunks[i]);
  }
  return result;
}

struct Joined {
  MegatronPart part;
  Dtype dtype = Dtype::f32;
  std::vector<TensorSourcePtr> ranks;
  std::vector<ParameterState> states;  // of the ranks; empty: none
};

class LegacyCheckpoint final : public MegatronCheckpoint {
 public:
  explicit LegacyCheckpoint(MegatronFiles files) : files_(std::move(files)) {
    const PickleValue& root = files_.stages[0][0].model->root();
    args_ = root.find("args");
    const PickleValue* const version = root.find("checkpoint_version");
    if (version != nullptr) version_ = number_of(*version, nullptr);
    for (const auto& stage : files_.stages) {
      auto& ranks = chunks_.emplace_back();
      for (const MegatronRankFiles& files : stage) {
        RankModel rank = model_of(files);
        skipped_ |= rank.skipped;
        for (const LegacyChunk& chunk : rank.chunks) whole_optimizer_ &= !chunk.states.empty();
        if (chunks_.size() == 1 && ranks.empty()) optimizer_ = std::move(rank.optimizer);
        ranks.push_back(std::move(rank.chunks));
      }
      for (const auto& rank : ranks) {
        if (rank.size() != chunks_[0][0].size())
          fail("ranks have different numbers of virtual stages", files_.where);
      }
    }
    find_model();
    join_ranks();
  }

  MegatronSource source() const override {
    MegatronSource source{.model = model_,
                          .args = args_,
                          .pipeline_ranks = static_cast<int64_t>(files_.stages.size()),
                          .where = files_.where};
    for (const auto& [name, joined] : joined_)
      source.shapes[name] = merged_shape(joined.part, static_cast<int64_t>(joined.ranks.size()));
    return source;
  }
  std::map<std::string, TensorSourcePtr> tensors(const json& settings) const override;
  std::string format() const override {
    const auto count = [](size_t number, const char* what) {
      return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
    };
    return fmt::format("torch, version {}, {}, {}", version_, count(files_.stages[0].size(), "tensor rank"),
                       count(files_.stages.size(), "pipeline stage"));
  }
  bool has_optimizer() const override { return whole_optimizer_; }
  std::vector<std::string> notices() const override {
    if (!skipped_) return {};
    return {"the state of a distributed optimizer of expert-parallel ranks is not converted: weights only"};
  }
  void print_structure(const PrintLine& print_line) const override {
    for (const auto& stage : files_.stages) {
      print_line(stage[0].where);
      teratron::print_structure(stage[0].model->root(), print_line);
    }
  }
  int64_t verify() const override {
    int64_t bytes = 0;
    for (const ByteSourcePtr& file : files_.bytes) {
      if (ZipArchive::is_zip(*file)) bytes += ZipArchive(file, files_.where).verify();
    }
    return bytes;
  }
  json state() const override {
    // Files without arguments are those that NVIDIA published.
    if (files_.release || args_ == nullptr) return json::object();
    return train_state({.common = &files_.stages[0][0].model->root(),
                        .scheduler = optimizer_.scheduler,
                        .scaler = optimizer_.scaler,
                        .scaler_file = optimizer_.file.get(),
                        .optimizer_steps = optimizer_.steps});
  }

 private:
  void find_model();
  void join_ranks();
  void join_chunk(size_t stage, size_t chunk, std::map<std::string, int64_t>& layers);
  Joined join(const SavedParameter& first, const std::string& ours, size_t stage, size_t chunk) const;
  MegatronPart part_with(const std::string& name, const Joined& joined, const json& settings) const;

  MegatronFiles files_;
  const PickleValue* args_ = nullptr;
  double version_ = 0;
  bool core_names_ = false;
  const MegatronModel* model_ = nullptr;
  std::vector<std::vector<std::vector<LegacyChunk>>> chunks_;  // [stage][tensor rank][virtual stage]
  RankOptimizer optimizer_;                                    // of the first rank, without its states
  bool whole_optimizer_ = true;
  bool skipped_ = false;                  // states that there may be
  std::map<std::string, Joined> joined_;  // by our name
};

void LegacyCheckpoint::find_model() {
  const auto any = [this](std::string_view part) {
    return std::ranges::any_of(chunks_, [part](const auto& stage) {
      return std::ranges::any_of(stage[0], [part](const LegacyChunk& chunk) {
        return std::ranges::any_of(chunk.parameters, [part](const SavedParameter& parameter) {
          return parameter.path.find(part) != std::string::npos;
        });
      });
    });
  };
  core_names_ =
      any("self_attention.linear_qkv.") || any("self_attention.linear_kv_up_proj.") || any(".in_proj.weight");
  model_ = &recognized_model(any, [this](std::string_view name) { return has_value(args_, name); });
}

// Layers are numbered within their stage, and the virtual stages of a rank lie between those of others.
void LegacyCheckpoint::join_ranks() {
  std::map<std::string, int64_t> layers;  // so far, by stack
  for (size_t chunk = 0; chunk < chunks_[0][0].size(); ++chunk) {
    for (size_t stage = 0; stage < chunks_.size(); ++stage) join_chunk(stage, chunk, layers);
  }
}

void LegacyCheckpoint::join_chunk(size_t stage, size_t chunk, std::map<std::string, int64_t>& layers) {
  std::map<std::string, int64_t> here;
  for (const SavedParameter& first : chunks_[stage][0][chunk].parameters) {
    const MegatronName name = megatron_name(first.path, *model_);
    if (!name.stack.empty()) here[name.stack] = std::max(here[name.stack], name.layer + 1);
    const int64_t before = name.stack.empty() ? 0 : layers[name.stack];
    const std::string ours = name.in_layer(before + name.layer);
    // Skip tensors that repeat the first stage's: the tied head, T5's decoder embedding, and relative
    // position biases (saved on every stage).
    if (ours == "word_embeddings_for_head.weight") continue;
    const bool repeats = ours.starts_with("embedding.") || ours.find("_relative_pos_emb.") != ours.npos;
    if (repeats && joined_.contains(ours)) continue;
    // The T5 of Megatron-Core has its head's bias under two names.
    if (joined_.contains(ours) && ours != "output_layer.bias")
      fail(fmt::format("tensor \"{}\" is there twice", ours), files_.where);
    if (!joined_.contains(ours)) joined_.emplace(ours, join(first, ours, stage, chunk));
  }
  for (const auto& [stack, count] : here) layers[stack] += count;
}

Joined LegacyCheckpoint::join(const SavedParameter& first, const std::string& ours, size_t stage,
                              size_t chunk) const {
  Joined joined{.part = {.split = split_of(ours), .shape = first.shape}, .dtype = first.weight->dtype()};
  if (joined.part.split == MegatronSplit::columns && first.shape.size() != 2)
    fail(fmt::format("tensor \"{}\" is not a matrix", printable(first.path)), files_.where);
  if (first.shape.empty() || first.shape.size() > 3 || !is_convertible_float(joined.dtype))
    fail(fmt::format("tensor \"{}\" is not a matrix or vector of F64, F32, BF16 or F16",
                     printable(first.path)),
         files_.where);
  for (const auto& rank : chunks_[stage]) {
    const auto found = rank[chunk].by_path.find(first.path);
    const SavedParameter* const own =
        found == rank[chunk].by_path.end() ? nullptr : &rank[chunk].parameters[found->second];
    if (own == nullptr || own->shape != first.shape || own->weight->dtype() != joined.dtype)
      fail(fmt::format("tensor \"{}\" is not the same on all tensor ranks of pipeline rank {}",
                       printable(first.path), stage),
           files_.where);
    joined.ranks.push_back(own->weight);
    if (whole_optimizer_) joined.states.push_back(rank[chunk].states[found->second]);
  }
  return joined;
}

// The order of the rows depends on the settings.
MegatronPart LegacyCheckpoint::part_with(const std::string& name, const Joined& joined,
                                         const json& settings) const {
  MegatronPart part = joined.part;
  if (const json channels = settings.value("kv_channels", json()); channels.is_number_integer())
    part.channels = channels;
  const bool qkv = name.find("linear_qkv.") != std::string::npos;
  const bool kv = name.find("linear_kv.") != std::string::npos;
  if (kv) part.splits = 2;
  if ((qkv || kv) && version_ < 2 && !core_names_) {
    part.rows = version_ < 1 ? MegatronRows::by_split : MegatronRows::splits_last;
    if (part.shape[0] % (part.splits * part.channels) != 0)
      fail(fmt::format("tensor \"{}\" is not made of whole heads", name), files_.where);
  }
  const int64_t rows = merged_shape(part, static_cast<int64_t>(joined.ranks.size()))[0];
  part.segments = row_segments(name, rows, settings);
  if (!part.segments.empty()) part.rows = MegatronRows::segmented;
  return part;
}

std::map<std::string, TensorSourcePtr> LegacyCheckpoint::tensors(const json& settings) const {
  std::map<std::string, TensorSourcePtr> result;
  for (const auto& [name, joined] : joined_) {
    if (name == "output_layer.weight" && settings["untie_embeddings_and_output_weights"] == false) continue;
    const MegatronPart part = part_with(name, joined, settings);
    result[name] = merged(part, joined.ranks);
    if (joined.states.empty()) continue;
    for (const auto& [kind, first] : joined.states[0]) {
      std::vector<TensorSourcePtr> ranks;
      for (const ParameterState& state : joined.states) {
        const auto found = state.find(kind);
        if (found == state.end()) fail(fmt::format("a rank has no {} of \"{}\"", kind, name), files_.where);
        ranks.push_back(found->second);
      }
      if (kind != "param" || joined.dtype != Dtype::f32)
        result[fmt::format("optimizer.{}.{}", kind, name)] = merged(part, std::move(ranks));
    }
  }
  return result;
}

}  // namespace

std::unique_ptr<MegatronCheckpoint> open_legacy_checkpoint(MegatronFiles files) {
  return std::make_unique<LegacyCheckpoint>(std::move(files));
}

}  // namespace teratron
