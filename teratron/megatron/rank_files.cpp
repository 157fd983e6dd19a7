#include "teratron/megatron/rank_files.h"

#include <algorithm>
#include <charconv>
#include <compare>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/pickle/zip_archive.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view tracker_name = "latest_checkpointed_iteration.txt";

// Path relative to the source -> how to open the file.
using Tree = std::map<std::string, std::function<ByteSourcePtr()>>;

Tree tree_of_folder(const fs::path& folder) {
  Tree tree;
  std::error_code error;
  for (fs::recursive_directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (i.depth() >= 3) i.disable_recursion_pending();
    const fs::path path = i->path();
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored))
      tree[path.lexically_relative(folder).string()] = [path] { return open_bytes(path); };
  }
  return tree;
}

Tree tree_of_zip(const std::shared_ptr<const ZipArchive>& zip) {
  Tree tree;
  for (const auto& [name, entry] : zip->entries()) tree[name] = [zip, name] { return zip->open(name); };
  return tree;
}

std::optional<int64_t> digits(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct RankPath {
  std::string iteration;  // the folder above, with its path
  std::vector<int64_t> numbers;
};

struct Rank {
  int64_t pipeline = 0, tensor = 0, expert = 0;
  auto operator<=>(const Rank&) const = default;
};

// The numbers of a folder "mp_rank_01_002"; none for others.
std::vector<int64_t> rank_numbers(std::string_view name) {
  if (!name.starts_with("mp_rank_")) return {};
  name.remove_prefix(8);
  std::vector<int64_t> numbers;
  while (true) {
    const size_t end = std::min(name.find('_'), name.size());
    const std::optional<int64_t> number = digits(name.substr(0, end));
    if (!number) return {};
    numbers.push_back(*number);
    if (end == name.size()) return numbers;
    name.remove_prefix(end + 1);
  }
}

// Nullopt for what is not a model's file.
std::optional<RankPath> parse_rank(const std::string& path) {
  const fs::path file(path);
  if (file.filename() != "model_optim_rng.pt" && file.filename() != "model_rng.pt") return std::nullopt;
  const std::vector<int64_t> numbers = rank_numbers(file.parent_path().filename().string());
  if (numbers.empty() || numbers.size() > 3) return std::nullopt;
  return RankPath{.iteration = file.parent_path().parent_path().string(), .numbers = numbers};
}

// Whether the second of two numbers is the expert rank: Megatron-LM leaves the stage out where there is one.
bool has_experts_without_stages(const TorchFile& file) {
  const PickleValue* const args = file.root().find("args");
  const auto size = [args](std::string_view name) {
    const PickleValue* const value = args == nullptr ? nullptr : args->find(name);
    return value != nullptr && value->is(PickleValue::Kind::integer) ? value->integer() : 1;
  };
  return size("expert_model_parallel_size") > 1 && size("pipeline_model_parallel_size") == 1;
}

Rank rank_of(const std::vector<int64_t>& numbers, bool no_stages) {
  if (numbers.size() == 2 && no_stages) return {.tensor = numbers[0], .expert = numbers[1]};
  return {.pipeline = numbers.size() > 1 ? numbers[1] : 0,
          .tensor = numbers[0],
          .expert = numbers.size() > 2 ? numbers[2] : 0};
}

// Opens files and notes their bytes.
class Opener {
 public:
  Opener(const Tree& tree, MegatronFiles& files) : tree_(tree), files_(files) {}

  bool has(const std::string& path) const { return tree_.contains(path); }
  std::shared_ptr<const TorchFile> open(const std::string& path) const {
    files_.bytes.push_back(tree_.at(path)());
    return std::make_shared<const TorchFile>(files_.bytes.back(), files_.where + "/" + printable(path, 400));
  }

 private:
  const Tree& tree_;
  MegatronFiles& files_;
};

// Opens the optimizer's files beside a model's file.
void open_optimizer(const Opener& opener, const std::string& model, MegatronRankFiles& files) {
  const fs::path folder = fs::path(model).parent_path();
  const std::string distributed = (folder / "distrib_optim.pt").string();
  if (opener.has(distributed)) files.distributed = opener.open(distributed);
  while (fs::path(model).filename() == "model_rng.pt") {
    const fs::path rank = folder.string() + fmt::format("_{:03}", files.data_parallel.size());
    const std::string path = (rank / "optim.pt").string();
    if (!opener.has(path)) return;
    files.data_parallel.push_back(opener.open(path));
  }
}

// The name of the folder that the tracker file means; empty without one.
std::string tracked(const Tree& tree) {
  for (const auto& [path, open] : tree) {
    if (fs::path(path).filename() != tracker_name) continue;
    const ByteSourcePtr bytes = open();
    std::string text = read_bytes(*bytes, std::min<int64_t>(bytes->size(), 64), 0);
    text.erase(std::min(text.find_last_not_of(" \r\n\t") + 1, text.size()));
    const std::optional<int64_t> number = digits(text);
    return number ? fmt::format("iter_{:07}", *number) : text;
  }
  return {};
}

std::string choose_iteration(const Tree& tree, const std::set<std::string>& found,
                             std::optional<int64_t> step, const std::string& where) {
  const std::string wanted = step ? fmt::format("iter_{:07}", *step) : tracked(tree);
  for (const std::string& folder : found) {
    if (!wanted.empty() && fs::path(folder).filename() == wanted) return folder;
  }
  if (found.contains("") && !step) return "";
  if (step || found.empty()) {
    throw checkpoint_error(
        {.what = step ? fmt::format("there is no iteration {}", *step)
                      : "there is no mp_rank_XX/model_optim_rng.pt of Megatron-LM",
         .where = where,
         .fix =
             "Name the --save folder of a Megatron-LM run in format 'torch', or one of its iter_* folders"});
  }
  return *found.rbegin();  // "release" follows every "iter_"
}

[[noreturn]] void refuse_ranks(const std::string& what, const MegatronFiles& files) {
  throw checkpoint_error(
      {.what = what, .where = files.where, .fix = "Copy the folders mp_rank_* of all ranks"});
}

// All ranks of a stage have the same numbers of tensor and expert ranks.
void check_ranks(const MegatronFiles& files) {
  for (const auto& stage : files.stages) {
    if (stage.size() != files.stages[0].size())
      refuse_ranks("pipeline stages have different numbers of tensor ranks", files);
    for (const MegatronRankFiles& rank : stage) {
      if (rank.experts.size() != files.stages[0][0].experts.size())
        refuse_ranks("tensor ranks have different numbers of expert ranks", files);
    }
  }
}

void open_ranks(const Tree& tree, const std::string& iteration, bool with_optimizer, MegatronFiles& files) {
  const Opener opener(tree, files);
  std::map<std::vector<int64_t>, std::string> numbered;
  for (const auto& [path, open] : tree) {
    const auto rank = parse_rank(path);
    if (rank && rank->iteration == iteration) numbered[rank->numbers] = path;
  }
  const auto& [first, first_path] = *numbered.begin();
  const bool no_stages =
      first.size() == 2 && has_experts_without_stages(TorchFile(tree.at(first_path)(), files.where));
  std::map<Rank, std::string> paths;
  for (const auto& [numbers, path] : numbered) paths[rank_of(numbers, no_stages)] = path;
  auto& stages = files.stages;
  for (const auto& [rank, path] : paths) {
    if (rank.expert > 0 && !stages.empty() && !stages.back().empty()) {
      auto& experts = stages.back().back().experts;
      const Rank expected{static_cast<int64_t>(stages.size()) - 1,
                          static_cast<int64_t>(stages.back().size()) - 1,
                          static_cast<int64_t>(experts.size()) + 1};
      if (rank != expected)
        refuse_ranks(fmt::format("expert rank {} of tensor rank {} of pipeline rank {} is missing",
                                 expected.expert, expected.tensor, expected.pipeline),
                     files);
      experts.push_back(opener.open(path));
      continue;
    }
    if (rank.tensor == 0 && rank.pipeline == static_cast<int64_t>(stages.size())) stages.emplace_back();
    const Rank expected{std::max<int64_t>(static_cast<int64_t>(stages.size()) - 1, 0),
                        stages.empty() ? 0 : static_cast<int64_t>(stages.back().size()), 0};
    if (rank != expected)
      refuse_ranks(
          fmt::format("tensor rank {} of pipeline rank {} is missing", expected.tensor, expected.pipeline),
          files);
    MegatronRankFiles& opened = stages.back().emplace_back();
    opened.model = opener.open(path);
    opened.where = files.where + "/" + printable(path, 400);
    opened.with_optimizer = with_optimizer;
    if (with_optimizer) open_optimizer(opener, path, opened);
  }
  check_ranks(files);
}

}  // namespace

