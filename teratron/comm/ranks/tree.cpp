#include "teratron/comm/ranks/tree.h"

#include <cstring>

#include "teratron/base/error.h"

namespace teratron {
namespace {

void append_part(std::string& packed, const std::string& part) {
  const uint64_t size = part.size();
  packed.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(part);
}

}  // namespace

int64_t tree_parent(int64_t rank) {
  TERATRON_ASSERT(rank > 0);
  return rank & (rank - 1);
}

std::vector<int64_t> tree_children(int64_t rank, int64_t size) {
  std::vector<int64_t> children;
  for (int64_t bit = 1; (rank & bit) == 0 && rank + bit < size; bit <<= 1) children.push_back(rank + bit);
  return children;
}

std::vector<int64_t> tree_neighbours(int64_t rank, int64_t size) {
  std::vector<int64_t> ranks = tree_children(rank, size);
  if (rank > 0) ranks.insert(ranks.begin(), tree_parent(rank));
  return ranks;
}

std::string gather_up_tree(BytePeers& peers, const std::string& bytes) {
  std::string packed;
  append_part(packed, bytes);
  for (const int64_t child : tree_children(peers.rank(), peers.size())) packed += peers.receive_bytes(child);
  if (peers.rank() > 0) peers.send_bytes(tree_parent(peers.rank()), packed);
  return packed;
}

std::string pack_bytes(const std::vector<std::string>& parts) {
  std::string packed;
  for (const std::string& part : parts) append_part(packed, part);
  return packed;
}

std::vector<std::string> unpack_gathered(const std::string& packed, int64_t size) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at < packed.size() && static_cast<int64_t>(parts.size()) < size) {
    uint64_t bytes = 0;
    if (packed.size() - at < sizeof(bytes)) break;
    std::memcpy(&bytes, packed.data() + at, sizeof(bytes));
    at += sizeof(bytes);
    if (packed.size() - at < bytes) break;
    parts.push_back(packed.substr(at, bytes));
    at += bytes;
  }
  if (at == packed.size() && static_cast<int64_t>(parts.size()) == size) return parts;
  throw Fault(fmt::format("malformed message: {} bytes with {} parts instead of {} from the ranks of a group",
                          packed.size(), parts.size(), size));
}

std::string merge_up_tree(BytePeers& peers, const std::string& bytes, const MergeBytes& merge) {
  std::string merged = bytes;
  for (const int64_t child : tree_children(peers.rank(), peers.size()))
    merged = merge(merged, peers.receive_bytes(child));
  if (peers.rank() > 0) peers.send_bytes(tree_parent(peers.rank()), merged);
  return merged;
}

std::string broadcast_down_tree(BytePeers& peers, const std::string& bytes) {
  const std::string all = peers.rank() == 0 ? bytes : peers.receive_bytes(tree_parent(peers.rank()));
  const std::vector<int64_t> children = tree_children(peers.rank(), peers.size());
  // The child with most ranks below it first.
  for (auto child = children.rbegin(); child != children.rend(); ++child) peers.send_bytes(*child, all);
  return all;
}

void tree_barrier(BytePeers& peers) {
  for (const int64_t child : tree_children(peers.rank(), peers.size())) peers.receive_bytes(child);
  if (peers.rank() > 0) peers.send_bytes(tree_parent(peers.rank()), "");
  broadcast_down_tree(peers, "");
}

std::vector<std::string> tree_gather(BytePeers& peers, const std::string& bytes) {
  const std::string packed = gather_up_tree(peers, bytes);
  return peers.rank() == 0 ? unpack_gathered(packed, peers.size()) : std::vector<std::string>();
}

std::vector<std::string> tree_all_gather(BytePeers& peers, const std::string& bytes) {
  const std::string packed = gather_up_tree(peers, bytes);
  return unpack_gathered(broadcast_down_tree(peers, packed), peers.size());
}

}  // namespace teratron
