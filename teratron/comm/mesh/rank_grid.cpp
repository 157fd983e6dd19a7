#include "teratron/comm/mesh/rank_grid.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using Names = std::vector<std::string>;
constexpr std::array<const char*, 7> kAxisNames = {"tp", "cp", "dp", "pp", "ep", "etp", "edp"};
constexpr std::array<const char*, 5> kOrderNames = {"tp", "cp", "ep", "dp", "pp"};

bool contains(const auto& list, const auto& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

int64_t position(const GridView& view, Axis axis) {
  const auto it = std::find(view.axes.begin(), view.axes.end(), axis);
  TERATRON_ASSERT(it != view.axes.end(), "axis {} does not belong to this view", name_of(axis));
  return it - view.axes.begin();
}

/// Rank distance between neighbours along one axis.
int64_t stride(const GridView& view, Axis axis) {
  const auto end = view.sizes.begin() + position(view, axis);
  return std::accumulate(view.sizes.begin(), end, int64_t{1}, std::multiplies<>());
}

/// Rank offsets of all points spanned by the axes with selected[i] == value, first axis fastest.
std::vector<int64_t> offsets(const GridView& view, const std::vector<bool>& selected, bool value) {
  std::vector<int64_t> result = {0};
  for (size_t i = 0; i < view.axes.size(); ++i) {
    const size_t before = result.size();
    const int64_t distance = stride(view, view.axes[i]);
    for (int64_t step = 1; selected[i] == value && step < view.sizes[i]; ++step) {
      for (size_t k = 0; k < before; ++k) result.push_back(result[k] + step * distance);
    }
  }
  return result;
}

RankGroups enumerate(const GridView& view, const std::vector<Axis>& axes) {
  std::vector<bool> inside(view.axes.size());
  for (Axis axis : axes) inside[position(view, axis)] = true;
  const std::vector<int64_t> within = offsets(view, inside, true);
  RankGroups groups;
  for (int64_t first : offsets(view, inside, false)) {
    auto& group = groups.emplace_back(within);
    for (int64_t& rank : group) rank += first;
  }
  return groups;
}

std::optional<int64_t> product(std::initializer_list<int64_t> sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) {
    if (size < 1 || result > std::numeric_limits<int64_t>::max() / size) return std::nullopt;
    result *= size;
  }
  return result;
}

void check_sizes(const MeshOptions& options, int64_t etp, int64_t world, std::vector<Problem>& problems) {
  const std::pair<const char*, int64_t> sizes[] = {{"tp", options.tp}, {"pp", options.pp},
                                                   {"cp", options.cp}, {"ep", options.ep},
                                                   {"etp", etp},       {"world size", world}};
  for (const auto& [name, size] : sizes) {
    if (size < 1)
      problems.push_back({fmt::format("{} = {} is less than 1", name, size), "", "use 1 or more"});
  }
  if (!problems.empty()) return;
  const auto check_divides = [&](const std::string& formula, std::optional<int64_t> factor) {
    if (factor && world % *factor == 0) return;
    const std::string value = factor ? std::to_string(*factor) : "beyond 2^63";
    problems.push_back({fmt::format("{} ranks are not a multiple of {} = {}", world, formula, value), "",
                        "change the number of ranks or these sizes"});
  };
  const auto model = product({options.tp, options.cp, options.pp});
  check_divides(fmt::format("tp {} x cp {} x pp {}", options.tp, options.cp, options.pp), model);
  check_divides(fmt::format("etp {} x ep {} x pp {}", etp, options.ep, options.pp),
                product({etp, options.ep, options.pp}));
  if (options.dp != 0 && model && world % *model == 0 && options.dp != world / *model) {
    problems.push_back({fmt::format("dp = {}, but {} ranks / (tp {} x cp {} x pp {}) leave {}", options.dp,
                                    world, options.tp, options.cp, options.pp, world / *model),
                        "", fmt::format("start {} ranks for each dp, or leave dp out", *model)});
  }
}

