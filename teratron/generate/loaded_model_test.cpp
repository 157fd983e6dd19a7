#include "teratron/generate/loaded_model.h"

#include "teratron/settings/component_options.h"
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

class LoadedModelTest : public SmallRun {
 protected:
  /// The model of a run, with settings that the user gives: what the error says, or "".
  std::string problem(const std::function<void(Arguments&)>& give, const std::string& field) const {
    ParsedArguments given{.program = {.names = {"eval", "inference"}, .models_are_saved = true}};
    given.args.load = (folder_ / "run").string();
    give(given.args);
    given.sources = {{"load", "--load"}, {field, flag_of(field)}};
    SingleWorld world;
    const Mesh mesh(mesh_options(given.args), world);
    try {
      load_for_inference(given, {}, mesh);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      return error.what();
    }
    return "";
  }
};

TEST_F(LoadedModelTest, IsTheCheckpoints) {
  ASSERT_EQ(train(flags("run", {"--train-iters", "1", "--lr-warmup-iters", "0", "--position-embedding-type",
                                "rope"})),
            ExitCode::ok);
  const std::string parallel = problem([](Arguments& a) { a.parallel_residual = true; }, "parallel_residual");
  EXPECT_NE(parallel.find("parallel_residual is true, but false in the checkpoint"), std::string::npos)
      << parallel;
  EXPECT_NE(parallel.find("--parallel-residual"), std::string::npos) << parallel;
  EXPECT_NE(parallel.find("Leave it out"), std::string::npos) << parallel;
  EXPECT_NE(problem([](Arguments& a) { a.rotary_base = 500000; }, "rotary_base"), "");
  EXPECT_NE(problem([](Arguments& a) { a.norm_epsilon = 1e-3; }, "norm_epsilon"), "");
  // The checkpoint's value; one that has no effect on it; one on which no tensor depends; no model's at all.
  EXPECT_EQ(problem([](Arguments& a) { a.hidden_size = 16; }, "hidden_size"), "");
  EXPECT_EQ(problem([](Arguments& a) { a.mscale = 2.0; }, "mscale"), "");
  EXPECT_EQ(problem([](Arguments& a) { a.max_position_embeddings = 64; }, "max_position_embeddings"), "");
  EXPECT_EQ(problem([](Arguments& a) { a.seq_length = 4; }, "seq_length"), "");
}

}  // namespace
}  // namespace teratron
