// The pages of the beams of one search: beams share what they have in common.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron {

class BeamPages {
 public:
  BeamPages() = default;
  BeamPages(std::vector<int32_t> pages, int64_t page_size) : all_(std::move(pages)), page_size_(page_size) {}
  const std::vector<int32_t>& all() const { return all_; }

  using Table = std::vector<int32_t>;
  struct Fork {
    std::vector<Table> tables;  // of the new beams, with room for one more token
    std::vector<int32_t> copied_from, copied_to;
  };
  /// New beams, each a continuation of the beam parents[i], of which `length` tokens are cached.
  Fork fork(const std::vector<Table>& beams, const std::vector<int64_t>& parents, int64_t length) const;
  /// The pages of a sequence of `tokens` tokens alone.
  Table first(int64_t tokens) const;
  /// How many pages a search needs: every beam its own for the new tokens, and twice while they change.
  static int64_t needed(int64_t prompt, int64_t new_tokens, int64_t width, int64_t page_size);

 private:
  std::vector<int32_t> all_;
  int64_t page_size_ = 16;
};

}  // namespace teratron
