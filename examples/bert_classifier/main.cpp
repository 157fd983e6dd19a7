// Finetunes a BERT on texts: classes, several labels, or a number. As Accelerate's BertTrainStep does, one
// output means squared error, class numbers mean cross entropy, and rows of 0 and 1 binary cross entropy.
//
//   bert_classifier pretrain classifier FLAGS... --train-data-path train.tsv --valid-data-path valid.tsv
//       [--num-labels 2] [--multi-label] [--pretrained-checkpoint RUN --finetune]
//
// A line is "label <tab> text" or "label <tab> text <tab> text"; a label is a class from 0, a number with
// --num-labels 1, or with --multi-label classes with commas between them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "teratron/base/error.h"
#include "teratron/cli/program.h"
#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/bert/bert_family.h"
#include "teratron/train/classification/classification_step.h"

using namespace teratron;

namespace {

struct Settings {
  int64_t num_labels = 2;
  bool multi_label = false;

  ClassifierTarget target() const {
    if (num_labels == 1) return ClassifierTarget::number;
    return multi_label ? ClassifierTarget::several : ClassifierTarget::one_of;
  }
};

struct Text {
  std::vector<int64_t> tokens, types;
  std::vector<double> labels;
};

std::vector<std::string> split(const std::string& line, char at) {
  std::vector<std::string> parts(1);
  for (const char c : line) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

[[noreturn]] void reject(const std::string& file, size_t line, const std::string& what) {
  throw data_error({.what = what,
                    .where = fmt::format("{}:{}", file, line),
                    .fix = "Write lines of: label, tab, text (optionally: tab, second text)"});
}

class Texts : public Dataset {
 public:
  /// `size`: samples that the training asks for, the texts again and again, in another order each time;
  /// nullopt: each text once.
  Texts(std::string file, const Settings& settings, const DataRequest& request, std::optional<int64_t> size)
      : file_(std::move(file)), settings_(settings), length_(request.args.seq_length.value()) {
    std::ifstream stream(file_);
    if (!stream) reject(file_, 0, "the file cannot be read");
    for (std::string line; std::getline(stream, line);) add(split(line, '\t'), request.tokenizer);
    if (texts_.empty()) reject(file_, 0, "the file has no lines");
    size_ = size.value_or(static_cast<int64_t>(texts_.size()));
  }

  int64_t size() const override { return size_; }
  std::string describe() const override { return fmt::format("{}: {} texts", file_, texts_.size()); }

  void get(int64_t i, const Sample& sample) const override {
    const auto count = static_cast<int64_t>(texts_.size());
    const int64_t epoch = i / count, stride = coprime_stride(count, epoch);
    const Text& text = texts_[static_cast<size_t>(i % count * stride % count)];
    std::ranges::copy(text.tokens, sample.i64("tokens").begin());
    std::ranges::copy(text.types, sample.i64("types").begin());
    const auto used = static_cast<int32_t>(text.tokens.size());
    std::ranges::fill(sample.i32("segment_start").subspan(text.tokens.size()), used);
    if (settings_.target() == ClassifierTarget::one_of) {
      sample.i64("labels")[0] = static_cast<int64_t>(text.labels[0]);
    } else {
      std::ranges::transform(text.labels, sample.f32("labels").begin(),
                             [](double label) { return static_cast<float>(label); });
    }
  }

 private:
  static int64_t coprime_stride(int64_t count, int64_t epoch) {
    int64_t stride = 1 + epoch % count;
    while (std::gcd(stride, count) != 1) ++stride;
    return stride;
  }

  void add(const std::vector<std::string>& fields, const Tokenizer& tokenizer) {
    const size_t line = texts_.size() + 1;
    if (fields.size() < 2 || fields.size() > 3) reject(file_, line, "the line has not 2 or 3 fields");
    Text text{.labels = labels_of(fields[0], line)};
    const SpecialTokens& special = tokenizer.special();
    text.tokens.push_back(special.cls.value());
    for (size_t f = 1; f < fields.size(); ++f) {
      std::vector<int32_t> ids;
      tokenizer.encode(fields[f], ids);
      text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
      const auto end = static_cast<size_t>(length_ - 1);
      if (text.tokens.size() > end) text.tokens.resize(end);
      text.tokens.push_back(special.sep.value());
      text.types.resize(text.tokens.size(), static_cast<int64_t>(f - 1));
    }
    texts_.push_back(std::move(text));
  }

  std::vector<double> labels_of(const std::string& field, size_t line) const {
    std::vector<double> numbers;
    for (const std::string& part : split(field, ',')) {
      double number = 0.0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
      if (error != std::errc() || end != part.data() + part.size())
        reject(file_, line, fmt::format("the label {} is not a number", field));
      numbers.push_back(number);
    }
    if (settings_.target() == ClassifierTarget::number) return numbers;
    for (const double number : numbers) {
      if (number < 0 || number >= static_cast<double>(settings_.num_labels) || number != std::floor(number))
        reject(file_, line, fmt::format("the label {} is not from 0 to {}", field, settings_.num_labels - 1));
    }
    if (settings_.target() == ClassifierTarget::one_of) return numbers;
    std::vector<double> present(static_cast<size_t>(settings_.num_labels));
    for (const double number : numbers) present[static_cast<size_t>(number)] = 1.0;
    return present;
  }

  std::string file_;
  Settings settings_;
  int64_t length_;
  int64_t size_ = 0;
  std::vector<Text> texts_;
};

ModelPlan make_plan(const Settings& settings, const Arguments& args, int64_t vocabulary) {
  const BertConfig config = bert_config(args, vocabulary);
  const ClassifierOptions classifier{
      .target = settings.target(), .outputs = settings.num_labels, .dropout = config.hidden_dropout};
  const BatchSchema schema =
      bert_classifier_schema({.sequence_length = args.seq_length.value_or(0), .classifier = classifier});
  return bert_classifier_plan(config, classifier, schema);
}

Datasets make_datasets(const Settings& settings, const DataRequest& request) {
  if (!request.tokenizer.special().cls || !request.tokenizer.special().sep) {
    throw config_error({.what = "the tokenizer has no [CLS] or [SEP]",
                        .where = "--tokenizer-type",
                        .fix = "Use BertWordPieceLowerCase or BertWordPieceCase"});
  }
  const auto make = [&](size_t part,
                        const std::vector<std::string>& files) -> std::shared_ptr<const Dataset> {
    if (files.empty() || request.samples[part] == 0) return nullptr;
    return std::make_shared<Texts>(files[0], settings, request, request.samples[part]);
  };
  const Arguments& args = request.args;
  return {make(0, args.train_data_path), make(1, args.valid_data_path), make(2, args.test_data_path)};
}

void check(const Settings& settings, const Arguments& args, std::vector<Problem>& problems) {
  if (args.train_data_path.empty())
    problems.push_back({"there are no texts", "--train-data-path", "Name a file of labels and texts"});
  if (settings.multi_label && settings.num_labels == 1)
    problems.push_back({"one label is a number", "--multi-label", "Use --num-labels 2 or more"});
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  const Family family{
      .name = "classifier",
      .summary = "BERT with a classification head",
      .fields = {custom_field("num_labels", &settings.num_labels, "Outputs; 1: a number", {.min = 1}),
                 custom_field("multi_label", &settings.multi_label, "A text may have several labels")},
      .args_defaults = {{"tokenizer_type", "BertWordPieceLowerCase"}, {"lr", "2e-5"}},
      .check = std::bind_front(check, std::cref(settings)),
      .plan = std::bind_front(make_plan, std::cref(settings)),
      .datasets = std::bind_front(make_datasets, std::cref(settings)),
      .finetunes = bert_classifier_family().finetunes};
  const auto step = [&settings](const Registry::Context&) {
    return std::make_unique<ClassificationStep>(settings.target());
  };
  return teratron::main(argc, argv, {.families = {family}, .train_step = step});
}
