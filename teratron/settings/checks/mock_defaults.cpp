// Defaults that let --mock-data run with nothing but a model.
#include <algorithm>

#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr int64_t sequence_length = 1024;
constexpr int64_t iterations = 100;
constexpr int64_t vocabulary = 50256;  // of GPT-2, whose end-of-document token NullTokenizer adds

class MockDefaults {
 public:
  explicit MockDefaults(Validation& v) : v_(v) {}

  template <typename T, typename U>
  void set(std::string_view name, T& member, const U& value) {
    v_.derive(name, member, value, mock_default_source);
    listed_ += fmt::format("{}{} = {}", listed_.empty() ? "" : ", ", name, value);
  }

  void note() const {
    if (!listed_.empty()) v_.note(fmt::format("defaults of --mock-data: {}", listed_));
  }

 private:
  Validation& v_;
  std::string listed_;
};

}  // namespace

void derive_mock_defaults(Validation& v) {
  Arguments& a = v.args;
  if (!a.mock_data) return;
  MockDefaults defaults(v);
  if (!a.tokenizer_type && !a.tokenizer_model && !a.vocab_file && !a.merge_file) {
    defaults.set("tokenizer_type", a.tokenizer_type, "NullTokenizer");
    if (!a.vocab_size) defaults.set("vocab_size", a.vocab_size, vocabulary);
  }
  if (!a.seq_length && !a.encoder_seq_length) {
    defaults.set("seq_length", a.seq_length,
                 std::min(a.max_position_embeddings.value_or(sequence_length), sequence_length));
  }
  if (!a.micro_batch_size) defaults.set("micro_batch_size", a.micro_batch_size, 1);
  if (!a.skip_train && !a.lr) defaults.set("lr", a.lr, 3e-4);
  if (!a.skip_train && !a.train_iters && !a.train_samples && !a.num_train_epochs) {
    defaults.set("train_iters", a.train_iters, iterations);
    if (!v.chosen("log_interval")) defaults.set("log_interval", a.log_interval, iterations / 10);
    if (!v.chosen("eval_iters")) defaults.set("eval_iters", a.eval_iters, iterations / 10);
  }
  defaults.note();
}

}  // namespace teratron
