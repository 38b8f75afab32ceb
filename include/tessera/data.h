// Data sources, and the Batcher that feeds their batches to a Session, slice by slice.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tessera/dim.h"
#include "tessera/dtype.h"

namespace tessera {

class Session;
class TokenFile;

/// One named tensor of every example. `dims` are the dims of one example, without the batch dim.
struct DataField {
  std::string name;
  DType dtype = DType::float32;
  std::vector<Dim> dims;
};

/// A box of one field of one example, and its destination. Element (i0, i1, ...) of the box, with
/// i_d < extent[d], is element (offset[d] + i_d) of the field; it is written to `data` + sum i_d *
/// strides[d] elements. The vectors have one entry per dim of the field; for a scalar field they
/// are empty.
struct DataBox {
  void* data = nullptr;
  std::vector<int64_t> offset, extent, strides;
};

/// A fixed set of examples with random access. Several threads read it at once, also while the
/// model runs (BatchOptions::readers), so reading must not change a source. To write your own
/// source, override these three functions.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// The fields, in an order that never changes.
  virtual const std::vector<DataField>& fields() const = 0;
  /// Number of examples, at least 1.
  virtual int64_t examples() const = 0;
  /// Writes one box of field number `field` of one example, in the field's dtype. The caller
  /// ensures that example < examples() and that the box lies within the field. Throws io errors.
  virtual void read(int64_t example, int field, const DataBox& box) const = 0;
  /// Says which data these are, wherever they lie: ranks of a job compare it, and --resume does.
  /// By default the number of examples and a checksum of at most 4,096 of them.
  /// What a user should know of the data before training on it; "" if there is nothing.
  virtual std::string warning() const { return ""; }
  virtual std::string fingerprint() const;
};

/// How TextData splits a file into examples, and the names of its fields.
struct TextOptions {
  int64_t length = 64;  ///< tokens of one example
  /// The part of the file to use, as fractions of its tokens. Training on 0 to 0.9 and evaluating
  /// on 0.9 to 1 holds out the last 10 %; the two parts share no token.
  double first = 0.0, last = 1.0;
  /// Of a file without a header; 1: every byte is a token; 2, 4: little-endian uint16, uint32.
  int token_bytes = 1;
  int64_t vocabulary = 0;  ///< tokens are below it; 0: 256, 65,536 or 2^31. A larger token in the
                           ///< file is an io error
  std::string inputs = "inputs", targets = "targets", dim = "length";
  /// Names of fields about the documents in a window; empty: there is no such field.
  std::string segments = {};   ///< int32: 1 for tokens of the first document in it, 2 for the next
  std::string positions = {};  ///< int32: from 0, and again from 0 where a document begins
  std::string weights = {};    ///< float32: 0 where the target belongs to the next document, else 1
  /// The token that ends every document, for files that do not say where documents begin. -1: as
  /// the file's companion FILE.json says, if there is one.
  int64_t document_end = -1;
};

/// The tokens of a memory-mapped file. Example i is the window of length + 1 tokens that starts at
/// token i * length of the used part: `inputs` (int32 [length]) are its first, `targets` its last
/// `length` tokens. There are floor((tokens - 1) / length) examples. The file must not be truncated
/// while it is mapped. It is one of
/// - CORPUS.idx, CORPUS.bin or CORPUS: a corpus of Megatron, its tokens and its index. It says
/// where
///   documents begin. CORPUS.json, if `tessera tokenize` wrote it, has the size of the vocabulary.
/// - a .bin file of llm.c (of GPT-2's uint16 or Llama 3's uint32 tokens);
/// - any other file: tokens of token_bytes each.
class TextData : public DataSource {
 public:
  /// Throws io errors for a missing, empty or too short file, for bytes that are not whole tokens
  /// and for an index that disagrees with its tokens; usage errors for bad options, for a corpus
  /// whose vocabulary is larger than `vocabulary`, and for fields about documents of a file that
  /// has none.
  explicit TextData(const std::string& path, const TextOptions& options = {});

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return examples_; }
  void read(int64_t example, int field, const DataBox& box) const override;
  /// A checksum of the file, or of 256 MiB of it, evenly spread, if it is longer; with the options.
  std::string fingerprint() const override;
  int64_t vocabulary() const { return options_.vocabulary; }

 private:
  enum class Content { inputs, targets, segments, positions, weights };
  void read_tokens(int64_t start, const DataBox& box) const;
  void read_documents(int64_t window, Content content, const DataBox& box) const;

  std::string path_;
  TextOptions options_;
  std::vector<DataField> fields_;
  std::vector<Content> contents_;  // of fields_
  std::shared_ptr<const TokenFile> file_;
  int64_t begin_ = 0, examples_ = 0;  // begin_ in tokens of the file
};

/// One source of a blend. Its weight is relative to the sum of weights.
struct BlendPart {
  double weight = 1;
  std::shared_ptr<const DataSource> source;
  std::string name;  ///< for messages
};

