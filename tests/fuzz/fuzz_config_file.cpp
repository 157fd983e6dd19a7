// Any YAML file of --config-file: its problems are reported together, or the settings can be checked and
// printed.
#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const teratron::fuzz::Scratch scratch;
  const std::string path = scratch.write("run.yaml", {data, size});
  const std::vector<std::string> args = {"--config-file", path};
  try {
    teratron::ParsedArguments parsed = teratron::parse_arguments(teratron::Program(), args);
    teratron::dump(parsed);
    teratron::validate_arguments(parsed, 8);
    teratron::explain(parsed);
  } catch (const teratron::UserError&) {
  }
  return 0;
}
