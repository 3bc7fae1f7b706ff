#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::nn {

/// Images as bytes [count, channels, height, width] and a label each, in memory.
struct Dataset {
  Tensor images;  // u8
  Tensor labels;  // u8
  int64_t classes = 0;
  int64_t count() const { return labels.count(); }
};

/// MNIST's IDX format: images (magic 2051) and labels (magic 2049), plain or gzipped. Throws
/// Error(io | corrupt_data) that names the file, what was expected and what is there.
Dataset read_mnist(const std::string& images_file, const std::string& labels_file);

/// CIFAR-10's binary format: records of a label and 3 x 32 x 32 bytes, plain or gzipped; the files
/// one after another.
Dataset read_cifar10(const std::vector<std::string>& files);

/// Of each byte of a sequence the one that follows: what a language model of bytes learns.
struct Sequences {
  Tensor input, next;  // i64 [count, length], 0 to 255
};

/// A text whose tokens are its bytes, in memory; plain or gzipped.
class TextDataset {
 public:
  /// Throws what read_file() does, and Error(corrupt_data) where it has not more than `length`
  /// bytes, of which one sequence is.
  TextDataset(const std::string& file, int64_t length);
  /// Sequences `first` to first + count - 1 of the step's batch, each from a place drawn by (seed,
  /// step, its number), whatever rank asks for it.
  Sequences sequences(uint64_t seed, uint32_t step, int64_t first, int64_t count) const;

 private:
  std::vector<std::byte> text_;
  const int64_t length_;
};

/// A whole file, unpacked if it is gzipped, at most `most_bytes`. Throws as above.
std::vector<std::byte> read_file(const std::string& file, size_t most_bytes = size_t{1} << 31);

}  // namespace tutti::nn
