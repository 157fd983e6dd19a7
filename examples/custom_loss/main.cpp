// A custom loss that weights samples by the keywords in them, for example names from libraries that a code
// model should know well:
//
//   weight of a sample = 1 + alpha * (number of keyword tokens in it)
//   loss = mean over the samples of weight * (mean loss of the sample's tokens)
//
//   custom_loss pretrain gpt FLAGS... --keywords plt pd sk fit predict --keyword-alpha 0.25
#include <numeric>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/program.h"

using teratron::Activations;
using teratron::MicroBatch;
using teratron::Model;
using teratron::Registry;
using teratron::StepLoss;

namespace {

struct Settings {
  std::vector<std::string> keywords = {"plt",  "pd",  "sk",  "fit",  "predict",
                                       " plt", " pd", " sk", " fit", " predict"};
  double alpha = 0.25;
};

class KeywordLoss : public teratron::TrainStep {
 public:
  KeywordLoss(std::vector<int64_t> keyword_ids, double alpha)
      : keyword_ids_(std::move(keyword_ids)), alpha_(alpha) {}

  std::vector<std::string> metric_names() const override { return {"keywords per sample"}; }

  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    const at::Tensor losses_SB = model.token_losses(output, batch);
    const at::Tensor& mask_SB = batch["loss_mask"];
    const at::Tensor loss_B = (losses_SB * mask_SB).sum(0) / mask_SB.sum(0).clamp_min(1.0);
    at::Tensor keywords_B = at::zeros_like(loss_B);
    for (const int64_t id : keyword_ids_) keywords_B += batch["tokens"].eq(id).sum(0);
    const at::Tensor weight_B = 1.0 + alpha_ * keywords_B;
    return {.losses = {{(weight_B * loss_B).sum(), at::full({}, loss_B.size(0), mask_SB.options())}},
            .metrics = {keywords_B.sum()}};
  }

 private:
  std::vector<int64_t> keyword_ids_;
  double alpha_;
};

// Ids of the keywords that are a single token; `other` receives the rest.
std::vector<int64_t> ids_of(const std::vector<std::string>& keywords, const teratron::Tokenizer& tokenizer,
                            std::vector<std::string>& other) {
  std::vector<int64_t> found;
  for (const std::string& keyword : keywords) {
    std::vector<int32_t> ids;
    tokenizer.encode(keyword, ids);
    if (ids.size() == 1) {
      found.push_back(ids[0]);
    } else {
      other.push_back(keyword);
    }
  }
  return found;
}

std::unique_ptr<KeywordLoss> keyword_loss(const Settings& settings, const Registry::Context& context) {
  std::vector<std::string> other;
  const std::vector<int64_t> ids = ids_of(settings.keywords, context.tokenizer, other);
  if (ids.empty()) {
    throw teratron::config_error({.what = fmt::format("none of the keywords ({}) is a single token",
                                                      fmt::join(settings.keywords, ", ")),
                                  .where = "--keywords",
                                  .fix = "Choose words of the tokenizer's vocabulary (`teratron tokenizer "
                                         "encode` shows the tokens of a text)"});
  }
  if (context.mesh.rank() == 0) {
    teratron::print("keyword ids: {}", fmt::join(ids, " "));
    if (!other.empty()) teratron::warn("keywords of several tokens are ignored: {}", fmt::join(other, ", "));
  }
  return std::make_unique<KeywordLoss>(ids, settings.alpha);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  const Registry registry = {
      .fields = {teratron::custom_field("keywords", &settings.keywords, "Words whose samples count for more"),
                 teratron::custom_field("keyword_alpha", &settings.alpha, "How much more per occurrence",
                                        {.min = 0})},
      .train_step = [&](const Registry::Context& context) { return keyword_loss(settings, context); }};
  return teratron::main(argc, argv, registry);
}
