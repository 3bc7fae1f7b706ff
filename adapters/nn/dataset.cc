#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "tutti/adapters/nn/data.h"
#include "tutti/base/error.h"
#include "tutti/kernels/counter_random.h"

namespace tutti::nn {

namespace {

Error bad_file(const std::string& file, const std::string& what) {
  return {ErrorCode::corrupt_data, fmt::format("\"{}\": {}", file, what)};
}

uint32_t big_endian(std::span<const std::byte> bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint32_t>(bytes[at + i]);
  return value;
}

// Returns the extents in the header of an IDX file whose elements are bytes and which has
// `dimensions` dimensions. The data follow the header.
std::vector<int64_t> idx_extents(const std::string& file, std::span<const std::byte> bytes,
                                 uint32_t magic, size_t dimensions) {
  const size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header)
    throw bad_file(
        file, fmt::format("{} bytes are too few for an IDX header of {}", bytes.size(), header));
  if (big_endian(bytes, 0) != magic)
    throw bad_file(file, fmt::format("the file begins with {}, expected the IDX magic {}",
                                     big_endian(bytes, 0), magic));
  std::vector<int64_t> extents;
  int64_t total = 1;
  bool is_empty = false;
  for (size_t i = 0; i < dimensions; ++i) {
    const uint32_t extent = big_endian(bytes, 4 + 4 * i);
    extents.push_back(extent);
    is_empty |= extent == 0;
    // Extents of 0 are left out, because a Shape multiplies the other extents even if the tensor is
    // empty.
    if (extent != 0 && __builtin_mul_overflow(total, int64_t{extent}, &total))
      throw bad_file(file, "the header counts more bytes than 64 bits can");
  }
  if (is_empty) total = 0;
  if (bytes.size() - header != static_cast<uint64_t>(total))
    throw bad_file(file, fmt::format("the header promises {} bytes of data, {} are there", total,
                                     bytes.size() - header));
  return extents;
}

Tensor copy_of(std::span<const std::byte> bytes, Shape shape) {
  Tensor tensor(std::move(shape), DataType::u8);
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

void check_labels(const std::string& file, const Tensor& labels, int64_t classes) {
  for (const uint8_t label : labels.span<uint8_t>())
    if (label >= classes)
      throw bad_file(file, fmt::format("a label is {}, expected 0 to {}", label, classes - 1));
}

}  // namespace

std::vector<std::byte> read_file(const std::string& file, size_t most_bytes) {
  // zlib reads plain files as they are.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(file.c_str(), "rb"), &gzclose);
  if (!in) throw system_error(fmt::format("cannot open \"{}\"", file), errno);
  std::vector<std::byte> bytes;
  constexpr size_t kPart = 1 << 20;
  while (true) {
    const size_t had = bytes.size();
    bytes.resize(had + kPart);
    const int got = gzread(in.get(), bytes.data() + had, kPart);
    if (got < 0) {
      int code = 0;
      throw bad_file(file, fmt::format("cannot be unpacked: {}", gzerror(in.get(), &code)));
    }
    bytes.resize(had + static_cast<size_t>(got));
    if (bytes.size() > most_bytes)
      throw bad_file(file, fmt::format("holds more than {} bytes", most_bytes));
    if (got == 0) break;
  }
  int code = Z_OK;
  const char* text = gzerror(in.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END)
    throw bad_file(file, fmt::format("is cut off or damaged: {}", text));
  return bytes;
}

Dataset read_mnist(const std::string& images_file, const std::string& labels_file) {
  const auto image_bytes = read_file(images_file), label_bytes = read_file(labels_file);
  const auto images = idx_extents(images_file, image_bytes, 2051, 3);
  const auto labels = idx_extents(labels_file, label_bytes, 2049, 1);
  if (images[0] != labels[0])
    throw bad_file(labels_file, fmt::format("{} labels do not fit the {} images of \"{}\"",
                                            labels[0], images[0], images_file));
  Dataset data;
  data.classes = 10;
  data.images = copy_of(std::span(image_bytes).subspan(16), {images[0], 1, images[1], images[2]});
  data.labels = copy_of(std::span(label_bytes).subspan(8), {labels[0]});
  check_labels(labels_file, data.labels, data.classes);
  return data;
}

Dataset read_cifar10(const std::vector<std::string>& files) {
  constexpr size_t kImage = 3 * 32 * 32, kRecord = kImage + 1;
  std::vector<std::byte> images, labels;
  for (const auto& file : files) {
    const auto bytes = read_file(file);
    if (bytes.empty() || bytes.size() % kRecord != 0)
      throw bad_file(file, fmt::format("{} bytes are not a whole number of records of {}",
                                       bytes.size(), kRecord));
    for (size_t at = 0; at < bytes.size(); at += kRecord) {
      labels.push_back(bytes[at]);
      images.insert(images.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at + 1),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at + kRecord));
      if (static_cast<int>(bytes[at]) > 9)
        throw bad_file(file,
                       fmt::format("a label is {}, expected 0 to 9", static_cast<int>(bytes[at])));
    }
  }
  Dataset data;
  data.classes = 10;
  const auto count = static_cast<int64_t>(labels.size());
  data.images = copy_of(images, {count, 3, 32, 32});
  data.labels = copy_of(labels, {count});
  return data;
}

TextDataset::TextDataset(const std::string& file, int64_t length)
    : text_(read_file(file)), length_(length) {
  if (length < 1 || text_.size() <= static_cast<size_t>(length))
    throw bad_file(file, fmt::format("{} bytes, expected more than {} for one sequence; give "
                                     "another text, or sequences of 1 byte to fewer than it has",
                                     text_.size(), length));
}

Sequences TextDataset::sequences(uint64_t seed, uint32_t step, int64_t first, int64_t count) const {
  const Tensor input(Shape{count, length_}, DataType::i64), next(input.shape(), DataType::i64);
  const RandomKey key{.seed = seed, .purpose = random_purpose("place"), .step = step};
  for (int64_t row = 0; row < count; ++row) {
    const auto bits = random_block(key, static_cast<uint64_t>(first + row))[0];
    const auto* from = text_.data() + bits % (text_.size() - static_cast<size_t>(length_));
    for (int64_t i = 0; i < length_; ++i) {
      input.as<int64_t>()[row * length_ + i] = static_cast<int64_t>(from[i]);
      next.as<int64_t>()[row * length_ + i] = static_cast<int64_t>(from[i + 1]);
    }
  }
  return {input, next};
}

}  // namespace tutti::nn
