#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "teratron/base/json.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/index_ranges.h"
#include "teratron/hf/convert.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/weight_files.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/hf_models.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
// A folder as transformers writes it, with values that tell every element from every other.
void write_model(const fs::path& directory, const json& config, int64_t max_bytes,
                 std::string_view strip = "") {
  fs::create_directories(directory);
  std::ofstream(directory / "config.json") << config.dump();
  const HfModel model = parse_hf(config);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const HfTensor& tensor : hf_tensors(model, 99, strip)) {
    for (const HfSource& source : tensor.sources) tensors.push_back({source.name, Dtype::f32, source.shape});
  }
  float next = 0;
  write_sharded_weights(directory, tensors, {.max_bytes = max_bytes},
                        [&](size_t i, const AppendBytes& append) {
                          for (int64_t k = 0; k < *checked_numel(tensors[i].shape); ++k)
                            (next += 1, append(&next, 4));
                        });
}

std::map<std::string, std::vector<char>> contents(const fs::path& directory) {
  const WeightFiles files(directory);
  std::map<std::string, std::vector<char>> all;
  for (const auto& [name, entry] : files.tensors()) all[name] = files.read(name);
  return all;
}

std::vector<float> read_floats(const fs::path& checkpoint, const std::string& name,
                               std::vector<int64_t> shape) {
  std::vector<float> values(static_cast<size_t>(*checked_numel(shape)));
  CheckpointReader(checkpoint)
      .read({.name = name, .shard = Shard::replicated(std::move(shape)), .data = values.data()});
  return values;
}

TEST(HfConvert, RoundTrip) {
  for (const json& config : hf_models()) {
    const TemporaryDirectory directory;
    write_model(directory / "in", config, 1000);
    EXPECT_TRUE(fs::exists(directory / "in" / "model.safetensors.index.json"));
    const ConversionReport in = import_hf(directory / "in", {.destination = directory / "ckpt"});
    verify_checkpoint(in.result);
    const ConversionReport out = export_hf(CheckpointReader(in.result),
                                           {.destination = directory / "out", .shards = {.max_bytes = 3000}});
    EXPECT_EQ(contents(directory / "out"), contents(directory / "in")) << config["model_type"];
    EXPECT_EQ(in.elements, out.elements);
    const HfModel again = parse_hf_config(read_text(directory / "out" / "config.json", {}), "out");
    EXPECT_EQ(again.settings, parse_hf(config).settings) << config["model_type"];
  }
}

TEST(HfConvert, OrdersQkvAndGateAsMegatron) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_llama(), 1 << 30);
  const ConversionReport report = import_hf(directory / "in", {.destination = directory / "ckpt"});
  const WeightFiles files(directory / "in");
  const auto value = [&](const std::string& name, int64_t row) {
    float first = 0;
    std::memcpy(&first, files.read("model.layers.1." + name).data() + row * 12 * 4, 4);
    return first;
  };
  const auto qkv = read_floats(report.result, "decoder.layers.1.self_attention.linear_qkv.weight", {20, 12});
  // Group 1: its three query heads of two rows, then key and value.
  EXPECT_EQ(qkv[10 * 12], value("self_attn.q_proj.weight", 6));
  EXPECT_EQ(qkv[15 * 12], value("self_attn.q_proj.weight", 11));
  EXPECT_EQ(qkv[16 * 12], value("self_attn.k_proj.weight", 2));
  EXPECT_EQ(qkv[18 * 12], value("self_attn.v_proj.weight", 2));
  const auto fc1 = read_floats(report.result, "decoder.layers.1.mlp.linear_fc1.weight", {40, 12});
  EXPECT_EQ(fc1[19 * 12], value("mlp.gate_proj.weight", 19));
  EXPECT_EQ(fc1[20 * 12], value("mlp.up_proj.weight", 0));
}

TEST(HfConvert, TransposesGpt2) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_gpt2(), 1 << 30,
              "transformer.");  // files of the bare model have no prefix
  const ConversionReport report = import_hf(directory / "in", {.destination = directory / "ckpt"});
  std::vector<float> theirs(8 * 24);
  std::memcpy(theirs.data(), WeightFiles(directory / "in").read("h.0.attn.c_attn.weight").data(),
              theirs.size() * 4);
  const auto ours = read_floats(report.result, "decoder.layers.0.self_attention.linear_qkv.weight", {24, 8});
  // Head 1's first key row (two heads of width 4): our row 12 + 4, their column 8 + 4.
  for (int64_t column = 0; column < 8; ++column) EXPECT_EQ(ours[16 * 8 + column], theirs[column * 24 + 12]);
}

