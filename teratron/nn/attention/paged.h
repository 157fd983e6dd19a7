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

/// Consecutive tokens of one sequence in a micro-batch.
struct PagedRow {
  int64_t first_token = 0;  // in the micro-batch
  int64_t tokens = 0;
  int64_t length = 0;  // of the sequence, these tokens included
  /// The slot of the sequence's first token if its pages follow each other, so that its keys are a view;
  /// else -1.
  int64_t first_slot = -1;
  at::Tensor slots_L = {};  // i64 [length]: of all its tokens, where there is no first slot
  int64_t source = 0;       // whose keys and values cross attention sees (KeyValueCache::memories)
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
};

/// Of one layer.
struct PagedKeyValues {
  std::shared_ptr<const PagedBatch> batch;  // null: keys and values are not in pages
  at::Tensor k_TGD;                         // [pages * page_size, G, D], allocated at the first use
  at::Tensor v_TGD;
};

}  // namespace teratron
