#include "teratron/cli/generate/prompt_images.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/images/resize.h"
#include "teratron/models/vlm/data/image_files.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "teratron-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Fault(fmt::format("no temporary folder can be made in {}", fs::temp_directory_path().string()));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// What an imported checkpoint keeps of its folder, else the folder of --hf or of the tokenizer.
ProcessorSettings processor_of(const LoadedModel& loaded) {
  const auto texts =
      nlohmann::json::parse(loaded.checkpoint.config).value("hf_processor", nlohmann::json::object());
  if (texts.empty()) {
    const Arguments& args = loaded.args;
    return read_processor_settings(args.hf ? fs::path(*args.hf) : tokenizer_folder(tokenizer_options(args)));
  }
  const TemporaryFolder folder;
  for (const auto& [name, text] : texts.items()) {
    if (name.find('/') == name.npos && text.is_string())
      write_text(folder.path() / name, text.get<std::string>(), ExitCode::checkpoint);
  }
  return read_processor_settings(folder.path());
}

}  // namespace

// The processor is needed once a request has an image.
void read_prompt_images(GenerateJob& job) {
  const std::optional<ImageTokens>& images = job.loaded.model.text.images;
  if (!images) return;
  job.reader.images = images;
  const auto files = std::make_shared<std::shared_ptr<const ImageFiles>>();
  job.reader.read_images = [&loaded = job.loaded, tokens = *images, files](
                               const std::vector<std::string>& names, const std::string& where) {
    const Arguments& args = loaded.args;
    if (!*files) {
      *files =
          std::make_shared<ImageFiles>(processor_of(loaded),
                                       ImageFiles::Options{.folder = args.image_folder.value_or("."),
                                                           .confined = args.image_folder.has_value(),
                                                           .resize = *resize_style_of(args.image_resize),
                                                           .limits = {.max_pixels = args.max_image_pixels}},
                                       ImageSize{tokens.shape.at(2), tokens.shape.at(1)});
    }
    auto read = std::make_shared<RequestImages>();
    read->count = std::ssize(names);
    const auto size = static_cast<size_t>(tokens.values());
    read->values.resize(names.size() * size);
    for (size_t i = 0; i < names.size(); ++i)
      (*files)->read(names[i], where, std::span(read->values).subspan(i * size, size));
    return std::shared_ptr<const RequestImages>(std::move(read));
  };
}

}  // namespace teratron
