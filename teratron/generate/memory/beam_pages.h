// The pages and slots of the beams of one search. Beams share the pages of tokens that they have in common;
// each has a slot.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/nn/layer_state.h"

namespace teratron {

class BeamPages {
 public:
  BeamPages() = default;
  BeamPages(std::vector<int32_t> pages, std::vector<int32_t> slots, int64_t page_size)
      : all_(std::move(pages)), slots_(std::move(slots)), page_size_(page_size) {}
  const std::vector<int32_t>& all() const { return all_; }
  const std::vector<int32_t>& slots() const { return slots_; }

  using Table = std::vector<int32_t>;
  struct Beam {
    Table table;  // of the pages
    int32_t slot = 0;
  };
  struct Fork {
    std::vector<Beam> beams;  // the new ones, with room for one more token
    StateCopies copies;
  };
  /// New beams, each a continuation of the beam parents[i], of which `length` tokens are cached.
  Fork fork(const std::vector<Beam>& beams, const std::vector<int64_t>& parents, int64_t length) const;
  /// The pages of a sequence of `tokens` tokens alone.
  Table first(int64_t tokens) const;
  /// How many pages a search needs: every beam its own for the new tokens, and twice while they change.
  static int64_t needed(int64_t prompt, int64_t new_tokens, int64_t width, int64_t page_size);

 private:
  std::vector<int32_t> all_, slots_;
  int64_t page_size_ = 16;
};

}  // namespace teratron
