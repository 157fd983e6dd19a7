// The tokens of many sequences in one step of a generation, and where layers keep what they need of those
// before (layer_state.h).
//
// A micro-batch [T, 1] holds tokens of several sequences: one new token of each sequence that is being
// generated, or a chunk of a prompt. What a layer keeps per token is in pages of static memory (Kwon et al.
// 2023, "PagedAttention"), what it keeps per sequence in slots.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// Where the tokens of a sequence are. The place of a token is page * page_size + index in the page.
struct StoredTokens {
  int64_t length = 0;
  /// The place of the first token if the pages follow each other, so that the tokens are a view; else -1.
  int64_t first_place = -1;
  at::Tensor places_L = {};  // i64 [length]: of all tokens, where there is no first place
};

/// Consecutive tokens of one sequence in a micro-batch.
struct GenerationRow {
  int64_t first_token = 0;  // in the micro-batch
  int64_t tokens = 0;
  StoredTokens sequence;     // these tokens included
  StoredTokens source = {};  // what cross attention sees, in other pages of the layer
};

/// What all layers share in a step.
struct GenerationBatch {
  int64_t page_size = 16;           // tokens
  at::Tensor places_T;              // i64 [T]
  std::vector<GenerationRow> rows;  // not of a step that is replayed as a CUDA graph
  /// The first rows have one token each. Kernels find their pages in the table, if there is one.
  int64_t decode_rows = 0;
  at::Tensor table_RP;  // i32 [decode_rows, P]: their pages; undefined on CPUs
  // For layers that keep something per sequence; undefined: none does.
  at::Tensor slot_R;           // i64 [R]: of each row
  at::Tensor first_R, last_R;  // i64 [R]: first and last token of each row; undefined: each has one token
  // With an encoder:
  at::Tensor source_table_RP;  // the pages of the sources, as table_RP
  at::Tensor source_last_R;    // i64 [decode_rows]: the position of the last token of each source
  at::Tensor source_places_S;  // i64 [S]: of the source encoded in this micro-batch; undefined: none is

  /// Whether each of the micro-batch's tokens is a row.
  bool has_single_tokens(int64_t tokens) const { return decode_rows == tokens; }
};

}  // namespace teratron