TEST(HfConvert, ConvertsTypesOnRequest) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_llama(), 1 << 30);
  const ConversionReport report =
      import_hf(directory / "in", {.destination = directory / "ckpt", .dtype = Dtype::bf16});
  EXPECT_EQ(open_checkpoint(report.result).tensors.at("output_layer.weight").dtype, Dtype::bf16);
  export_hf(CheckpointReader(report.result), {.destination = directory / "out", .dtype = Dtype::f32});
  EXPECT_EQ(WeightFiles(directory / "out").tensors().at("lm_head.weight").dtype, Dtype::f32);
}

TEST(HfConvert, ListsAllMissingAndSurplusTensors) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_llama(), 1 << 30);
  std::ofstream(directory / "in" / "config.json")
      << changed(hf_llama(), {{"num_hidden_layers", 3}, {"vocab_size", 14}}).dump();
  std::string text =
      message_of<UserError>([&] { import_hf(directory / "in", {.destination = directory / "ckpt"}); });
  EXPECT_NE(text.find("model.layers.2.self_attn.k_proj.weight\" is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("is F32 [13, 12], but config.json requires F64, F32, BF16 or F16 [14, 12]"),
            std::string::npos)
      << text;
  std::ofstream(directory / "in" / "config.json") << changed(hf_llama(), {{"num_hidden_layers", 1}}).dump();
  text = message_of<UserError>([&] { import_hf(directory / "in", {.destination = directory / "ckpt"}); });
  EXPECT_NE(text.find("layers.1.mlp.up_proj.weight\" is not in the model"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(directory / "ckpt"));
}

// Neither the config nor the settings can make the conversion allocate more than the files hold.
TEST(HfConvert, hostile_sizes) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_llama(), 1 << 30);
  const auto error_of = [&](const json& patch) {
    std::ofstream(directory / "in" / "config.json") << changed(hf_llama(), patch).dump();
    return message_of<UserError>([&] { import_hf(directory / "in", {.destination = directory / "ckpt"}); });
  };
  const int64_t huge = int64_t{1} << 31;
  EXPECT_NE(error_of({{"num_hidden_layers", huge}}).find("2147483648 layers, but only 21 tensors"),
            std::string::npos);
  const std::string heads = error_of({{"num_attention_heads", huge},
                                      {"num_key_value_heads", huge},
                                      {"head_dim", huge},
                                      {"hidden_size", huge}});
  EXPECT_NE(heads.find("requires F64, F32, BF16 or F16 [2147483648]"), std::string::npos) << heads;
  const json windows = {{"model_type", "mistral"},
                        {"num_hidden_layers", huge},
                        {"sliding_window", 8},
                        {"max_position_embeddings", 9}};
  EXPECT_NE(error_of(windows).find("'num_hidden_layers' = 2147483648"), std::string::npos);
}

// A tied output layer may be in the files too, with the same values.
TEST(HfConvert, TiedCopies) {
  const TemporaryDirectory directory;
  for (const bool equal : {true, false}) {
    const fs::path in = directory / (equal ? "equal" : "other");
    write_model(in, hf_llama(), 1 << 30);
    if (equal) {
      const std::map<std::string, std::vector<char>> values = contents(in);
      std::vector<SafetensorsWriter::Tensor> tensors;
      const WeightFiles files(in);
      for (const auto& [name, info] : files.tensors()) tensors.push_back({name, info.dtype, info.shape});
      fs::remove(in / "model.safetensors");
      write_sharded_weights(in, tensors, {.max_bytes = 1 << 30}, [&](size_t i, const AppendBytes& append) {
        const std::vector<char>& bytes =
            values.at(tensors[i].name == "lm_head.weight" ? "model.embed_tokens.weight" : tensors[i].name);
        append(bytes.data(), static_cast<int64_t>(bytes.size()));
      });
    }
    std::ofstream(in / "config.json") << changed(hf_llama(), {{"tie_word_embeddings", true}}).dump();
    const fs::path out = directory / (equal ? "equal_ckpt" : "other_ckpt");
    const std::string error = message_of<UserError>([&] { import_hf(in, {.destination = out}); });
    EXPECT_EQ(error.find("differs from \"model.embed_tokens.weight\"") == std::string::npos, equal) << error;
    EXPECT_EQ(fs::exists(out), equal);
  }
}

