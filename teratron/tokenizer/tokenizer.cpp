#include "teratron/tokenizer/tokenizer.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

class GrowingDecoder final : public TextDecoder {
 public:
  explicit GrowingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string add(int32_t id) override {
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_);
    const size_t begin = done_;
    done_ = std::max(begin, text.size() - unicode::truncated_bytes(text));
    return text.substr(begin, done_ - begin);
  }
  std::string rest() const override { return tokenizer_.decode(ids_).substr(done_); }
  std::unique_ptr<TextDecoder> clone() const override { return std::make_unique<GrowingDecoder>(*this); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t done_ = 0;  // bytes
};

}  // namespace

std::unique_ptr<TextDecoder> Tokenizer::decoder() const {
  return std::make_unique<GrowingDecoder>(*this);
}

bool Tokenizer::is_special(int32_t id) const {
  const SpecialTokens& all = special();
  for (const auto& token : {all.eod, all.bos, all.eos, all.pad, all.cls, all.sep, all.mask}) {
    if (token == id) return true;
  }
  return std::ranges::find(all.additional, id) != all.additional.end();
}

int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tensor_parallel) {
  int64_t multiple = 0;
  int64_t padded = 0;
  if (vocab_size < 0 || divisible_by <= 0 || tensor_parallel <= 0 ||
      __builtin_mul_overflow(divisible_by, tensor_parallel, &multiple) ||
      __builtin_add_overflow(vocab_size, multiple - 1, &padded)) {
    throw config_error({.what = fmt::format("cannot pad a vocabulary of {} to a multiple of {} x {}",
                                            vocab_size, divisible_by, tensor_parallel),
                        .where = "--make-vocab-size-divisible-by",
                        .fix = "use positive numbers"});
  }
  return padded / multiple * multiple;
}

}  // namespace teratron
