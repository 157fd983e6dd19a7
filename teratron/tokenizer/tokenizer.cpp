#include "teratron/tokenizer/tokenizer.h"

#include "teratron/base/error.h"

namespace teratron {

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
