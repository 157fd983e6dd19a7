#include "teratron/megatron/convert.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/merge.h"
#include "teratron/megatron/rank_files.h"
#include "teratron/megatron/settings.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

struct Located {
  std::shared_ptr<const TorchFile> file;
  const PickledTensor* tensor = nullptr;
};

using Tensors = std::map<std::string, Located>;  // by path in the file

struct Joined {
  MegatronPart part;
  Dtype dtype = Dtype::f32;
  std::vector<Located> ranks;
  std::vector<int64_t> shape;  // of the result
};

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw checkpoint_error({.what = what,
                          .where = where,
                          .fix = "Only whole checkpoints of GPT, BERT and T5 models are converted"});
}

// Values may be shared, so that a walk could see far more of them than there are.
void flatten(const PickleValue& value, const std::string& path, const std::shared_ptr<const TorchFile>& file,
             Tensors& tensors, int& left) {
  if (--left < 0) fail("the model is nested too deeply", path);
  if (value.is(Kind::tensor) && !path.ends_with("_extra_state")) tensors[path] = {file, &value.tensor};
  if (!value.is(Kind::dict)) return;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
    const PickleValue& key = *value.items[i];
    if (!key.is(Kind::text)) continue;
    flatten(*value.items[i + 1], path.empty() ? key.text : path + "." + key.text, file, tensors, left);
  }
}

// The tensors of each virtual stage of a file.
std::vector<Tensors> chunks_of(const std::shared_ptr<const TorchFile>& file, const std::string& where) {
  std::vector<Tensors> chunks;
  const auto add = [&](const PickleValue& model) {
    int left = 1'000'000;
    flatten(model, "", file, chunks.emplace_back(), left);
  };
  if (const PickleValue* const model = file->root().find("model")) {
    add(*model);
  } else if (file->root().find("language_model") != nullptr) {
    add(file->root());
  }
  while (const PickleValue* const model = file->root().find(fmt::format("model{}", chunks.size())))
    add(*model);
  if (chunks.empty()) fail("the file holds no 'model'", where);
  return chunks;
}

class Reader {
 public:
  explicit Reader(MegatronFiles files) : files_(std::move(files)) {
    const PickleValue& root = files_.stages[0][0]->root();
    args_ = root.find("args");
    const PickleValue* const version = root.find("checkpoint_version");
    if (version != nullptr)
      version_ = version->is(Kind::real) ? version->real : static_cast<double>(version->integer);
    for (const auto& stage : files_.stages) {
      auto& ranks = chunks_.emplace_back();
      for (const auto& file : stage) ranks.push_back(chunks_of(file, files_.where));
      for (const auto& rank : ranks) {
        if (rank.size() != chunks_[0][0].size())
          fail("ranks have different numbers of virtual stages", files_.where);
      }
    }
    find_family();
    join_ranks();
  }

  MegatronSource source() const {
    MegatronSource source{.family = family_,
                          .args = args_,
                          .pipeline_ranks = static_cast<int64_t>(files_.stages.size()),
                          .where = files_.where};
    for (const auto& [name, joined] : joined_)
      source.shapes[name] = merged_shape(joined.part, static_cast<int64_t>(joined.ranks.size()));
    return source;
  }

  /// Everything but the padding of the vocabulary.
  std::map<std::string, Joined> finish(const json& settings, int64_t vocabulary);
  const PickleValue* args() const { return args_; }
  const std::string& where() const { return files_.where; }

 private:
  void find_family();
  void join_ranks();
  void join_chunk(size_t stage, size_t chunk, std::map<std::string, int64_t>& layers);

  MegatronFiles files_;
  const PickleValue* args_ = nullptr;
  double version_ = 0;
  bool core_names_ = false;
  MegatronFamily family_ = MegatronFamily::gpt;
  std::vector<std::vector<std::vector<Tensors>>> chunks_;  // [stage][tensor rank][virtual stage]
  std::map<std::string, Joined> joined_;                   // by our name
};

void Reader::find_family() {
  const auto any = [this](auto&& matches) {
    for (const auto& stage : chunks_) {
      for (const Tensors& chunk : stage[0]) {
        for (const auto& [path, located] : chunk) {
          if (matches(path)) return true;
        }
      }
    }
    return false;
  };
  const auto has = [](std::string_view part) {
    return [part](const std::string& path) { return path.find(part) != std::string::npos; };
  };
  core_names_ = any(has("self_attention.linear_qkv."));
  if (any(has("inter_attention.")) || any(has("cross_attention."))) {
    family_ = MegatronFamily::t5;
  } else if (any(has("lm_head.dense.")) || any(has("tokentype_embeddings.")) || any(has("binary_head."))) {
    family_ = MegatronFamily::bert;
  }
}

