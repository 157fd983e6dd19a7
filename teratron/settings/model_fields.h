// What makes two runs' models the same.
#pragma once

#include <string>
#include <vector>

namespace teratron {

/// The settings that say what the model is, by name.
const std::vector<std::string>& model_fields();

/// A run's settings (JSON) in the plainest words for the same model: what has nothing to act on is left out, and of
/// several spellings one is kept. `where` names them in messages.
std::string plain_settings(const std::string& config, const std::string& where);

/// Those of model_fields() that may differ from the checkpoint's in a run of these settings: the length of positions
/// without a table, and for a finetuning what rotary positions are computed from. None has a tensor.
std::vector<std::string> free_fields(const std::string& config, bool finetune);

}  // namespace teratron
