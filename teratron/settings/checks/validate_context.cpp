// Context parallelism: what each kind of communication needs.
#include <algorithm>

#include "teratron/settings/attention_windows.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr std::string_view comm = "cp_comm_type";

std::string type_of_layer(const Arguments& a, size_t layer) {
  return a.cp_comm_type.size() == 1 ? a.cp_comm_type.front() : a.cp_comm_type.at(layer);
}

// Whether a layer with p2p has a window.
bool has_p2p_window(const Arguments& a) {
  const bool valid =
      a.window_size && is_valid_window_size(*a.window_size) && a.num_layers &&
      (!a.window_attn_skip_freq || is_valid_window_pattern(*a.window_attn_skip_freq, *a.num_layers));
  if (!valid) return false;
  const std::vector<int64_t> windows =
      attention_windows({a.window_size, a.window_attn_skip_freq}, *a.num_layers);
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] > 0 && type_of_layer(a, layer) == "p2p") return true;
  }
  return false;
}

}  // namespace

void check_context_parallel(Validation& v) {
  const Arguments& a = v.args;
  if (a.context_parallel_size == 1) return;
  const auto types = std::ssize(a.cp_comm_type);
  if (a.num_layers && types != 1 && types != *a.num_layers) {
    return v.reject(comm, fmt::format("{} types of communication for {} layers", types, *a.num_layers),
                    "Give one, or one for each of --num-layers");
  }
  if (std::ranges::find(a.cp_comm_type, "p2p") == a.cp_comm_type.end()) return;
  const char* const reason = a.attention_dropout > 0.0                 ? "attention_dropout is not 0"
                             : a.position_embedding_type == "alibi"    ? "scores have ALiBi"
                             : a.position_embedding_type == "relative" ? "scores have biases by distance"
                             : a.attn_logit_softcapping > 0.0          ? "scores have a soft cap"
                             : a.attention_chunk_size                  ? "queries see chunks"
                             : has_p2p_window(a)
                                 ? "it attends to the keys of one rank after the other, without windows"
                                 : nullptr;
  if (reason)
    v.note(fmt::format("--cp-comm-type p2p gathers keys and values as all_gather does: {}", reason));
}

}  // namespace teratron