// Layers are numbered within their stage, and the virtual stages of a rank lie between those of others.
void Reader::join_ranks() {
  std::map<std::string, int64_t> layers;  // so far, by stack
  for (size_t chunk = 0; chunk < chunks_[0][0].size(); ++chunk) {
    for (size_t stage = 0; stage < chunks_.size(); ++stage) join_chunk(stage, chunk, layers);
  }
}

void Reader::join_chunk(size_t stage, size_t chunk, std::map<std::string, int64_t>& layers) {
  std::map<std::string, int64_t> here;
  for (const auto& [path, first] : chunks_[stage][0][chunk]) {
    const MegatronName name = megatron_name(path, family_);
    if (!name.stack.empty()) here[name.stack] = std::max(here[name.stack], name.layer + 1);
    const int64_t before = name.stack.empty() ? 0 : layers[name.stack];
    const std::string ours = name.in_layer(before + name.layer);
    // Copies of embeddings, which the first stage has: for the head, and for the decoder of a T5, whose
    // relative positions are on all stages.
    if (ours == "word_embeddings_for_head.weight") continue;
    const bool repeats = ours.starts_with("embedding.") || ours.find("_relative_pos_emb.") != ours.npos;
    if (repeats && joined_.contains(ours)) continue;
    Joined joined{.part = {.split = split_of(ours), .shape = first.tensor->shape},
                  .dtype = first.file->dtype_of(*first.tensor)};
    if (joined.part.split == MegatronSplit::columns && joined.part.shape.size() != 2)
      fail(fmt::format("tensor \"{}\" is not a matrix", printable(path)), files_.where);
    if (joined.part.shape.empty() || joined.part.shape.size() > 2 || !is_convertible_float(joined.dtype))
      fail(fmt::format("tensor \"{}\" is not a matrix or vector of F64, F32, BF16 or F16", printable(path)),
           files_.where);
    for (const auto& rank : chunks_[stage]) {
      const auto found = rank[chunk].find(path);
      if (found == rank[chunk].end() || found->second.tensor->shape != joined.part.shape ||
          found->second.file->dtype_of(*found->second.tensor) != joined.dtype)
        fail(fmt::format("tensor \"{}\" is not the same on all tensor ranks of pipeline rank {}",
                         printable(path), stage),
             files_.where);
      joined.ranks.push_back(found->second);
    }
    const auto existing = joined_.find(ours);
    // The T5 of Megatron-Core has its head's bias under two names.
    if (existing != joined_.end() && ours != "output_layer.bias")
      fail(fmt::format("tensor \"{}\" is there twice", ours), files_.where);
    if (existing == joined_.end()) joined_.emplace(ours, std::move(joined));
  }
  for (const auto& [stack, count] : here) layers[stack] += count;
}

std::map<std::string, Joined> Reader::finish(const json& settings, int64_t vocabulary) {
  if (settings["untie_embeddings_and_output_weights"] == false) joined_.erase("output_layer.weight");
  const int64_t padded = joined_.at("embedding.word_embeddings.weight").part.shape[0] *
                         static_cast<int64_t>(files_.stages[0].size());
  if (vocabulary > padded)
    throw config_error(
        {.what = fmt::format("the vocabulary of {} tokens is larger than the embedding's {} rows", vocabulary,
                             padded),
         .where = files_.where,
         .fix = "Use the tokenizer, or --vocab-size, of the checkpoint"});
  for (auto& [name, joined] : joined_) {
    MegatronPart& part = joined.part;
    part.channels = settings["kv_channels"];
    const bool qkv = name.find("linear_qkv.") != std::string::npos;
    const bool kv = name.find("linear_kv.") != std::string::npos;
    if (kv) part.splits = 2;
    if ((qkv || kv) && version_ < 2 && !core_names_) {
      part.rows = version_ < 1 ? MegatronRows::by_split : MegatronRows::splits_last;
      if (part.shape[0] % (part.splits * part.channels) != 0)
        fail(fmt::format("tensor \"{}\" is not made of whole heads", name), files_.where);
    }
    if (settings["swiglu"] == true && name.find("linear_fc1.") != std::string::npos)
      part.rows = MegatronRows::gated;
    joined.shape = merged_shape(part, static_cast<int64_t>(joined.ranks.size()));
    if (name == "embedding.word_embeddings.weight" || name.starts_with("output_layer.")) {
      if (joined.shape[0] != padded)
        fail(fmt::format("tensor \"{}\" has not {} rows", name, padded), files_.where);
      joined.shape[0] = vocabulary > 0 ? vocabulary : padded;
    }
  }
  return std::move(joined_);
}

