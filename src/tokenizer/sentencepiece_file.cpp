// A model of SentencePiece, run by its own library. Decoding is done here, so that it needs no
// whole text and loses no bytes.
#include "base/fail.h"
#include "tokenizer/encoder.h"
#include "tokenizer/splitters.h"

#ifdef TESSERA_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace tessera {

#ifdef TESSERA_HAVE_SENTENCEPIECE

namespace {

using sentencepiece::SentencePieceProcessor;

/// The model with the normalizer that transformers gives it: none, and a space in front or not. In
/// a message of protobuf later fields count: normalizer_spec (3) with precompiled_charsmap (2),
/// add_dummy_prefix (3) and remove_extra_whitespaces (4).
std::string as_in_transformers(const std::string& bytes, bool prefix) {
  return bytes + std::string("\x1A\x06\x12\x00\x18", 5) + (prefix ? '\1' : '\0') +
         std::string("\x20\x00", 2);
}

/// Whether the text has the space in front that a word has.
bool begins_word(std::string_view text) {
  return text.starts_with(' ') || text.starts_with("\xE2\x96\x81");
}

class SentencePieceEncoder : public TokenEncoder {
 public:
  SentencePieceEncoder(const std::string& path, const std::string& bytes,
                       const TokenizerSettings& settings)
      : prefix_(settings.prefix),
        prefix_behind_tokens_(settings.prefix_behind_tokens),
        has_plain_(settings.is_there) {
    const auto status = processor_.LoadFromSerializedProto(
        settings.is_there ? as_in_transformers(bytes, prefix_) : bytes);
    if (!status.ok())
      fail(ErrorKind::io,
           "[tokenizer] '{}' has {} bytes, but is no model of SentencePiece ({}), no JSON and no "
           "tiktoken file; the file is truncated, or of another kind",
           path, bytes.size(), status.ToString());
    std::vector<AddedToken> added;
    for (int id = 0; settings.is_there && id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id))
        added.push_back({processor_.IdToPiece(id), id, true});
    }
    for (const AddedToken& token : settings.added) {
      add_token(token, added, path, processor_.GetPieceSize(), [&](const std::string& text) {
        const int id = processor_.PieceToId(text);
        return processor_.IdToPiece(id) == text ? std::optional(id) : std::nullopt;
      });
    }
    added_ = AddedTokens(std::move(added));
    if (has_plain_)
      TESSERA_CHECK(plain_.LoadFromSerializedProto(as_in_transformers(bytes, false)).ok(),
                    "'{}' without its prefix", path);
  }
  void encode(std::string_view text, bool specials, std::vector<int32_t>& ids) const override {
    added_.cut(text, specials, ids, [&](size_t begin, size_t end) {
      std::vector<int> some;
      const std::string_view part = text.substr(begin, end - begin);
      const bool prefix =
          (begin == 0 || prefix_behind_tokens_) && !(has_plain_ && begins_word(part));
      const auto status = (prefix ? processor_ : plain_).Encode({part.data(), part.size()}, &some);
      TESSERA_CHECK(status.ok(), "SentencePiece: {}", status.ToString());
      ids.insert(ids.end(), some.begin(), some.end());
    });
  }
  const SentencePieceProcessor& processor() const { return processor_; }
  const std::vector<AddedToken>& added() const { return added_.tokens(); }

 private:
  SentencePieceProcessor processor_, plain_;  // plain_: without a space in front
  AddedTokens added_;
  bool prefix_, prefix_behind_tokens_, has_plain_;
};

}  // namespace

LoadedTokenizer load_sentencepiece(const std::string& path, const std::string& bytes,
                                   const TokenizerSettings& settings) {
  auto encoder = std::make_unique<SentencePieceEncoder>(path, bytes, settings);
  const auto& model = encoder->processor();
  LoadedTokenizer loaded;
  loaded.kind = settings.is_there ? "SentencePiece as in transformers" : "SentencePiece";
  for (int id = model.GetPieceSize(); id-- > 0;) {
    const std::string& piece = model.IdToPiece(id);
    const bool is_special = model.IsControl(id) || model.IsUnknown(id);
    std::string text = piece;
    if (model.IsByte(id))
      text = static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
    else if (!is_special)
      text = replaced(piece, "\xE2\x96\x81", " ");
    is_special ? loaded.set_special(id, text, piece) : loaded.set(id, text);
  }
  for (const AddedToken& token : encoder->added())
    token.special ? loaded.set_special(token.id, token.text, token.text)
                  : loaded.set(token.id, token.text);
  const auto known = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
  loaded.bos = known(model.bos_id());
  loaded.eos = known(model.eos_id());
  loaded.pad = known(model.pad_id());
  if (loaded.bos) loaded.before = {*loaded.bos};
  std::vector<int> ids;
  // A model that puts a space in front of a text drops it again when it decodes.
  loaded.drops_first_space =
      model.Encode("a", &ids).ok() && !ids.empty() && loaded.tokens[ids[0]].bytes.starts_with(' ');
  loaded.encoder = std::move(encoder);
  return loaded;
}

std::string sentencepiece_version() { return TESSERA_SENTENCEPIECE_VERSION; }

#else

LoadedTokenizer load_sentencepiece(const std::string& path, const std::string& bytes,
                                   const TokenizerSettings&) {
  fail(ErrorKind::unsupported,
       "[tokenizer] '{}' has {} bytes of neither JSON nor a tiktoken file. If it is a model of "
       "SentencePiece, install libsentencepiece-dev and configure again: this build has no "
       "SentencePiece",
       path, bytes.size());
}

std::string sentencepiece_version() { return ""; }

#endif

}  // namespace tessera
