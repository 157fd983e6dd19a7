#include "teratron/data/blend.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "teratron/base/error.h"

namespace teratron {

namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// numpy's pairwise summation of a contiguous array of doubles.
double pairwise_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (n > 128) {
    const size_t half = n / 2 - (n / 2) % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double part[8];
  std::copy_n(values.begin(), 8, part);
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) part[j] += values[i + j];
  }
  double sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

/// Collects the samples of a blend.
class BlendWriter {
 public:
  BlendWriter(size_t datasets, int64_t size, IndexProgress* progress)
      : counts_(datasets), size_(size), progress_(progress) {
    dataset_index_.reserve(static_cast<size_t>(size));
    dataset_sample_index_.reserve(static_cast<size_t>(size));
  }

  int64_t count(size_t dataset) const { return counts_[dataset]; }
  /// The next sample of this dataset.
  void add(size_t dataset) {
    const auto done = static_cast<int64_t>(dataset_index_.size());
    if (progress_ && done % (1 << 20) == 0) progress_->set("blend", done, size_);
    dataset_index_.push_back(static_cast<int16_t>(dataset));
    dataset_sample_index_.push_back(counts_[dataset]++);
  }
  BlendIndex take() {
    return {IndexArray(std::move(dataset_index_)), IndexArray(std::move(dataset_sample_index_)),
            std::move(counts_)};
  }

 private:
  std::vector<int16_t> dataset_index_;
  std::vector<int64_t> dataset_sample_index_;
  std::vector<int64_t> counts_;
  int64_t size_;
  IndexProgress* progress_;
};

BlendIndex cached_blend(const IndexSource& source, const IndexCache& cache, nlohmann::json description,
                        const std::function<BlendIndex(IndexProgress&)>& build) {
  const IndexCacheKey key{.kind = "blend",
                          .description = std::move(description),
                          .arrays = {"dataset_index", "dataset_sample_index"}};
  const CachedIndex index = cached_index(source, key, cache, [&build](IndexProgress& progress) {
    const BlendIndex built = build(progress);
    return CachedIndex{.numbers = {{"counts", built.counts}},
                       .arrays = {built.dataset_index, built.dataset_sample_index}};
  });
  return {index.arrays[0], index.arrays[1], index.numbers.at("counts").get<std::vector<int64_t>>()};
}

UserError bad_path(std::string what, std::string fix) {
  return config_error({.what = std::move(what), .where = "--data-path", .fix = std::move(fix)});
}

}  // namespace

std::optional<double> python_float(std::string_view text) {
  text = stripped(text);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return {};
    }
  }
  std::string_view number = digits;
  if (number.starts_with('+') || number.starts_with('-')) number.remove_prefix(1);
  const double sign = digits.starts_with('-') ? -1.0 : 1.0;
  if (number == "inf" || number == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (number == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (number.empty() || (!is_digit(number.front()) && number.front() != '.')) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (end != number.data() + number.size() || error == std::errc::invalid_argument) return {};
  // Out of range: Python rounds to inf or 0 (the exponent's sign tells which).
  if (error == std::errc::result_out_of_range) {
    value = number.find("e-") != number.npos ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return sign * value;
}

namespace {

bool weights_alternate(std::span<const std::string> items) {
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!python_float(items[i])) return false;
  }
  return true;
}

}  // namespace

Blend parse_data_path(std::span<const std::string> items) {
  if (items.empty()) throw bad_path("no dataset", "Give a prefix, or pairs of weight and prefix");
  Blend blend;
  if (items.size() % 2 == 1) {
    if (items.size() > 1 && weights_alternate(items))
      throw bad_path(fmt::format("the weight \"{}\" has no prefix", printable(items.back())),
                     "Give a prefix after every weight");
    blend.prefixes.assign(items.begin(), items.end());
    return blend;
  }
  std::vector<double> weights;
  bool all_prefixes = false;
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto weight = python_float(items[i]);
    if (weight && all_prefixes) {
      throw bad_path(
          fmt::format("\"{}\" is a weight, but the items before it are all prefixes", printable(items[i])),
          "Give only prefixes, or a weight before every prefix");
    }
    all_prefixes = all_prefixes || !weight;
    if (weight) weights.push_back(*weight);
  }
  if (all_prefixes) {
    blend.prefixes.assign(items.begin(), items.end());
    return blend;
  }
  for (size_t i = 1; i < items.size(); i += 2) blend.prefixes.emplace_back(stripped(items[i]));
  blend.weights = std::move(weights);
  return blend;
}

