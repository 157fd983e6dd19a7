#include "teratron/pipeline/pipeline_layout.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace teratron {

namespace {

constexpr const char* layout_field = "pipeline_model_parallel_layout";
constexpr const char* layers_per_chunk_field = "num_layers_per_virtual_pipeline_stage";
constexpr const char* chunks_field = "num_virtual_stages_per_pipeline_rank";
constexpr const char* first_field = "decoder_first_pipeline_num_layers";
constexpr const char* last_field = "decoder_last_pipeline_num_layers";
constexpr const char* embedding_field = "account_for_embedding_in_pipeline_split";
constexpr const char* split_field = "pipeline_model_parallel_split_rank";
constexpr const char* loss_field = "account_for_loss_in_pipeline_split";

// Keeps "t*999999999" from filling the memory.
constexpr size_t longest_text = 1'000'000;

std::string divisors(int64_t value) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min<int64_t>(value, 1024); ++d) {
    if (value % d == 0) all.push_back(d);
  }
  return fmt::format("Use one of {}", fmt::join(all, ", "));
}

[[noreturn]] void reject(const char* field, std::string what, std::string fix) {
  throw config_error({.what = std::move(what), .where = field, .fix = std::move(fix)});
}

void check_combination(const PipelineLayoutOptions& options) {
  std::vector<Problem> problems;
  const auto exclude = [&](const char* a, bool has_a, const char* b, bool has_b) {
    if (has_a && has_b) {
      problems.push_back(
          {.what = fmt::format("{} and {} are both set", a, b), .where = a, .fix = "Set only one of them"});
    }
  };
  const bool uneven = options.first_stage_layers || options.last_stage_layers;
  const char* uneven_field = options.first_stage_layers ? first_field : last_field;
  exclude(chunks_field, options.chunks.has_value(), layers_per_chunk_field,
          options.layers_per_chunk.has_value());
  exclude(layers_per_chunk_field, options.layers_per_chunk.has_value(), uneven_field, uneven);
  exclude(embedding_field, options.embedding_counts, uneven_field, uneven);
  exclude(loss_field, options.loss_counts, uneven_field, uneven);
  const bool text = options.text.has_value();
  exclude(layout_field, text, chunks_field, options.chunks.has_value());
  exclude(layout_field, text, layers_per_chunk_field, options.layers_per_chunk.has_value());
  exclude(layout_field, text, uneven_field, uneven);
  exclude(layout_field, text, embedding_field, options.embedding_counts);
  exclude(layout_field, text, loss_field, options.loss_counts);
  const bool split = options.split.has_value() && options.stages > 1;
  exclude(split_field, split, layout_field, text);
  exclude(split_field, split, chunks_field, options.chunks.value_or(1) > 1);
  exclude(split_field, split, layers_per_chunk_field, options.layers_per_chunk.has_value());
  exclude(split_field, split, uneven_field, uneven);
  exclude(split_field, split, embedding_field, options.embedding_counts);
  exclude(split_field, split, loss_field, options.loss_counts);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

// --- Layout text ---

std::string repeated(const std::string& piece, const std::string& count) {
  const size_t times = count.size() > 7 ? longest_text + 1 : std::stoul(count);
  if (piece.size() * times > longest_text) {
    reject(layout_field, fmt::format("'*{}' repeats too often", printable(count, 40)),
           "Use a smaller number");
  }
  std::string out;
  for (size_t i = 0; i < times; ++i) out += piece;
  return out;
}

// The digits after a '*' at `star`; empty if there is none.
std::string count_at(const std::string& text, size_t star) {
  if (star >= text.size() || text[star] != '*') return "";
  size_t end = star + 1;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  if (end == star + 1) reject(layout_field, "a '*' without a number", "Write t*3 or (tt|)*4, for example");
  return text.substr(star + 1, end - star - 1);
}

// "E(tt|)*2tL" -> "Ett|tt|tL".
std::string unrolled(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    std::string piece(1, text[i]);
    size_t end = i + 1;
    if (text[i] == '(') {
      const size_t close = text.find(')', i);
      if (close == text.npos || text.find('(', i + 1) < close) {
        reject(layout_field, "a '(' that is not closed before the next one", "Groups cannot be nested");
      }
      piece = unrolled(text.substr(i + 1, close - i - 1));
      end = close + 1;
    }
    const std::string count = count_at(text, end);
    if (text[i] == '(' && count.empty()) reject(layout_field, "a group without a number", "Write (tt|)*4");
    out += count.empty() ? piece : repeated(piece, count);
    if (out.size() > longest_text) reject(layout_field, "the layout is too long", "Use fewer repetitions");
    i = end + (count.empty() ? 0 : count.size() + 1);
  }
  return out;
}

