#include "teratron/hf/hf_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <span>
#include <system_error>

#include "teratron/base/file.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/index_ranges.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/hf/float_convert.h"
#include "teratron/hf/placement.h"
#include "teratron/hf/quantized/mxfp4.h"
#include "teratron/hf/tokenizer_files.h"
#include "teratron/hf/transpose.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr int64_t window_bytes = 8 << 20;
constexpr int64_t most_experts = 1 << 16;

// The rows of one source in ours; `local` counts the elements of the source as if it were not transposed.
std::vector<IndexRange> ranges_of(const HfTensor& tensor, size_t source) {
  std::vector<IndexRange> ranges;
  for (const RowSlice& slice : tensor.slices()) {
    if (slice.source == source)
      ranges.push_back(
          {slice.our_row * tensor.columns(), slice.row * tensor.columns(), slice.rows * tensor.columns()});
  }
  return ranges;
}

struct Target {
  char* data;
  int64_t element;  // bytes
};

// Small parts that are close to each other are read at once.
void read_parts(const WeightFiles& files, const std::string& name, std::span<const Overlap> parts,
                const Target& target) {
  const int64_t most = window_bytes / target.element;
  std::vector<char> window;
  for (size_t first = 0, next = 0; first < parts.size(); first = next) {
    const int64_t begin = parts[first].other;
    int64_t end = begin + parts[first].length;
    for (next = first + 1; next < parts.size(); ++next) {
      const int64_t part_end = parts[next].other + parts[next].length;
      if (parts[next].other < end || part_end - begin > most) break;
      end = part_end;
    }
    char* const place = target.data + parts[first].local * target.element;
    const int64_t bytes = (end - begin) * target.element;
    if (next == first + 1) {
      files.read(name, begin * target.element, bytes, place);
      continue;
    }
    window.resize(static_cast<size_t>(bytes));
    files.read(name, begin * target.element, bytes, window.data());
    for (const Overlap& part : parts.subspan(first, next - first))
      std::memcpy(target.data + part.local * target.element,
                  window.data() + (part.other - begin) * target.element,
                  static_cast<size_t>(part.length * target.element));
  }
}

// Rows of ours, and the columns of theirs that lie in the window, of a transposed source; `target` is where
// ours begin.
struct Window {
  const char* data;
  int64_t begin, end;  // rows of theirs: columns of ours
  int64_t rows;        // columns of theirs: rows of ours
};

void copy_rectangle(const Window& window, const Overlap& part, int64_t columns, const Target& target) {
  const int64_t row = part.other / columns, column = part.other % columns;
  const int64_t rows = std::max<int64_t>(1, part.length / columns);
  const int64_t begin = std::max(window.begin, column);
  const int64_t end = std::min(window.end, std::min(columns, column + part.length));
  if (begin >= end) return;
  transpose(window.data + ((begin - window.begin) * window.rows + row) * target.element,
            target.data + (part.local + begin - column) * target.element,
            {.rows = end - begin, .columns = rows, .in_stride = window.rows, .out_stride = columns},
            target.element);
}

// Whole rows, and what is left of the first and the last one.
std::vector<Overlap> rectangles(std::span<const Overlap> parts, int64_t columns) {
  std::vector<Overlap> result;
  for (Overlap part : parts) {
    while (part.length > 0) {
      const int64_t column = part.other % columns, whole = part.length / columns * columns;
      const int64_t length = column == 0 && whole > 0 ? whole : std::min(part.length, columns - column);
      result.push_back({part.local, part.other, length});
      part = {part.local + length, part.other + length, part.length - length};
    }
  }
  return result;
}

// Element k of the source as if it were not transposed, [rows, columns], is in column k / columns of theirs.
void read_transposed(const WeightFiles& files, const HfSource& source, std::span<const Overlap> parts,
                     const Target& target) {
  const int64_t columns = source.shape[0], rows = source.shape[1];
  const int64_t step = std::max<int64_t>(1, window_bytes / (rows * target.element));
  const std::vector<Overlap> pieces = rectangles(parts, columns);
  std::vector<char> bytes(static_cast<size_t>(std::min(step, columns) * rows * target.element));
  for (int64_t begin = 0; begin < columns; begin += step) {
    const int64_t end = std::min(begin + step, columns), row_bytes = rows * target.element;
    files.read(source.name, begin * row_bytes, (end - begin) * row_bytes, bytes.data());
    for (const Overlap& piece : pieces)
      copy_rectangle({bytes.data(), begin, end, rows}, piece, columns, target);
  }
}

