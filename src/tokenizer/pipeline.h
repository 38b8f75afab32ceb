// The encoder of tokenizers that cut a text in stages: added tokens, normalizers, pre-tokenizers,
// then a model for each piece.
#pragma once

#include <mutex>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/encoder.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/splitters.h"

namespace tessera {

struct PipelineStages {
  AddedTokens added;  ///< found in the text as it is
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  AddedTokens added_normalized;  ///< found behind the normalizers, in normalized form
  std::vector<std::unique_ptr<Splitter>> splitters;
  std::unique_ptr<TokenModel> model;
};

class TokenPipeline : public TokenEncoder {
 public:
  explicit TokenPipeline(PipelineStages stages);
  ~TokenPipeline() override;
  void encode(std::string_view text, bool special_in_text,
              std::vector<int32_t>& ids) const override;

 private:
  struct Workspace;
  class Stage;
  std::unique_ptr<Workspace> take_workspace() const;
  void encode_text(std::string_view text, bool first, bool specials, Workspace& space,
                   std::vector<int32_t>& ids) const;
  void encode_pieces(std::string_view text, bool first, Workspace& space,
                     std::vector<int32_t>& ids) const;

  PipelineStages stages_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> spaces_;  // those not in use
};

}  // namespace tessera
