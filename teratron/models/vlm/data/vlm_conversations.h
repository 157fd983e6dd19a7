// Conversations about images for supervised finetuning, packed into rows of tokens.
//
// Attention stays within each conversation, positions restart, and the loss is that of the learned tokens;
// none is at the rows of an image but the last, nor at the token before an image. No row cuts an image.
// Images are read and decoded when their sample is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/data/dataset_builder.h"
#include "teratron/data/epoch_order.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/models/vlm/data/image_files.h"
#include "teratron/models/vlm/data/image_lines.h"
#include "teratron/models/vlm/data/vlm_schema.h"

namespace teratron {

/// Name of the template of LLaVA's first stage: begin of text, images, answer, newline. Questions are left
/// out.
inline constexpr std::string_view plain_template = "plain";

struct VlmConversationOptions {
  DataSources sources = {};
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  SftPacking packing = SftPacking::best_fit;
  OverlongConversations overlong = OverlongConversations::error;
  const ChatTemplate* chat = nullptr;  // null: plain_template
  const Tokenizer& tokenizer;
  int64_t image_token = 0;
  ImageSizes sizes = {};
  std::shared_ptr<const ImageFiles> images = {};
};

class VlmConversations : public Dataset {
 public:
  /// `samples`: nullopt: one epoch. `shuffles`: the rows of each epoch. UserError(data) has each kind of
  /// problem once, with a count.
  VlmConversations(const std::vector<JsonLine>& lines, const VlmConversationOptions& options,
                   std::optional<int64_t> samples, bool shuffles);

  int64_t size() const override { return order_->size(); }
  /// Fills the columns of vlm_schema() with segments.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return report_; }
  std::string report() const override { return report_; }

 private:
  struct Conversation {
    TokenizedConversation text;       // with one token for each image
    std::vector<std::string> images;  // that it has
    std::string where;
  };
  struct Line;
  Line read(const JsonLine& line) const;
  std::vector<TokenizedConversation> tokenized(const teratron::Conversation& conversation) const;
  TokenizedConversation expanded(const Conversation& conversation) const;
  int64_t length_of(const Conversation& conversation) const;
  bool fits(Conversation& conversation) const;
  void check_tokenizer() const;
  void pack();

  VlmConversationOptions options_;
  std::optional<ChatTemplate> chat_;
  int32_t pad_ = 0;
  std::vector<Conversation> conversations_;
  std::vector<std::vector<int64_t>> rows_;  // conversations of each
  std::optional<EpochOrder> order_;         // row of each sample
  std::string report_;
};

/// The datasets of the splits.
Datasets build_vlm_conversations(const VlmConversationOptions& options);

}  // namespace teratron
