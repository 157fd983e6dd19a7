#include <algorithm>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/nodes/peer_shards.h"
#include "teratron/ckpt/nodes/saved_nodes.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/shard_reader.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/ckpt/tensor_loader.h"
#include "teratron/comm/collective_errors.h"

// Fault points: [that of shared_manifest.h,] ckpt.load_begin, ckpt.load_block (each; a bitflip damages what
// was read), ckpt.load_end.

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string describe(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

// Names, and what is wrong with them.
using Mismatches = std::set<std::pair<std::string, std::string>>;

// Compares the tensors that this rank asks for with those of the checkpoint.
Mismatches match(const std::vector<LocalTensor>& tensors, const CheckpointInfo& checkpoint) {
  Mismatches problems;
  for (const LocalTensor& tensor : tensors) {
    const auto found = checkpoint.tensors.find(tensor.name);
    if (found == checkpoint.tensors.end()) {
      problems.emplace(tensor.name, "is not in the checkpoint");
    } else if (found->second.shape != tensor.shard.global_shape || found->second.dtype != tensor.dtype) {
      problems.emplace(tensor.name, fmt::format("is {} in the checkpoint, {} in this run",
                                                describe(found->second.dtype, found->second.shape),
                                                describe(tensor.dtype, tensor.shard.global_shape)));
    }
  }
  return problems;
}

// Adds tensors of the checkpoint that no rank asks for.
void add_unused(const std::vector<std::string>& unused, const std::vector<std::string>& ignored_names,
                const CheckpointInfo& checkpoint, Mismatches& problems) {
  for (const std::string& name : unused) {
    const bool ignored = std::any_of(ignored_names.begin(), ignored_names.end(),
                                     [&name](const std::string& prefix) { return name.starts_with(prefix); });
    const TensorInfo& tensor = checkpoint.tensors.at(name);
    if (!ignored)
      problems.emplace(name, fmt::format("({}) is in the checkpoint, but not in this run",
                                         describe(tensor.dtype, tensor.shape)));
  }
}

void reject(const Mismatches& found, const CheckpointInfo& checkpoint) {
  if (found.empty()) return;
  std::vector<Problem> problems;
  const std::string where = printable(checkpoint.path.string(), 4096);
  for (const auto& [name, what] : found) {
    problems.push_back({.what = fmt::format("tensor \"{}\" {}", printable(name), what), .where = where});
  }
  // Rows of the vocabulary alone: the embedding, an output layer, its bias.
  const bool vocabulary_alone = std::all_of(found.begin(), found.end(), [](const auto& problem) {
    const auto& [name, what] = problem;
    const bool differs = what.starts_with("is ") && what.ends_with(" in this run");
    return differs && (name.ends_with("word_embeddings.weight") || name.find("output_layer.") != name.npos);
  });
  problems.back().fix =
      vocabulary_alone
          ? "The vocabularies differ in size: use the checkpoint's tokenizer, and --use-checkpoint-args or "
            "--vocab-size if it has more embedding rows than that"
          : "The checkpoint holds another model: compare the settings with 'teratron ckpt inspect'";
  throw UserError(ExitCode::checkpoint, std::move(problems));
}

// Collective: throws what is wrong on any rank, on all.
void reject_on_all(const Mismatches& mine, const CheckpointInfo& checkpoint, HostGroup& group) {
  const auto as_text = [&mine] { return mine.empty() ? std::string() : json(mine).dump(); };
  run_on_all_ranks(group, as_text, [&checkpoint](const std::vector<std::string>& lists) {
    Mismatches all;
    for (const std::string& list : lists) {
      if (!list.empty()) all.merge(json::parse(list).get<Mismatches>());
    }
    reject(all, checkpoint);
    return "";
  });
}

std::vector<const LocalTensor*> by_name(const std::vector<LocalTensor>& tensors) {
  std::vector<const LocalTensor*> order;
  for (const LocalTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const LocalTensor* a, const LocalTensor* b) { return a->name < b->name; });
  return order;
}

int64_t total_bytes(const std::set<ShardBytes>& blocks) {
  int64_t bytes = 0;
  for (const ShardBytes& block : blocks) bytes += block.bytes;
  return bytes;
}

// Some shards are on other nodes: in rounds, each of so few tensors that what is fetched of them is small.
void load_with_peers(const std::vector<LocalTensor>& tensors, TensorLoader& loader, PeerShards& peers,
                     HostGroup& group) {
  constexpr int64_t round_bytes = int64_t{64} << 20;
  const std::vector<const LocalTensor*> order = by_name(tensors);
  size_t begin = 0, end = 0;
  for (std::string more = "more"; !more.empty(); begin = end) {
    std::set<ShardBytes> blocks;
    run_on_all_ranks(group, [&] {
      while (end < order.size() && total_bytes(blocks) < round_bytes)
        loader.list_blocks(*order[end++], peers, blocks);
    });
    peers.fetch(blocks);
    more = run_on_all_ranks(
        group,
        [&] {
          for (size_t i = begin; i < end; ++i) loader.load(*order[i]);
          return std::string(end < order.size() ? "more" : "");
        },
        [](const std::vector<std::string>& rests) {
          return std::string(std::ranges::all_of(rests, &std::string::empty) ? "" : "more");
        });
  }
}

// Where shards are looked for that no rank sees.
const fs::path& folder_of(const SharedManifest& shared) {
  return shared.folder().empty() ? shared.info().path : shared.folder();
}

