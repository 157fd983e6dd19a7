// Keys of config.json that change no model: where it came from, how text is generated, how it is trained.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace teratron {

/// Neither null, false, 0 nor empty.
bool has_value(const nlohmann::json& value);

/// Whether a key that a model type does not know leaves its models as they are. Any key without a value does,
/// but for the few that are on by default.
bool is_neutral_key(std::string_view key, const nlohmann::json& value);

}  // namespace teratron