/// Several sources with the same fields as one. Its examples are a fixed multiset, of which each
/// part has its share by weight, to one example; the order comes from the Batcher. So what a step
/// reads is a pure function of seed and step, and nothing is held in memory.
class BlendData : public DataSource {
 public:
  /// `repeat` (for training): as many examples as it takes to have every example of every part at
  /// least once, so parts of too few examples come several times. Without (for evaluation): as many
  /// as the shares allow with no example twice, evenly spread over each part. Throws usage errors
  /// for no parts, weights that are not positive, and parts with different fields.
  explicit BlendData(std::vector<BlendPart> parts, bool repeat = true);

  /// Where an example comes from.
  struct Place {
    int64_t part, example;
  };
  Place place(int64_t example) const;

  const std::vector<DataField>& fields() const override { return parts_[0].source->fields(); }
  int64_t examples() const override { return begins_.back(); }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;  ///< those of the parts, with weights
  std::string warning() const override;      ///< of the first part that has one

 private:
  std::vector<BlendPart> parts_;
  std::vector<int64_t> begins_;  // of each part's examples, and the end
};

struct IdxOptions {
  DType image_dtype = DType::float32;  ///< float32: scaled to [0, 1]. uint8: as in the file
  std::string images = "images", labels = "labels", rows = "rows", cols = "cols",
              channels = "channels";
};

/// Images and labels from a pair of IDX files (the format of MNIST), plain or gzip, held in memory
/// as bytes: `images` [rows, cols], or [channels, rows, cols] if their file has four dims, and
/// `labels` (int32, scalar).
class IdxData : public DataSource {
 public:
  /// Throws io errors for a missing or truncated file, a wrong magic number, extra bytes at the
  /// end, no images, and different numbers of images and labels; a usage error for an image dtype
  /// other than float32 and uint8.
  IdxData(const std::string& images, const std::string& labels, const IdxOptions& options = {});

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return static_cast<int64_t>(labels_.size()); }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;  ///< of all images and labels

 private:
  std::vector<DataField> fields_;
  std::vector<uint8_t> images_, labels_;
  int64_t channels_ = 1, rows_ = 0, cols_ = 0;
};

/// A permutation of [0, n) that is a pure function of (n, seed, epoch) and needs no memory. n >= 1.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed, int64_t epoch);
  /// The image of i, 0 <= i < n.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t encrypt(uint64_t x) const;

  uint64_t n_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

struct BatchOptions {
  uint64_t seed = 0;
  bool shuffle = true;  ///< a new order in every epoch; false: the order of the source
  /// True: an endless stream of full batches; a batch may span two epochs. False: one epoch, whose
  /// last batch may be partial.
  bool repeat = true;
  /// The model's batch dim is bounded: every feed() sets its size. Required for a partial last
  /// batch, and then for every Batcher that feeds the same Session.
  bool bounded = false;
  bool drop_tail = false;     ///< one epoch: drop examples that do not fill a batch
  std::string dim = "batch";  ///< name of the batch dim
  /// Threads of each process that read the source, and the number of steps that they read ahead: a
  /// feed() takes no time as long as they keep up. They hold the local ranks' data of at most
  /// `steps_ahead` + 1 steps. 0 readers: feed() itself reads.
  int readers = 4, steps_ahead = 2;

  /// One epoch in the order of the source.
  static BatchOptions evaluation() {
    BatchOptions options;
    options.shuffle = options.repeat = false;
    return options;
  }
};

/// Feeds a Session. The data of a step is a pure function of (source, batch, options, step): the
/// same for every mesh and layout, and checkpoints need to store only the step. The source must
/// outlive the Batcher, whose destructor waits for reads that have begun. Use it from one thread at
/// a time.
class Batcher {
 public:
  /// `batch`: examples per step, over all ranks. Throws usage errors for batch < 1, and without
  /// `repeat` for a partial last batch if neither `bounded` nor `drop_tail` is set.
  Batcher(const DataSource& source, int64_t batch, const BatchOptions& options = {});
  ~Batcher();
  Batcher(Batcher&&) noexcept;

  /// Number of steps of one epoch, rounded up; rounded down with `drop_tail` without `repeat`.
  int64_t steps() const;
  /// Number of examples of a step: `batch`, or fewer in the last step without `repeat`. Throws a
  /// usage error for a step below 0 or beyond the last.
  int64_t rows(int64_t step) const;
  /// The index in the source of row `row` of a step.
  int64_t example(int64_t step, int64_t row) const;
  /// Feeds every field of the source for the next run and returns rows(step). Reads only the data
  /// of the local ranks. An input must have the dims of its field and the batch dim, in any order;
  /// its dims may be shorter than the data, then the leading part is used. Every process must call
  /// it with the same step. The steps that follow are read ahead with the same slices; whatever
  /// was read ahead and does not fit is read again, so that any order of steps is allowed. Throws
  /// usage errors for inputs that do not fit the fields, and io errors with field and example if
  /// the source threw for a row of this step, now or ahead.
  int64_t feed(Session& session, int64_t step,
               std::source_location at = std::source_location::current()) const;

 private:
  const DataSource& source_;
  int64_t batch_;
  BatchOptions options_;
  struct Reading;
  std::unique_ptr<Reading> reading_;
};

}  // namespace tessera
