#include "teratron/bench/serve_bench.h"

#include <optional>

#include "teratron/base/log.h"
#include "teratron/device/device.h"
#include "teratron/models/family.h"
#include "teratron/models/precision.h"
#include "teratron/serve/run_server.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/tokenizer/null_tokenizer.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {

void bench_serve(const Arguments& args, const ServeBenchOptions& options,
                 const std::function<bool()>& should_stop) {
  const at::Device device = choose_device(args);
  ParameterSet parameters({.dtype = model_dtype(args), .device = device, .seed = 1});
  const int64_t vocabulary = args.vocab_size.value_or(1);
  const ModelPlan plan = find_family(options.family).plan(args, vocabulary);
  const LanguageModel model = language_model(plan, parameters, {});
  const std::unique_ptr<Tokenizer> tokenizer =
      build_tokenizer({.type = "NullTokenizer", .vocab_size = vocabulary - 1});
  SingleHostGroup ranks;
  Engine local(model, {.tokenizer = tokenizer.get(), .max_rows = options.batch, .longest = options.longest},
               ranks);
  RankedEngine engine(local, ranks);
  Metrics metrics;
  HttpServer server({.port = options.port});
  const int port = server.bind();
  print("serving {} at http://127.0.0.1:{}", options.name, port);
  run_server(engine, server, metrics,
             {.routes = {.model = {.tokenizer = *tokenizer, .name = options.name, .limits = local.limits()},
                         .no_chat = "random weights have no chat template"}},
             should_stop);
}

}  // namespace teratron
