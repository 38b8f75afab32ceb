// Data sources, and the batches that are fed from them to a Session, slice by slice.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/dim.h"
#include "tessera/dtype.h"

namespace tessera {

class Session;
class MappedFile;

/// One named tensor of every example. `dims` are those of one example, without the batch.
struct DataField {
  std::string name;
  DType dtype = DType::float32;
  std::vector<Dim> dims;
};

/// A box of one field of one example and where it goes: element (i0, i1, ...) with i_d < extent[d]
/// is element (offset[d] + i_d) of the field and goes to `data` + sum i_d * strides[d] elements.
/// One entry per dim of the field, in its order; all three are empty for a field without dims.
struct DataBox {
  void* data = nullptr;
  std::vector<int64_t> offset, extent, strides;
};

/// A fixed set of examples in random access. Implementations are not changed by reading, so that
/// several threads may read one source. A source of a user's own overrides these three.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// The fields, in an order that never changes.
  virtual const std::vector<DataField>& fields() const = 0;
  /// Number of examples, at least 1.
  virtual int64_t examples() const = 0;
  /// Writes one box of field number `field` of one example, in the dtype of the field. The caller
  /// answers for example < examples() and for a box within the field. Throws io errors.
  virtual void read(int64_t example, int field, const DataBox& box) const = 0;
  /// Says which data these are, wherever they lie: ranks of a job compare it, and --resume does.
  /// By default the number of examples and a checksum of at most 4,096 of them.
  virtual std::string fingerprint() const;
};

/// How a TextData cuts a file.
struct TextOptions {
  int64_t length = 64;  ///< tokens of one example
  /// The part of the file that is used, as fractions of its tokens: 0 to 0.9 to train and 0.9 to 1
  /// to evaluate hold out the last 10 % and share no token.
  double first = 0.0, last = 1.0;
  int token_bytes = 1;  ///< 1: every byte is a token. 2: a file of little-endian uint16 tokens
  int64_t vocabulary =
      0;  ///< tokens are below it; 0: 256 or 65,536. A larger token in the file is an io error
  std::string inputs = "inputs", targets = "targets", dim = "length";
};

/// The tokens of a file, mapped and never loaded as a whole. Example i is the window of length + 1
/// tokens that starts at token i * length of the used part: `inputs` (int32 [length]) are its
/// first, `targets` its last `length` tokens. floor((tokens - 1) / length) examples. The file must
/// not be truncated while it is mapped.
class TextData : public DataSource {
 public:
  /// Throws io errors for a missing, empty or too short file and an odd number of bytes of uint16
  /// tokens; usage errors for bad options.
  explicit TextData(const std::string& path, const TextOptions& options = {});

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return examples_; }
  void read(int64_t example, int field, const DataBox& box) const override;
  /// A checksum of the file, or of 256 MiB of it, evenly spread, if it is longer; with the options.
  std::string fingerprint() const override;
  int64_t vocabulary() const { return options_.vocabulary; }

 private:
  int32_t token(int64_t position) const;

  std::string path_;
  TextOptions options_;
  std::vector<DataField> fields_;
  std::shared_ptr<const MappedFile> file_;
  int64_t begin_ = 0, examples_ = 0;  // begin_ in tokens of the file
};

struct IdxOptions {
  DType image_dtype = DType::float32;  ///< float32: scaled to [0, 1]. uint8: as in the file
  std::string images = "images", labels = "labels", rows = "rows", cols = "cols";
};

/// Images and their labels in a pair of IDX files (the format of MNIST), plain or gzip, held in
/// memory as bytes: `images` [rows, cols] and `labels` (int32 []).
class IdxData : public DataSource {
 public:
  /// Throws io errors for a missing or truncated file, a wrong magic number, bytes behind the end,
  /// no images, and another number of labels than images; a usage error for an image dtype that is
  /// not float32 or uint8.
  IdxData(const std::string& images, const std::string& labels, const IdxOptions& options = {});

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return static_cast<int64_t>(labels_.size()); }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;  ///< of all images and labels

 private:
  std::vector<DataField> fields_;
  std::vector<uint8_t> images_, labels_;
  int64_t rows_ = 0, cols_ = 0;
};

/// A bijection of [0, n) that is a pure function of (n, seed, epoch) and needs no memory. n >= 1.
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
  /// True: an endless stream of full batches, one epoch behind the other (a batch may span two).
  /// False: one pass, whose last batch may be partial.
  bool repeat = true;
  /// The batch dim of the model is bounded: every feed() sets its size. Needed for a partial last
  /// batch, and then by every Batcher that feeds the same Session.
  bool bounded = false;
  bool drop_tail = false;     ///< one pass: leaves out the examples that do not fill a batch
  std::string dim = "batch";  ///< the dim of the model that indexes examples

  /// One pass in the order of the source.
  static BatchOptions evaluation() {
    BatchOptions options;
    options.shuffle = options.repeat = false;
    return options;
  }
};

/// Feeds a Session. What a step gets is a pure function of (source, batch, options, step): the same
/// for every mesh and layout, with nothing to save in a checkpoint but the step. The source
/// outlives the Batcher. Used by one thread at a time.
class Batcher {
 public:
  /// `batch` examples a step, over all ranks. Throws usage errors for batch < 1, and for one pass
  /// that ends in a partial batch without `bounded` or `drop_tail`.
  Batcher(const DataSource& source, int64_t batch, const BatchOptions& options = {});

  /// Steps of one pass (of one epoch, rounded up, where the stream is endless).
  int64_t steps() const;
  /// Examples of a step: `batch`, or fewer in the last step of one pass. Throws a usage error for a
  /// step below 0 or beyond one pass.
  int64_t rows(int64_t step) const;
  /// The example that is row `row` of a step.
  int64_t example(int64_t step, int64_t row) const;
  /// Fills the input of every field of the source for the next run, reading only what the local
  /// ranks hold, and returns rows(step). The dims of an input are those of its field and the batch
  /// dim, in any order, and may be shorter than the data (its leading part is used). Called in
  /// every process with the same step. Throws usage errors for inputs that do not fit the fields,
  /// io errors with field and example for what the source throws.
  int64_t feed(Session& session, int64_t step) const;

 private:
  const DataSource& source_;
  int64_t batch_;
  BatchOptions options_;
  void read(int64_t example, int field) const;
  mutable DataBox box_;  ///< of feed(), whose memory is used again
};

}  // namespace tessera
