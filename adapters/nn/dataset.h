#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::nn {

/// Images as bytes [count, channels, height, width], with one label each, in memory.
struct Dataset {
  Tensor images;  // u8
  Tensor labels;  // u8
  int64_t classes = 0;
  int64_t count() const { return labels.count(); }
};

/// Reads MNIST's IDX format: images (magic 2051) and labels (magic 2049), plain or gzipped. Throws
/// Error(io) or Error(corrupt_data), which names the file, what was expected and what was found.
Dataset read_mnist(const std::string& images_file, const std::string& labels_file);

/// Reads CIFAR-10's binary format: records of a label and 3 x 32 x 32 bytes, plain or gzipped. The
/// files are read one after another.
Dataset read_cifar10(const std::vector<std::string>& files);

/// Sequences of bytes, and for each byte the one that follows it. A language model of bytes learns
/// to predict the latter.
struct Sequences {
  Tensor input, next;  // i64 [count, length], 0 to 255
};

/// A text in memory whose tokens are its bytes. The file is plain or gzipped.
class TextDataset {
 public:
  /// Throws the errors of read_file(), and Error(corrupt_data) if the file has no more than
  /// `length` bytes. One sequence needs one byte more than that.
  TextDataset(const std::string& file, int64_t length);
  /// Returns sequences `first` to first + count - 1 of the step's batch. Each begins at a position
  /// that is drawn from (seed, step, number of the sequence), so every rank would get the same
  /// sequences.
  Sequences sequences(uint64_t seed, uint32_t step, int64_t first, int64_t count) const;

 private:
  std::vector<std::byte> text_;
  const int64_t length_;
};

/// Reads a whole file, unpacked if it is gzipped, of at most `most_bytes`. Throws the errors of
/// read_mnist().
std::vector<std::byte> read_file(const std::string& file, size_t most_bytes = size_t{1} << 31);

}  // namespace tutti::nn
