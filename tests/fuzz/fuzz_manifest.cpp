// Any manifest.json of a checkpoint, with the hash of its content: it is refused, or what was read can be
// written and read again.
#include "tests/fuzz/scratch.h"
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/manifest.h"

namespace {

// The JSON with the right hash, where it is an object.
std::string with_hash(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return text;
  value.erase("hash");
  try {
    value["hash"] = teratron::hash_to_hex(teratron::hash_text(value.dump()));
    return value.dump();
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    return text;
  }
}

void read(const std::string& text) {
  try {
    const teratron::Manifest manifest = teratron::parse_manifest(text, "manifest.json");
    const std::string again = teratron::to_text(manifest);
    if (teratron::to_text(teratron::parse_manifest(again, "again")) != again) std::abort();
  } catch (const teratron::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const teratron::fuzz::Scratch scratch;
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(with_hash(text));
  scratch.write("manifest.json", {data, size});
  try {
    teratron::read_manifest(scratch.path(""));
  } catch (const teratron::UserError&) {
  }
  return 0;
}