bool copy_differs(const WeightFiles& files, const std::string& copy, const std::string& original) {
  const TensorInfo& info = files.tensors().at(original);
  if (files.tensors().at(copy) != info) return true;
  const int64_t bytes = *checked_numel(info.shape) * size_of(info.dtype);
  std::vector<char> one(window_bytes), other(window_bytes);
  for (int64_t begin = 0; begin < bytes; begin += window_bytes) {
    const int64_t length = std::min(window_bytes, bytes - begin);
    files.read(copy, begin, length, one.data());
    files.read(original, begin, length, other.data());
    if (std::memcmp(one.data(), other.data(), static_cast<size_t>(length)) != 0) return true;
  }
  return false;
}

// That to which torch promotes those of all sources.
Dtype joint_dtype(const WeightFiles& files, const HfTensor& tensor) {
  std::set<Dtype> dtypes;
  for (const HfSource& source : tensor.sources) dtypes.insert(files.tensors().at(source.name).dtype);
  return dtypes.size() == 1 ? *dtypes.begin() : dtypes.contains(Dtype::f64) ? Dtype::f64 : Dtype::f32;
}

// Parts of a source that is not transposed, of another dtype than the target.
void read_converted(const WeightFiles& files, const std::string& name, std::vector<Overlap> parts,
                    const LocalTensor& target) {
  const Dtype saved = files.tensors().at(name).dtype;
  const std::vector<Overlap> places = parts;
  int64_t count = 0;
  for (Overlap& part : parts) count += part.length, part.local = count - part.length;
  std::vector<char> values(static_cast<size_t>(count * std::max(size_of(saved), size_of(target.dtype))));
  read_parts(files, name, parts, {values.data(), size_of(saved)});
  convert_floats(values.data(), count, saved, target.dtype);
  const int64_t element = size_of(target.dtype);
  for (size_t i = 0; i < parts.size(); ++i)
    std::memcpy(static_cast<char*>(target.data) + places[i].local * element,
                values.data() + parts[i].local * element, static_cast<size_t>(parts[i].length * element));
}

// See HfFamily::unties.
void take_output_layer(HfModel& model, const WeightFiles& files) {
  const std::string own(model.family->unties);
  if (own.empty()) return;
  const std::string words(model.family->tensors.front().rows.front().sources.front());
  const bool is_copy = files.has(own) && files.has(words) && !copy_differs(files, own, words);
  model.settings["untie_embeddings_and_output_weights"] = files.has(own) && !is_copy;
}

// See HfFamily::mtp_sign.
void take_mtp_layers(HfModel& model, const WeightFiles& files) {
  if (model.family->mtp_sign.empty()) return;
  int64_t count = 0;
  const auto number = [&] { return model.settings.at("num_layers").get<int64_t>() + count; };
  while (files.has(in_layer(model.family->mtp_sign, number())) && count < most_experts) ++count;
  if (count > 0) model.settings["mtp_num_layers"] = count;
}

// What the tensors say, whatever config.json does.
void take_from_weights(HfModel& model, const fs::path& folder) {
  if (model.family->unties.empty() && model.family->mtp_sign.empty()) return;
  try {
    const WeightFiles files(folder);
    take_output_layer(model, files);
    take_mtp_layers(model, files);
  } catch (const UserError&) {
    // Without weights config.json is all there is; who needs them reports what is wrong.
  }
}

// The tensors of experts in place of those that hold all of a layer; others, of other shapes, stay.
void divide_fused_experts(const HfFamily& family, WeightFiles& files) {
  const std::map<std::string, TensorInfo> all = files.tensors();
  for (const auto& [name, info] : all) {
    for (const HfFusedExperts& fused : family.fused_experts) {
      const auto parts = static_cast<int64_t>(fused.parts.size());
      const bool has_shape = info.shape.size() == 3 || (info.shape.size() == 2 && fused.written);
      if (!name.ends_with(fused.end) || !has_shape || info.shape[1] % parts != 0 ||
          info.shape[0] > most_experts)
        continue;
      std::vector<std::string> names;
      for (int64_t expert = 0; expert < info.shape[0]; ++expert) {
        for (const std::string_view part : fused.parts)
          names.push_back(name.substr(0, name.size() - fused.end.size()) + of_expert(part, expert));
      }
      const auto is_there = [&files](const std::string& one) { return files.has(one); };
      if (std::ranges::none_of(names, is_there)) {
        std::vector<int64_t> shape(info.shape.begin() + 1, info.shape.end());
        shape[0] /= parts;
        files.divide(name, names, shape);
      }
      break;
    }
  }
}

