#include "teratron/models/classifier/labelled_family.h"

namespace teratron {

namespace {

bool has_classes(const Arguments& args) {
  return classifier_options(args).target == ClassifierTarget::one_of;
}

// --train-data and --valid-data, or what other trainings have.
DataSources labelled_sources(const DataRequest& request) {
  DataSources sources = data_sources(request);
  const Arguments& args = request.args;
  if (!args.train_data.empty()) sources.split_data_path[0] = args.train_data;
  if (!args.valid_data.empty()) sources.split_data_path[1] = args.valid_data;
  return sources;
}

Datasets labelled_datasets(LabelledForm form, const DataRequest& request) {
  const Arguments& args = request.args;
  const auto make = [&](size_t split, const std::vector<JsonLine>& lines) -> std::shared_ptr<const Dataset> {
    if (lines.empty() || request.samples[split] == 0) return nullptr;
    const auto seed = static_cast<uint64_t>(args.seed);
    return std::make_shared<LabelledTexts>(
        lines, LabelledTextOptions{.form = form,
                                   .sequence_length = args.seq_length.value(),
                                   .classes = has_classes(args) ? args.num_classes : 0,
                                   .samples = request.samples[split],
                                   .shuffle = split == 0 ? std::optional(seed) : std::nullopt,
                                   .tokenizer = request.tokenizer});
  };
  const auto lines = json_lines_of_splits(labelled_sources(request));
  return {make(0, lines[0]), make(1, lines[1]), make(2, lines[2])};
}

bool names_files(const Arguments& args, const std::vector<std::string>& of_split) {
  return !of_split.empty() || !args.data_path.empty() || args.data_args_path || args.per_split_data_args_path;
}

void check_labelled(const Arguments& args, std::vector<Problem>& problems) {
  if (args.train_data.empty() && !names_files(args, args.train_data_path) && !args.skip_train)
    problems.push_back({"no texts to train on are given", "--train-data", "Name a file of JSON lines"});
  if (args.valid_data.empty() && !names_files(args, args.valid_data_path) && args.skip_train)
    problems.push_back({"no texts to evaluate on are given", "--valid-data", "Name a file of JSON lines"});
  if (has_classes(args) && args.num_classes < 2)
    problems.push_back(
        {"one class leaves nothing to learn", "--num-classes", "Use 2 or more, or --task regression"});
  if (args.context_parallel_size > 1)
    problems.push_back({"the head needs whole texts on a rank", "--context-parallel-size", "Leave it out"});
  if (args.calculate_per_token_loss)
    problems.push_back(
        {"the loss is one of texts, not of tokens", "--calculate-per-token-loss", "Leave it out"});
}

}  // namespace

Family on_labelled_texts(Family classifier, LabelledForm form) {
  classifier.check = [own = classifier.check](const Arguments& args, std::vector<Problem>& problems) {
    check_labelled(args, problems);
    if (own) own(args, problems);
  };
  classifier.generates = false;
  classifier.settings.names.emplace_back(classifier.name);
  classifier.datasets = [form](const DataRequest& request) { return labelled_datasets(form, request); };
  return classifier;
}

}  // namespace teratron
