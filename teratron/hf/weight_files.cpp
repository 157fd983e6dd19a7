#include "teratron/hf/weight_files.h"

#include <cstring>
#include <set>
#include <system_error>

#include "teratron/base/json.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/fp8/block_scaled.h"
#include "teratron/pickle/torch_file.h"
#include "teratron/pickle/torch_writer.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";
constexpr const char* torch_index_name = "pytorch_model.bin.index.json";
constexpr const char* torch_single_name = "pytorch_model.bin";

class SafetensorsWeights final : public WeightFile {
 public:
  explicit SafetensorsWeights(const fs::path& path) : file_(path) {}
  std::map<std::string, TensorInfo> tensors() const override {
    std::map<std::string, TensorInfo> all;
    for (const SafetensorsEntry& entry : file_.entries()) all[entry.name] = {entry.dtype, entry.shape};
    return all;
  }
  void read(const std::string& name, int64_t begin, int64_t bytes, void* out) const override {
    file_.read(*file_.find(name), begin, bytes, out);
  }

 private:
  SafetensorsFile file_;
};

// A dict of tensors.
class TorchWeights final : public WeightFile {
 public:
  explicit TorchWeights(const fs::path& path)
      : bytes_(open_bytes(path)), where_(printable(path.string(), 4096)), file_(bytes_, where_) {
    const PickleValue& root = file_.root();
    if (!root.is(PickleValue::Kind::dict))
      throw checkpoint_error({.what = "the file does not hold a dict of tensors", .where = where_});
    const auto items = root.items();
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue &key = *items[i], &value = *items[i + 1];
      if (key.is(PickleValue::Kind::text) && key.text() == "_metadata") continue;  // versions of modules
      if (!key.is(PickleValue::Kind::text) || !value.is(PickleValue::Kind::tensor) ||
          !checked_numel(value.tensor().shape))
        throw checkpoint_error(
            {.what = fmt::format("entry '{}' of the dict is not a tensor with a name", printable(key.text())),
             .where = where_,
             .fix = "Use a file that holds nothing but the weights of a model"});
      tensors_[std::string(key.text())] = &value.tensor();
    }
  }
  std::map<std::string, TensorInfo> tensors() const override {
    std::map<std::string, TensorInfo> all;
    for (const auto& [name, tensor] : tensors_) all[name] = {file_.dtype_of(*tensor), tensor->shape};
    return all;
  }
  void read(const std::string& name, int64_t begin, int64_t bytes, void* out) const override {
    const PickledTensor& tensor = *tensors_.at(name);
    const int64_t element = size_of(file_.dtype_of(tensor));
    file_.read(tensor, begin / element, (begin + bytes) / element, static_cast<char*>(out));
  }
  int64_t verify() const override {
    return ZipArchive::is_zip(*bytes_) ? ZipArchive(bytes_, where_).verify() : 0;
  }

 private:
  ByteSourcePtr bytes_;
  std::string where_;
  TorchFile file_;
  std::map<std::string, const PickledTensor*> tensors_;
};

std::unique_ptr<WeightFile> open_weights(const fs::path& path) {
  if (path.extension() == ".bin") return std::make_unique<TorchWeights>(path);
  return std::make_unique<SafetensorsWeights>(path);
}

bool is_plain_name(const std::string& name, std::string_view extension) {
  return !name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos &&
         name.front() != '.' && name.ends_with(extension);
}

