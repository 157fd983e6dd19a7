#include "teratron/cli/train/dataset_texts.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/data/text/preprocess.h"
#include "teratron/hf/tokenizer_files.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// The first text in the folder whose name has one of these words in it.
std::string text_in(const fs::path& folder, std::initializer_list<std::string_view> words) {
  for (const std::string& name : list_directory(folder, ExitCode::data)) {
    const bool readable = is_plain_text(name) || name.ends_with(".json") || name.ends_with(".jsonl");
    const bool named = std::ranges::any_of(words, [&](auto word) { return name.find(word) != name.npos; });
    if (readable && named) return (folder / name).string();
  }
  return "";
}

// The texts of the splits in a folder of a dataset, or in that of its configuration.
DatasetTexts texts_in(fs::path folder, const std::optional<std::string>& configuration) {
  std::error_code ignored;
  if (configuration && fs::is_directory(folder / *configuration, ignored)) folder /= *configuration;
  return {text_in(folder, {"train"}), text_in(folder, {"valid", "dev"}), true};
}

// What Hugging Face's programs make of a dataset are tables in parquet and Arrow, which nothing here reads.
UserError no_texts(const std::string& name, const std::optional<std::string>& configuration, bool is_cached) {
  const std::string arguments =
      fmt::format("'{}'{}", name, configuration ? fmt::format(", '{}'", *configuration) : "");
  const std::string folder = name.substr(name.rfind('/') + 1);
  return data_error(
      {.what =
           is_cached
               ? fmt::format("'{}' is in Hugging Face's cache, but in no format that is read (*train*.txt, "
                             ".raw, .json or .jsonl)",
                             printable(name, 200))
               : fmt::format("'{}' is neither a folder with a text of its train split (*train*.txt, .raw, "
                             ".json or .jsonl) nor a name in Hugging Face's cache, and nothing is downloaded",
                             printable(name, 200)),
       .where = "--dataset_name",
       .fix = fmt::format("Write its texts with `python -c \"from datasets import load_dataset; "
                          "d = load_dataset({}); [d[s].to_json('{}/' + s + '.jsonl') for s in d]\"` and name "
                          "that folder, or "
                          "give the texts: --train_file FILE --validation_file FILE",
                          printable(arguments, 400), printable(folder, 200))});
}

}  // namespace

DatasetTexts texts_of_dataset(const std::string& name, const std::optional<std::string>& configuration) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(name, ignored);
  const std::optional<fs::path> folder = is_folder ? fs::path(name) : cached_hf_dataset(name);
  const DatasetTexts texts = folder ? texts_in(*folder, configuration) : DatasetTexts{};
  if (!texts.train.empty()) return texts;
  throw no_texts(name, configuration, folder && !is_folder);
}

}  // namespace teratron