std::vector<double> normalize_weights(std::span<const double> values) {
  const double sum = pairwise_sum(values);
  std::vector<double> result(values.begin(), values.end());
  for (double& value : result) value /= sum;
  return result;
}

int64_t samples_with_surplus(int64_t num_samples, double weight, double surplus) {
  const double samples = std::ceil(static_cast<double>(num_samples) * weight);
  return static_cast<int64_t>(std::ceil(samples * (1 + surplus)));
}

BlendIndex build_blending_indices(std::span<const double> weights, int64_t size, IndexProgress* progress) {
  TERATRON_ASSERT(!weights.empty() && weights.size() <= 32767 && size >= 0);
  BlendWriter blend(weights.size(), size, progress);
  for (int64_t i = 0; i < size; ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    size_t chosen = 0;
    double largest = weights[0] * position - static_cast<double>(blend.count(0));
    for (size_t d = 1; d < weights.size(); ++d) {
      const double error = weights[d] * position - static_cast<double>(blend.count(d));
      if (error > largest) {
        largest = error;
        chosen = d;
      }
    }
    blend.add(chosen);
  }
  return blend.take();
}

BlendIndex build_exhaustive_blending_indices(std::span<const int64_t> sizes, IndexProgress* progress) {
  TERATRON_ASSERT(!sizes.empty() && sizes.size() <= 32767);
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  BlendWriter blend(sizes.size(), total, progress);
  for (int64_t i = 0; i < total; ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    std::optional<size_t> chosen;
    double largest = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const double error = weights[d] * position - static_cast<double>(blend.count(d));
      if (blend.count(d) < sizes[d] && (!chosen || error > largest)) {
        largest = error;
        chosen = d;
      }
    }
    blend.add(*chosen);
  }
  return blend.take();
}

BlendIndex cached_blending_indices(const IndexSource& source, const IndexCache& cache,
                                   std::span<const double> weights, int64_t size) {
  const nlohmann::json description = {{"weights", std::vector(weights.begin(), weights.end())},
                                      {"size", size}};
  return cached_blend(source, cache, description, [&](IndexProgress& progress) {
    return build_blending_indices(weights, size, &progress);
  });
}

BlendIndex cached_exhaustive_blending_indices(const IndexSource& source, const IndexCache& cache,
                                              std::span<const int64_t> sizes) {
  const nlohmann::json description = {{"sizes", std::vector(sizes.begin(), sizes.end())}};
  return cached_blend(source, cache, description, [&](IndexProgress& progress) {
    return build_exhaustive_blending_indices(sizes, &progress);
  });
}

BlendedDataset::BlendedDataset(Parts parts, BlendIndex index)
    : parts_(std::move(parts)), index_(std::move(index)) {
  TERATRON_ASSERT(!parts_.empty() && index_.counts.size() == parts_.size() &&
                  index_.dataset_index.rows() == index_.dataset_sample_index.rows());
  for (size_t d = 0; d < parts_.size(); ++d) {
    if (index_.counts[d] <= parts_[d]->size()) continue;
    throw config_error({.what = fmt::format("the blend needs {} samples of [{}], more than it has",
                                            index_.counts[d], parts_[d]->describe()),
                        .where = "--data-path",
                        .fix = "Raise --mid-level-dataset-surplus (0.005 by default)"});
  }
}

void BlendedDataset::get(int64_t i, const Sample& sample) const {
  TERATRON_ASSERT(i >= 0 && i < size(), "sample {} of {}", i, size());
  const int64_t dataset = index_.dataset_index.at(i), part = index_.dataset_sample_index.at(i);
  if (dataset < 0 || dataset >= std::ssize(parts_) || part < 0 ||
      part >= parts_[static_cast<size_t>(dataset)]->size()) {
    throw data_error({.what = fmt::format("sample {} of the blend is sample {} of dataset {}, which there is "
                                          "not: the cached index is damaged",
                                          i, part, dataset),
                      .fix = "Remove the files blend-* from the cache folder; they are built again"});
  }
  parts_[static_cast<size_t>(dataset)]->get(part, sample);
}

std::string BlendedDataset::describe() const {
  std::string text = fmt::format("blend of {} samples", size());
  for (const auto& part : parts_) text += "; " + part->describe();
  return text;
}

}  // namespace teratron
