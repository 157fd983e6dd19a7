// Runs commands on the ranks of a job.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/world.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/registry.h"

namespace teratron {

/// The work of one rank, with settings on which all ranks agree.
using RankFunction = std::function<ExitCode(const ParsedArguments&, World&, const StopSignals&)>;

/// Joins the job that the environment describes (that of a launcher, or a single rank) and runs `work` on the
/// ranks of this process. `args`: flags of `pretrain FAMILY`; --help prints them instead. Returns the exit
/// code.
int run_job(std::span<const std::string> args, const JobModel& model, const RankFunction& work);

/// Runs `body` on all ranks of the job as one model of --pipeline-model-parallel-size stages; the other ranks
/// are tensor-parallel. Experts may span more ranks than dense layers (--expert-model-parallel-size,
/// --expert-tensor-parallel-size). Several groups of tensor-parallel ranks then compute the same dense layers
/// (generate/model_ranks.h). UserError(config) if the sizes are set to other numbers.
void run_model_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body);
/// run_model_parallel() with --context-parallel-size ranks for each sequence.
void run_context_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body);
/// Runs `body` on replicas of a model of --tensor-model-parallel-size (or as many as experts span) x
/// --pipeline-model-parallel-size ranks, as many as the job has ranks for. UserError(config) if they do not
/// divide its ranks.
void run_replicas(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body);

}  // namespace teratron
