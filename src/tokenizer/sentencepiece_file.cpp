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

class SentencePieceEncoder : public TokenEncoder {
 public:
  explicit SentencePieceEncoder(const std::string& path, const std::string& bytes) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok())
      fail(ErrorKind::io,
           "[tokenizer] '{}' has {} bytes, but is no model of SentencePiece ({}), no JSON and no "
           "tiktoken file; the file is truncated, or of another kind",
           path, bytes.size(), status.ToString());
  }
  void encode(std::string_view text, bool, std::vector<int32_t>& ids) const override {
    std::vector<int> some;
    const auto status = processor_.Encode({text.data(), text.size()}, &some);
    TESSERA_CHECK(status.ok(), "SentencePiece: {}", status.ToString());
    ids.insert(ids.end(), some.begin(), some.end());
  }
  const sentencepiece::SentencePieceProcessor& processor() const { return processor_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

LoadedTokenizer load_sentencepiece(const std::string& path, const std::string& bytes) {
  auto encoder = std::make_unique<SentencePieceEncoder>(path, bytes);
  const auto& model = encoder->processor();
  LoadedTokenizer loaded;
  loaded.kind = "SentencePiece";
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

bool have_sentencepiece() { return true; }

#else

LoadedTokenizer load_sentencepiece(const std::string& path, const std::string& bytes) {
  fail(ErrorKind::unsupported,
       "[tokenizer] '{}' has {} bytes of neither JSON nor a tiktoken file. If it is a model of "
       "SentencePiece, install libsentencepiece-dev and configure again: this build has no "
       "SentencePiece",
       path, bytes.size());
}

bool have_sentencepiece() { return false; }

#endif

}  // namespace tessera
