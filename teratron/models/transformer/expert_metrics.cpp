#include "teratron/models/transformer/expert_metrics.h"

#include <algorithm>
#include <cmath>

#include "teratron/nn/moe/statistics.h"

namespace teratron {

namespace {

using S = ExpertStatistics;

struct LossName {
  const char* name;
  S::Column column;
};

std::vector<LossName> losses_in_use(const RouterOptions& router) {
  std::vector<LossName> names;
  if (router.aux_loss > 0.0) names.push_back({"load_balancing_loss", S::load_balancing_loss});
  if (router.seq_aux_loss > 0.0) names.push_back({"seq_load_balancing_loss", S::seq_load_balancing_loss});
  if (router.global_aux_loss > 0.0)
    names.push_back({"global_load_balancing_loss", S::global_load_balancing_loss});
  if (router.z_loss > 0.0) names.push_back({"z_loss", S::z_loss});
  return names;
}

// The entropy of shares that sum to 1, relative to that of equal shares.
double relative_entropy(const std::vector<double>& shares) {
  if (shares.size() < 2) return 1.0;
  double entropy = 0.0;
  for (const double share : shares) entropy -= share > 0.0 ? share * std::log(share) : 0.0;
  return entropy / std::log(static_cast<double>(shares.size()));
}

void add_rows(LayerMetrics& metrics, int64_t layer, std::span<const double> sums) {
  std::vector<double> loads(sums.begin() + S::loads, sums.end());
  double processed = 0.0;
  for (const double load : loads) processed += load;
  for (double& load : loads) load /= std::max(processed, 1.0);
  metrics.rows.push_back({"moe/expert_load", layer, loads});
  metrics.rows.push_back({"moe/drop_rate", layer, {sums[S::dropped] / std::max(sums[S::choices], 1.0)}});
  metrics.rows.push_back({"moe/router_entropy", layer, {relative_entropy(loads)}});
}

}  // namespace

LayerSums expert_sums(const ExpertsConfig& config) {
  if (config.count() == 0) return {};
  const auto columns = static_cast<size_t>(S::columns(config.options.router.experts));
  const std::vector<LossName> losses = losses_in_use(config.options.router);
  const auto read = [layers = config.layers, count = config.count(), columns,
                     losses](std::span<const double> sums) {
    LayerMetrics metrics;
    for (const LossName& loss : losses) metrics.losses.emplace_back(loss.name, 0.0);
    size_t row = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer] == 0) continue;
      const std::span<const double> own = sums.subspan(columns * row++, columns);
      for (size_t i = 0; i < losses.size(); ++i) {
        const double mean = own[losses[i].column] / std::max(own[S::microbatches], 1.0);
        metrics.losses[i].second += mean / static_cast<double>(count);
        metrics.rows.push_back({std::string("moe/") + losses[i].name, static_cast<int64_t>(layer), {mean}});
      }
      add_rows(metrics, static_cast<int64_t>(layer), own);
    }
    return metrics;
  };
  return {config.count() * static_cast<int64_t>(columns), read};
}

}  // namespace teratron