// A tensor that no model of the family has, or that one lacks, would be lost or random without a word.
void check_names(const std::map<std::string, Joined>& tensors, const std::string& where) {
  static const std::set<std::string, std::less<>> modules = {"self_attention.linear_qkv",
                                                             "self_attention.linear_proj",
                                                             "self_attention.q_layernorm",
                                                             "self_attention.k_layernorm",
                                                             "cross_attention.linear_q",
                                                             "cross_attention.linear_kv",
                                                             "cross_attention.linear_proj",
                                                             "input_layernorm",
                                                             "pre_mlp_layernorm",
                                                             "pre_cross_attn_layernorm",
                                                             "mlp.linear_fc1",
                                                             "mlp.linear_fc2"};
  static const std::set<std::string, std::less<>> others = {
      "embedding.word_embeddings",
      "embedding.position_embeddings",
      "embedding.tokentype_embeddings",
      "encoder_relative_pos_emb.relative_attention_bias",
      "decoder_relative_pos_emb.relative_attention_bias",
      "encoder.final_layernorm",
      "decoder.final_layernorm",
      "output_layer",
      "lm_head.dense",
      "lm_head.layer_norm",
      "pooler.dense",
      "binary_head"};
  std::vector<Problem> problems;
  std::map<std::string, std::set<std::string>> of_layer;  // "decoder.layers.3" -> its tensors
  for (const auto& [name, tensor] : tensors) {
    const MegatronName parsed =
        megatron_name(name, name.starts_with("decoder.") ? MegatronFamily::gpt : MegatronFamily::bert);
    const std::string module = name.substr(0, name.rfind('.'));
    const bool known = parsed.stack.empty() ? others.contains(module)
                                            : modules.contains(parsed.rest.substr(0, parsed.rest.rfind('.')));
    if (!known)
      problems.push_back(
          {fmt::format("tensor \"{}\" has no place in the model", printable(name)), where, {}});
    if (!parsed.stack.empty()) of_layer[fmt::format("{}{}", parsed.stack, parsed.layer)].insert(parsed.rest);
  }
  for (const auto& [layer, names] : of_layer) {
    const std::string first = layer.substr(0, layer.rfind('.') + 1) + "0";
    if (!of_layer.contains(first) || of_layer.at(first) != names)
      problems.push_back(
          {fmt::format("the layers {} and {} have different tensors", first, layer), where, {}});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

std::vector<char> read_joined(const Joined& joined, Dtype to) {
  std::vector<std::vector<char>> parts;
  for (const Located& rank : joined.ranks) {
    parts.push_back(rank.file->read(*rank.tensor));
    if (joined.part.split == MegatronSplit::none) break;
  }
  std::vector<char> bytes = merge_parts(joined.part, parts, size_of(joined.dtype));
  const int64_t elements = joined.shape[0] * (joined.shape.size() > 1 ? joined.shape[1] : 1);
  bytes.resize(static_cast<size_t>(elements * size_of(joined.dtype)));  // without the vocabulary's padding
  return convert_floats(std::move(bytes), joined.dtype, to);
}

std::string saved_tokenizer(const PickleValue* args) {
  const PickleValue* const type = args == nullptr ? nullptr : args->find("tokenizer_type");
  return type == nullptr ? "" : type->text;
}

}  // namespace

ConversionReport import_megatron(const MegatronImport& request) {
  Reader reader(open_megatron_files(request.source, request.step));
  json settings = megatron_settings(reader.source(), request.settings);
  int64_t vocabulary = request.settings.value("vocab_size", int64_t{0});
  if (vocabulary == 0 && request.vocabulary)
    vocabulary = request.vocabulary(settings["model_family"], saved_tokenizer(reader.args()), settings);
  if (vocabulary == 0) vocabulary = saved_vocabulary(reader.args());
  const std::map<std::string, Joined> tensors = reader.finish(settings, vocabulary);
  check_names(tensors, reader.where());
  settings["vocab_size"] = tensors.at("embedding.word_embeddings.weight").shape[0];
  SaveRequest save{.directory = request.destination, .iteration = 0, .config = settings.dump(), .writers = 1};
  ConversionReport report{.tensors = static_cast<int64_t>(tensors.size())};
  for (const auto& [name, joined] : tensors) {
    const Dtype dtype = request.dtype.value_or(joined.dtype);
    save.tensors.push_back({.name = name, .dtype = dtype, .shard = Shard::replicated(joined.shape)});
    save.tensors.back().fetch = [&joined, dtype] {
      const auto bytes = std::make_shared<std::vector<char>>(read_joined(joined, dtype));
      return std::shared_ptr<const void>(bytes, bytes->data());
    };
    report.elements += joined.shape[0] * (joined.shape.size() > 1 ? joined.shape[1] : 1);
  }
  if (vocabulary == 0)
    report.notices.push_back(
        "the size of the vocabulary is not known, so that its padding stays: give --vocab-size or the "
        "tokenizer's "
        "files to cut it off");
  SingleHostGroup alone;
  report.result = save_checkpoint(save, alone).path;
  return report;
}

}  // namespace teratron