// Experts that the family's files hold together.
void read_mxfp4_experts(const HfFamily& family, WeightFiles& files) {
  if (std::ranges::none_of(family.fused_experts, &HfFusedExperts::written)) return;
  read_mxfp4(files, [&family](const std::string& name, int64_t expert) {
    for (const HfFusedExperts& fused : family.fused_experts) {
      if (fused.written && name.ends_with(fused.end))
        return name.substr(0, name.size() - fused.end.size()) + of_expert(fused.parts[0], expert);
    }
    return fmt::format("{}.{}", name, expert);
  });
}

}  // namespace

HfModel read_hf_model(const fs::path& folder) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(folder, ignored);
  if (!is_directory) reject_pickled(folder);
  const fs::path path = folder / "config.json";
  if (is_directory && !fs::exists(path, ignored) && !list_checkpoints(folder).empty())
    throw checkpoint_error({.what = "this is a folder of checkpoints, not one of Hugging Face",
                            .where = printable(folder.string(), 4096),
                            .fix = "Name it with --load"});
  HfModel model =
      parse_hf_config(read_text(path, {.kind = ExitCode::checkpoint}), printable(path.string(), 4096));
  take_from_weights(model, folder);
  model.settings.update(hf_tokenizer_settings(folder));
  return model;
}

HfCheckpoint::HfCheckpoint(const fs::path& folder, HfHeads heads)
    : folder_(folder), model_(read_hf_model(folder)), files_(folder) {
  read_mxfp4_experts(*model_.family, files_);
  files_.dequantize();
  divide_fused_experts(*model_.family, files_);
  const size_t count = files_.tensors().size();
  tensors_ = hf_tensors(model_, count, model_.family->prefix);
  if (!files_.has(tensors_[0].sources[0].name)) tensors_ = hf_tensors(model_, count);
  use_old_names();
  use_cuts();
  if (heads == HfHeads::may_lack) leave_out_missing_heads();
  nlohmann::json config = model_.settings;
  config["model_family"] = model_.family->family;
  config["hf_model_type"] = model_.family->model_type;
  save_configured_tokens(configured_tokens(folder_), config);
  if (nlohmann::json texts = hf_processor_texts(folder_); !texts.empty())
    config["hf_processor"] = std::move(texts);
  info_ = {.path = folder_, .config = config.dump(), .state = "{}"};
  for (const HfTensor& tensor : tensors_) {
    if (!tensor.repeats) by_name_[tensor.name] = &tensor;
  }
  check();
  for (const auto& [name, found] : by_name_) {
    const HfTensor& tensor = *found;
    const TensorInfo& info = info_.tensors[tensor.name] = {joint_dtype(files_, tensor), tensor.shape};
    info_.bytes += *checked_numel(info.shape) * size_of(info.dtype);
  }
}

// Files of early releases have other names for some tensors.
void HfCheckpoint::use_old_names() {
  for (HfTensor& tensor : tensors_) {
    for (HfSource& source : tensor.sources) {
      for (const auto& [end, old_end] : model_.family->old_ends) {
        if (!source.name.ends_with(end) || files_.has(source.name)) continue;
        const std::string old = source.name.substr(0, source.name.size() - end.size()) + std::string(old_end);
        if (files_.has(old)) source.name = old;
      }
      for (const auto& [begin, old_begin] : model_.family->old_begins) {
        if (!source.name.starts_with(begin) || files_.has(source.name)) continue;
        const std::string old = std::string(old_begin) + source.name.substr(begin.size());
        if (files_.has(old)) source.name = old;
      }
    }
  }
}

