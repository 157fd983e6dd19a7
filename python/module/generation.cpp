#include "python/module/generation.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "teratron/cli/generate/generate_texts.h"
#include "teratron/cli/inference_program.h"
#include "teratron/generate/texts.h"
#include "teratron/hf/architecture.h"

namespace teratron::python {

namespace {

ParsedArguments parsed(const std::vector<std::string>& flags) {
  return parse_arguments(inference_program("generate"), flags, {.architecture = architecture_settings});
}

}  // namespace

Generator::Generator(const std::vector<std::string>& flags)
    : job_(load_generate_job(parsed(flags), mesh_, /*needs_tokenizer=*/false)), given_(job_.loaded.args) {}

const Tokenizer& Generator::tokenizer() const {
  if (job_.tokenizer) return *job_.tokenizer;
  throw config_error(
      {.what = job_.reader.no_tokenizer, .where = "tokenizer", .fix = "Give the files of one"});
}

std::vector<std::string> Generator::generate(const std::vector<std::string>& prompts,
                                             const std::vector<std::string>& flags) {
  const std::lock_guard lock(calls_);
  tokenizer();
  const ParsedArguments call = parsed(flags);
  Arguments& args = job_.loaded.args;
  args = given_;
  for (const auto& [name, source] : call.sources) {
    const Field& field = arguments_schema().field(name);
    if (is_users(source)) set_value(field, get_value(field, &call.args), &args);
  }
  args.prompt = prompts;
  const std::string no_tokenizer = job_.reader.no_tokenizer;
  job_.reader = request_reader(job_.loaded, job_.tokenizer.get());
  job_.reader.no_tokenizer = no_tokenizer;
  std::vector<std::string> texts;
  if (prompts.empty()) return texts;
  generate_texts(job_, [&](const SampleText& sample, const std::string&) {
    texts.push_back(sample.prompt + sample.text);
  });
  return texts;
}

at::Tensor Generator::logits(const at::Tensor& ids_BS) {
  const LanguageModel& model = job_.loaded.model;
  if (ids_BS.dim() != 2 || ids_BS.size(1) < 1 || ids_BS.size(1) > model.max_positions ||
      ids_BS.is_floating_point()) {
    throw data_error({.what = fmt::format("ids of shape [{}] are not [B, S] integers with S of 1 to {}",
                                          fmt::join(ids_BS.sizes(), ", "), model.max_positions),
                      .where = "logits()",
                      .fix = "Give such ids"});
  }
  const at::Tensor ids = ids_BS.to(at::TensorOptions().dtype(at::kLong).device(at::kCPU)).contiguous();
  if (ids.numel() > 0 && (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= model.vocabulary)) {
    throw data_error({.what = fmt::format("an id is not one of the vocabulary's {}", model.vocabulary),
                      .where = "logits()",
                      .fix = "Give ids of the model's tokenizer"});
  }
  const std::lock_guard lock(calls_);
  const at::AutoGradMode no_gradients(false);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const at::Tensor one = ids[row];
    rows.push_back(logits_of(model, {one.data_ptr<int64_t>(), static_cast<size_t>(one.numel())}).squeeze(1));
  }
  return at::stack(rows);
}

std::vector<int32_t> Generator::encode(const std::string& text) const {
  std::vector<int32_t> ids;
  tokenizer().encode(text, ids);
  return ids;
}

std::string Generator::decode(const std::vector<int32_t>& ids) const {
  return tokenizer().decode(ids);
}

}  // namespace teratron::python
