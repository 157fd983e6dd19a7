#include "teratron/cli/ckpt/tensor_list.h"

#include <algorithm>
#include <cstdint>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

// "decoder.layers.12.mlp" as "decoder.layers.*.mlp".
std::string without_numbers(const std::string& name) {
  std::string text;
  for (const std::string& part : split(name, '.')) {
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    text += (text.empty() ? "" : ".") + (is_number ? "*" : part);
  }
  return text;
}

struct Row {
  ListedTensor tensor;
  int64_t count = 1;
};

}  // namespace

std::vector<std::string> tensor_lines(const std::vector<ListedTensor>& tensors, bool all) {
  std::vector<Row> rows;
  for (const ListedTensor& each : tensors) {
    if (!all && each.name.starts_with("optimizer.")) continue;
    const std::string name = all ? each.name : without_numbers(each.name);
    const auto same = std::ranges::find_if(rows, [&](const Row& row) {
      return !all && row.tensor.name == name && row.tensor.kind == each.kind;
    });
    if (same == rows.end()) {
      rows.push_back({{name, each.kind}});
    } else {
      ++same->count;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [tensor, count] : rows)
    lines.push_back(fmt::format("  {:<64} {}{}", printable(tensor.name), tensor.kind,
                                count > 1 ? fmt::format(" x {}", count) : ""));
  return lines;
}

}  // namespace teratron
