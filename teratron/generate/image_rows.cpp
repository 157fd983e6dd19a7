#include "teratron/generate/image_rows.h"

#include <algorithm>
#include <set>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/base/sha256.h"

namespace teratron {

void ImageRows::insert(const StepInput& step, const Target& target, MicroBatch& batch) {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> index(step.tokens.size(), -1);
  int64_t count = 0;
  for (const StepRow& row : step.rows) {
    if (!row.images) continue;
    int64_t own = 0;
    for (int64_t i = row.first_token; i < row.first_token + row.tokens; ++i) {
      if (step.tokens[static_cast<size_t>(i)] == target.tokens.token)
        index[static_cast<size_t>(i)] = count + own++;
    }
    rows.push_back(rows_of(*row.images, target).narrow(0, row.first_image_row, own));
    count += own;
  }
  if (rows.empty()) return;
  const at::Tensor& tokens_T1 = batch[target.column];
  const at::Tensor index_T1 = at::tensor(index, at::kLong).to(tokens_T1.device()).unsqueeze(1);
  batch.tensors.set(target.column, tokens_T1.masked_fill(index_T1.ge(0), 0));
  batch.tensors.set("inserted_RH", at::cat(rows));
  batch.tensors.set("inserted_row", index_T1);
}

at::Tensor ImageRows::rows_of(const RequestImages& images, const Target& target) {
  const ImageTokens& tokens = target.tokens;
  const auto size = static_cast<size_t>(tokens.values());
  std::vector<std::string> hashes;
  std::vector<at::Tensor> unknown;
  std::vector<std::string> their_hashes;
  for (int64_t i = 0; i < images.count; ++i) {
    const float* const values = images.values.data() + static_cast<size_t>(i) * size;
    const Sha256Digest digest = sha256({reinterpret_cast<const char*>(values), size * sizeof(float)});
    hashes.emplace_back(digest.begin(), digest.end());
    const bool is_known = by_hash_.contains(hashes.back()) ||
                          std::ranges::find(their_hashes, hashes.back()) != their_hashes.end();
    if (is_known) continue;
    their_hashes.push_back(hashes.back());
    unknown.push_back(at::from_blob(const_cast<float*>(values), tokens.shape, at::kFloat));
  }
  if (!unknown.empty()) {
    const at::Tensor rows = target.model.image_rows(at::stack(unknown));
    for (size_t i = 0; i < unknown.size(); ++i) {
      used_.emplace_front(their_hashes[i],
                          rows.narrow(0, static_cast<int64_t>(i) * tokens.rows, tokens.rows));
      by_hash_[their_hashes[i]] = used_.begin();
    }
  }
  std::vector<at::Tensor> all;
  for (const std::string& hash : hashes) {
    used_.splice(used_.begin(), used_, by_hash_.at(hash));
    all.push_back(used_.front().second);
  }
  while (used_.size() > std::max(most_images, hashes.size())) {
    by_hash_.erase(used_.back().first);
    used_.pop_back();
  }
  return at::cat(all);
}

}  // namespace teratron