// A manifest in many files is read like one in one file.
TEST(HfConvert, ExportsCheckpointsWithDividedManifests) {
  const TemporaryDirectory directory;
  SaveRequest save{.directory = directory / "ckpt", .config = parse_hf(hf_llama()).settings.dump()};
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.5F);
  for (const HfTensor& tensor : hf_tensors(parse_hf(hf_llama()), 99))
    save.tensors.push_back(
        {.name = tensor.name, .shard = Shard::replicated(tensor.shape), .data = values.data()});
  SingleHostGroup alone;
  for (const bool is_divided : {false, true}) {
    save.iteration = is_divided ? 1 : 0;
    save.manifest_file_bytes = is_divided ? 500 : 1 << 20;
    const fs::path path = save_checkpoint(save, alone).path;
    const std::string index = read_text(path / "manifest.json", {});
    EXPECT_EQ(index.find(R"("format_version":"2.0")") != index.npos, is_divided);
    export_hf(CheckpointReader(path), {.destination = directory / (is_divided ? "divided" : "whole")});
  }
  EXPECT_EQ(contents(directory / "divided"), contents(directory / "whole"));
  EXPECT_GT(contents(directory / "whole").size(), 5U);
}

// What has no place in the model is not dropped.
TEST(HfConvert, ExportsEveryWeight) {
  const TemporaryDirectory directory;
  SaveRequest save{.directory = directory / "ckpt", .config = parse_hf(hf_llama()).settings.dump()};
  std::vector<float> zeros(1000);
  for (const HfTensor& tensor : hf_tensors(parse_hf(hf_llama()), 99))
    save.tensors.push_back(
        {.name = tensor.name, .shard = Shard::replicated(tensor.shape), .data = zeros.data()});
  save.tensors.push_back(
      {.name = "optimizer.exp_avg.x", .shard = Shard::replicated({3}), .data = zeros.data()});
  SingleHostGroup alone;
  const fs::path good = save_checkpoint(save, alone).path;
  EXPECT_NO_THROW(export_hf(CheckpointReader(good), {.destination = directory / "out"}));
  save.tensors.back().name = "adapter.weight";
  save.iteration = 1;
  const fs::path bad = save_checkpoint(save, alone).path;
  EXPECT_NE(message_of<UserError>([&] {
              export_hf(CheckpointReader(bad), {.destination = directory / "no"});
            }).find("adapter.weight\" is not in the model"),
            std::string::npos);
}

TEST(HfConvert, RefusesANonEmptyFolder) {
  const TemporaryDirectory directory;
  write_model(directory / "in", hf_llama(), 1 << 30);
  const ConversionReport report = import_hf(directory / "in", {.destination = directory / "ckpt"});
  EXPECT_THROW(export_hf(CheckpointReader(report.result), {.destination = directory / "in"}), UserError);
  EXPECT_THROW(export_hf(CheckpointReader(report.result),
                         {.destination = directory / "out",
                          .tokenizer = {.files = {{"tokenizer.json", directory / "none"}}}}),
               UserError);
  EXPECT_FALSE(fs::exists(directory / "out")) << "a failed export leaves nothing";
}

TEST(HfCheckpointTest, CheckpointsInPlaceOfAModelAreNamed) {
  const TemporaryDirectory directory;
  fs::create_directories(directory / "iter_0000001");
  const fs::path folder = (directory / "iter_0000001").parent_path();
  EXPECT_NE(message_of<UserError>([&] { read_hf_model(folder); }).find("Name it with --load"),
            std::string::npos);
}

TEST(WeightFilesTest, fault_18_hostile_indices) {
  const TemporaryDirectory directory;
  write_model(directory / "m", hf_llama(), 1000);
  const fs::path index = directory / "m" / "model.safetensors.index.json";
  const json good = json::parse(read_text(index, {}));
  const auto error_of = [&](const json& value) {
    write_text(index, value.dump(), ExitCode::data);
    return message_of<UserError>([&] { WeightFiles files(directory / "m"); });
  };
  ASSERT_EQ(error_of(good), "");
  const std::string first = good["weight_map"]["lm_head.weight"];
  const auto with = [&](const json& file) {
    return changed(good, {{"weight_map", {{"lm_head.weight", file}}}});
  };
  for (const char* bad :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".x.safetensors", "", "config.json"}) {
    EXPECT_NE(error_of(with(bad)).find("not a plain name"), std::string::npos) << bad;
  }
  EXPECT_NE(error_of(with(7)).find("not a plain name"), std::string::npos);
  EXPECT_NE(error_of(with("none.safetensors")).find("which is missing"), std::string::npos);
  EXPECT_NE(error_of(with(good["weight_map"]["model.embed_tokens.weight"])).find("is missing"),
            std::string::npos);
  json unlisted = good;
  unlisted["weight_map"].erase("model.norm.weight");
  EXPECT_NE(error_of(unlisted), "");
  fs::copy_file(directory / "m" / first, directory / "m" / "copy.safetensors");
  EXPECT_NE(error_of(with("copy.safetensors")).find("is also in"), std::string::npos);
  EXPECT_NE(error_of({{"weight_map", 1}}).find("weight_map"), std::string::npos);
  write_text(index, R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", ExitCode::data);
  EXPECT_NE(message_of<UserError>([&] { WeightFiles files(directory / "m"); }).find("twice"),
            std::string::npos);
}