bool is_release(const fs::path& folder) {
  const fs::path path = folder.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename() == "release";
}

MegatronFiles open_megatron_files(const fs::path& source, std::optional<int64_t> step, bool with_optimizer) {
  MegatronFiles files{.where = printable(source.string(), 4096)};
  std::error_code ignored;
  Tree tree;
  if (fs::is_directory(source, ignored)) {
    tree = tree_of_folder(source);
  } else {
    const ByteSourcePtr bytes = open_bytes(source);
    std::shared_ptr<const ZipArchive> zip;
    if (ZipArchive::is_zip(*bytes)) zip = std::make_shared<const ZipArchive>(bytes, files.where);
    const auto is_pickle = [](const auto& entry) { return entry.first.ends_with("/data.pkl"); };
    if (zip == nullptr || std::ranges::any_of(zip->entries(), is_pickle)) {
      files.bytes = {bytes};
      files.release = is_release(source.parent_path().parent_path());
      files.stages = {{{.model = std::make_shared<const TorchFile>(bytes, files.where),
                        .where = files.where,
                        .with_optimizer = with_optimizer}}};
      return files;
    }
    tree = tree_of_zip(zip);
  }
  std::set<std::string> iterations;
  for (const auto& [path, open] : tree) {
    if (const auto rank = parse_rank(path)) iterations.insert(rank->iteration);
  }
  const std::string iteration = choose_iteration(tree, iterations, step, files.where);
  files.release = is_release(iteration.empty() ? source : fs::path(iteration));
  open_ranks(tree, iteration, with_optimizer, files);
  return files;
}

}  // namespace teratron
