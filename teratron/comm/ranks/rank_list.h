// The global ranks of a group, by rank in the group.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

namespace teratron {

/// Immutable; not empty. The groups of a mesh are regular (axes of some sizes at some distances) and take a
/// few numbers here, however many ranks they have; others a number per rank.
class RankList {
 public:
  RankList(const std::vector<int64_t>& ranks);
  RankList(std::initializer_list<int64_t> ranks) : RankList(std::vector<int64_t>(ranks)) {}
  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const;
  /// Position of a rank; nullopt if it is not in the group.
  std::optional<int64_t> find(int64_t rank) const;
  std::vector<int64_t> all() const;
  bool operator==(const RankList&) const = default;

 private:
  struct Level {
    int64_t size;
    int64_t distance;
    bool operator==(const Level&) const = default;
  };
  bool has_nested_levels() const;
  std::optional<int64_t> find_in_levels(int64_t rank) const;

  int64_t size_ = 0;
  int64_t first_ = 0;
  std::vector<Level> levels_;   // fastest first, each distance longer than the levels before it together
  std::vector<int64_t> ranks_;  // if they are not regular
};

}  // namespace teratron
