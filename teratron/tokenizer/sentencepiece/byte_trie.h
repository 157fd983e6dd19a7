// A set of byte strings with values, walked byte by byte: finds all strings that begin at a place of a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace teratron {

/// One hash table holds the edges of all nodes, so that a step is one look-up whatever the node.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0;  // as a child: the root is nobody's

  ByteTrie();
  /// Adds a key; given again, the last value counts. `value` >= 0.
  void insert(std::string_view key, int32_t value);

  bool empty() const { return values_.size() == 1; }
  /// The node behind an edge, or kNone.
  uint32_t child(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return root_[byte];
    const uint64_t edge = edge_of(node, byte);
    for (size_t slot = slot_of(edge); edges_[slot].child != kNone; slot = (slot + 1) & (edges_.size() - 1)) {
      if (edges_[slot].edge == edge) return edges_[slot].child;
    }
    return kNone;
  }
  /// Value of the key that ends at a node, or -1.
  int32_t value(uint32_t node) const { return values_[node]; }

  /// The longest key that `text` begins with; 0 bytes when there is none.
  struct Match {
    size_t bytes = 0;
    int32_t value = -1;
  };
  Match longest(std::string_view text) const;

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
