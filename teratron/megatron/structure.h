// What `ckpt` shows of Megatron-LM's files.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "teratron/pickle/value.h"

namespace teratron {

using PrintLine = std::function<void(const std::string&)>;

/// A line for each entry of nested dicts, as Hugging Face's conversion scripts print them:
/// "..# weight        : torch.Size([72, 16])".
void print_structure(const PickleValue& root, const PrintLine& print_line);
void print_tensor(const std::string& name, const std::vector<int64_t>& shape, const PrintLine& print_line);

/// Numbers, texts, lists and dicts as JSON; null for all else.
nlohmann::json plain_json(const PickleValue& value);

}  // namespace teratron