// Where files cut the rows of a concatenation elsewhere, their order is the same.
void HfCheckpoint::use_cuts() {
  for (HfTensor& tensor : tensors_) {
    if (!tensor.any_cut) continue;
    std::vector<int64_t> rows;
    for (const HfSource& source : tensor.sources) {
      const auto found = files_.tensors().find(source.name);
      if (found != files_.tensors().end() && !found->second.shape.empty())
        rows.push_back(found->second.shape[0]);
    }
    const bool fits = rows.size() == tensor.sources.size() &&
                      std::ranges::all_of(rows, [&](int64_t n) { return n > 0 && n <= tensor.shape[0]; }) &&
                      std::accumulate(rows.begin(), rows.end(), int64_t{0}) == tensor.shape[0];
    if (!fits) continue;
    tensor.parts = rows;
    for (size_t i = 0; i < rows.size(); ++i) tensor.sources[i].shape[0] = rows[i];
  }
}

void HfCheckpoint::leave_out_missing_heads() {
  for (const std::string_view head : model_.family->heads) {
    const auto is_of_head = [&](const HfTensor& tensor) { return tensor.name.starts_with(head); };
    const auto is_there = [&](const HfTensor& tensor) {
      return is_of_head(tensor) && files_.has(tensor.sources[0].name);
    };
    if (std::ranges::none_of(tensors_, is_of_head) || std::ranges::any_of(tensors_, is_there)) continue;
    std::erase_if(tensors_, is_of_head);
    missing_heads_.emplace_back(head);
  }
}

void HfCheckpoint::check() const {
  Unplaced unplaced{files_.tensors(), printable(folder_.string(), 4096), "but config.json requires"};
  std::set<std::string> stacked;
  for (const HfTensor& tensor : tensors_) {
    if (tensor.repeats && !files_.has(tensor.sources[0].name)) continue;
    if (tensor.stacked && !stacked.insert(tensor.sources[0].name).second) continue;
    for (const HfSource& source : tensor.sources) unplaced.place(source.name, source.shape);
  }
  for (const HfTensor& tensor : tensors_) {
    for (const std::string& copy : tensor.copies) {
      const std::string& original = tensor.sources[0].name;
      if (unplaced.tensors.extract(copy).empty() || !files_.has(original)) continue;
      if (copy_differs(files_, copy, original))
        unplaced.problem(copy, fmt::format("differs from \"{}\", whose copy it is in this model", original));
    }
  }
  for (const HfTensor& tensor : tensors_) {
    const std::string& copy = tensor.sources[0].name;
    if (!tensor.repeats || !files_.has(copy) || !by_name_.contains(tensor.name)) continue;
    const std::string& original = by_name_.at(tensor.name)->sources[0].name;
    if (files_.has(original) && copy_differs(files_, copy, original))
      unplaced.problem(copy, fmt::format("differs from \"{}\", whose copy it is in this model", original));
  }
  unplaced.finish([this](const std::string& name) {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    const auto begins = [&](std::string_view begin) { return name.starts_with(begin); };
    return std::ranges::any_of(model_.family->buffers, ends) ||
           std::ranges::any_of(model_.family->unread, begins);
  });
}

void HfCheckpoint::read(const LocalTensor& target) const {
  const HfTensor& tensor = *by_name_.at(target.name);
  for (size_t source = 0; source < tensor.sources.size(); ++source) read_source(tensor, source, target);
}

void HfCheckpoint::read_source(const HfTensor& tensor, size_t source, const LocalTensor& target) const {
  const std::vector<IndexRange> needed = index_ranges(target.shard, target.flat_begin, flat_end_of(target));
  const std::vector<Overlap> parts = intersect(needed, ranges_of(tensor, source));
  const Target place{static_cast<char*>(target.data), size_of(target.dtype)};
  const HfSource& theirs = tensor.sources[source];
  const Dtype saved = files_.tensors().at(theirs.name).dtype;
  if (saved != info_.tensors.at(tensor.name).dtype) return read_converted(files_, theirs.name, parts, target);
  if (!theirs.transposed) return read_parts(files_, theirs.name, parts, place);
  if (!parts.empty()) read_transposed(files_, theirs, parts, place);
}

void reject_hf_folder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / "config.json", ignored)) return;
  throw config_error({.what = "this is a Hugging Face folder, not one of checkpoints",
                      .where = printable(folder.string(), 4096),
                      .fix = "Name it with --hf in place of --load"});
}

std::unique_ptr<HfCheckpoint> open_hf(const fs::path& folder, HostGroup& group, HfHeads heads) {
  std::unique_ptr<HfCheckpoint> opened;
  run_on_all_ranks(group, [&]() -> std::string {
    opened = std::make_unique<HfCheckpoint>(folder, heads);
    return "";
  });
  return opened;
}

}  // namespace teratron
