// Keys and values of many sequences in pages of static memory (Kwon et al. 2023, "PagedAttention").
//
// A micro-batch [T, 1] holds tokens of several sequences: one new token of each sequence that is being
// generated, or a chunk of a prompt. Each attends to the keys of its sequence, which are spread over pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// Where the keys and values of a sequence are.
struct PagedTokens {
  int64_t length = 0;
  /// The slot of the first token if the pages follow each other, so that the keys are a view; else -1.
  int64_t first_slot = -1;
  at::Tensor slots_L = {};  // i64 [length]: of all tokens, where there is no first slot
};

/// Consecutive tokens of one sequence in a micro-batch.
struct PagedRow {
  int64_t first_token = 0;  // in the micro-batch
  int64_t tokens = 0;
  PagedTokens sequence;     // these tokens included
  PagedTokens source = {};  // what cross attention sees, in other pages of the layer
};

/// What all layers share in a step.
struct PagedBatch {
  int64_t page_size = 16;  // tokens
  int64_t pages = 0;       // of each layer; page 0 belongs to no sequence
  at::Tensor slots_T;      // i64 [T]: page * page_size + index in the page, of each token
  std::vector<PagedRow> rows;
  /// The first rows have one token each and are done by one kernel if there is a table.
  int64_t decode_rows = 0;
  at::Tensor table_RP;  // i32 [decode_rows, P]: their pages; undefined on CPUs
  // Of models with an encoder:
  at::Tensor source_table_RP;  // the same for their sources
  at::Tensor source_last_R;    // i64 [decode_rows]: the position of the last token of each source
  at::Tensor source_slots_S;   // i64 [S]: of the source encoded in this micro-batch; undefined: none is
};

/// Of one layer.
struct PagedKeyValues {
  std::shared_ptr<const PagedBatch> batch;  // null: keys and values are not in pages
  at::Tensor k_TGD;                         // [pages * page_size, G, D], allocated at the first use
  at::Tensor v_TGD;
};

}  // namespace teratron