/// Parses and checks the order string; `sizes` are those of kOrderNames. Omitted axes of size 1 go last.
Names parse_order(const std::string& order, const std::array<int64_t, 5>& sizes,
                  std::vector<Problem>& problems) {
  const std::string where = fmt::format("rank order '{}'", printable(order));
  const std::string fix = "name each of tp, cp, ep, dp, pp once, separated by '-', fastest first";
  Names names;
  for (size_t begin = 0, end = 0; begin <= order.size(); begin = end + 1) {
    end = std::min(order.find('-', begin), order.size());
    std::string name = order.substr(begin, end - begin);
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (!contains(kOrderNames, name)) {
      problems.push_back({fmt::format("unknown axis '{}'", printable(name)), where, fix});
    } else if (contains(names, name)) {
      problems.push_back({fmt::format("axis '{}' appears twice", name), where, fix});
    }
    names.push_back(std::move(name));
  }
  for (size_t i = 0; i < kOrderNames.size(); ++i) {
    if (contains(names, std::string(kOrderNames[i]))) continue;
    if (sizes[i] != 1) {
      problems.push_back(
          {fmt::format("axis '{}' of size {} is missing", kOrderNames[i], sizes[i]), where, fix});
    }
    names.emplace_back(kOrderNames[i]);
  }
  return names;
}

GridView make_view(const Names& order, const std::vector<std::pair<std::string, Axis>>& axes,
                   const std::vector<int64_t>& sizes) {
  GridView view;
  for (const std::string& name : order) {
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].first != name) continue;
      view.axes.push_back(axes[i].second);
      view.sizes.push_back(sizes[i]);
    }
  }
  return view;
}

void throw_if_any(std::vector<Problem>& problems) {
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

std::string name_of(Axis axis) {
  return kAxisNames[static_cast<size_t>(axis)];
}

std::string to_string(AxisSet axes) {
  std::string text;
  for (size_t i = 0; i < kAxisNames.size(); ++i) {
    if (!axes.contains(static_cast<Axis>(i))) continue;
    text += (text.empty() ? "" : "-") + std::string(kAxisNames[i]);
  }
  return text;
}

RankGrid::RankGrid(const MeshOptions& options, int64_t world) : world_size(world) {
  const int64_t etp = options.etp == 0 ? options.tp : options.etp;
  std::vector<Problem> problems;
  check_sizes(options, etp, world, problems);
  throw_if_any(problems);

  const int64_t dp = world / (options.tp * options.cp * options.pp);
  const int64_t edp = world / (etp * options.ep * options.pp);
  const Names order = parse_order(
      options.order, {std::max(options.tp, etp), options.cp, options.ep, std::max(dp, edp), options.pp},
      problems);
  throw_if_any(problems);
  dense = make_view(order, {{"tp", Axis::tp}, {"cp", Axis::cp}, {"dp", Axis::dp}, {"pp", Axis::pp}},
                    {options.tp, options.cp, dp, options.pp});
  expert = make_view(order, {{"tp", Axis::etp}, {"ep", Axis::ep}, {"dp", Axis::edp}, {"pp", Axis::pp}},
                     {etp, options.ep, edp, options.pp});
  const bool same_pipelines = stride(dense, Axis::pp) == stride(expert, Axis::pp);
  if (options.pp == 1 || (same_pipelines && (order.back() == "pp" || dp == edp))) return;
  throw config_error(
      {.what = fmt::format(
           "dense and expert layers would have different pipelines: tp {} x cp {}, but etp {} x ep {}",
           options.tp, options.cp, etp, options.ep),
       .where = fmt::format("rank order '{}'", printable(options.order)),
       .fix = "use an order that ends with pp, or sizes with tp x cp = etp x ep"});
}

int64_t RankGrid::size(Axis axis) const {
  const GridView& view = contains(dense.axes, axis) ? dense : expert;
  return view.sizes[position(view, axis)];
}

RankGroups RankGrid::groups(const std::vector<Axis>& axes) const {
  const bool in_dense =
      std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return contains(dense.axes, axis); });
  return enumerate(in_dense ? dense : expert, axes);
}

RankGroups RankGrid::embedding_groups() const {
  RankGroups result = groups({Axis::pp});
  for (auto& ranks : result) {
    if (ranks.size() > 2) ranks.erase(ranks.begin() + 1, ranks.end() - 1);
  }
  return result;
}

RankGroups rank_groups(const MeshOptions& options, int64_t world_size, const std::vector<Axis>& axes) {
  return RankGrid(options, world_size).groups(axes);
}

}  // namespace teratron