std::vector<StageSpec> parse_text(std::string text) {
  std::erase(text, ',');
  const StageSpec empty{.embedding = false, .head = false};
  std::vector<StageSpec> stages = {empty};
  for (const char c : unrolled(text)) {
    StageSpec& stage = stages.back();
    if (c == '|') {
      StageSpec next = empty;
      next.first_layer = stage.first_layer + stage.layers;
      stages.push_back(next);
    } else if (c == 't') {
      if (stage.head) reject(layout_field, "a layer after the loss", "L comes last");
      stage.layers += 1;
    } else if (c == 'E') {
      const bool first = stages.size() == 1 && stage.layers == 0 && !stage.embedding;
      if (!first) reject(layout_field, "E is not the first and only embedding", "Begin with one E");
      stage.embedding = true;
    } else if (c == 'L') {
      if (stage.head) reject(layout_field, "more than one L", "End with one L");
      stage.head = true;
    } else {
      reject(layout_field, fmt::format("'{}' has no meaning in a layout", printable(std::string(1, c))),
             c == 'm' ? "Multi-token prediction is not supported; use E, t, L and |"
                      : "Use E, t, L, |, * and ()");
    }
  }
  return stages;
}

PipelineLayout layout_of_text(const PipelineLayoutOptions& options) {
  PipelineLayout layout{.stages = options.stages, .virtual_stages = parse_text(*options.text)};
  const auto count = static_cast<int64_t>(layout.virtual_stages.size());
  if (!layout.virtual_stages.front().embedding)
    reject(layout_field, "there is no E at the beginning", "Begin with E");
  const auto heads = std::count_if(layout.virtual_stages.begin(), layout.virtual_stages.end(),
                                   [](const auto& p) { return p.head; });
  if (heads != 1 || !layout.virtual_stages.back().head)
    reject(layout_field, "there is not one L at the end", "End with L");
  if (count % options.stages != 0) {
    reject(layout_field,
           fmt::format("{} virtual stages are not divisible by pipeline_model_parallel_size = {}", count,
                       options.stages),
           "Use a multiple of the pipeline size");
  }
  const int64_t layers = layout.virtual_stages.back().first_layer + layout.virtual_stages.back().layers;
  if (layers != options.layers) {
    reject(layout_field, fmt::format("the layout has {} layers and num_layers = {}", layers, options.layers),
           "Write one t per layer");
  }
  layout.chunks = count / options.stages;
  return layout;
}

// --- Layer counts ---

std::vector<int64_t> split_lengths(const PipelineLayoutOptions& options, const PipelineSplit& split) {
  const int64_t rest = options.layers - split.layers, others = options.stages - split.stages;
  if (split.stages < 1 || others < 1 || split.layers % split.stages != 0 || rest % others != 0) {
    reject(split_field,
           fmt::format("{} layers on the first {} of {} stages and {} on the others", split.layers,
                       split.stages, options.stages, rest),
           "Choose a split that divides the layers of the encoder and of the decoder evenly");
  }
  std::vector<int64_t> lengths(options.stages, rest / others);
  std::fill_n(lengths.begin(), split.stages, split.layers / split.stages);
  return lengths;
}

