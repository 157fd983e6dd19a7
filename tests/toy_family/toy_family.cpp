// A family of one folder and one line in families.def: a small decoder that learns to count. Its Hugging Face
// form keeps sizes in an object of config.json, and names the tensors of every second layer differently.
#include "teratron/models/family.h"
#include "teratron/models/family_formats.h"
#include "teratron/models/gpt/data/gpt_dataset.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/hf_rows.h"

namespace teratron {

namespace {

// From the sample's number on, upwards.
class Counting : public Dataset {
 public:
  Counting(int64_t samples, int64_t vocabulary) : samples_(samples), vocabulary_(vocabulary) {}
  int64_t size() const override { return samples_; }
  std::string describe() const override { return "counting"; }
  void get(int64_t i, const Sample& sample) const override {
    const auto tokens = sample.i64("tokens"), labels = sample.i64("labels");
    for (size_t s = 0; s < tokens.size(); ++s) {
      tokens[s] = (i + static_cast<int64_t>(s)) % vocabulary_;
      labels[s] = (tokens[s] + 1) % vocabulary_;
      sample.f32("loss_mask")[s] = 1.0F;
    }
  }

 private:
  int64_t samples_, vocabulary_;
};

Datasets datasets(const DataRequest& request) {
  const auto make = [&](size_t split) -> std::shared_ptr<const Dataset> {
    const int64_t samples = request.samples[split].value_or(1000);
    return samples == 0 ? nullptr : std::make_shared<Counting>(samples, request.tokenizer.vocab_size());
  };
  return {make(0), make(1), make(2)};
}

ModelPlan plan(const Arguments& args, int64_t vocabulary) {
  return gpt_plan(gpt_config(args, vocabulary), gpt_schema(args.seq_length.value_or(0), {}));
}

void check(const Arguments& args, std::vector<Problem>& problems) {
  if (args.num_experts) problems.push_back(no_experts());
  if (args.position_embedding_type != "learned_absolute")
    problems.push_back({"a toy counts by learned positions", "--position-embedding-type", "Leave it out"});
}

// Layers are called by their parity in the files.
HfLayerKinds layer_kinds(HfConfig&, int64_t layers) {
  HfLayerKinds kinds;
  for (int64_t i = 0; i < layers; ++i) kinds.push_back({i % 2 == 0 ? "even" : "odd"});
  return kinds;
}

HfFamily hf_toy() {
  using namespace hf_rows;
  using enum HfRule;
  const auto row = [](std::string_view ours, std::string_view theirs, std::vector<std::string_view> shape) {
    return HfTensorRow{ours, same, {theirs}, std::move(shape), biased};
  };
  HfTensorRow even = row("mlp.linear_fc1.weight", "even_up.weight", {ffn, hidden});
  HfTensorRow odd = row("mlp.linear_fc1.weight", "odd_up.weight", {ffn, hidden});
  even.options.in = "even";
  odd.options.in = "odd";
  return {.model_type = "toy",
          .architecture = "ToyForCounting",
          .prefix = "toy.",
          .keys = {{"text_config.sizes.layers", "num_layers"},
                   {"text_config.sizes.width", hidden},
                   {"text_config.heads", heads},
                   {"text_config.mlp", ffn},
                   {"positions", positions},
                   {"vocab_size", vocab, {.rows_of = "embedding.word_embeddings.weight"}},
                   {"", "kv_channels", {.derived = "hidden_size/num_attention_heads"}},
                   {"", "seq_length", {.derived = positions}},
                   setting_is("position_embedding_type", "learned_absolute"),
                   setting_is("add_bias_linear", true)},
          .tensors = {{"embedding.",
                       "toy.",
                       {{"word_embeddings.weight", same, {"words.weight"}, {vocab, hidden}},
                        {"position_embeddings.weight", same, {"positions.weight"}, {positions, hidden}}}},
                      {"decoder.layers.*.",
                       "toy.layers.*.",
                       {row("input_layernorm.weight", "norm.weight", {hidden}),
                        row("self_attention.linear_qkv.weight", "qkv.weight", {"3*hidden_size", hidden}),
                        row("self_attention.linear_proj.weight", "out.weight", {hidden, hidden}),
                        row("pre_mlp_layernorm.weight", "mlp_norm.weight", {hidden}), even, odd,
                        row("mlp.linear_fc2.weight", "down.weight", {hidden, ffn})},
                       "num_layers"},
                      {"decoder.", "toy.", {row("final_layernorm.weight", "last_norm.weight", {hidden})}}},
          .layer_kinds = layer_kinds,
          .peft_task = "CAUSAL_LM"};
}

}  // namespace

Family toy_family() {
  return {
      .name = "toy", .summary = "decoders that count", .check = check, .plan = plan, .datasets = datasets};
}

FamilyFormats toy_formats() {
  return {.hf = {hf_toy()}};
}

}  // namespace teratron
