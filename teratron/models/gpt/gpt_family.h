// GPT: decoder-only language models (GPT-2, Llama, Mistral, Qwen...).
#pragma once

#include "teratron/models/family.h"
#include "teratron/models/gpt/data/gpt_builder.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

Family gpt_family();

/// The plan of a GPT over batches of this schema (gpt_schema()).
ModelPlan gpt_plan(const GPTConfig& config, const BatchSchema& batch);
/// The checks of decoders.
void check_decoder(const Arguments& args, std::vector<Problem>& problems);
/// The masks that the flags select.
GPTMaskOptions gpt_masks(const Arguments& args);
/// The template of conversations that the flags select. UserError(config) if there is none.
ChatTemplate chat_template_of(const Arguments& args);
/// --sft-packing and --sft-overlong.
SftPacking sft_packing(const Arguments& args);
OverlongConversations overlong_conversations(const Arguments& args);
/// What the data flags select.
GPTDataOptions gpt_data_options(const DataRequest& request);

}  // namespace teratron
