#include "teratron/ckpt/saved_metadata.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

using nlohmann::json;

namespace {

std::string file_name(int64_t file) {
  return fmt::format("manifest-{:05d}.json", file);
}

int64_t file_of(const std::string& name, int64_t files) {
  return static_cast<int64_t>(hash_text(name) % static_cast<uint64_t>(files));
}

// Spread over the ranks, so also over their hosts.
int64_t writer_of(int64_t file, int64_t files, int64_t ranks) {
  return file * ranks / files;
}

}  // namespace

SavedMetadata::SavedMetadata(ManifestFragment written, const SavePlan& plan) : written_(std::move(written)) {
  for (const auto& [name, info] : plan.tensors) {
    if (checked_numel(info.shape) == 0) written_.tensors[name] = {info.dtype, info.shape, {}};
  }
  metadata_bytes_ = static_cast<int64_t>(to_text(written_).size());
}

SavedMetadata::Sizes SavedMetadata::sizes() const {
  Sizes sizes{.metadata = metadata_bytes_};
  for (const ManifestShard& shard : written_.shards) sizes.shards += shard.bytes;
  return sizes;
}

RankBytes SavedMetadata::fragments_for(int64_t files, int64_t ranks) const {
  std::map<int64_t, FragmentBuilder> parts;
  for (const ManifestShard& shard : written_.shards) {
    if (files == 1) parts[0].add_shard(shard);  // those without tensors, too
  }
  for (const auto& [name, tensor] : written_.tensors) {
    FragmentBuilder& part = parts[file_of(name, files)];
    part.add_tensor(name, tensor);
    for (const ManifestChunk& chunk : tensor.chunks)
      part.add_chunk(name, chunk, written_.shards.at(chunk.shard));
  }
  std::map<int64_t, json> texts;
  for (auto& [file, part] : parts)
    texts[writer_of(file, files, ranks)].push_back({file, to_text(part.take())});
  RankBytes fragments;
  for (const auto& [rank, list] : texts) {
    const std::vector<uint8_t> bytes = json::to_cbor(list);
    fragments[rank] = {bytes.begin(), bytes.end()};
  }
  return fragments;
}

void SavedMetadata::divide(int64_t files, HostGroup& group) {
  JointSteps steps(group, "ckpt.divide");
  RankBytes fragments;
  steps.run([&] {
    fragments = fragments_for(files, group.size());
    written_ = {};
  });
  const RankBytes sent = steps.exchange(fragments);
  steps.run([&] {
    std::map<int64_t, FragmentBuilder> received;
    for (const auto& [rank, bytes] : sent) {
      for (const json& part : json::from_cbor(bytes)) {
        const auto text = part[1].get<std::string>();
        received[part[0]].add(parse_fragment(text, fmt::format("rank {}", rank), Chunks::some));
      }
    }
    for (auto& [file, part] : received) files_[file] = part.take();
    if (files == 1 && group.rank() == 0) files_.try_emplace(0);
  });
  steps.agree();
}

std::string SavedMetadata::write_files(const ShardTarget& target) const {
  json list = json::array();
  for (const auto& [file, fragment] : files_) {
    const std::string text = checked_text(fragment);
    fault_point("ckpt.before_manifest_file");
    write_text(target.partial / file_name(file), text, ExitCode::checkpoint);
    fault_point("ckpt.manifest_file_written");
    json tensors = json::array();
    for (const auto& [name, tensor] : fragment.tensors)
      tensors.push_back({name, name_of(tensor.dtype), tensor.shape});
    list.push_back({file_name(file), text.size(), hash_text(text), std::move(tensors)});
  }
  if (list.empty()) return "";
  const std::vector<uint8_t> bytes = json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

void SavedMetadata::add_files(const std::vector<std::string>& lists, Manifest& index) {
  for (const std::string& bytes : lists) {
    if (bytes.empty()) continue;
    for (const json& file : json::from_cbor(bytes)) {
      const auto position = static_cast<int64_t>(index.files.size());
      index.files.push_back({.file = file[0], .bytes = file[1], .hash = file[2]});
      for (const json& tensor : file[3]) {
        index.tensors[tensor[0]] = {
            dtype_from_name(tensor[1].get<std::string>()).value(), tensor[2], {}, position};
      }
    }
  }
}

void SavedMetadata::add_to(Manifest& manifest) {
  ManifestFragment& whole = files_.at(0);
  manifest.shards = std::move(whole.shards);
  manifest.tensors = std::move(whole.tensors);
}

std::string checked_text(const Manifest& manifest) {
  std::string text = to_text(manifest);
  parse_manifest(text, "the manifest to be written");
  return text;
}

std::string checked_text(const ManifestFragment& fragment) {
  std::string text = to_text(fragment);
  parse_fragment(text, "the manifest to be written", Chunks::all);
  return text;
}

}  // namespace teratron
