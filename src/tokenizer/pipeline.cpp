#include "tokenizer/pipeline.h"

#include "tokenizer/piece_cache.h"
#include "tokenizer/utf8.h"

namespace tessera {

struct TokenPipeline::Workspace {
  MatchSpace match;
  PieceCache cache;
};

/// The sink behind a splitter: the next splitter, or the model.
class TokenPipeline::Stage : public PieceSink {
 public:
  Stage(const PipelineStages& stages, size_t next, Workspace& space, std::vector<int32_t>& ids)
      : stages_(stages), next_(next), space_(space), ids_(ids) {}

  void take(std::string_view piece, bool first) override {
    if (next_ < stages_.splitters.size()) {
      Stage behind(stages_, next_ + 1, space_, ids_);
      return stages_.splitters[next_]->split(piece, first, space_.match, behind);
    }
    if (piece.empty() || space_.cache.find(piece, ids_)) return;
    const size_t before = ids_.size();
    stages_.model->encode(piece, ids_);
    space_.cache.add(piece, ids_.data() + before, ids_.size() - before);
  }

 private:
  const PipelineStages& stages_;
  size_t next_;
  Workspace& space_;
  std::vector<int32_t>& ids_;
};

TokenPipeline::TokenPipeline(PipelineStages stages) : stages_(std::move(stages)) {}
TokenPipeline::~TokenPipeline() = default;

std::unique_ptr<TokenPipeline::Workspace> TokenPipeline::take_workspace() const {
  const std::lock_guard lock(mutex_);
  if (spaces_.empty()) return std::make_unique<Workspace>();
  std::unique_ptr<Workspace> space = std::move(spaces_.back());
  spaces_.pop_back();
  return space;
}

void TokenPipeline::encode_pieces(std::string_view text, bool first, Workspace& space,
                                  std::vector<int32_t>& ids) const {
  Stage(stages_, 0, space, ids).take(text, first);
}

void TokenPipeline::encode_text(std::string_view text, bool first, bool specials, Workspace& space,
                                std::vector<int32_t>& ids) const {
  std::string normalized;
  for (const auto& normalizer : stages_.normalizers) {
    // A text without its first character begins further on.
    first = first &&
            (text.empty() ||
             !normalizer->normalize(text.substr(0, utf8_length(text, 0)), space.match).empty());
    normalized = normalizer->normalize(text, space.match);
    text = normalized;
  }
  stages_.added_normalized.cut(text, specials, ids, [&](size_t begin, size_t end) {
    encode_pieces(text.substr(begin, end - begin), first && begin == 0, space, ids);
  });
}

void TokenPipeline::encode(std::string_view text, bool special_in_text,
                           std::vector<int32_t>& ids) const {
  std::unique_ptr<Workspace> space = take_workspace();
  stages_.added.cut(text, special_in_text, ids, [&](size_t begin, size_t end) {
    encode_text(text.substr(begin, end - begin), begin == 0, special_in_text, *space, ids);
  });
  const std::lock_guard lock(mutex_);
  spaces_.push_back(std::move(space));
}

}  // namespace tessera
