#include "teratron/nn/tokens/zigzag.h"

#include <numeric>

#include "teratron/base/error.h"

namespace teratron {

std::vector<std::vector<ZigzagChunks>> zigzag_chunks(std::span<const int64_t> lengths, int64_t ranks) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TERATRON_ASSERT(ranks > 0 && tokens % (2 * ranks) == 0, "{} tokens over {} context-parallel ranks", tokens,
                  ranks);
  std::vector<std::vector<ZigzagChunks>> all(static_cast<size_t>(ranks));
  std::vector<int64_t> sizes(static_cast<size_t>(2 * ranks));
  int64_t begin = 0, next = 0;  // next: the rank that gets the next token left over
  for (const int64_t length : lengths) {
    sizes.assign(sizes.size(), length / (2 * ranks));
    for (int64_t extra = length % (2 * ranks); extra > 0; --extra, next = (next + 1) % ranks) {
      const auto first = static_cast<size_t>(next), second = sizes.size() - 1 - first;
      ++sizes[sizes[first] > sizes[second] ? second : first];
    }
    for (size_t c = 0; c < sizes.size(); ++c) {
      const TokenRange chunk{begin, begin + sizes[c]};
      begin = chunk.end;
      if (c < all.size()) {
        all[c].push_back({.first = chunk});
      } else {
        all[sizes.size() - 1 - c].back().second = chunk;
      }
    }
  }
  return all;
}

}  // namespace teratron
