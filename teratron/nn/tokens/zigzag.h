// The zigzag cut of sequences over context-parallel ranks (as in Megatron-LM): a document is cut into 2 * R
// chunks, and rank r holds those numbered r and 2 R - 1 - r, so that causal attention costs all ranks the
// same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace teratron {

struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// A rank's two chunks of a document, as tokens of the sample.
struct ZigzagChunks {
  TokenRange first, second;
};

/// The chunks of every rank, by document. Documents follow each other, and the sum of `lengths` must be a
/// multiple of 2 * ranks. A document of L tokens has chunks of L / (2 * ranks) tokens; tokens that are left
/// over go to the ranks in turn, so that all hold the same number of the sample.
std::vector<std::vector<ZigzagChunks>> zigzag_chunks(std::span<const int64_t> lengths, int64_t ranks);

}  // namespace teratron
