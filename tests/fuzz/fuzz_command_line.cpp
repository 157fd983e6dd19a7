// Any command line: its problems are reported together, or the settings can be printed, saved and read again.
// Input: one byte for the program and the number of ranks, then one argument per line.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t end = 0; !text.empty(); text.remove_prefix(std::min(text.size(), end + 1))) {
    end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const teratron::Program programs[] = {
      {.names = {"gpt", "training"}},
      {.names = {"generate", "inference"}, .models_are_saved = true},
      {.names = {"bert", "training"}, .tokenizer_type = "BertWordPieceLowerCase"},
      {.names = {"tasks", "inference", "training"}, .models_are_saved = true}};
  const auto args = lines_of({reinterpret_cast<const char*>(data) + 1, size - 1});
  try {
    teratron::ParsedArguments parsed =
        teratron::parse_arguments(programs[data[0] % 4], args, {.refuse_planned = data[0] % 8 < 4});
    if (parsed.help) return 0;
    teratron::dump(parsed);
    teratron::validate_arguments(parsed, int64_t{1} << data[0] / 8 % 8);
    teratron::explain(parsed);
    const std::string saved = teratron::to_json(parsed.args);
    if (teratron::to_json(teratron::arguments_from_json(saved, "saved")) != saved) std::abort();
  } catch (const teratron::UserError&) {
  }
  return 0;
}
