// A training loop of one's own over the library's model, data and optimizer, with a measure that Megatron-LM does not
// log: how often the likeliest next token is the right one.
//
//   own_loop FLAGS...                (those of `teratron pretrain gpt`)
#include <ATen/ATen.h>

#include "teratron/base/log.h"
#include "teratron/cli/program.h"

using teratron::BatchSource;
using teratron::FinishedStep;
using teratron::MicroBatch;
using teratron::Split;
using teratron::Training;

namespace {

// Share of the counted tokens of one micro-batch per data-parallel rank; the last pipeline stage knows it.
double accuracy(Training& training, BatchSource& source) {
  const MicroBatch batch = source.next();
  const at::Tensor logits_SBV = training.logits(batch);
  if (!logits_SBV.defined()) return 0.0;
  // Dim 0 is what the ranks' tensors are joined along.
  const at::Tensor right = training.gather(logits_SBV.argmax(-1).eq(batch.labels_SB).t().to(at::kFloat));
  const at::Tensor counted = training.gather(batch.loss_mask_SB.t());
  return ((right * counted).sum() / counted.sum().clamp_min(1.0)).item<double>();
}

void loop(Training& training) {
  const int64_t total = training.train_iters();
  const int64_t every = training.args().eval_interval.value_or(total);
  if (training.args().load) training.load();
  const auto train = training.open(Split::train);
  while (training.state().iteration < total) {
    const FinishedStep step = training.train_step(*train);
    if (training.state().iteration % every != 0) continue;
    const auto valid = training.open(Split::valid);
    const double loss = training.eval_step(*valid, training.args().eval_iters).loss;
    const double share = accuracy(training, *training.open(Split::valid));
    if (training.is_main_rank()) {
      teratron::print(
          "step {} of {}: batch {}, training loss {:.4f}, validation loss {:.4f}, accuracy {:.3f}",
          step.metrics.iteration, total, step.metrics.global_batch_size, step.numbers.loss, loss, share);
    }
  }
  if (training.args().save) training.save();
}

}  // namespace

int main(int argc, char** argv) {
  return teratron::run_loop(argc, argv, loop);
}
