#include "teratron/hf/sharded_safetensors.h"

#include <set>
#include <system_error>

#include "teratron/base/json.h"
#include "teratron/ckpt/directory.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos &&
         name.front() != '.' && name.ends_with(".safetensors");
}

// The tensors of the index by file.
std::map<std::string, std::set<std::string>> parse_index(const fs::path& path,
                                                         std::vector<Problem>& problems) {
  const std::string where = printable(path.string(), 4096);
  const json index = read_json(path, {.kind = ExitCode::checkpoint, .max_depth = 16});
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw checkpoint_error({.what = "the index has no object \"weight_map\"", .where = where});
  }
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (is_plain_name(name)) {
      files[name].insert(tensor);
    } else {
      problems.push_back(
          {.what = fmt::format("tensor \"{}\" is in {}, which is not a plain name of a safetensors "
                               "file in this folder",
                               printable(tensor), printable(file.dump())),
           .where = where});
    }
  }
  return files;
}

}  // namespace

ShardedSafetensors::ShardedSafetensors(const fs::path& directory) {
  std::error_code ignored;
  std::vector<Problem> problems;
  if (fs::exists(directory / index_name, ignored)) {
    for (const auto& [name, tensors] : parse_index(directory / index_name, problems))
      add_shard(directory / name, &tensors, problems);
  } else if (fs::exists(directory / single_name, ignored)) {
    add_shard(directory / single_name, nullptr, problems);
  } else {
    reject_pickled(directory);
    throw checkpoint_error({.what = fmt::format("there is neither {} nor {}", single_name, index_name),
                            .where = printable(directory.string(), 4096)});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

void ShardedSafetensors::add_shard(const fs::path& path, const std::set<std::string>* expected,
                                   std::vector<Problem>& problems) {
  const auto problem = [&, where = printable(path.string(), 4096)](std::string what) {
    problems.push_back({.what = std::move(what), .where = where});
  };
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return problem("the index names this file, which is missing");
  const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(path));
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto [other, is_new] = file_of_.emplace(entry.name, &file);
    tensors_.emplace(entry.name, TensorInfo{entry.dtype, entry.shape});
    if (!is_new) {
      problem(fmt::format("tensor \"{}\" is also in {}", printable(entry.name),
                          printable(other->second->path().filename().string())));
    } else if (expected && !expected->contains(entry.name)) {
      problem(fmt::format("tensor \"{}\" is here, but not in the index", printable(entry.name)));
    }
  }
  for (const std::string& tensor : expected ? *expected : std::set<std::string>()) {
    if (file.find(tensor) == nullptr) problem(fmt::format("tensor \"{}\" is missing", printable(tensor)));
  }
}

std::vector<char> ShardedSafetensors::read(const std::string& name) const {
  const SafetensorsFile& file = *file_of_.at(name);
  const SafetensorsEntry& entry = *file.find(name);
  std::vector<char> bytes(static_cast<size_t>(entry.bytes));
  file.read(entry, 0, entry.bytes, bytes.data());
  return bytes;
}

void write_sharded_safetensors(const fs::path& directory,
                               const std::vector<SafetensorsWriter::Tensor>& tensors, int64_t max_bytes,
                               const std::function<std::vector<char>(size_t)>& produce) {
  std::vector<std::vector<SafetensorsWriter::Tensor>> files;
  int64_t in_file = 0, total = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    const int64_t bytes = *checked_numel(tensor.shape) * size_of(tensor.dtype);
    if (files.empty() || (in_file > 0 && in_file + bytes > max_bytes)) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(tensor);
    in_file += bytes;
    total += bytes;
  }
  json weight_map = json::object();
  size_t next = 0;
  for (size_t file = 0; file < files.size(); ++file) {
    const std::string name = files.size() == 1
                                 ? single_name
                                 : fmt::format("model-{:05d}-of-{:05d}.safetensors", file + 1, files.size());
    SafetensorsWriter writer(directory / name, files[file], {{"format", "pt"}});
    for (const SafetensorsWriter::Tensor& tensor : files[file]) {
      const std::vector<char> bytes = produce(next++);
      writer.write(bytes.data(), static_cast<int64_t>(bytes.size()));
      weight_map[tensor.name] = name;
    }
    writer.finish();
  }
  if (files.size() > 1) {
    const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    write_text(directory / index_name, index.dump(2) + "\n", ExitCode::checkpoint);
  }
}

}  // namespace teratron