// The tensors of the index by file.
std::map<std::string, std::set<std::string>> parse_index(const fs::path& path, std::string_view extension,
                                                         std::vector<Problem>& problems) {
  const std::string where = printable(path.string(), 4096);
  const json index = read_json(path, {.kind = ExitCode::checkpoint, .max_depth = 16});
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw checkpoint_error({.what = "the index has no object \"weight_map\"", .where = where});
  }
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (is_plain_name(name, extension)) {
      files[name].insert(tensor);
    } else {
      problems.push_back({.what = fmt::format("tensor \"{}\" is in {}, which is not a plain name of a {} "
                                              "file in this folder",
                                              printable(tensor), printable(file.dump()), extension),
                          .where = where});
    }
  }
  return files;
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& directory) {
  std::error_code ignored;
  std::vector<Problem> problems;
  const auto add_index = [&](const char* name, std::string_view extension) {
    for (const auto& [file, tensors] : parse_index(directory / name, extension, problems))
      add_shard(directory / file, &tensors, problems);
  };
  if (fs::exists(directory / index_name, ignored)) {
    add_index(index_name, ".safetensors");
  } else if (fs::exists(directory / single_name, ignored)) {
    add_shard(directory / single_name, nullptr, problems);
  } else if (fs::exists(directory / torch_index_name, ignored)) {
    add_index(torch_index_name, ".bin");
  } else if (fs::exists(directory / torch_single_name, ignored)) {
    add_shard(directory / torch_single_name, nullptr, problems);
  } else {
    reject_pickled(directory);
    throw checkpoint_error({.what = fmt::format("there is neither {} nor {}, nor the index of either",
                                                single_name, torch_single_name),
                            .where = printable(directory.string(), 4096)});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

void WeightFiles::add_shard(const fs::path& path, const std::set<std::string>* expected,
                            std::vector<Problem>& problems) {
  const auto problem = [&, where = printable(path.string(), 4096)](std::string what) {
    problems.push_back({.what = std::move(what), .where = where});
  };
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return problem("the index names this file, which is missing");
  const WeightFile& file = *files_.emplace_back(open_weights(path));
  const std::map<std::string, TensorInfo> tensors = file.tensors();
  for (const auto& [name, tensor] : tensors) {
    const auto [other, is_new] = place_of_.try_emplace(
        name, Place{.file = &file, .file_name = path.filename().string(), .tensor = name});
    tensors_.emplace(name, tensor);
    if (!is_new) {
      problem(
          fmt::format("tensor \"{}\" is also in {}", printable(name), printable(other->second.file_name)));
    } else if (expected && !expected->contains(name)) {
      problem(fmt::format("tensor \"{}\" is here, but not in the index", printable(name)));
    }
  }
  for (const std::string& name : expected ? *expected : std::set<std::string>()) {
    if (!tensors.contains(name)) problem(fmt::format("tensor \"{}\" is missing", printable(name)));
  }
}

void WeightFiles::read(const std::string& name, int64_t begin, int64_t bytes, void* out) const {
  const Place& place = place_of_.at(name);
  const auto reader = [](const Place& from) {
    return [&from](int64_t at, int64_t count, void* to) {
      from.file->read(from.tensor, from.begin + at, count, to);
    };
  };
  if (place.scales) {
    constexpr int64_t element = 2;
    return read_block_scaled({reader(place), reader(*place.scales), place.columns}, begin / element,
                             bytes / element, out);
  }
  place.file->read(place.tensor, place.begin + begin, bytes, out);
}

void WeightFiles::divide(const std::string& name, const std::vector<std::string>& parts,
                         const std::vector<int64_t>& shape) {
  const Dtype dtype = tensors_.extract(name).mapped().dtype;
  Place place = place_of_.extract(name).mapped();
  for (const std::string& part : parts) {
    tensors_.emplace(part, TensorInfo{dtype, shape});
    place_of_.emplace(part, place);
    place.begin += *checked_numel(shape) * size_of(dtype);
  }
}

void WeightFiles::replace(const std::vector<std::string>& names, std::unique_ptr<WeightFile> by) {
  for (const std::string& name : names) tensors_.erase(name);
  const WeightFile& file = *files_.emplace_back(std::move(by));
  for (const auto& [name, tensor] : file.tensors()) {
    tensors_.emplace(name, tensor);
    place_of_.emplace(name, Place{.file = &file, .file_name = {}, .tensor = name});
  }
}

void WeightFiles::dequantize() {
  constexpr std::string_view end = "_scale_inv";
  const std::map<std::string, TensorInfo> all = tensors_;
  for (const auto& [name, info] : all) {
    const std::string scales = name + std::string(end);
    const auto found = tensors_.find(scales);
    if (found == tensors_.end() || !is_block_scaled(info, found->second)) continue;
    Place& place = place_of_.at(name);
    place.scales = std::make_shared<const Place>(place_of_.extract(scales).mapped());
    place.columns = info.shape[1];
    tensors_.erase(found);
    tensors_.at(name).dtype = Dtype::bf16;
  }
}

std::vector<char> WeightFiles::read(const std::string& name) const {
  const auto& [dtype, shape] = tensors_.at(name);
  std::vector<char> bytes(static_cast<size_t>(*checked_numel(shape) * size_of(dtype)));
  read(name, 0, static_cast<int64_t>(bytes.size()), bytes.data());
  return bytes;
}

int64_t WeightFiles::verify() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<WeightFile>& file : files_) bytes += file->verify();
  return bytes;
}

namespace {

using Tensors = std::vector<SafetensorsWriter::Tensor>;

int64_t bytes_of(const SafetensorsWriter::Tensor& tensor) {
  return *checked_numel(tensor.shape) * size_of(tensor.dtype);
}

std::vector<Tensors> in_files(const Tensors& tensors, int64_t max_bytes) {
  std::vector<Tensors> files;
  int64_t in_file = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    const int64_t bytes = bytes_of(tensor);
    if (files.empty() || (in_file > 0 && in_file + bytes > max_bytes)) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(tensor);
    in_file += bytes;
  }
  return files;
}

// `write` numbers the tensors of the file.
void write_file(const fs::path& path, const Tensors& tensors, WeightFormat format, const WriteTensor& write) {
  if (format == WeightFormat::safetensors) {
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
    for (size_t i = 0; i < tensors.size(); ++i)
      write(i, [&writer](const void* data, int64_t bytes) { writer.write(data, bytes); });
    return writer.finish();
  }
  PickleWriter pickle;
  pickle.begin(PickledDict::ordered);
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    pickle.text(tensor.name);
    pickle.tensor(tensor.dtype, tensor.shape);
  }
  pickle.end(PickledDict::ordered);
  write_torch_file(path, pickle, write);
}

}  // namespace

void write_sharded_weights(const fs::path& directory, const Tensors& tensors, const WeightShards& shards,
                           const WriteTensor& write) {
  const bool is_bin = shards.format == WeightFormat::bin;
  const std::string stem = is_bin ? "pytorch_model" : "model", extension = is_bin ? ".bin" : ".safetensors";
  const std::vector<Tensors> files = in_files(tensors, shards.max_bytes);
  json weight_map = json::object();
  size_t done = 0;
  for (size_t file = 0; file < files.size(); ++file) {
    const std::string part =
        files.size() == 1 ? "" : fmt::format("-{:05d}-of-{:05d}", file + 1, files.size());
    const std::string name = stem + part + extension;
    write_file(directory / name, files[file], shards.format,
               [&](size_t i, const AppendBytes& append) { write(done + i, append); });
    done += files[file].size();
    for (const SafetensorsWriter::Tensor& tensor : files[file]) weight_map[tensor.name] = name;
  }
  if (files.size() < 2) return;
  int64_t total = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) total += bytes_of(tensor);
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  write_text(directory / (is_bin ? torch_index_name : index_name), index.dump(2) + "\n",
             ExitCode::checkpoint);
}

}  // namespace teratron
