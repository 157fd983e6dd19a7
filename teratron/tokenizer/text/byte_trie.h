// A trie over bytes with values: finds all keys that are prefixes of a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace teratron {

/// The edges of all nodes are in one hash table: a step is one lookup.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0;  // as a child: the root is not a child

  ByteTrie();
  /// Inserts a key or replaces its value. `value` >= 0.
  void insert(std::string_view key, int32_t value);

  bool empty() const { return values_.size() == 1; }
  /// The child node, or kNone.
  uint32_t child(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return root_[byte];
    const uint64_t edge = edge_of(node, byte);
    for (size_t slot = slot_of(edge); edges_[slot].child != kNone; slot = (slot + 1) & (edges_.size() - 1)) {
      if (edges_[slot].edge == edge) return edges_[slot].child;
    }
    return kNone;
  }
  /// Value of the key at a node, or -1.
  int32_t value(uint32_t node) const { return values_[node]; }

  /// The longest key that is a prefix of `text`; 0 bytes if there is none.
  struct Match {
    size_t bytes = 0;
    int32_t value = -1;
  };
  Match longest_prefix(std::string_view text) const;

 private:
  struct Edge {
    uint64_t edge = 0;
    uint32_t child = kNone;
  };
  static uint64_t edge_of(uint32_t node, uint8_t byte) { return uint64_t{node} << 8 | byte; }
  size_t slot_of(uint64_t edge) const { return (edge * 0x9e3779b97f4a7c15u) >> shift_; }
  void put(uint64_t edge, uint32_t child);
  void grow();

  std::array<uint32_t, 256> root_{};
  std::vector<Edge> edges_;  // open addressing
  int shift_ = 0;
  std::vector<int32_t> values_;  // by node
};

}  // namespace teratron