// Layers of each stage, including an embedding or loss that counts as one.
std::vector<int64_t> stage_lengths(const PipelineLayoutOptions& options) {
  if (options.split && options.stages > 1) return split_lengths(options, *options.split);
  const int64_t counted = options.layers + (options.embedding_counts ? 1 : 0) + (options.loss_counts ? 1 : 0);
  const int64_t first = options.first_stage_layers.value_or(0);
  const int64_t last = options.last_stage_layers.value_or(0);
  const int64_t between =
      options.stages - (options.first_stage_layers ? 1 : 0) - (options.last_stage_layers ? 1 : 0);
  const int64_t rest = counted - first - last;
  const bool fits = between >= 0 && rest >= between && (between == 0 ? rest == 0 : rest % between == 0);
  if (!fits && between == 0) {
    reject("num_layers",
           fmt::format("num_layers = {}, but the first and last stage have {} layers and there are no others",
                       options.layers, fmt::join(std::array{first, last}, " and ")),
           "Choose them so that they add up to num_layers");
  }
  if (!fits && (options.first_stage_layers || options.last_stage_layers)) {
    reject("num_layers",
           fmt::format("num_layers = {} without the first and last stage leaves {} layers for {} stages",
                       options.layers, rest, between),
           "Choose them so that the rest divides evenly");
  }
  if (!fits) {
    const std::string extra = counted == options.layers ? "" : fmt::format(" + {}", counted - options.layers);
    const int64_t above = (counted / options.stages + 1) * options.stages - (counted - options.layers);
    const int64_t below = above - options.stages;
    reject(
        "num_layers",
        fmt::format(
            "num_layers = {}{} is not divisible by pipeline_model_parallel_size = {}. Every stage gets the "
            "same number of layers",
            options.layers, extra, options.stages),
        fmt::format("Use num_layers = {}{}, another number of stages, or --decoder-first-pipeline-num-layers",
                    below > 0 ? fmt::format("{} or ", below) : "", above));
  }
  std::vector<int64_t> lengths(options.stages, between == 0 ? 0 : rest / between);
  if (options.first_stage_layers) lengths.front() = first;
  if (options.last_stage_layers) lengths.back() = last;
  return lengths;
}

int64_t chunk_count(const PipelineLayoutOptions& options, int64_t stage_length) {
  if (!options.layers_per_chunk) return options.chunks.value_or(1);
  if (stage_length % *options.layers_per_chunk == 0) return stage_length / *options.layers_per_chunk;
  reject(layers_per_chunk_field,
         fmt::format("the {} layers of a pipeline stage are not divisible by {} = {}", stage_length,
                     layers_per_chunk_field, *options.layers_per_chunk),
         divisors(stage_length));
}

PipelineLayout layout_of_numbers(const PipelineLayoutOptions& options) {
  const std::vector<int64_t> lengths = stage_lengths(options);
  PipelineLayout layout{.stages = options.stages, .chunks = chunk_count(options, lengths.front())};
  for (const int64_t length : lengths) {
    if (length % layout.chunks == 0) continue;
    reject(chunks_field,
           fmt::format("the {} layers of a pipeline stage are not divisible by {} = {}", length, chunks_field,
                       layout.chunks),
           divisors(length));
  }
  int64_t next = 0;
  for (int64_t i = 0; i < layout.chunks * options.stages; ++i) {
    StageSpec spec{.first_layer = next, .layers = lengths[i % options.stages] / layout.chunks};
    spec.embedding = i == 0;
    spec.head = i == layout.chunks * options.stages - 1;
    if (spec.embedding && options.embedding_counts) spec.layers -= 1;
    if (spec.head && options.loss_counts) spec.layers -= 1;
    next += spec.layers;
    layout.virtual_stages.push_back(spec);
  }
  return layout;
}

}  // namespace

std::vector<StageSpec> PipelineLayout::chunks_of_stage(int64_t stage) const {
  TERATRON_ASSERT(stage >= 0 && stage < stages, "stage {} of {}", stage, stages);
  std::vector<StageSpec> mine;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) mine.push_back(virtual_stages[chunk * stages + stage]);
  return mine;
}

PipelineLayout pipeline_layout(const PipelineLayoutOptions& options) {
  TERATRON_ASSERT(options.stages >= 1 && options.layers >= 0, "{} layers on {} stages", options.layers,
                  options.stages);
  check_combination(options);
  PipelineLayout layout = options.text ? layout_of_text(options) : layout_of_numbers(options);
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    const std::vector<StageSpec> chunks = layout.chunks_of_stage(stage);
    const bool empty = std::all_of(chunks.begin(), chunks.end(), [](const StageSpec& chunk) {
      return chunk.layers == 0 && !chunk.embedding && !chunk.head;
    });
    if (empty) {
      reject(options.text ? layout_field : "num_layers", fmt::format("stage {} would be empty", stage),
             "Assign a layer to every stage, or use fewer stages");
    }
  }
  if (layout.chunks > 1 && layout.stages == 1) {
    reject("pipeline_model_parallel_size", "the interleaved schedule needs pipeline_model_parallel_size > 1",
           "Increase it or do not use virtual stages");
  }
  return layout;
}

}  // namespace teratron