void check_coverage(const std::string& name, const ManifestTensor& tensor, std::vector<Problem>& problems) {
  std::vector<IndexRange> all;
  for (const std::vector<IndexRange>& ranges : ranges_of_chunks(name, tensor))
    all.insert(all.end(), ranges.begin(), ranges.end());
  const int64_t end = covered_prefix(std::move(all));
  if (end != checked_numel(tensor.shape)) {
    problems.push_back({.what = fmt::format("tensor \"{}\": element {} is stored not at all or twice",
                                            printable(name), end)});
  }
}

}  // namespace

int64_t load_tensors(const SharedManifest& shared, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group) {
  const CheckpointInfo& checkpoint = shared.info();
  const SharedManifest::Selection selected = shared.select(tensors);
  Mismatches mismatches = match(tensors, checkpoint);
  add_unused(selected.unused, ignored, checkpoint, mismatches);
  reject_on_all(mismatches, checkpoint, group);
  const ShardHolders holders(shared.folder(), selected.manifest, shared.may_be_elsewhere(), group);
  PeerShards peers(holders);
  ShardReader reader(folder_of(shared), selected.manifest, &peers);
  TensorLoader loader(reader, selected.manifest);
  if (holders.any_missing()) load_with_peers(tensors, loader, peers, group);
  run_on_all_ranks(group, [&] {
    fault_point("ckpt.load_begin");
    if (!holders.any_missing()) {
      for (const LocalTensor* target : by_name(tensors)) loader.load(*target);
    }
    if (!reader.problems().empty()) throw CorruptCheckpoint(reader.problems());
    fault_point("ckpt.load_end");
  });
  return reader.bytes_read();
}

int64_t load_tensors(const fs::path& path, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group) {
  return load_tensors(SharedManifest(path, group), tensors, ignored, group);
}

void load_tensors(const CheckpointSource& checkpoint, const std::vector<LocalTensor>& tensors,
                  const std::vector<std::string>& ignored, HostGroup& group) {
  const CheckpointInfo& info = checkpoint.info();
  std::map<std::string, TensorInfo> requested;
  for (const LocalTensor& tensor : tensors)
    requested[tensor.name] = {tensor.dtype, tensor.shard.global_shape};
  const std::map<std::string, TensorInfo> used = tensors_of_all_ranks(requested, group);
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : info.tensors) {
    if (!used.contains(name)) unused.push_back(name);
  }
  Mismatches mismatches = match(tensors, info);
  add_unused(unused, ignored, info, mismatches);
  reject_on_all(mismatches, info, group);
  run_on_all_ranks(group, [&] {
    for (const LocalTensor& target : tensors) {
      clear_padding(target, index_ranges(target.shard, target.flat_begin, flat_end_of(target)));
      checkpoint.read(target);
    }
  });
}

struct CheckpointReader::State {
  State(const fs::path& path, Manifest described, const RemoteShards* remote = nullptr)
      : manifest(std::move(described)),
        info(describe_checkpoint(path, manifest)),
        reader(path, manifest, remote),
        loader(reader, manifest) {}
  Manifest manifest;
  CheckpointInfo info;
  std::unique_ptr<ShardHolders> holders = nullptr;
  std::unique_ptr<PeerShards> peers = nullptr;
  ShardReader reader;
  TensorLoader loader;
};

CheckpointReader::CheckpointReader(const fs::path& path)
    : state_(std::make_unique<State>(path, read_manifest(path))) {}

CheckpointReader::CheckpointReader(const fs::path& path, Manifest manifest, const RemoteShards& remote)
    : state_(std::make_unique<State>(path, std::move(manifest), &remote)) {}

CheckpointReader::CheckpointReader(const SharedManifest& shared, const std::vector<LocalTensor>& parts,
                                   HostGroup& group) {
  Manifest manifest = shared.select(parts).manifest;
  auto holders = std::make_unique<ShardHolders>(shared.folder(), manifest, shared.may_be_elsewhere(), group);
  auto peers = std::make_unique<PeerShards>(*holders);
  state_ = std::make_unique<State>(folder_of(shared), std::move(manifest), peers.get());
  state_->info.path = shared.info().path;
  state_->holders = std::move(holders);
  state_->peers = std::move(peers);
  if (!state_->holders->any_missing()) return;
  std::set<ShardBytes> blocks;
  run_on_all_ranks(group, [&] {
    for (const LocalTensor& part : parts) {
      if (state_->manifest.tensors.contains(part.name))
        state_->loader.list_blocks(part, *state_->peers, blocks);
    }
  });
  state_->peers->fetch(blocks);
}

CheckpointReader::~CheckpointReader() = default;

const CheckpointInfo& CheckpointReader::info() const {
  return state_->info;
}

void CheckpointReader::read(const LocalTensor& target) const {
  reject(match({target}, state_->info), state_->info);
  state_->loader.load(target);
  if (!state_->reader.problems().empty()) throw CorruptCheckpoint(std::move(state_->reader.problems()));
}

int64_t verify_checkpoint(const fs::path& path) {
  const Manifest whole = read_whole_manifest(path);
  const Manifest manifest = without_absent_nodes(path, whole);
  std::vector<Problem> problems = size_problems(path, manifest.shards);
  if (!problems.empty()) throw CorruptCheckpoint(std::move(problems));
  ShardReader reader(path, manifest);
  const auto buffer = std::make_unique<char[]>(Manifest::block_bytes);
  for (const auto& [name, tensor] : manifest.tensors) {
    check_coverage(name, whole.tensors.at(name), reader.problems());
    for (const ManifestChunk& chunk : tensor.chunks) {
      for (int64_t block = 0; block < block_count(chunk.bytes); ++block) {
        reader.read_block(name, chunk, block, buffer.get());
      }
    }
  }
  if (!reader.problems().empty()) throw CorruptCheckpoint(std::move(reader.problems()));
  return reader.bytes_read();
}

}  // namespace teratron
