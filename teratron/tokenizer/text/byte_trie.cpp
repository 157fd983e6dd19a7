#include "teratron/tokenizer/text/byte_trie.h"

#include <bit>

namespace teratron {
namespace {

constexpr size_t kFirstSlots = 64;

}  // namespace

ByteTrie::ByteTrie() : edges_(kFirstSlots), shift_(64 - std::countr_zero(kFirstSlots)), values_(1, -1) {}

void ByteTrie::put(uint64_t edge, uint32_t child) {
  size_t slot = slot_of(edge);
  while (edges_[slot].child != kNone) slot = (slot + 1) & (edges_.size() - 1);
  edges_[slot] = {edge, child};
}

void ByteTrie::grow() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  --shift_;
  for (const Edge& edge : old) {
    if (edge.child != kNone) put(edge.edge, edge.child);
  }
}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (node == kRoot) {
        root_[byte] = next;
      } else {
        if (values_.size() * 2 > edges_.size()) grow();
        put(edge_of(node, byte), next);
      }
    }
    node = next;
  }
  values_[node] = value;
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match match;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node == kNone) break;
    if (values_[node] >= 0) match = {i + 1, values_[node]};
  }
  return match;
}

}  // namespace teratron
