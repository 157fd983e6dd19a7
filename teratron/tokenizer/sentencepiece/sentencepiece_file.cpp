#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"

#include "sentencepiece_model.pb.h"

#include "teratron/base/error.h"
#include "teratron/base/file.h"

namespace teratron {
namespace {

UserError not_a_model(const std::string& path, std::string what) {
  return data_error(
      {.what = std::move(what), .where = path, .fix = "pass the original .model file of SentencePiece"});
}

NormalizerSpec read_normalizer(const sentencepiece::NormalizerSpec& spec, bool whitespace_as_suffix) {
  return {.charsmap = spec.precompiled_charsmap(),
          .add_dummy_prefix = spec.add_dummy_prefix(),
          .remove_extra_whitespaces = spec.remove_extra_whitespaces(),
          .escape_whitespaces = spec.escape_whitespaces(),
          .whitespace_as_suffix = whitespace_as_suffix};
}

std::string or_default(const std::string& piece, const char* fallback) {
  return piece.empty() ? fallback : piece;
}

}  // namespace

SentencePieceSpec read_sentencepiece(const std::string& path) {
  const std::string bytes = read_text(path, {.kind = ExitCode::data});
  sentencepiece::ModelProto model;
  if (!model.ParseFromString(bytes) || model.pieces_size() == 0)
    throw not_a_model(path, "is not a SentencePiece model");
  const sentencepiece::TrainerSpec& trainer = model.trainer_spec();
  if (trainer.model_type() != 1 && trainer.model_type() != 2)
    throw not_a_model(path, fmt::format("has model type {}: only unigram (1) and BPE (2) are supported",
                                        trainer.model_type()));
  SentencePieceSpec spec{
      .kind = static_cast<SentencePieceSpec::Kind>(trainer.model_type()),
      .pieces = {},
      .byte_fallback = trainer.byte_fallback(),
      .unk_surface = trainer.unk_surface(),
      .bos_piece = or_default(trainer.bos_piece(), "<s>"),
      .eos_piece = or_default(trainer.eos_piece(), "</s>"),
      .pad_piece = or_default(trainer.pad_piece(), "<pad>"),
      .normalizer = read_normalizer(model.normalizer_spec(), trainer.treat_whitespace_as_suffix()),
      .denormalizer = {},
      .where = path};
  if (!model.denormalizer_spec().precompiled_charsmap().empty())
    spec.denormalizer = read_normalizer(model.denormalizer_spec(), false);
  spec.pieces.reserve(static_cast<size_t>(model.pieces_size()));
  for (const auto& piece : model.pieces()) {
    if (piece.type() < 1 || piece.type() > 6) {
      throw not_a_model(path,
                        fmt::format("piece {} has the unknown type {}", spec.pieces.size(), piece.type()));
    }
    spec.pieces.push_back({piece.piece(), piece.score(), static_cast<PieceType>(piece.type())});
  }
  return spec;
}

}  // namespace teratron
