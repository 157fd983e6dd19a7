#include "teratron/ckpt/nodes/peer_shards.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/nodes/saved_nodes.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Names and sizes of shards that some rank misses.
using Wanted = std::map<std::string, int64_t>;

// What the ranks miss together; "" if nothing.
std::string merge(const std::vector<std::string>& lists) {
  Wanted all;
  for (const std::string& list : lists) all.merge(json::parse(list).get<Wanted>());
  return all.empty() ? "" : json(all).dump();
}

// By shard, the ranks that see it.
json holders_of(const Wanted& wanted, const std::vector<std::string>& lists) {
  std::map<std::string, std::vector<int64_t>> holders;
  for (const auto& [file, bytes] : wanted) holders[file];
  for (int64_t rank = 0; rank < std::ssize(lists); ++rank) {
    for (const auto& file : json::parse(lists[rank]).get<std::vector<std::string>>())
      holders[file].push_back(rank);
  }
  return holders;
}

std::string encode(const std::vector<ShardBytes>& wanted) {
  json list = json::array();
  for (const ShardBytes& one : wanted) list.push_back({one.file, one.offset, one.bytes});
  return list.dump();
}

std::vector<ShardBytes> decode(const std::string& text) {
  std::vector<ShardBytes> wanted;
  for (const json& one : json::parse(text)) wanted.push_back({one[0], one[1], one[2]});
  return wanted;
}

int64_t total_bytes(const std::vector<ShardBytes>& wanted) {
  int64_t bytes = 0;
  for (const ShardBytes& one : wanted) bytes += one.bytes;
  return bytes;
}

void require_size(const std::string& answer, const std::vector<ShardBytes>& wanted, int64_t from) {
  if (std::ssize(answer) == total_bytes(wanted)) return;
  throw Fault(fmt::format("rank {} did not send its shards of a checkpoint", from));
}

}  // namespace

ShardHolders::ShardHolders(fs::path folder, const Manifest& needed, bool may_be_elsewhere, HostGroup& group)
    : folder_(std::move(folder)), group_(group) {
  if (!may_be_elsewhere) return;
  Wanted mine;
  const auto list_mine = [&] {
    for (const ManifestShard& shard : needed.shards) {
      std::error_code ignored;
      if (folder_.empty() || !fs::exists(folder_ / shard.file, ignored)) mine[shard.file] = shard.bytes;
    }
    return json(mine).dump();
  };
  const std::string text = run_on_all_ranks(group_, list_mine, merge);
  if (text.empty()) return;
  any_missing_ = true;
  const auto wanted = json::parse(text).get<Wanted>();
  const auto list_held = [&] {
    std::vector<std::string> held;
    for (const auto& [file, bytes] : wanted) {
      if (sees(file, bytes)) held.push_back(file);
    }
    return json(held).dump();
  };
  const json held = json::parse(run_on_all_ranks(group_, list_held, [&](const auto& lists) {
    return json{{"checkpoint", folder_.string()}, {"ranks", holders_of(wanted, lists)}}.dump();
  }));
  std::vector<std::string> lost;
  for (const auto& [file, ranks] : held["ranks"].items()) {
    if (ranks.empty()) lost.push_back(file);
    if (!ranks.empty() && mine.contains(file)) holders_[file] = ranks.get<std::vector<int64_t>>();
  }
  // Where the save had one folder, the reader reports them.
  std::vector<Problem> problems = missing_problems(held["checkpoint"].get<std::string>(), needed.nodes, lost);
  if (!problems.empty()) throw MissingShards(std::move(problems));
}

bool ShardHolders::sees(const std::string& file, int64_t bytes) const {
  const bool is_plain = !file.empty() && file.find('/') == file.npos && file.front() != '.';
  std::error_code error;
  return is_plain && !folder_.empty() &&
         fs::file_size(folder_ / file, error) == static_cast<uintmax_t>(bytes) && !error;
}

int64_t ShardHolders::holder_of(const std::string& file) const {
  const std::vector<int64_t>& ranks = holders_.at(file);
  const uint64_t place = hash_text(file) + static_cast<uint64_t>(group_.rank());  // spreads the requests
  return ranks[place % ranks.size()];
}