// Whatever part of a tensor a rank holds, it gets what the whole tensor has there.
TEST(HfCheckpointTest, ReadsAnyPart) {
  for (const json& config : {hf_gpt2(), hf_llama()}) {
    const TemporaryDirectory directory;
    write_model(directory / "in", config, 1000);
    const HfCheckpoint source(directory / "in");
    for (const HfTensor& tensor : source.tensors()) {
      const auto read = [&](const Shard& shard, int64_t begin, int64_t end) {
        std::vector<float> values(static_cast<size_t>(end - begin), -1.0F);
        source.read({tensor.name, Dtype::f32, shard, begin, end, values.data()});
        return values;
      };
      const Shard whole = Shard::replicated(tensor.shape);
      const std::vector<float> all = read(whole, 0, local_numel(whole));
      for (int64_t dim = 0; dim < static_cast<int64_t>(tensor.shape.size()); ++dim) {
        if (tensor.shape[dim] % 2 != 0) continue;
        const Shard half = Shard::split(tensor.shape, dim, 2, 1);
        const int64_t end = local_numel(half), begin = end / 3;
        const std::vector<float> part = read(half, begin, end);
        for (const IndexRange& range : index_ranges(half, begin, end)) {
          for (int64_t i = 0; i < range.length; ++i)
            ASSERT_EQ(part[range.local + i], all[range.global + i]) << tensor.name << " dim " << dim;
        }
      }
    }
  }
}

TEST(WeightFilesTest, fault_19_pickles_are_refused) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "config.json") << hf_llama().dump();
  EXPECT_NE(message_of<UserError>([&] {
              WeightFiles files(directory.path());
            }).find("neither model.safetensors nor pytorch_model.bin"),
            std::string::npos);
  std::ofstream(directory / "pytorch_model.bin") << "x";
  const auto error_of = [&](const fs::path& source) {
    return message_of<UserError>([&] { import_hf(source, {.destination = directory / "ckpt"}); });
  };
  EXPECT_NE(error_of(directory.path()).find("not a file of torch.save"), std::string::npos);
  EXPECT_NE(error_of(directory / "pytorch_model.bin").find("--from-hf FOLDER"), std::string::npos);
}

TEST(FloatConvert, RoundsToNearestEven) {
  const std::vector<float> values = {1.0F,
                                     1.00390625F,  // halfway between two bf16: to the even one
                                     1.01171875F,  // halfway, up
                                     -3.14159274F,
                                     65519.9F,  // largest that f16 does not round to infinity
                                     1e-8F,     // below half the smallest f16
                                     std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN()};
  const auto bytes_of = [](const auto& array) {
    const char* const bytes = reinterpret_cast<const char*>(array.data());
    return std::vector<char>(bytes, bytes + array.size() * sizeof(array[0]));
  };
  const auto back_through = [&](Dtype type) {
    const std::vector<char> narrow = convert_floats(bytes_of(values), Dtype::f32, type);
    std::vector<float> back(values.size());
    std::memcpy(back.data(), convert_floats(narrow, type, Dtype::f32).data(), back.size() * sizeof(float));
    EXPECT_TRUE(std::isinf(back[6]) && std::isnan(back[7]));
    return back;
  };
  const std::vector<float> bf16 = back_through(Dtype::bf16), f16 = back_through(Dtype::f16);
  EXPECT_EQ(std::vector<float>(bf16.begin(), bf16.begin() + 4),
            (std::vector<float>{1.0F, 1.0F, 1.015625F, -3.140625F}));
  EXPECT_EQ(f16[4], 65504.0F);
  EXPECT_EQ(f16[5], 0.0F);
  // Every bf16 and f16 survives the way through f32 and f64.
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), 0);
  for (const Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (const Dtype wide : {Dtype::f32, Dtype::f64}) {
      std::vector<uint16_t> result(all.size());
      std::memcpy(result.data(), convert_floats(convert_floats(bytes_of(all), type, wide), wide, type).data(),
                  result.size() * 2);
      for (const uint16_t bits : all) {
        const bool nan = type == Dtype::bf16 ? (bits & 0x7fff) > 0x7f80 : (bits & 0x7fff) > 0x7c00;
        ASSERT_TRUE(nan || result[bits] == bits) << bits;
      }
    }
  }
}

}  // namespace
}  // namespace teratron