std::string ShardHolders::read(const std::vector<ShardBytes>& wanted) const {
  std::string all(static_cast<size_t>(total_bytes(wanted)), '\0');
  char* out = all.data();
  for (size_t i = 0; i < wanted.size();) {
    const File file = File::open(folder_ / wanted[i].file, ExitCode::checkpoint);
    for (const std::string& name = wanted[i].file; i < wanted.size() && wanted[i].file == name; ++i) {
      file.read(out, wanted[i].bytes, wanted[i].offset);
      out += wanted[i].bytes;
    }
  }
  return all;
}

void PeerShards::read(const ShardBytes& where, void* out) const {
  const auto found = blocks_.find(where);
  TERATRON_ASSERT(found != blocks_.end(), "{} at {} was not fetched", where.file, where.offset);
  std::memcpy(out, found->second.data(), found->second.size());
}

// Rounds: a rank that sends holds what some ranks have asked for in one.
void PeerShards::fetch(const std::set<ShardBytes>& wanted) {
  HostGroup& group = holders_.group();
  const int64_t most = std::max<int64_t>(Manifest::block_bytes, (int64_t{512} << 20) / group.size());
  blocks_.clear();
  auto next = wanted.begin();
  for (std::string more = "more"; !more.empty();) {
    JointSteps steps(group, "ckpt.fetch");
    std::map<int64_t, std::vector<ShardBytes>> parts;
    RankBytes requests, answers;
    steps.run([&] {
      for (int64_t bytes = 0; next != wanted.end() && (bytes == 0 || bytes + next->bytes <= most); ++next) {
        parts[holders_.holder_of(next->file)].push_back(*next);
        bytes += next->bytes;
      }
      RankBytes encoded;
      for (const auto& [rank, list] : parts) encoded[rank] = encode(list);
      requests = std::move(encoded);  // none if this fails: then none is answered
    });
    const RankBytes asked = steps.exchange(requests);
    steps.run([&] {
      for (const auto& [rank, text] : asked) answers[rank] = holders_.read(decode(text));
    });
    for (const auto& [rank, text] : asked) group.send_bytes(rank, answers[rank]);
    for (auto& [rank, text] : requests) text = group.receive_bytes(rank);
    steps.run([&] {
      for (const auto& [rank, list] : parts) {
        require_size(requests.at(rank), list, rank);
        size_t at = 0;
        for (const ShardBytes& one : list) {
          blocks_[one] = requests.at(rank).substr(at, static_cast<size_t>(one.bytes));
          at += static_cast<size_t>(one.bytes);
        }
      }
    });
    more = steps.agree(next == wanted.end() ? "" : "more", [](const std::vector<std::string>& rests) {
      return std::string(std::ranges::all_of(rests, &std::string::empty) ? "" : "more");
    });
  }
}

namespace {

// Asks for every block when it is read.
class AskedShards final : public RemoteShards {
 public:
  explicit AskedShards(const ShardHolders& holders) : holders_(holders) {}
  bool holds(const std::string& file) const override { return holders_.is_elsewhere(file); }
  void read(const ShardBytes& where, void* out) const override {
    const int64_t from = holders_.holder_of(where.file);
    holders_.group().send_bytes(from, encode({where}));
    const std::string answer = holders_.group().receive_bytes(from);
    require_size(answer, {where}, from);
    std::memcpy(out, answer.data(), answer.size());
  }

 private:
  const ShardHolders& holders_;
};

// Until rank 0 says that it has all.
void answer_rank_0(const ShardHolders& holders) {
  HostGroup& group = holders.group();
  for (std::string text = group.receive_bytes(0); !text.empty(); text = group.receive_bytes(0)) {
    std::string answer;
    try {
      answer = holders.read(decode(text));
    } catch (const std::exception&) {
      answer.clear();  // too short: rank 0 reports it
    }
    group.send_bytes(0, answer);
  }
}

}  // namespace

void use_on_rank_0(const fs::path& folder, HostGroup& group,
                   const std::function<void(const Manifest&, const RemoteShards&)>& use) {
  Manifest manifest;
  run_on_rank_0(group, [&] {
    manifest = read_whole_manifest(folder);
    return std::string();
  });
  const ShardHolders holders(folder, manifest, true, group);
  const AskedShards remote(holders);
  if (group.rank() > 0) {
    if (holders.any_missing()) answer_rank_0(holders);
    broadcast_outcome("", group);
    return;
  }
  const std::string outcome = capture([&] {
    use(manifest, remote);
    return "";
  });
  for (int64_t rank = 1; holders.any_missing() && rank < group.size(); ++rank) group.send_bytes(rank, "");
  broadcast_outcome(outcome, group);
}

}  // namespace teratron
